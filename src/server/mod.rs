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

mod api;
mod cluster;
mod health;
mod progress;
mod pulse;
mod service;
mod unread;
mod v1;
mod wire;

pub use node::{ServeError, serve};
pub use service::waiting::GRACE;
pub use wire::{MESSAGE_BYTES_MAX, status::DOMAIN};
