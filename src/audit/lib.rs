//! The audit trail: what happened to sessions and locks, and who did it, from the log's point of view.
//!
//! Each applied log entry gives lines, the same on every node. A line is a JSON object. Its last field is the SHA-256 of
//! the previous line's hash and of the line without this field. Therefore no line can be changed, removed or moved without
//! changing all hashes after it. The last hash and its number, the *head* of the chain, are part of the replicated state.
//! There are no lines until a member writes them.
//!
//! The files, in reading order:
//!
//! * `line`: a line, written and parsed;
//! * `chain`: the hashes;
//! * `files`: the files of a directory: the header of each, the reader, the writer that rotates them;
//! * `sink`: the thread that writes, behind a bounded buffer;
//! * `replay`: the table as far as the lines tell it, and the rules that each line must obey;
//! * `verify`: files of one or several nodes against the chain and the rules;
//! * `story`: the lines about one lock or session.
//!
//! A file begins with a header, which is not part of the chain. It says where in the chain the file begins.
//!
//! Raft and the table are not part of this crate: the lines are made where entries are applied.
//!
//! A chain shows that a file was changed by somebody who cannot compute hashes, or who cannot change the head. Somebody who
//! rewrites all lines from a place on can compute a sound chain with another head. To notice that, compare the head with
//! that of the cluster, or with a copy of it that is kept elsewhere.

mod chain;
mod files;
mod line;
mod replay;
mod sink;
mod story;
#[cfg(test)]
mod tests;
mod verify;

pub use chain::{BadLine, Hash, Head};
pub use files::{AUDIT_PREFIX, AuditHeader, FileError, Reader, Rotation, files_in};
pub use line::{AuditEvent, AuditLine, MemberIds, Session};
pub use replay::BrokenRule;
pub use sink::{BUFFER_BYTES_MAX, ChainPlace, Sink, SinkError};
pub use story::{StorySubject, select};
pub use verify::{Broken, LineFault, MissingLines, SoundFiles, VerifyError, verify};
