//! The data of a node that was stopped for good, in files, as a real node leaves them: what `lockkeeper recover` reads.
//!
//! A simulated node has its log in memory. So its log is written by the log of the product, and then read by the code of the command. Both
//! use threads and the system's clock, so they run on a thread of their own while the simulation stands still: no simulated time passes,
//! and what they return depends on the log alone.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

use lockkeeper::{
    machine::Revision,
    raft::{
        backup::StoppedNodeData,
        identity::{NodeIdentity, Stage},
        log::{LogOptions, LogStore},
        snapshot::newest_in,
        types::{TypeConfig, entry_id},
    },
    table::{Applied, EntryId},
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage as _},
    type_config::TypeConfigExt as _,
};
use tokio::runtime::Builder;

use super::{Data, ENTRIES_PER_LOOK, Ledger, Site, with_trail};
use crate::log::Contents;

/// The parts of a data directory, by their names there.
const SNAPSHOTS: &str = "snapshots";
const LOG: &str = "log";

/// The data directory of a node that was stopped for good.
#[derive(Debug)]
pub(crate) struct LeftDirectory(PathBuf);

impl LeftDirectory {
    /// Reads it up to this entry, or all of it, by the code of `lockkeeper recover`.
    pub(crate) fn read(&self, through: Option<u64>) -> Result<StoppedNodeData, String> {
        let directory = self.0.clone();
        let aside = self.0.with_extension("aside");

        apart(move || async move {
            fs::create_dir_all(&aside).map_err(|error| error.to_string())?;
            let read = StoppedNodeData::read(&directory, &aside, through).await;
            fs::remove_dir_all(&aside).map_err(|error| error.to_string())?;
            read.map_err(|error| error.to_string())
        })
    }
}

impl Ledger {
    /// Notes the last entry that a node has applied, and the revision of the keyspace after it.
    pub(super) fn reach(&self, generation: usize, applied: &Applied) {
        let Some(EntryId { term, index }) = applied.last_entry else { return };
        let mut reached = self.reached.lock().expect("nothing panics while it has them");
        reached.entry((generation, index)).or_insert((term, applied.machine.revision()));
    }
}

impl Site {
    /// Whether it belongs to a cluster, so that a cluster can go on with its data.
    pub(crate) fn is_member(&self) -> bool {
        self.data().identity.stage() == Stage::Member
    }

    /// Writes its data into files. Its process must not run.
    pub(crate) fn leave_data(&self) -> io::Result<LeftDirectory> {
        let Data { disk, identity, directory: snapshots, generation } = self.data();
        let directory = self.directory.join(format!("left-{generation}"));
        fs::create_dir_all(directory.join(SNAPSHOTS))?;

        if let Some(newest) = newest_in(&snapshots)? {
            let name = newest.file_name().expect("a snapshot has a name");
            fs::copy(&newest, directory.join(SNAPSHOTS).join(name))?;
        }

        let contents = disk.synced();
        let log = directory.join(LOG);
        let owner = Arc::clone(&identity);
        apart(move || async move { write_log(&log, contents, &owner).await })?;

        let committed_index = identity.committed_index().unwrap_or_default();
        let made = NodeIdentity::make_member(
            &directory,
            identity.cluster_id(),
            identity.node_id(),
            identity.incarnation(),
            identity.start(),
            committed_index,
        );
        made.map_err(io::Error::other)?;
        Ok(LeftDirectory(directory))
    }

    /// The last entry on its disk that a node has applied, and the revision of the keyspace after it. So it is committed, and all entries
    /// before it are.
    pub(crate) fn last_committed(&self) -> Option<(u64, Revision)> {
        let Data { disk, generation, .. } = self.data();
        let contents = disk.synced();
        let mut logged = contents.entries.values().rev().map(|entry| entry.log_id).chain(contents.purged);

        let reached = self.ledger.reached.lock().expect("nothing panics while it has them");
        logged.find_map(|id| {
            let EntryId { term, index } = entry_id(id);
            let (known, revision) = *reached.get(&(generation, index))?;
            (known == term).then_some((index, revision))
        })
    }

