//! `session keep`.

use clap::Args;
use rustix::process::Pid;

use super::{
    super::{Cluster, Exit, Failure, complain, job::Signals, show},
    Which, process,
};

/// Renews a session until it is lost (exit code 11), until a process is gone (0), or until it is told to stop.
///
/// The session is not closed at the end. When an operator takes a grant back, that is said on stderr.
#[derive(Args, Debug)]
pub(super) struct Keep {
    #[command(flatten)]
    which: Which,
    /// Stop when this process is gone.
    #[arg(long = "while", value_name = "PID", value_parser = parse_pid)]
    process: Option<Pid>,
    #[command(flatten)]
    cluster: Cluster,
}

impl Keep {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::new()?;
        let session = self.cluster.client()?.attach(self.which.session);
        let gone = process::gone(self.process)?;
        let renewals = session.keep_alive(|token, reason| {
            complain(&format!("an operator revoked token {}: {}; stop, and release it", token.0, show::text(reason)));
        });
        tokio::select! {
            loss = renewals => Err(Failure::new(Exit::Lost, format!("session {}: {}", session.id(), loss?))),
            gone = gone => gone.map(|()| Exit::Success).map_err(Failure::from),
            signal = signals.next() => Ok(Exit::Signal(signal.as_raw())),
        }
    }
}

fn parse_pid(text: &str) -> Result<Pid, String> {
    text.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(|| "not the id of a process".to_owned())
}
