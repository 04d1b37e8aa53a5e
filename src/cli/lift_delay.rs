//! `lockkeeper lift-delay` ends the lock-delay of a lock.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
    show,
};

/// Ends the lock-delay that keeps a lock closed after its holder was lost. Only for a holder that is known to be dead:
/// a live one could still be working.
#[derive(Args, Debug)]
pub(super) struct LiftLockDelay {
    /// The lock
    name: String,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct LiftDelayReport {
    /// How long the lock-delay would have lasted, milliseconds; `null` if there was none.
    lifted_ms: Option<u64>,
}

impl LiftLockDelay {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let lifted = self.cluster.client()?.lift_delay(&self.name).await?;
        match (self.output.output, lifted) {
            (Format::Json, _) => print_document(&LiftDelayReport { lifted_ms: lifted.map(show::millis) })?,
            (Format::Text, Some(left)) => {
                print(&format!("ended the lock-delay, which had {} left\n", show::duration(left)))?
            }
            (Format::Text, None) => print(&format!("lock {} has no lock-delay\n", show::text(&self.name)))?,
        }
        Ok(Exit::Success)
    }
}
