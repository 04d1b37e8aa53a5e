//! The data directories of a new cluster, made from a table.
//!
//! Each directory is complete: the snapshot, a log that begins after it, with a vote, and the identity of a member. The membership in the
//! snapshot names every member by the incarnation of its directory, so all directories of a cluster are made in one go, where the
//! incarnations are drawn. The nodes start as after a stop of all of them, and elect a leader.
//!
//! The identity is written last: a directory that was not finished holds no identity, and no node starts on it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use openraft::storage::RaftLogStorage as _;
use rand::RngCore;

use crate::{
    identity::{ClusterId, IdentityError, Incarnation, NodeIdentity, Start},
    log::{LogOpenError, LogOptions, LogStore},
    snapshot::{SnapshotError, SnapshotStore},
    types::{CommittedLeaderId, LogId, Membership, SnapshotMeta, StoredMembership, Vote},
};
use lockkeeper_machine::{Machine, WallTime, first_at};
use lockkeeper_planted::Planted;
use lockkeeper_table::{MemberNode, Trail, codec::records};

/// A cluster to be made.
#[derive(Debug)]
pub struct NewCluster {
    /// Its id.
    pub cluster_id: ClusterId,
    /// Its members, all of them voters: the addresses, and the directory to be made. It must be empty, or not exist.
    pub members: BTreeMap<u64, (MemberNode, PathBuf)>,
    /// Its table: one that [`Machine::restored`] made.
    pub machine: Machine,
    /// The audit trail of the copy: that of the new cluster begins with its end.
    pub trail: Trail,
    /// The last entry of the copy, or `None` if there is no copy, or it has no entry.
    pub copied: Option<LogId>,
    /// When it is made: that of its table.
    pub at: WallTime,
}

/// Why a cluster was not made. Directories that were begun are empty again, unless the message says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum FoundingError {
    /// Something is in the way.
    #[error("the data directory {} is not empty: name another one; nothing in it was changed", .directory.display())]
    Occupied {
        /// The directory.
        directory: PathBuf,
    },
    /// There is no member, or the ids cannot be those of members.
    #[error("{0}")]
    Members(String),
    /// The identity was not read or written.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log was not made.
    #[error(transparent)]
    Log(#[from] LogOpenError),
    /// The snapshot was not made.
    #[error(transparent)]
    Snapshots(#[from] SnapshotError),
    /// The operating system returned an error.
    #[error("cannot make the data directory {}: {source}", .directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Makes the data directories of a cluster. Returns the last entry that its nodes have applied: the first one that they write follows.
///
/// Takes time in proportion to the table and to the number of members. Writes and syncs files on the caller's thread. Adds the records of
/// the table to `count` as it writes them, for each member.
pub async fn found(cluster: &NewCluster, random: &mut impl RngCore, count: &AtomicU64) -> Result<LogId, FoundingError> {
    for (_, directory) in cluster.members.values() {
        if !NodeIdentity::is_free(directory)? {
            return Err(FoundingError::Occupied { directory: directory.clone() });
        }
    }

    let founding = Founding::draw(cluster, random)?;
    let filled = founding.fill_all(count).await;
    if filled.is_err() {
        founding.made.iter().for_each(MemberDirectory::empty);
    }
    filled?;

    // Last of all: a directory that was not finished has no identity, so no node starts on it.
    for made in &founding.made {
        let MemberDirectory { node_id, directory, incarnation, start, .. } = *made;
        NodeIdentity::make_member(directory, &cluster.cluster_id, node_id, incarnation, start, founding.last.index)?;
    }
    Ok(founding.last)
}

/// What the nodes of a new cluster begin with. It is drawn and not written: [`found`] writes it into directories, a simulation into its own
/// disks.
#[derive(Debug)]
pub struct Founding<'a> {
    cluster: &'a NewCluster,
    made: Vec<MemberDirectory<'a>>,
    last: LogId,
    meta: SnapshotMeta,
}

/// A directory that is being made.
#[derive(Debug)]
struct MemberDirectory<'a> {
    node_id: u64,
    node: &'a MemberNode,
    directory: &'a Path,
    incarnation: Incarnation,
    start: Start,
}

/// The snapshot and the log in a data directory.
const SNAPSHOTS: &str = "snapshots";
const LOG: &str = "log";

/// Tokens for each log index that belongs to a time: 2^8 indexes for each millisecond. No cluster writes 256,000 entries a second, and a
/// new member, whose log is empty, takes entries up to 2^50.
const TOKENS_PER_INDEX: u64 = 1 << 4;
/// The distance from the last entry of the copy where the time gives no later one: the clock is wrong, and the operator named the token.
const INDEX_STEP: u64 = 1 << 32;

