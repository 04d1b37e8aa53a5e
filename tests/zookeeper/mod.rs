//! ZooKeeper's protocol, as a plain connection sees it, and beside ZooKeeper itself.
//!
//! `jute` and `connection` are a client for tests: every operation, frames in the order in which they come, raw bytes. `oracle` starts
//! Debian's ZooKeeper.

#![allow(dead_code, reason = "the client has all operations, also those that no test sends yet")]

mod connection;
mod guarantees;
mod jute;
mod oracle;
mod smoke;
mod walk;
