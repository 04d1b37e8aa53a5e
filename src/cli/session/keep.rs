//! `session keep`.

use std::time::Duration;

use clap::Args;
use rustix::process::Pid;

use super::{
    super::{ClusterArguments, Exit, Failure, complain, job::JobSignals, show},
    Which, process,
};
use crate::{
    client::{Danger, Error},
    machine::SessionId,
};

/// Renews a session until it is lost or nearly lost (exit code 11), until a process has exited (0), or until it is
/// stopped.
///
/// Without contact to the cluster it ends `margin` *before* the session's deadline: that is the time for stopping the
/// work before other sessions can get its locks. The session is not closed at the end. When an operator revokes a
/// grant, this is reported on stderr.
#[derive(Args, Debug)]
pub(super) struct SessionKeep {
    #[command(flatten)]
    which: Which,
    /// Stop when this process has exited
    #[arg(long = "while", value_name = "PID", value_parser = parse_pid)]
    process: Option<Pid>,
    /// How long before the deadline to end, at most half of the session's TTL: 2s, 30s, for example [default: a fifth
    /// of the TTL]
    #[arg(long, value_parser = super::super::arguments::duration, value_name = "TIME")]
    margin: Option<Duration>,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl SessionKeep {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = JobSignals::new()?;
        let session = self.cluster.client()?.attach(self.which.session);
        let gone = process::gone(self.process)?;
        let renewals = session.keep_alive(self.margin, |token, reason| {
            complain(&format!("an operator revoked token {}: {}; stop, and release it", token.0, show::text(reason)));
        });
        tokio::select! {
            danger = renewals => Err(ended(session.id(), danger, self.margin)),
            gone = gone => gone.map(|()| Exit::Success).map_err(Failure::from),
            signal = signals.next() => Ok(Exit::Signal(signal.as_raw())),
        }
    }
}

/// Why the renewals ended.
fn ended(id: SessionId, danger: Result<Danger, Error>, margin: Option<Duration>) -> Failure {
    match danger {
        Ok(Danger { loss: Some(loss), .. }) => Failure::new(Exit::Lost, format_args!("session {id}: {loss}")),
        Ok(Danger { left, loss: None }) => {
            let left = show::duration(left);
            Failure::new(
                Exit::Lost,
                format_args!(
                    "session {id}: no contact with the cluster; stop now: it may be trusted for another {left}"
                ),
            )
        }
        Err(Error::NotEnsured { left, .. }) => {
            let margin = margin.unwrap_or_default();
            let left = show::duration(left);
            Failure::new(
                Exit::Usage,
                format_args!(
                    "margin {margin:?} exceeds half of the session's TTL, which is {left}: choose a shorter margin"
                ),
            )
        }
        Err(error) => error.into(),
    }
}

fn parse_pid(text: &str) -> Result<Pid, String> {
    let wrong = || format!("{text:?} is not a process id: give a number from 1 on");
    text.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or_else(wrong)
}
