//! etcd's API over a keyspace with revisions, transactions, leases and events: for its lock clients.
//!
//! ```text
//! routes      which services there are
//! methods     what is known of a call before its message is read
//! codec       what is known of a message before it is decoded
//! gateway     the same as JSON over HTTP
//! object_scan where a message of JSON ends
//! kv  lease  watch  lock  election  maintenance  cluster  auth
//!             a service each
//! call        what all of them share: who asks, whether there is a leader
//! follow      the events of a range, in whole revisions
//! fragments   these events as messages of a watch
//! queue       the recipe that locks and elections share
//! large       answers of several pages, and their turns
//! range  txn  what reads and transactions of etcd's are in the store
//! check  header  error  key
//!             etcd's words: what it refuses, headers, errors, keys, ranges, leases
//! store       the keyspace: a parameter
//! ```
//!
//! The store knows nothing of all this, and this crate nothing of replication: whoever implements [`EtcdStore`] has the services with
//! [`services`]. They hold no state but what their open streams need.
//!
//! Differences from etcd, and what is left out: `README.md`.

mod auth;
mod call;
mod check;
mod cluster;
mod codec;
mod election;
mod error;
mod follow;
mod fragments;
mod gateway;
mod header;
mod key;
mod kv;
mod large;
mod lease;
mod lock;
mod maintenance;
mod methods;
mod object_scan;
pub mod proto;
mod queue;
mod range;
mod routes;
mod store;
#[cfg(test)]
mod tests;
mod txn;
mod watch;

pub use call::Etcd;
pub use key::all_keys;
pub use methods::request_bytes_max;
pub use routes::{EtcdServices, changes_something, services};
pub use store::{
    EtcdFacts, EtcdFound, EtcdMember, EtcdPage, EtcdSession, EtcdStore, EtcdStoreError, KeptAlive, NodeCondition,
    WatchedEvents,
};
