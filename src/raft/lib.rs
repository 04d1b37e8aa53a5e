//! Replication: one log, the same on every node. What results from applying it is [`lockkeeper_table`].
//!
//! [`Replica`] is the interface for the layer above: propose a command, read the table. Below it, in the order in which a command passes:
//!
//! * `renewals`: batches renewals of sessions into one command; [`proposer`] and [`leadership`]: batches of commands, each of which
//!   `last_look` has seen, stamped by the leader's [`clock`]; [`fast_election`], [`silent_leader`] and [`liveness`]: fast detection of a
//!   leader whose process was killed, or that fell silent; [`handover`]: transfer of leadership to another voter; [`slow_disk`]: when a
//!   leader does so by itself;
//!   [`members`]: who takes part; [`addresses`]: where the members are reached;
//! * [`log`]: the log on disk; [`network`]: replication to the peers; openraft between them; [`slow_followers`]: limits the log kept for
//!   a slow follower;
//! * [`disk`]: watches the free space of all members, and refuses commands that add when it runs out;
//! * [`read_index`] and `read_rounds`: when the table may answer a linearizable read;
//! * [`state_machine`] and `applier`: apply committed entries; [`snapshot`]: the applied state, on disk.
//!
//! [`versions`] and `raising`: which programs the members run, and the cluster version.
//!
//! [`backup`]: the table in a file that outlives its cluster, and clusters that are made from one.
//!
//! [`ids`], [`identity`] and [`forming`]: the node's id and data directory, and the founding of a cluster; [`compared_starts`]: followers
//! know each other's starts; [`compared_tables`] and [`table_comparison`]: a table that is not that of the others is noticed.
//!
//! [`types`], [`wire`] and [`messages`]: shared types and their encodings.

pub mod addresses;
pub mod backup;
pub mod clock;
pub mod compared_starts;
pub mod compared_tables;
pub mod disk;
pub mod disk_watch;
pub mod fast_election;
pub mod forming;
#[doc(hidden)]
pub mod fuzzing;
pub mod handover;
pub mod identity;
pub mod ids;
pub mod leadership;
pub mod liveness;
pub mod log;
pub mod members;
pub mod messages;
pub mod network;
pub mod proposer;
pub mod read_index;
pub mod silent_leader;
pub mod slow_disk;
pub mod slow_followers;
pub mod snapshot;
pub mod state_machine;
pub mod table_comparison;
pub mod types;
pub mod versions;
pub mod wire;

mod applier;
#[cfg(test)]
mod at_limits;
mod last_look;
mod notes;
mod raising;
mod read_rounds;
mod renewals;
mod replica;
mod ticker;
mod transfer;

pub use disk::{DiskReport, DiskShortage};
pub use last_look::Unfit;
pub use proposer::NoReply;
pub use replica::{Replica, ReplicaParts};

/// openraft's handle, with our types.
pub type Raft = openraft::Raft<types::TypeConfig, state_machine::StateMachine>;
