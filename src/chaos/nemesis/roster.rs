//! The nodes that may join during a run, and the operation that is under way.

use tokio::task::JoinHandle;

use super::Fault;
use crate::server::config::Member;

/// An operation that is under way.
#[derive(Debug)]
pub(in crate::chaos) struct Operation {
    pub(super) fault: Fault,
    /// The request to the cluster.
    pub(super) request: Option<JoinHandle<Result<(), String>>>,
    /// A new node, until it is started.
    pub(super) starts: Option<Member>,
    /// A new node.
    pub(super) joins: Option<u64>,
    pub(super) leaves: Option<u64>,
}

/// The addresses for an operation.
#[derive(Debug)]
pub(in crate::chaos) struct Roster {
    /// Initial number of nodes.
    pub(in crate::chaos) initial: usize,
    /// The addresses of all nodes that there were and may be.
    pub(in crate::chaos) all: Vec<Member>,
    /// Those of them that were not used yet, the next one last.
    pub(in crate::chaos) spares: Vec<Member>,
}
