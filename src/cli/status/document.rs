//! The document of `status -o json`. Its fields are stable: fields may be added, but keep their names and meanings.

use serde::Serialize;

use super::super::nodes::{AskedNode, trouble};
use crate::client::NodeStatus;

#[derive(Serialize)]
pub(super) struct StatusReport {
    nodes: Vec<NodeReport>,
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum NodeReport {
    Answered(Box<AnsweredReport>),
    Silent(SilentReport),
}

/// A node that answered: its status as the client shows it, and what follows from those of the others.
#[derive(Serialize)]
pub(super) struct AnsweredReport {
    address: String,
    health: &'static str,
    lag: u64,
    #[serde(flatten)]
    status: NodeStatus,
}

/// A node that did not answer: its problem, and its id if another node knows it.
#[derive(Serialize)]
pub(super) struct SilentReport {
    node_id: Option<u64>,
    address: String,
    health: &'static str,
    trouble: Option<String>,
}

impl StatusReport {
    pub(super) fn new(nodes: &[AskedNode], tip: u64) -> Self {
        Self { nodes: nodes.iter().map(|node| NodeReport::new(node, tip)).collect() }
    }
}

impl NodeReport {
    pub(super) fn new(node: &AskedNode, tip: u64) -> Self {
        let address = node.address.clone();
        let trouble = Some(trouble(node)).filter(|trouble| !trouble.is_empty());
        let Ok(status) = &node.answer else {
            return Self::Silent(SilentReport { node_id: node.node_id, address, health: "down", trouble });
        };

        let health = if status.serving { "ok" } else { "not_serving" };
        let lag = tip.saturating_sub(status.applied_index);
        let mut status = status.clone();
        status.trouble = trouble;
        Self::Answered(Box::new(AnsweredReport { address, health, lag, status }))
    }
}
