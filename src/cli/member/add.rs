//! `lockkeeper member add` adds a node that runs and waits to be added.

use clap::Args;

use super::{Waits, wait};
use crate::{
    cli::{ClusterArguments, Exit, Failure, output::print},
    client::NewMember,
};

/// Adds a node, which gets the data and becomes a voter when it has caught up. A node that is started with --join adds
/// itself: this command is for one that is not.
///
/// The node must run already, without data of another cluster; the leader asks it who it is.
#[derive(Args, Debug)]
pub(super) struct Add {
    /// An id that no node of the cluster ever had
    #[arg(value_name = "NODE_ID")]
    node_id: u64,
    /// Where its peers reach it
    #[arg(long, value_name = "HOST:PORT")]
    peer_address: String,
    /// Where clients reach it
    #[arg(long, value_name = "HOST:PORT")]
    client_address: String,
    /// It stays a learner, a copy without a vote, until `lockkeeper member promote`
    #[arg(long)]
    learner: bool,
    #[command(flatten)]
    waits: Waits,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Add {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let Self { node_id, peer_address, client_address, learner, waits, cluster } = self;
        let client = cluster.client()?;
        client.add_member(&NewMember { node_id, client_address, peer_address, stays_learner: learner }).await?;
        if learner {
            print(&format!("node {node_id} is a learner\n"))?;
            return Ok(Exit::Success);
        }
        wait::until_voter(&client, node_id, &waits).await
    }
}
