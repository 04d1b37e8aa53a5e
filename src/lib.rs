//! Lockkeeper: a lock service for distributed systems.
//!
//! From the ground up:
//!
//! * [`machine`]: the table of sessions, locks and waiters, a pure function of the log;
//! * [`raft`]: replicates that log: its store on disk, its network, its clock;
//! * [`transport`]: byte streams between nodes, real or simulated, and gRPC on top of them;
//! * [`server`]: a node: the gRPC services on top of a replica;
//! * [`client`]: the way to a cluster from Rust;
//! * [`cli`]: the program, one command a file.
//!
//! Imports point down only: `cli → server → raft → machine`, and `cli → client → proto`.

pub mod machine;
pub mod proto;
pub mod raft;
pub mod transport;
