//! How commands and records are written into bytes, and read back.
//!
//! * [`commands`]: the payload of a log entry, which is a batch of commands;
//! * [`records`]: the content of a snapshot, one record after another;
//! * [`keyspace`]: entries of the keyspace, which are in snapshots and in the calls between nodes;
//! * [`transactions`]: its transactions, which are in the log and in those calls;
//! * `session_commands`: acquires and releases, of which the log has most;
//! * `values`: the names, sessions and locks that all of them share.
//!
//! The bytes are protobuf, so a field that is added later leaves old logs readable. Reading checks the form of a value and no limit: a
//! value beyond a limit of this version was within those of the version that proposed it.
//!
//! Absent on purpose: the envelope. The log says which entry a batch belongs to, and the file of a snapshot has the checksum.

pub mod commands;
mod fields;
pub mod keyspace;
pub mod records;
mod session_commands;
pub mod transactions;
mod values;

/// A message that lacks a required field, or has an impossible value.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed message: {0}")]
pub struct Malformed(pub &'static str);
