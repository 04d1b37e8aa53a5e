//! Backups: the table in a file that outlives its cluster, and clusters that are made from one.
//!
//! * [`file`](self): the format, written as a stream and read back, [`BackupFile`];
//! * [`StoppedNodeData`]: the table in the data directory of a stopped node, for a cluster that has lost its majority;
//! * [`found`]: the data directories of a new cluster, made from a table.
//!
//! A restored cluster is a new one: its cluster id, its incarnations and its membership are new, and its table is made by
//! [`Machine::restored`](lockkeeper_machine::Machine::restored), which says what becomes of tokens, sessions and locks. It continues at an
//! index that belongs to the time of the restore, as its tokens do ([`first_at`](lockkeeper_machine::first_at)), above all of the old
//! cluster and of those that were restored before: a watcher of another cluster that names the last entry that it knows gets the state,
//! never the changes after another entry with the same index.
//!
//! ## Left out
//!
//! Incremental backups: a table of a million locks is 69 MB. Restoring into a cluster that exists: its nodes would have to forget entries
//! that they have acknowledged.

mod blocks;
mod file;
mod founding;
mod stopped_node;

pub use blocks::BLOCK_BYTES_MAX;
pub use file::{BackupError, BackupFile, BackupHeader, BackupSummary, check, write};
pub use founding::{Founding, FoundingError, NewCluster, found};
pub use stopped_node::{StoppedNodeData, StoppedNodeError};