    /// The last entry that any node of its cluster has applied; 0 if none has.
    pub(crate) fn last_applied(&self) -> u64 {
        let generation = self.data().generation;
        let known = self.ledger.known.lock().expect("nothing panics while it has them");
        known.range((generation, 0)..=(generation, u64::MAX)).next_back().map_or(0, |((_, index), _)| *index)
    }

    /// Makes the run fail, and lets it go on for now.
    pub(crate) fn complain(&self, trouble: String) {
        self.ledger.complain(trouble);
    }

    /// Compares what was read of its data with what nodes have applied. A cluster can go on with `remains` if nothing is missing there that
    /// this node knew to be committed, and if it shows the tables that the nodes had.
    pub(crate) fn judge_remains(&self, left: &LeftDirectory, remains: &StoppedNodeData) -> Result<(), String> {
        let node = self.id();
        if let Some(missing) = remains.shortfall() {
            return Err(format!("of node {node}, committed entries are gone: {missing}"));
        }

        // Later entries of its log may be others than those that a majority has committed since.
        let applied = self.last_committed().map_or(0, |(index, _)| index);
        let known = remains.committed.map_or(0, |last| last.index).max(applied);
        let looked_at = known - known % ENTRIES_PER_LOOK;
        let first = remains.snapshot.map_or(1, |last| last.index);
        if looked_at >= first {
            let earlier = left.read(Some(looked_at)).map_err(|error| format!("of node {node}: {error}"))?;
            self.compare_with_applied(&earlier.applied)?;
        }

        self.count_recovery(remains);
        Ok(())
    }

    /// Fails if a node has applied the same entry and had another table.
    fn compare_with_applied(&self, applied: &Applied) -> Result<(), String> {
        let index = applied.index();
        let generation = self.data().generation;
        let known = {
            let known = self.ledger.known.lock().expect("nothing panics while it has them");
            known.get(&(generation, index)).copied()
        };
        let Some((other, hash)) = known else { return Ok(()) };

        if hash != with_trail(applied.machine.hash(), applied) {
            return Err(format!(
                "the data that node {} left show another table at index {index} than node {other} had",
                self.id()
            ));
        }
        self.ledger.count("tables of lost clusters that were compared", 1);
        Ok(())
    }

    /// Counts what was seen after a recovery.
    pub(crate) fn count_recovered(&self, what: &'static str) {
        self.ledger.count(what, 1);
    }

    fn count_recovery(&self, remains: &StoppedNodeData) {
        let index = remains.last.map_or(0, |last| last.index);
        let committed = remains.committed.map_or(0, |last| last.index);
        let applied = self.last_applied();

        let ledger = &self.ledger;
        ledger.count(RECOVERED, 1);
        ledger.count("entries that were lost with a majority", applied.saturating_sub(index));
        ledger.count("entries of recoveries that may not have been committed", index.saturating_sub(committed));
    }
}

/// What counts the clusters that went on from what a lost majority had left.
pub(crate) const RECOVERED: &str = "clusters recovered";

/// Writes what a simulated disk has as a log of the product.
async fn write_log(directory: &Path, contents: Contents, identity: &NodeIdentity) -> io::Result<()> {
    let last = contents.last();
    let Contents { vote, committed, purged, entries } = contents;
    let owner = Some(NodeIdentity::owner_of_made(identity.incarnation(), identity.start()));
    let options = LogOptions { owner, ..LogOptions::default() };
    let mut log = LogStore::open(directory, options).map_err(io::Error::other)?;

    if let Some(vote) = vote {
        log.save_vote(&vote).await?;
    }
    if let Some(purged) = purged {
        log.purge(purged).await?;
    }

    // The log of the product writes the index that is known to be committed only if it has the entry; and only with another write.
    log.save_committed(committed.filter(|committed| Some(*committed) <= last)).await?;
    if !entries.is_empty() {
        let (flushed, answer) = TypeConfig::oneshot();
        log.append(entries.into_values(), IOFlushed::<TypeConfig>::signal(flushed)).await?;
        answer.await.map_err(|_| io::Error::other("the log has ended"))??;
    }
    log.close().await
}

/// Does this on a thread of its own, which is not simulated, and waits for it.
fn apart<T, F>(work: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let run = move || {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime without sockets needs nothing of the system").block_on(work())
    };
    thread::spawn(run).join().expect("a panic ends the process")
}
