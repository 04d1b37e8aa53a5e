//! Lockkeeper: a lock service for distributed systems.
//!
//! From the ground up:
//!
//! * [`machine`]: the table of sessions, locks and waiters, a pure function of the log;
//! * [`raft`]: replicates that log: its store on disk, its network, its clock;
//! * [`transport`]: byte streams between nodes, real or simulated, and gRPC on top of them;
//! * [`server`]: a node: the gRPC services on top of a replica;
//! * [`client`]: the way to a cluster from Rust;
//! * [`fence`]: what a resource does with the tokens that it is shown;
//! * [`local`]: a whole cluster of processes on this machine, to try things out and to test;
//! * [`chaos`]: runs under faults, their histories, the checker that judges them, and reports to look at;
//! * [`mod@bench`]: how fast a cluster is, and what it costs;
//! * [`cli`]: the program, one command a file.
//!
//! Imports point down only: `cli → server → raft → machine`, `cli → client → proto`, `cli → local → proto`, and `cli → chaos` and
//! `cli → bench` onto [`client`] and [`local`]. The parts of [`chaos`] that judge need none of the others; only its workload uses
//! [`fence`], which is for resources: it knows [`machine`]'s tokens, and keeps them in `raft`'s manner.

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
