//! Replication: one log, the same on every node, and the table that it makes.
//!
//! [`Replica`] is what the floor above uses: propose a command, read the table. Below it, in the order in which a command passes:
//!
//! * `renewals`: many sessions in one command; [`proposer`] and [`leadership`]: batches, stamped by the leader's [`clock`]; [`vacancy`] and [`presence`]: a leader that was killed;
//! * [`log`]: the log on disk; [`network`]: to the peers; openraft between them; [`backlog`]: a peer that is slow;
//! * [`read_index`]: when the table may answer a linearizable read;
//! * [`state_machine`], `applier` and [`table`]: what is committed, applied; [`calls`]: who waits for it; [`snapshot`]: what is applied, on disk.
//!
//! [`ids`], [`identity`] and [`forming`]: who this node is, whether its data are its own, and how a cluster comes into being.
//! [`types`], [`wire`], [`commands`] and [`records`]: what all of them speak. `durable_map` is no part of it: the fence keeps there
//! what it has seen.

pub mod backlog;
pub mod calls;
pub mod clock;
pub mod commands;
pub(crate) mod durable_map;
pub(crate) mod files;
pub mod forming;
pub mod identity;
pub mod ids;
pub mod leadership;
pub mod log;
pub mod network;
pub mod presence;
pub mod proposer;
pub mod read_index;
mod recent;
pub mod records;
pub mod snapshot;
pub mod state_machine;
pub mod table;
pub mod types;
pub mod vacancy;
pub mod wire;

mod applier;
mod renewals;
mod replica;
mod ticker;
mod transfer;
mod words;

pub use proposer::NoReply;
pub use replica::Replica;

/// openraft, with our types.
pub type Raft = openraft::Raft<types::TypeConfig, state_machine::StateMachine>;
