//! `lockkeeper acquire` acquires locks in a session that outlives this command.
//!
//! On any failure the session must hold no grant whose token is unknown: an interrupted wait, an acquire without an
//! answer and a grant whose token cannot be printed are released, if the cluster can be reached. Otherwise the error
//! advises to close the session.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    job::JobSignals,
    output::{Format, Output, deliver, deliver_document},
    session,
    wanted::WantedLocks,
};
use crate::{
    client::{AttachedAcquire, AttachedSession, Error},
    machine::Token,
};

/// Acquires a lock in a session, or several at once, all or nothing, and prints the token.
///
/// They are held until `release`, or until the session ends. Exit code 10: they were not available, or not in time.
#[derive(Args, Debug)]
pub(super) struct LockAcquisition {
    #[command(flatten)]
    within: session::In,
    #[command(flatten)]
    wanted: WantedLocks,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct AcquireReport {
    token: u64,
    names: Vec<String>,
    session_id: String,
}

impl LockAcquisition {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = JobSignals::new()?;
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
                let without_last = "no answer in time; the acquire was withdrawn: try again";
                let message = format!("no answer in time (last: {why}); the acquire was withdrawn: try again");
                return Err(Failure::unanswered(Exit::NoCluster, message, without_last));
            }
            Err(error) => return Err(error.into()),
        };

        match self.deliver(&session, token) {
            Ok(()) => Ok(Exit::Success),
            Err(error) => {
                session.release(token).await.map_err(Failure::for_holder)?;
                Err(Failure::new(Exit::Error, format!("the token could not be printed, so it was released: {error}")))
            }
        }
    }

    /// Sorted, as in the grant and in the output of `lock`.
    fn sorted_names(&self) -> Vec<String> {
        let mut names = self.wanted.names.clone();
        names.sort();
        names
    }

    fn deliver(&self, session: &AttachedSession, token: Token) -> std::io::Result<()> {
        match self.output.output {
            Format::Text => deliver(&format!("{}\n", token.0)),
            Format::Json => deliver_document(&AcquireReport {
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
            format!("the acquire could not be withdrawn ({error}): close the session to release all that it holds");
        Failure::new(Exit::Unknown, message)
    })
}
