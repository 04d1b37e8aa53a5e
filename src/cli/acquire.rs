//! `acquire`: takes locks in a session that outlives this command.
//!
//! Whatever goes wrong, the session holds nothing afterwards that nobody knows the token of: a wait that is interrupted, an acquire whose
//! answer does not come, a token that cannot be printed are all taken back, as far as the cluster can be reached. Where it cannot, that
//! is said, and closing the session helps.

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    job::Signals,
    output::{Format, Output, print, print_document},
    session,
    wanted::Wanted,
};
use crate::{
    client::{AttachedAcquire, AttachedSession, Error},
    machine::Token,
};

/// Acquires a lock in a session, or several at once, all or nothing, and prints the token.
///
/// They are held until `release`, or until the session ends. Exit code 10 says that they were not to be had, or not in time.
#[derive(Args, Debug)]
pub(super) struct Acquire {
    #[command(flatten)]
    within: session::In,
    #[command(flatten)]
    wanted: Wanted,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
    token: u64,
    names: Vec<String>,
    session_id: String,
}

impl Acquire {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::new()?;
        let request = self.wanted.acquire().map_err(Error::from)?;
        let session = self.cluster.client()?.attach(self.within.session);
        let mut acquire = session.acquire(request);
        let granted = tokio::select! {
            granted = acquire.granted() => granted,
            signal = signals.next() => {
                give_up(acquire).await?;
                return Ok(Exit::Signal(signal.as_raw()));
            }
        };
        let token = match granted {
            Ok(token) => token,
            Err(Error::Unknown { why }) => {
                give_up(acquire).await?;
                let why = format!("no answer in time (last: {why}); the acquire was taken back: try again");
                return Err(Failure::new(Exit::NoCluster, why));
            }
            Err(error) => return Err(error.into()),
        };
        match self.print(&session, token) {
            Ok(()) => Ok(Exit::Success),
            Err(error) => {
                session.release(token).await.map_err(Failure::of_holder)?;
                Err(Failure::new(Exit::Error, format!("nobody read the token, so it was released: {error}")))
            }
        }
    }

    /// As the grant has them, and as `lock` tells them.
    fn sorted_names(&self) -> Vec<String> {
        let mut names = self.wanted.names.clone();
        names.sort();
        names
    }

    fn print(&self, session: &AttachedSession, token: Token) -> std::io::Result<()> {
        match self.output.output {
            Format::Text => print(&format!("{}\n", token.0)),
            Format::Json => print_document(&Document {
                token: token.0,
                names: self.sorted_names(),
                session_id: session.id().to_string(),
            }),
        }
    }
}

async fn give_up(acquire: AttachedAcquire) -> Result<(), Failure> {
    acquire.abandon().await.map_err(|error| {
        let message =
            format!("the acquire was not taken back ({error}): close the session to be sure that it holds nothing");
        Failure::new(Exit::Unknown, message)
    })
}
