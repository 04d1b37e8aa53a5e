//! `lockkeeper transfer-leader` makes another node lead.

use clap::Args;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
};

/// Hands the leadership to another node, which must have a vote, answer and be caught up.
#[derive(Args, Debug)]
pub(super) struct TransferLeadership {
    /// The node that is to lead. Default: the one whose log is furthest
    #[arg(value_name = "NODE_ID")]
    to: Option<u64>,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct TransferReport {
    leader_id: u64,
}

impl TransferLeadership {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let leader_id = self.cluster.client()?.transfer_leader(self.to).await?;
        match self.output.output {
            Format::Text => print(&format!("node {leader_id} leads\n"))?,
            Format::Json => print_document(&TransferReport { leader_id })?,
        }
        Ok(Exit::Success)
    }
}
