//! Lockkeeper: a lock service for distributed systems.
//!
//! From the ground up:
//!
//! * [`machine`]: the table of sessions, locks and waiters, a pure function of the log;
//! * [`raft`]: replicates that log: its store on disk, its network, its clock;
//! * [`transport`]: byte streams between nodes, real or simulated, and gRPC on top of them;
//! * [`server`]: a node: the gRPC services on top of a replica;
//! * [`client`]: the Rust client;
//! * [`fence`]: fencing tokens in a resource;
//! * [`local`]: a whole cluster of processes on this machine, to try things out and to test;
//! * [`chaos`]: runs under faults, their histories, the checker of histories, and its reports;
//! * [`mod@bench`]: benchmarks of a cluster;
//! * [`cli`]: the program, one command a file.
//!
//! Imports point down only: `cli → server → raft → machine`, `cli → client → proto`, `cli → local → proto`, and `cli → chaos` and
//! `cli → bench` onto [`client`] and [`local`]. The checker in [`chaos`] needs none of the others; only the workload of [`chaos`] uses
//! [`fence`]. [`fence`] uses [`machine`]'s tokens, and stores them by `raft`'s durable map.

pub mod environment;
pub mod planted;
pub mod proto;

pub mod machine;
pub mod transport;

pub mod raft;

pub mod server;

pub mod bench;
pub mod chaos;
pub mod cli;
pub mod client;
pub mod fence;
pub mod local;
