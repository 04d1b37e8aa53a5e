//! Replication: one log, the same on every node. What results from applying it is [`lockkeeper_table`].
//!
//! [`Replica`] is the interface for the layer above: propose a command, read the table. Below it, in the order in which a command passes:
//!
//! * [`proposals`]: commands become entries: batched, checked, stamped by the leader's clock;
//! * [`log`]: the log on disk; [`network`]: replication to the peers; openraft between them;
//! * [`disk`]: watches the free space of all members, and refuses commands that add when it runs out;
//! * [`apply`]: committed entries change the table; [`snapshot`]: the applied state, on disk;
//! * [`reads`]: when the table may answer a linearizable read;
//! * [`elections`]: the end of a leader is noticed early, and leadership passes to another voter;
//! * [`members`]: who takes part, from the founding of the cluster on; [`identity`]: a node's data directory, and its promises;
//! * [`backup`]: the table in a file that outlives its cluster, and clusters that are made from one.
//!
//! [`types`], [`wire`] and [`messages`] are shared types and their encodings.
//!
//! Absent on purpose: Raft itself, which is openraft's, and what a command means, which is the machine's.

pub mod apply;
pub mod backup;
mod contact;
pub mod disk;
pub mod elections;
#[doc(hidden)]
pub mod fuzzing;
pub mod identity;
pub mod log;
pub mod members;
pub mod messages;
pub mod network;
pub mod proposals;
pub mod reads;
mod replica;
pub mod snapshot;
#[cfg(test)]
mod transcripts;
pub mod types;
pub mod wire;

pub use disk::{DiskReport, DiskShortage};
pub use proposals::{audit_notes::NoteKind, last_look::Unfit, proposer::NoReply};
pub use replica::{Replica, ReplicaParts};

/// openraft's handle, with our types.
pub type Raft = openraft::Raft<types::TypeConfig, apply::state_machine::StateMachine>;
