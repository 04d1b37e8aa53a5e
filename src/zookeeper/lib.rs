//! ZooKeeper's client protocol over a store of entries with parents, sessions that own them, and transactions.
//!
//! ```text
//! port        accepts connections; the one thing that a program needs
//! connection  bytes and deadlines of one connection
//! session     a client whose session is open: requests, replies, the order of what it is told
//! words       words of four letters, for probes
//! writes      requests become transactions
//! watches     the feed of applied changes becomes events
//! tree        nodes: paths, values, access lists
//! sweep       nodes that end by themselves
//! node        what all connections share
//! wire        frames and records: requests in, replies out
//! listen      where connections come from: a parameter
//! store       the entries: a parameter
//! ```
//!
//! The store knows nothing of ZooKeeper, and this crate knows nothing of replication: a program that implements [`ZookeeperStore`] gets the
//! port by [`Zookeeper::serve`], and calls [`Zookeeper::sweep`] where it leads.
//!
//! What is served, the guarantees of order, each difference from ZooKeeper, and what is left out are in `README.md`.

mod connection;
#[doc(hidden)]
pub mod fuzzing;
mod listen;
mod node;
mod options;
mod password;
mod port;
mod session;
mod stats;
mod store;
mod sweep;
#[cfg(test)]
mod tests;
mod tree;
mod watches;
mod wire;
mod words;
mod writes;

pub use listen::ZookeeperListener;
pub use lockkeeper_accept::Refusals;
pub use options::{ZookeeperLimits, ZookeeperOptions};
pub use port::Zookeeper;
pub use stats::ZookeeperStats;
pub use store::{
    AppliedFeed, AppliedStep, AppliedZnodes, AttachOutcome, ChildCounts, CloseOutcome, NodeRole, NumberedSession,
    SessionStart, TxnRefusal, WriteRefusal, ZookeeperCaller, ZookeeperChange, ZookeeperChangeKind, ZookeeperCommitted,
    ZookeeperCondition, ZookeeperEntry, ZookeeperIdentity, ZookeeperStore, ZookeeperStoreError, ZookeeperTxn,
    ZookeeperWrite,
};
