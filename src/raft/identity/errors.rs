//! Why a node cannot use its identity, as its operator reads it.
//!
//! Each message names the file or the node, the problem, and the remedy: its reader has a node that does not start.

use std::{io, path::PathBuf};

use super::{ClusterId, Incarnation, Start};
use lockkeeper_storage::{IDENTITY_FILE, files::OTHER_FORMAT};

/// Why a node cannot use its identity. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory belongs to another cluster.
    #[error(
        "data directory {} belongs to cluster {found}, not {expected}: correct the cluster id in the configuration, or give this \
         cluster a directory of its own", .directory.display()
    )]
    OtherCluster {
        /// The data directory.
        directory: PathBuf,
        /// The cluster id in the file.
        found: ClusterId,
        /// The cluster id in the configuration.
        expected: ClusterId,
    },
    /// The directory belongs to another node.
    #[error(
        "data directory {} belongs to node {found}, not {expected}: correct the node id in the configuration, or give this node a \
         directory of its own", .directory.display()
    )]
    OtherNode {
        /// The data directory.
        directory: PathBuf,
        /// The node id in the file.
        found: u64,
        /// The node id in the configuration.
        expected: u64,
    },
    /// The directory holds files, but not the data of a node.
    #[error(
        "directory {} is not empty and holds no {IDENTITY_FILE}: name an empty directory; if it held the data of a node, put that \
         node's own {IDENTITY_FILE} back, or replace the node with `lockkeeper member replace`", .directory.display()
    )]
    Foreign {
        /// The directory.
        directory: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{} is damaged ({reason}): put the newest copy of this file back, or replace this node with `lockkeeper member replace`",
        .file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The damage.
        reason: String,
    },
    /// The file has a format that this program does not know.
    #[error("{} has format {found}, and this program reads formats up to {reads}: {OTHER_FORMAT}", .file.display())]
    Format {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The latest format that this program reads.
        reads: u32,
    },
    /// The log ends before an entry that it is known to have held.
    #[error(
        "the log ends at {}, but it held the committed entry {committed_index}: data of this node is lost; put its newest data back, or \
         replace this node with `lockkeeper member replace`",
        .last_index.map_or("nothing".into(), |last| format!("entry {last}"))
    )]
    LogLost {
        /// The last entry's index, or `None` if the log is empty.
        last_index: Option<u64>,
        /// The index that the log must reach.
        committed_index: u64,
    },
    /// A node with a known id has another incarnation than before.
    #[error(
        "node {node_id} is known as incarnation {known} and now calls itself {found}: its data is gone; put its own data directory \
         back, or replace it with `lockkeeper member replace {node_id}`"
    )]
    OtherIncarnation {
        /// The node.
        node_id: u64,
        /// The recorded incarnation.
        known: Incarnation,
        /// The incarnation in its call.
        found: Incarnation,
    },
    /// Another node remembers a promise that this directory does not contain.
    #[error(
        "the data directory of node {node_id} is an older copy, or a second one: node {witness} remembers {what}; it lacks votes or \
         entries that other members rely on: put its newest data back, or replace this node with `lockkeeper member replace`; if no \
         majority of the members is left without it, the copies disagree: stop every node, compare what each copy has with `lockkeeper \
         recover --data-dir DIR --inspect`, and make a new cluster from the newest with `lockkeeper recover --force-new-cluster`"
    )]
    Outdated {
        /// The directory's node.
        node_id: u64,
        /// The node that remembers.
        witness: u64,
        /// The memory of that node, as text.
        what: String,
    },
    /// A majority of the voters has another table after the same entry.
    #[error(
        "node {node_id} has another table after entry {index} (hash {own:016x}) than a majority of the voters (nodes {agreeing}, hash \
         {other:016x}): its memory was damaged, or its data are not what it once acknowledged. It ends, so that no two tables are served; the \
         others go on. Start it again: it makes its table anew from its files. If it ends like this again, keep a copy of its data directory, see \
         what it has with `lockkeeper recover --data-dir DIR --inspect`, and replace it with `lockkeeper member replace {node_id}`"
    )]
    OtherTable {
        /// This node.
        node_id: u64,
        /// The entry.
        index: u64,
        /// The hash of its table.
        own: u64,
        /// The hash of the majority's table.
        other: u64,
        /// The members that have the latter, as text.
        agreeing: String,
    },
    /// The leader has another entry in the place of one that this node knows to be committed.
    #[error(
        "the copies of nodes {node_id} and {witness} disagree about entry {index}: node {node_id} has it as committed in term {term}{}, and node \
         {witness}, which leads, has another one, of term {other_term}. Acknowledged entries are lost on one side: some member was started with an \
         older copy of its data. Node {node_id} has all entries up to {committed}, and its start is {start}; it ends, so that no two tables \
         are served. Stop every node, compare what each copy has with `lockkeeper recover --data-dir DIR --inspect`, and make a new cluster \
         from the newest with `lockkeeper recover --force-new-cluster`; or, to go on without the entries that only node {node_id} has, \
         replace it with `lockkeeper member replace {node_id}`",
        or_earlier(.is_purged)
    )]
    Disagreement {
        /// This node.
        node_id: u64,
        /// The leader.
        witness: u64,
        /// The entry.
        index: u64,
        /// Its term here.
        term: u64,
        /// It is in this node's snapshot: `term` is that of the snapshot's end.
        is_purged: bool,
        /// Its term there.
        other_term: u64,
        /// The last entry that this node knows to be committed.
        committed: u64,
        /// The start of this process.
        start: Start,
    },
    /// The cluster has removed this node.
    #[error(
        "node {node_id} was removed from cluster {cluster_id}, as {} says: its data directory must not be used again; to \
         bring the machine back, give it an id that no member has ever had and an empty data directory, and start it with --join",
        witness.map_or_else(|| "its identity".to_owned(), |witness| format!("node {witness}"))
    )]
    Removed {
        /// This node.
        node_id: u64,
        /// Its cluster.
        cluster_id: ClusterId,
        /// The member that said so, or `None` if it was recorded before.
        witness: Option<u64>,
    },
    /// The file could not be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// What to add to the term of the last entry that was purged, said of one before it.
fn or_earlier(is_purged: &bool) -> &'static str {
    if *is_purged { " or an earlier one" } else { "" }
}
