//! The data directory of a stopped node, as the source of a new cluster.
//!
//! When most members are lost for good, the cluster cannot commit any more, and what it has acknowledged is at best on the nodes that are
//! left. A new cluster is then made from the best of their directories. All entries of its log are applied, also those of which the node
//! does not know that they are committed: any of them may have been acknowledged. Those that were not are requests without an answer, whose
//! outcome is unknown to their clients anyway.
//!
//! An entry that no member can apply ends the copy before it, if the operator says so ([`StoppedNodeData::read`], `through`): nothing after
//! it was ever answered.
//!
//! The directory is not changed: opening a log settles its journal, so a copy of the log is opened.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::{StreamExt as _, pin_mut};
use openraft::{RaftLogReader as _, storage::RaftLogStorage as _};

use crate::{
    apply::{applier, state_machine},
    identity::{self, AcknowledgedEntry, IdentityError, NodeIdentity, Stage},
    log::{self, LogOpenError, LogOptions, LogStore},
    snapshot::{SnapshotFile, newest_in},
    types::{self, LogId, Vote},
};
use lockkeeper_machine::Versions;
use lockkeeper_planted::Planted;
use lockkeeper_storage::database::{LockFile, NotLocked};
use lockkeeper_table::{Applied, AppliedVersion, Audit, Table};

/// The content of a stopped node's data directory.
#[derive(Debug)]
pub struct StoppedNodeData {
    /// Its identity.
    pub identity: identity::StoredIdentity,
    /// The latest vote: the node knew of this term.
    pub vote: Option<Vote>,
    /// The last entry of the log, or of the snapshot if the log ends before it.
    pub last: Option<LogId>,
    /// The last entry that was applied: `last`, unless the operator wanted the table of an earlier one.
    pub through: Option<LogId>,
    /// The last entry that the node knew to be committed; more may be.
    pub committed: Option<LogId>,
    /// The last entry of the newest snapshot.
    pub snapshot: Option<LogId>,
    /// The table after the last entry.
    pub applied: Applied,
}

