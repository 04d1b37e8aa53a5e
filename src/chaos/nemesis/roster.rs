//! The nodes that may join during a run, and the operation in flight.

use tokio::task::JoinHandle;

use super::Fault;
use crate::server::config::Member;

/// An operation in flight.
#[derive(Debug)]
pub(in crate::chaos) struct Operation {
    pub(super) fault: Fault,
    /// The request to the cluster.
    pub(super) request: Option<JoinHandle<Result<(), String>>>,
    /// The address of a new node, until the node is started.
    pub(super) starts: Option<Member>,
    /// The id of a new node.
    pub(super) joins: Option<u64>,
    pub(super) leaves: Option<u64>,
}

/// The addresses for an operation.
#[derive(Debug)]
pub(in crate::chaos) struct Roster {
    /// Initial number of nodes.
    pub(in crate::chaos) initial: usize,
    /// The addresses of all nodes, past, present and possible.
    pub(in crate::chaos) all: Vec<Member>,
    /// The addresses that were not used yet, the next one last.
    pub(in crate::chaos) spares: Vec<Member>,
}
