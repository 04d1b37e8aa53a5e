//! Redis' protocol over a keyspace with revisions, deadlines and transactions, for the lock clients that speak it.
//!
//! ```text
//! resp        requests in, replies out
//! script      what runs scripts, and how a script meets the keyspace
//! listen      where connections come from: a parameter
//! store       the keyspace: a parameter
//! ```
//!
//! The store knows nothing of Redis, and this crate knows nothing of replication.

#![warn(clippy::match_bool)]

mod listen;
mod resp;
mod script;
mod store;

pub use listen::ClientListener;
pub use lockkeeper_accept::Refusals;
pub use resp::RedisReply;
pub use script::{CallAborted, Interpreter, ScriptFailure, ScriptHost, ScriptLimits};
pub use store::{
    EntriesPage, EntryCondition, EntryTxn, EntryWrite, Expiry, FoundEntries, LockClaim, NodeAddress, RedisStore,
    Requester, StoreFailure, StoredEntry, TxnOutcome,
};
