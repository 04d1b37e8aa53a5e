//! ZooKeeper's client protocol over a store of entries with parents, sessions that own them, and transactions.
//!
//! ```text
//! wire        frames and records: requests in, replies out
//! store       the entries: a parameter
//! ```
//!
//! The store knows nothing of ZooKeeper, and this crate knows nothing of replication.

#![warn(clippy::match_bool)]

#[doc(hidden)]
pub mod fuzzing;
mod store;
#[cfg(test)]
mod tests;
#[allow(dead_code, unused_imports, reason = "the operations that use the rest follow")]
mod wire;

pub use store::{
    AppliedFeed, AppliedStep, AppliedZnodes, AttachOutcome, ChildCounts, CloseOutcome, NodeRole, NumberedSession,
    SessionStart, StoredZnode, TxnRefusal, TxnVerdict, WriteRefusal, ZnodeChange, ZnodeChangeKind, ZnodeCondition,
    ZnodeRequester, ZnodeTxn, ZnodeWrite, ZookeeperFailure, ZookeeperStore,
};
