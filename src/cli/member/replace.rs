//! `lockkeeper member replace` puts a new node in the place of a dead one.

use clap::Args;

use super::{Waits, wait};
use crate::cli::{ClusterArguments, Exit, Failure, output::print};

/// Replaces a node, such as one whose machine is dead, by a new one: the new node gets the data, becomes a voter when it
/// has caught up, and the old one is removed, in one change.
///
/// The new node is the next one that joins (`lockkeeper serve --join`), or one that is catching up; it may be started
/// before or after this command.
#[derive(Args, Debug)]
pub(super) struct Replace {
    /// The node that leaves
    #[arg(value_name = "OLD")]
    old: u64,
    /// The node that takes its place. If it is a voter already, the old one is only removed
    #[arg(long, value_name = "NODE_ID")]
    with: Option<u64>,
    /// Do not replace it after all
    #[arg(long, conflicts_with = "with")]
    cancel: bool,
    #[command(flatten)]
    waits: Waits,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Replace {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let Self { old, with, cancel, waits, cluster } = self;
        let client = cluster.client()?;
        if cancel {
            client.keep_member(old).await?;
            print(&format!("node {old} stays\n"))?;
            return Ok(Exit::Success);
        }
        client.replace_member(old, with).await?;
        wait::until_replaced(&client, old, &waits).await
    }
}
