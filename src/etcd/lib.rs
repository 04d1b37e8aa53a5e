//! etcd's API over a keyspace with revisions, transactions, leases and events: for its lock clients.
//!
//! ```text
//! routes      which services there are
//! kv  lease  maintenance  cluster  auth
//!             a service each
//! txn         a transaction of etcd's as one of the store's
//! header  error  key
//!             etcd's words: headers, errors, keys, ranges, leases
//! store       the keyspace: a parameter
//! ```
//!
//! The store knows nothing of all this, and this crate nothing of replication: whoever implements [`Store`] has the services with
//! [`routes`]. They hold no state but what their open streams need.
//!
//! Differences from etcd, and what is left out: `README.md`.

mod auth;
mod cluster;
mod error;
mod header;
mod key;
mod lease;
mod maintenance;
pub mod proto;
mod routes;
mod store;
#[cfg(test)]
mod tests;

pub use routes::{Etcd, routes};
pub use store::{Facts, Found, KeptAlive, Member, Page, Session, Store, StoreError, Watched};
