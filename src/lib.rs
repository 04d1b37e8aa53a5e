//! Lockkeeper: a lock service for distributed systems.
//!
//! From the ground up:
//!
//! * [`machine`]: the table of sessions, locks and waiters, a pure function of the log;
//! * [`table`]: that machine on a node: entries of the log applied, and all that listens;
//! * [`raft`]: replicates that log: its store on disk, its network, its clock;
//! * [`transport`]: byte streams between nodes, real or simulated, and gRPC on top of them;
//! * [`config`]: the configuration of a node;
//! * [`server`]: a node: the gRPC services on top of a replica;
//! * [`client`]: the Rust client;
//! * [`fence`]: fencing tokens in a resource;
//! * [`local`]: a whole cluster of processes on this machine, to try things out and to test;
//! * [`chaos`]: runs under faults, their histories, the checker of histories, and its reports;
//! * [`mod@bench`]: benchmarks of a cluster;
//! * [`cli`]: the program, one command a file.
//!
//! Imports point down only: `cli → server → raft → table → machine`, `cli → client → proto`, `cli → local → proto`, and both
//! `cli → chaos` and `cli → bench` onto [`client`] and [`local`]. All but the command line are crates of their own, in `src/*` and
//! `proto/`, re-exported here under short names; `tests/rules/layers.rs` lists what each of them may be built on. A program that only
//! needs locks depends on `lockkeeper-client`, a resource on `lockkeeper-fence`, a program that judges histories on `lockkeeper-checker`.

pub use lockkeeper_bench as bench;
pub use lockkeeper_certs as certs;
pub use lockkeeper_chaos as chaos;
pub use lockkeeper_client as client;
pub use lockkeeper_config as config;
pub use lockkeeper_environment as environment;
pub use lockkeeper_fence as fence;
pub use lockkeeper_local as local;
pub use lockkeeper_machine as machine;
pub use lockkeeper_planted as planted;
pub use lockkeeper_proto as proto;
pub use lockkeeper_raft as raft;
pub use lockkeeper_server as server;
pub use lockkeeper_table as table;
pub use lockkeeper_transport as transport;

pub mod cli;
