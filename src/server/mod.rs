//! A node: a replica of the table, and the services on top of it.
//!
//! The way of an acquire: `gateway` (here, or on to the leader) → `locks` (checks the message, makes a command of it) →
//! [`raft::Replica::propose`] → log, peers, table → the reply comes back to `locks`: granted, refused, or queued. If it is queued,
//! `waiting` listens for the end of the wait, which a later entry brings.
//!
//! [`raft::Replica::propose`]: crate::raft::Replica::propose

pub mod config;
pub mod descriptors;
pub mod node;

mod cluster;
mod convert;
mod deadline;
mod errors;
mod gateway;
mod health;
mod keep_alive;
mod locks;
mod origin;
mod pages;
mod passed_on;
mod pipeline;
mod progress;
mod pulse;
mod sessions;
mod unread;
mod unreadable;
mod waiting;
mod watch;

use std::time::Duration;

pub use errors::DOMAIN;
pub use gateway::MESSAGE_BYTES_MAX;
pub use node::{ServeError, serve};
pub use waiting::GRACE;

/// How long a call waits for the log, or a read for its quorum. Waiting for a lock is not counted.
const PATIENCE: Duration = Duration::from_secs(5);
