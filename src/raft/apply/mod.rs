//! From a committed entry to the table: openraft's state machine over a [`lockkeeper_table::Table`].
//!
//! * [`state_machine`] implements openraft's traits: it applies entries, writes snapshots and installs those of a leader;
//! * `applier` applies groups of entries, in place or on a thread of its own, and answers their proposers;
//! * [`table_comparison`] notices a table that differs from those of the other members.
//!
//! Absent on purpose: the effect of a command, which the machine defines, and who is notified of it, which the table decides.

pub(crate) mod applier;
pub mod state_machine;
pub mod table_comparison;
