//! Redis' protocol over a keyspace with revisions, deadlines and transactions, for the lock clients that speak it.
//!
//! ```text
//! port        accepts connections; the one thing that a program needs
//! connection  bytes and deadlines of one connection
//! session     what lasts from one request to the next: who the client is, transactions, watched keys
//! fast        commands of plain locks as one transaction, without a read before
//! unit        commands that run at one moment: here or at the leader, and again if something has changed
//! signals     clients that wait, over all nodes: blocking pops, channels
//! script      what runs scripts, and how a script meets the keyspace
//! commands    a table, and a file for each family
//! view        the keyspace, as the commands of a unit see it
//! data        values, and how they lie in the store
//! resp        requests in, replies out
//! libraries   what clients do, by their library: for metrics
//! reserved    channels on which clients do not publish
//! listen      where connections come from: a parameter
//! store       the keyspace: a parameter
//! ```
//!
//! The store knows nothing of Redis, and this crate knows nothing of replication: a program that implements [`RedisStore`] gets the port by
//! [`Redis::serve`], and gives the units of other nodes to [`Redis::run_unit`].
//!
//! What is served, each difference from Redis, and what is left out are in `README.md`.

mod clients;
mod commands;
mod connection;
mod connection_limits;
mod data;
mod fast;
#[doc(hidden)]
pub mod fuzzing;
mod key;
mod libraries;
mod listen;
mod node;
mod number;
mod options;
mod port;
mod replies;
mod reserved;
mod resp;
mod script;
mod session;
mod sha1;
mod signals;
mod store;
#[cfg(test)]
mod tests;
mod unit;
mod view;

pub use connection_limits::ConnectionLimits;
pub use key::{is_key_of_client, is_lock_of_key};
pub use libraries::LibraryUse;
pub use listen::RedisListener;
pub use lockkeeper_accept::{ConnectionSource, Refusals};
pub use options::{RedisLimits, RedisOptions, RunApart};
pub use port::Redis;
pub use resp::{RedisReply, RequestLimits};
pub use script::{CallAborted, Interpreter, ScriptFailure, ScriptHost, ScriptLimits};
pub use store::{
    ClientConnection, Expiry, LockClaim, NodeAddress, RedisCaller, RedisChange, RedisCommitted, RedisCondition,
    RedisEntry, RedisFound, RedisIdentity, RedisPage, RedisStore, RedisStoreError, RedisTxn, RedisWrite,
};