/// Why a data directory cannot be used. It was not changed.
#[derive(Debug, thiserror::Error)]
pub enum StoppedNodeError {
    /// A node runs on it.
    #[error("the data directory {} is in use by another process: stop the node first", .directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// There is no data of a node.
    #[error("{} holds no data of a node: name the data directory of a node, as `data_dir` in its configuration", .directory.display())]
    Nothing {
        /// The directory.
        directory: PathBuf,
    },
    /// The identity was not read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The snapshot is damaged.
    #[error(
        "the snapshot {} is damaged: {what}; the log no longer has the entries that it replaced: use the data directory of another \
         node, or a backup", .path.display()
    )]
    Snapshot {
        /// The snapshot's file.
        path: PathBuf,
        /// The damage.
        what: String,
    },
    /// The log is damaged.
    #[error(
        "the log of {} cannot be used: {what}; use the data directory of another node, or a backup", .directory.display()
    )]
    Log {
        /// The data directory.
        directory: PathBuf,
        /// The damage.
        what: String,
    },
    /// There is no log, or an empty one.
    #[error(
        "the log at {} is gone, and with it the entries and votes that this node has acknowledged since its newest snapshot: put its own \
         log back, or use the data directory of another node, or a backup", .log.display()
    )]
    LogGone {
        /// The log's directory.
        log: PathBuf,
    },
    /// The log is there, and was not copied.
    #[error("the log at {} cannot be read, or not be copied to {}: {source}", .log.display(), .aside.display())]
    LogUnread {
        /// The log's directory.
        log: PathBuf,
        /// The directory that was to have the copy.
        aside: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An entry of the log cannot be applied.
    #[error("{what}")]
    Unapplied {
        /// The entry, the cause, and the remedy.
        what: String,
    },
    /// The copy has no table as of the entry at which it is to end.
    #[error(
        "the data directory {} can show the table after the entries {first} to {last}, and --through is {through}: give one of \
         these entries", .directory.display()
    )]
    Through {
        /// The data directory.
        directory: PathBuf,
        /// The last entry of the snapshot.
        first: u64,
        /// The last entry of the log.
        last: u64,
        /// The entry that was asked for.
        through: u64,
    },
    /// The operating system returned an error.
    #[error("cannot read the data directory {}: {source}", .directory.display())]
    Io {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl StoppedNodeData {
    /// Reads the data directory of a stopped node. The log is copied into `aside`, an empty directory that is left to the caller.
    /// Entries after `through` are left out.
    ///
    /// Reads and writes files on the caller's thread, and takes time in proportion to the table and the log.
    pub async fn read(directory: &Path, aside: &Path, through: Option<u64>) -> Result<Self, StoppedNodeError> {
        let failed = |source| StoppedNodeError::Io { directory: directory.to_owned(), source };
        let nothing = || StoppedNodeError::Nothing { directory: directory.to_owned() };
        let _lock = LockFile::take_directory(directory).map_err(|not_locked| match not_locked {
            NotLocked::InUse => StoppedNodeError::InUse { directory: directory.to_owned() },
            NotLocked::Io(error) if error.kind() == io::ErrorKind::NotFound => nothing(),
            NotLocked::Io(error) => failed(error),
        })?;

        let identity = NodeIdentity::read(directory)?.ok_or_else(nothing)?;
        // It makes the audit lines that the node's table made, and writes none. If the trail begins in the log, its hashes follow from this
        // id.
        let cluster = if Planted::RecoveredTrailOfNobody.is_on() { "" } else { identity.cluster_id.as_str() };
        let table = Arc::new(Table::default().with_audit(Audit::new(cluster, None)));
        let snapshot = match newest_in(&directory.join("snapshots")).map_err(failed)? {
            None => None,
            Some(path) => restore(&table, &path)?,
        };

        let log = open_log(directory, aside, snapshot).await?;
        let damaged = |what: String| StoppedNodeError::Log { directory: directory.to_owned(), what };

        let at_snapshot = || Planted::RecoveryForgetsLog.is_on().then(|| index(snapshot));
        let through = through.or_else(at_snapshot);
        let read = replay(log.clone(), &table, snapshot, through).await;
        let closed = log.close().await;
        let (vote, in_log, committed) = read.map_err(|error| match table.unapplied() {
            Some(what) => StoppedNodeError::Unapplied { what: what.to_owned() },
            None => damaged(error.to_string()),
        })?;
        closed.map_err(failed)?;

        let applied = table.read(Clone::clone);
        let last = in_log.max(snapshot);
        if let Some(through) = through.filter(|through| *through != applied.index()) {
            let first = index(snapshot);
            let last = index(last);
            return Err(StoppedNodeError::Through { directory: directory.to_owned(), first, last, through });
        }

        let version = applied.machine.version();
        if !Versions::OWN.include(version) {
            let own = Versions::OWN;
            return Err(damaged(format!(
                "it has cluster version {version}, and this program supports {own}: use a later program"
            )));
        }

        let through = applied.last_entry.map(types::log_id);
        Ok(Self { identity, vote, last, through, committed: committed.max(snapshot), snapshot, applied })
    }

    /// Why acknowledged entries are known to be missing in this copy, apart from those that only lost members had: the log contradicts
    /// what else the directory has, so it is an older copy of the node's. It is `None` if nothing tells.
    pub fn shortfall(&self) -> Option<String> {
        if self.identity.stage == Stage::Removed {
            return Some("the cluster has removed this node, and went on without it".into());
        }
        let last = index(self.last);
        if let Some(noted) = self.identity.committed_index.filter(|noted| *noted > last) {
            return Some(format!("its identity says that entry {noted} is committed, and it ends at entry {last}"));
        }

        // A vote is durable before anything is done in its term: an entry is written, a snapshot installed, a follower answered as leader.
        let vote_term = self.vote_term();
        let snapshot_term = self.snapshot.map_or(0, |snapshot| snapshot.leader_id.term);
        if snapshot_term > vote_term {
            return Some(format!(
                "its newest snapshot ends at entry {} of term {snapshot_term}, and the last vote in its log is of term {vote_term}: the log is \
                 an older copy than the snapshot",
                index(self.snapshot)
            ));
        }
        let led = self.acknowledged().find(|(_, entry)| entry.term > vote_term);
        led.map(|(node_id, entry)| {
            format!(
                "its identity says that node {node_id} acknowledged entry {} to it in term {}, and the last vote in its log is of term \
                 {vote_term}: the log is an older copy than the identity",
                entry.index, entry.term
            )
        })
    }

    /// Which other copy is known to have acknowledged entries that this one lacks. A leader sends entries while its own disk still writes
    /// them, so its log may end before what a follower has acknowledged, and be the newest that there was. `None` if nothing tells.
    pub fn copy_with_more(&self) -> Option<String> {
        let more = self.acknowledged().find(|(_, entry)| !entry.is_kept_by(self.vote_term(), self.last));
        more.map(|(node_id, entry)| {
            let last = index(self.last);
            format!("node {node_id} has acknowledged entry {} to this node, which ends at entry {last}", entry.index)
        })
    }

    fn vote_term(&self) -> u64 {
        self.vote.map_or(0, |vote| vote.leader_id.term)
    }

    /// What each peer has acknowledged to this node.
    fn acknowledged(&self) -> impl Iterator<Item = (u64, AcknowledgedEntry)> {
        self.identity.remembered.iter().filter_map(|peer| Some((peer.node_id, peer.acknowledged?)))
    }
}

fn index(log_id: Option<LogId>) -> u64 {
    log_id.map_or(0, |id| id.index)
}

/// Loads a snapshot into the table. Returns its last entry.
fn restore(table: &Table, path: &Path) -> Result<Option<LogId>, StoppedNodeError> {
    let damaged = |error: io::Error| StoppedNodeError::Snapshot { path: path.to_owned(), what: error.to_string() };
    let file = SnapshotFile::open(path).map_err(damaged)?;
    drop(table.restore(state_machine::read(&file, &AppliedVersion::default()).map_err(damaged)?));
    Ok(file.meta().last_log_id)
}

/// Opens a copy of the log in `aside`. A log that was never begun holds nothing, so a missing one must not be taken for it: the table would
/// silently be that of the snapshot.
async fn open_log(directory: &Path, aside: &Path, snapshot: Option<LogId>) -> Result<LogStore, StoppedNodeError> {
    let log = directory.join("log");
    let unread = |source| StoppedNodeError::LogUnread { log: log.clone(), aside: aside.to_owned(), source };
    let damaged = |what: String| StoppedNodeError::Log { directory: directory.to_owned(), what };
    let gone = || StoppedNodeError::LogGone { log: log.clone() };

    if !fs::exists(&log).map_err(unread)? {
        return Err(gone());
    }
    let is_begun = log::is_begun(&log).map_err(unread)?;
    copy(&log, aside).map_err(unread)?;

    let options = LogOptions { snapshot, ..LogOptions::default() };
    let opened = LogStore::open(aside, options).map_err(|error| match error {
        LogOpenError::Damaged { what, .. } | LogOpenError::NotOwn { what, .. } => damaged(what),
        other @ (LogOpenError::Locked { .. }
        | LogOpenError::NotDurable { .. }
        | LogOpenError::Late { .. }
        | LogOpenError::Full { .. }
        | LogOpenError::Io { .. }) => damaged(other.to_string()),
    })?;

    // Whatever was left of a log without its mark would have been damage: this one was made just now.
    if !is_begun && !Planted::RecoveredWithoutLog.is_on() {
        opened.close().await.map_err(unread)?;
        return Err(gone());
    }
    Ok(opened)
}

/// Applies the entries after the snapshot, up to one of them if it is given. Returns the vote, the last entry of the log, and the last one
/// that is known to be committed.
async fn replay(
    mut log: LogStore,
    table: &Table,
    snapshot: Option<LogId>,
    through: Option<u64>,
) -> io::Result<(Option<Vote>, Option<LogId>, Option<LogId>)> {
    let state = log.get_log_state().await?;
    let committed = log.read_committed().await?;
    let mut reader = log.get_log_reader().await;
    let vote = reader.read_vote().await?;

    let passed = u64::from(Planted::RecoveryPassesEntry.is_on());
    let first = snapshot.map_or(0, |last| last.index.saturating_add(1 + passed));
    let entries = reader.entries_stream(first..).await;
    pin_mut!(entries);

    while let Some(entry) = entries.next().await {
        let entry = entry?;
        if through.is_some_and(|through| entry.log_id.index > through) {
            break;
        }
        let id = types::entry_id(entry.log_id);
        table.apply_entry(id, applier::read(entry), false)?;
    }

    Ok((vote, state.last_log_id, committed))
}

/// Copies the files of a directory, and of those in it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() { copy(&entry.path(), &to)? } else { _ = fs::copy(entry.path(), to)? }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, sync::atomic::AtomicU64};

    use bytes::Bytes;
    use openraft::{storage::IOFlushed, type_config::TypeConfigExt as _};

    use super::*;
    use crate::{
        backup::{NewCluster, found},
        identity::RememberedPeer,
        types::{CommittedLeaderId, EntryPayload, LogEntry, Payload, TypeConfig},
    };
    use lockkeeper_environment::Environment;
    use lockkeeper_machine::{Command, Label, Limits, Machine, SessionId, Time, Ttl, WallTime};
    use lockkeeper_table::{MemberNode, Trail, codec::commands};

    /// The data directory of a node whose log has these payloads after its snapshot. Returns the index of the snapshot.
    async fn node_with(directory: &Path, payloads: Vec<Bytes>) -> u64 {
        let addresses = |text: &str| MemberNode {
            peer_address: format!("{text}:1"),
            client_address: format!("{text}:2"),
            ..MemberNode::default()
        };
        let cluster = NewCluster {
            cluster_id: "test".parse().expect("an id"),
            members: BTreeMap::from([(1, (addresses("a"), directory.to_owned()))]),
            machine: Machine::default(),
            trail: Trail::default(),
            copied: None,
            at: WallTime(1_800_000_000_000),
        };
        let mut random = Environment::system().generator();
        let last = found(&cluster, &mut random, &AtomicU64::new(0)).await.expect("made");

        let options = LogOptions { snapshot: Some(last), ..LogOptions::default() };
        let mut log = LogStore::open(&directory.join("log"), options).expect("opened");
        let entry = |(payload, index): (Bytes, u64)| LogEntry {
            log_id: LogId { leader_id: last.leader_id, index },
            payload: EntryPayload::Normal(Payload(payload)),
        };
        let entries: Vec<_> = payloads.into_iter().zip(last.index + 1..).map(entry).collect();
        let (flushed, answer) = TypeConfig::oneshot();
        log.append(entries, IOFlushed::<TypeConfig>::signal(flushed)).await.expect("appended");
        answer.await.expect("answered").expect("flushed");
        log.close().await.expect("closed");
        last.index
    }

    fn opens(session: u128) -> Bytes {
        let ttl = Ttl::from_millis(1000).expect("in bounds");
        let label = Label::default();
        let open = Command::Open { session: SessionId(session), ttl, label, address: None, owner: None };
        commands::encode(Time::default(), Limits::default(), &[open])
    }

    /// The new cluster's first line names the last line of the copy by its hash, and each hash follows from the one of the cluster's id.
    #[tokio::test(flavor = "multi_thread")]
    async fn an_audit_trail_that_begins_in_the_log_has_the_hashes_that_its_nodes_wrote() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("node");
        let begins = commands::encode(Time::default(), Limits::default(), &[Command::BeginAudit]);
        node_with(&directory, vec![begins]).await;
        let aside = tempfile::tempdir().expect("a directory");
        let remains = StoppedNodeData::read(&directory, aside.path(), None).await.expect("it is sound");

        let node = Table::default().with_audit(Audit::new("test", None));
        let newest = newest_in(&directory.join("snapshots")).expect("readable").expect("there is one");
        let snapshot = restore(&node, &newest).expect("it is sound");
        let options = LogOptions { snapshot, ..LogOptions::default() };
        let log = LogStore::open(aside.path(), options).expect("opened");
        replay(log.clone(), &node, snapshot, None).await.expect("applied");
        log.close().await.expect("closed");

        let trail = remains.applied.trail;
        assert!(trail.has_begun());
        assert_eq!(trail, node.read(|applied| applied.trail));
    }

    /// Whatever the directory has beside the log is at least as new as a log that is its own.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_that_is_older_than_what_else_the_directory_has_is_told() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("node");
        node_with(&directory, vec![opens(1)]).await;
        let aside = tempfile::tempdir().expect("a directory");
        let mut remains = StoppedNodeData::read(&directory, aside.path(), None).await.expect("it is sound");
        let last = remains.last.expect("it has entries");
        let term = remains.vote_term();
        assert_eq!((remains.shortfall(), remains.copy_with_more()), (None, None));

        let remember = |remains: &mut StoppedNodeData, term: u64, index: u64| {
            let acknowledged = Some(AcknowledgedEntry::new(term, LogId { index, ..last }));
            remains.identity.remembered = vec![RememberedPeer { node_id: 2, start: None, acknowledged }];
        };
        // In a later term than that of the acknowledgement, a leader may have made this node truncate its log.
        remember(&mut remains, term, last.index);
        assert_eq!((remains.shortfall(), remains.copy_with_more()), (None, None));
        if let Some(earlier) = term.checked_sub(1) {
            remember(&mut remains, earlier, last.index + 5);
            assert_eq!((remains.shortfall(), remains.copy_with_more()), (None, None));
        }
        remember(&mut remains, term, last.index + 5);
        assert_eq!(remains.shortfall(), None, "its own disk may have been slower than that of node 2");
        let more = remains.copy_with_more().expect("node 2 has more");
        assert!(more.starts_with(&format!("node 2 has acknowledged entry {}", last.index + 5)), "{more}");
        remember(&mut remains, term + 1, last.index);
        let older = remains.shortfall().expect("it has led a later term");
        assert!(older.contains("older copy than the identity"), "{older}");

        remains.identity.remembered.clear();
        remains.snapshot =
            remains.snapshot.map(|snapshot| LogId { leader_id: CommittedLeaderId::new(term + 1), ..snapshot });
        let older = remains.shortfall().expect("the snapshot is of a later term");
        assert!(older.contains("older copy than the snapshot"), "{older}");
    }

    /// The snapshot alone lacks everything that was acknowledged after it.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_that_is_gone_is_told_and_its_snapshot_is_not_used_alone() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("node");
        let log = directory.join("log");
        let snapshot = node_with(&directory, vec![opens(1)]).await;
        let read = async || {
            let aside = tempfile::tempdir().expect("a directory");
            StoppedNodeData::read(&directory, aside.path(), None).await
        };
        assert_eq!(read().await.expect("it is sound").applied.index(), snapshot + 1);

        // Without its mark alone, the log is damaged; without anything, it is gone, however much of its directory is left.
        fs::remove_file(log.join("high-water")).expect("it is there");
        assert!(matches!(read().await, Err(StoppedNodeError::Log { .. })));
        fs::remove_dir_all(&log).expect("it is there");
        for is_empty_left in [false, true] {
            if is_empty_left {
                fs::create_dir(&log).expect("made");
            }
            let error = read().await.expect_err("it has less than was acknowledged");
            let text = format!("the log at {} is gone", log.display());
            assert!(error.to_string().starts_with(&text), "{error}");
        }

        fs::remove_dir(&log).expect("it is there");
        fs::write(&log, "no directory").expect("written");
        let error = read().await.expect_err("it cannot be read");
        assert!(matches!(error, StoppedNodeError::LogUnread { .. }), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_that_is_gone_is_told() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("node");
        node_with(&directory, vec![opens(1)]).await;
        fs::remove_dir_all(directory.join("snapshots")).expect("it is there");

        let aside = tempfile::tempdir().expect("a directory");
        let error = StoppedNodeData::read(&directory, aside.path(), None).await.expect_err("entries are missing");
        assert!(error.to_string().contains("the snapshot that replaced these entries is gone"), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_copy_ends_before_an_entry_that_cannot_be_applied_if_the_operator_says_so() {
        let folder = tempfile::tempdir().expect("a directory");
        let directory = folder.path().join("node");
        let damaged = Bytes::from_static(b"no batch of this or of a later version");
        let snapshot = node_with(&directory, vec![opens(1), damaged, opens(2)]).await;
        let read = async |through: Option<u64>| {
            let aside = tempfile::tempdir().expect("a directory");
            StoppedNodeData::read(&directory, aside.path(), through).await
        };

        let error = read(None).await.expect_err("no program reads the second entry");
        let text = error.to_string();
        let names = text.contains(&format!(".{} cannot be decoded", snapshot + 2));
        let advises = text.contains(&format!("recover --through {}", snapshot + 1));
        assert!(matches!(error, StoppedNodeError::Unapplied { .. }) && names && advises, "{text}");

        let remains = read(Some(snapshot + 1)).await.expect("it ends before");
        assert_eq!(remains.applied.index(), snapshot + 1);
        assert_eq!(remains.through, remains.applied.last_entry.map(types::log_id));
        assert_eq!(remains.last.map(|last| last.index), Some(snapshot + 3));
        assert_eq!(remains.applied.machine.counts().sessions, 1);
        assert_eq!(read(Some(snapshot)).await.expect("the snapshot alone").applied.machine.counts().sessions, 0);
        for through in [snapshot - 1, snapshot + 4] {
            let asked = read(Some(through)).await;
            let is_refused = match &asked {
                Err(StoppedNodeError::Through { through: told, .. }) => *told == through,
                // The entry before which it should end comes first.
                Err(StoppedNodeError::Unapplied { .. }) => through > snapshot + 1,
                _ => false,
            };
            assert!(is_refused, "--through {through}: {asked:?}");
        }
    }
}