/// The index at which the log of a new cluster begins that is made at this time from a copy with this last entry.
fn first_index(at: WallTime, copied: u64) -> u64 {
    if Planted::FoundedAtOldIndex.is_on() {
        return copied + 1;
    }
    let first = first_at(at);
    let by_time = if Planted::FoundedBeyondReach.is_on() {
        first.saturating_mul(TOKENS_PER_INDEX)
    } else {
        first / TOKENS_PER_INDEX
    };
    if by_time > copied { by_time } else { copied.saturating_add(INDEX_STEP) }
}

/// The last entry of the new cluster, and what its snapshot covers.
fn meta(
    copied: Option<LogId>,
    at: WallTime,
    made: &[MemberDirectory<'_>],
) -> Result<(LogId, SnapshotMeta), FoundingError> {
    let (term, index) = copied.map_or((0, 0), |last| (last.leader_id.term, last.index));
    let leader_id = CommittedLeaderId::new(term.saturating_add(1));
    let last = LogId { leader_id, index: first_index(at, index) };

    let node = |made: &MemberDirectory<'_>| {
        (made.node_id, MemberNode { incarnation: Some(made.incarnation), ..made.node.clone() })
    };
    let voters = made.iter().map(|made| made.node_id).collect();
    let nodes: BTreeMap<u64, MemberNode> = made.iter().map(node).collect();
    let membership = Membership::new(vec![voters], nodes);
    let membership = membership.map_err(|why| FoundingError::Members(format!("these cannot be the members: {why}")))?;
    let last_membership = StoredMembership::new(Some(last), membership);
    Ok((last, SnapshotMeta { last_log_id: Some(last), last_membership }))
}

impl<'a> Founding<'a> {
    /// Draws the incarnations of the members and their first starts.
    pub fn draw(cluster: &'a NewCluster, random: &mut impl RngCore) -> Result<Self, FoundingError> {
        let made: Vec<_> =
            cluster.members.iter().map(|(id, member)| MemberDirectory::draw(*id, member, random)).collect();
        let (last, meta) = meta(cluster.copied, cluster.at, &made)?;
        Ok(Self { cluster, made, last, meta })
    }

    /// The last entry that the nodes have applied: the first one that they write follows.
    pub fn last(&self) -> LogId {
        self.last
    }

    /// The vote of each node: for no node of this term, so the first election is in a later one.
    pub fn vote(&self) -> Vote {
        Vote::new(self.last.leader_id.term, self.made.first().map_or(0, |made| made.node_id))
    }

    /// The identities of the nodes, without files: for simulations.
    pub fn identities_in_memory(&self) -> impl Iterator<Item = NodeIdentity> {
        let Self { cluster, made, last, .. } = self;
        made.iter().map(|made| {
            let MemberDirectory { node_id, incarnation, start, .. } = *made;
            NodeIdentity::member_in_memory(&cluster.cluster_id, node_id, incarnation, start, last.index)
        })
    }

    /// Writes the table as the only snapshot of a node. Adds its records to `count` as it writes them.
    pub fn write_snapshot(&self, snapshots: &SnapshotStore, count: &AtomicU64) -> io::Result<()> {
        let NewCluster { machine, trail, .. } = self.cluster;
        let records = machine.records().map(|record| {
            count.fetch_add(1, Relaxed);
            records::encode(&record)
        });

        let ids_used = self.meta.last_membership.membership().nodes().map(|(id, _)| *id).collect();
        snapshots.write_with(&self.meta, &ids_used, trail.restored(), records)?;
        Ok(())
    }

    async fn fill_all(&self, count: &AtomicU64) -> Result<(), FoundingError> {
        for made in &self.made {
            made.fill(self, count).await?;
        }
        Ok(())
    }
}

impl<'a> MemberDirectory<'a> {
    fn draw(node_id: u64, (node, directory): &'a (MemberNode, PathBuf), random: &mut impl RngCore) -> Self {
        Self { node_id, node, directory, incarnation: Incarnation::draw(random), start: Start::draw(random) }
    }

    /// Writes the snapshot and the log.
    async fn fill(&self, founding: &Founding<'_>, count: &AtomicU64) -> Result<(), FoundingError> {
        let failed = |source| FoundingError::Io { directory: self.directory.to_owned(), source };
        let snapshots = SnapshotStore::open(&self.directory.join(SNAPSHOTS))?;
        founding.write_snapshot(&snapshots, count).map_err(failed)?;

        let owner = Some(NodeIdentity::owner_of_made(self.incarnation, self.start));
        let options = LogOptions { snapshot: Some(founding.last), owner, ..LogOptions::default() };
        let mut log = LogStore::open(&self.directory.join(LOG), options)?;

        log.save_vote(&founding.vote()).await.map_err(failed)?;
        log.purge(founding.last).await.map_err(failed)?;
        log.close().await.map_err(failed)
    }

    /// Deletes what [`fill`](Self::fill) wrote. The first error counts, not one of this.
    fn empty(&self) {
        for name in [SNAPSHOTS, LOG] {
            let _ = fs::remove_dir_all(self.directory.join(name));
        }
    }
}
