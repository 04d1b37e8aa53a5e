//! From a command to an entry of the log: what the leader does before Raft sees anything.
//!
//! In the order in which a command passes:
//!
//! * `renewals` gathers renewals of sessions into one command, and `audit_notes` limits how many notes the audit trail gets;
//! * `last_look` checks a command in the task of its caller, since an entry of the log cannot be refused;
//! * `under_way` has the limits for what large commands under way may take;
//! * [`proposer`] takes all commands that wait, stamps them and hands them to Raft as one entry, bound to the leader's term;
//! * [`leadership`] says whether this node leads, and holds the [`clock`] by which it stamps;
//! * `ticker` proposes a tick when a deadline of the table is due and nothing else is proposed;
//! * `version_raise` proposes a higher cluster version, once all members support it.
//!
//! The queue in front of the proposer is bounded. A command that asks for more is refused first, one that gives something back last.
//!
//! Absent on purpose: retries. An outcome that is not known is reported as unknown, and the client repeats the command under its request
//! id.

#[cfg(test)]
mod at_limits;
pub(crate) mod audit_notes;
pub mod clock;
pub(crate) mod last_look;
pub mod leadership;
pub mod proposer;
pub(crate) mod renewals;
pub(crate) mod ticker;
mod under_way;
pub(crate) mod version_raise;

pub use under_way::LargeCommandLimits;
