//! The nodes that may join during a run, and the operation in flight.

use tokio::task::JoinHandle;

use lockkeeper_config::ConfiguredMember;

use super::Fault;

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct OpenOperation {
    pub(super) fault: Fault,
    /// The request to the cluster.
    pub(super) request: Option<JoinHandle<Result<(), String>>>,
    /// The address of a new node, until the node is started.
    pub(super) starts: Option<ConfiguredMember>,
    /// The id of a new node.
    pub(super) joins: Option<u64>,
    pub(super) leaves: Option<u64>,
}

/// The addresses for an operation.
#[derive(Debug)]
pub(crate) struct Roster {
    /// Initial number of nodes.
    pub(crate) initial: usize,
    /// The addresses of all nodes, past, present and possible.
    pub(crate) all: Vec<ConfiguredMember>,
    /// The addresses that were not used yet, the next one last.
    pub(crate) spares: Vec<ConfiguredMember>,
}
