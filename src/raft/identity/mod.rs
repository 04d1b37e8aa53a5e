//! A node's identity: a small file in its data directory, beside the log and outside of its database.
//!
//! A vote and an acknowledged entry are promises. A node that lost its data has forgotten its promises, and under its old id it would
//! break them: vote twice in one term, or miss an entry that counts as stored. So every data directory gets an *incarnation*, 16 random
//! bytes, when it is created. The members remember each other's, every call between them names both, and a node whose data is gone
//! returns with another one and is refused.
//!
//! The founders exchange their incarnations when the cluster forms ([`crate::members::forming`]), and the membership in the log's first
//! entry contains them; that of a node added later is part of the membership that adds it. So a node with any part of the log knows the
//! incarnation of every member, whether the two have ever communicated or not. This file lists the founders only until the first entry is
//! written. An id is never reused.
//!
//! All state in memory is durable: an update is written aside, synced, renamed and the directory synced, before it becomes visible.
//!
//! The file also counts starts; the starts that peers remember tell an older copy of the directory from the directory itself ([`Start`]).
//! The log stores the incarnation and the latest start in its own files ([`LogOwner`]), so that neither of the two can be restored from a
//! copy, or taken from elsewhere, without the other.
//!
//! The file also records how far the log once reached, so that a log which was lost or shortened as a whole, and is therefore consistent
//! in itself, is noticed: see [`NodeIdentity::check_log`].
//!
//! A copy that was made since the last start, and is started while no member is there that knows better, cannot be told from the directory
//! itself. If a majority then goes on without entries that were acknowledged, the member that has them finds out as soon as it is back: the
//! leader sends other entries in the place of some that it knows to be committed ([`NodeIdentity::mark_disagreeing`]). It ends and says so.
//! Raft would make it truncate its log, and its table would differ for ever.
//!
//! The consequence of a failed write depends on its content.
//! * *Promises* must be durable before anyone relies on them: the founders ([`NodeIdentity::found`], [`founded`](NodeIdentity::founded),
//!   [`join`](NodeIdentity::join)), a start of this node ([`NodeIdentity::started`], [`show_start`](NodeIdentity::show_start)) or of a peer
//!   ([`NodeIdentity::remember_start`]).
//!   Without the write, the step that needs it does not happen: the node does not start or ends, or the peer's call is refused.
//! * *Advice* is how far the log reached and what peers acknowledged ([`NodeIdentity::record_progress`]). It may lag behind, nothing waits
//!   for it, and an older record is as true as a newer one. It only detects losses that should not happen in the first place. So a failed
//!   write is logged and retried; ending the node would turn a shortage of file descriptors into the loss of a member.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use rand::RngCore;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

pub use crate::identity::ids::{ClusterId, Incarnation, InvalidId};
use lockkeeper_planted::Planted;
use lockkeeper_table::MemberNode;

mod doubts;
mod errors;
mod file;
pub mod ids;
mod offline;
mod starts;

use doubts::Doubt;
pub use errors::IdentityError;
pub use file::FILE_NAME;
pub use offline::StoredIdentity;
pub use starts::{AcknowledgedEntry, RememberedPeer, Start};

/// The stages of a node on its way into a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Belongs to no cluster yet. Has neither voted nor stored an entry.
    New,
    /// All founders know each other; the log's first entry may not be written yet.
    Founding,
    /// Belongs to the cluster.
    Member,
    /// The cluster has removed it.
    Removed,
}

/// Whether a founder's log has its first entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstEntry {
    /// It is in the log. It is the same on all founders, so it counts as committed.
    Written,
    /// It will come from another founder, which asked for a vote before this one had written it.
    Awaited,
}

/// A founder, as recorded in the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Founder {
    /// Its id.
    pub node_id: u64,
    /// The incarnation of its data directory.
    pub incarnation: Incarnation,
    /// Its addresses when the cluster was founded; `None` in files of older versions, which also listed members added later. Present
    /// addresses are in the log.
    #[serde(flatten)]
    pub addresses: Option<FounderAddresses>,
}

/// A founder's addresses at the founding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FounderAddresses {
    /// The address for peers.
    pub peer_address: String,
    /// The address for clients.
    pub client_address: String,
}

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct IdentityRecord {
    format: u32,
    cluster_id: ClusterId,
    node_id: u64,
    incarnation: Incarnation,
    stage: Stage,
    /// An entry up to this index is committed, so the log cannot end before it.
    committed_index: Option<u64>,
    #[serde(default)]
    members: Vec<Founder>,
    /// Starts of this directory, the latest last. Empty in files of versions without this field.
    #[serde(default)]
    starts: Vec<Start>,
    /// The latest of `starts`, while no peer can know of it: the next one replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unshown: Option<Start>,
    /// Starts that were begun but not finished: the log may have recorded one of them.
    #[serde(default)]
    starting: Vec<Start>,
    #[serde(default)]
    remembered: Vec<RememberedPeer>,
}

/// The log that belongs to a data directory, at the start of its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogOwner {
    /// The directory's incarnation.
    pub incarnation: Incarnation,
    /// The starts that the log may have recorded last. Empty: unknown.
    pub last: Vec<Start>,
    /// Whether some start was recorded in the log.
    pub was_noted: bool,
    /// The start to record now.
    pub next: Start,
    /// Whether the log may be missing: this node has promised nothing yet.
    pub may_be_new: bool,
}

/// A node's identity, shared by all parts of the node. See the module's documentation.
#[derive(Debug)]
pub struct NodeIdentity {
    cluster_id: ClusterId,
    node_id: u64,
    incarnation: Incarnation,
    /// `None` if it is kept in memory only.
    directory: Option<PathBuf>,
    /// The content of the file.
    record: Arc<watch::Sender<IdentityRecord>>,
    /// Serializes updates.
    writing: Arc<Mutex<()>>,
    /// The start of this process.
    start: Start,
    /// Starts of this node that peers remember, where they are not the present one. Shown to the peer, they prove that this start follows
    /// from it.
    earlier_starts: std::sync::Mutex<BTreeMap<u64, Start>>,
    /// Why this directory must no longer be used.
    outdated: watch::Sender<Option<Doubt>>,
    /// The member that said that this node was removed.
    removed: watch::Sender<Option<u64>>,
}

impl NodeIdentity {
    /// Opens the identity of the node whose data is in `directory`; creates one if the directory is empty or does not exist. This begins
    /// a start, which [`started`](Self::started) finishes.
    ///
    /// Blocks: for the start of a program, before anything else touches the directory.
    pub fn open_or_create(
        directory: impl Into<PathBuf>,
        cluster_id: &ClusterId,
        node_id: u64,
        random: &mut impl RngCore,
    ) -> Result<Self, IdentityError> {
        let directory = directory.into();

        let record = match file::read(&directory)? {
            Some(record) if record.cluster_id != *cluster_id => {
                let found = record.cluster_id;
                let expected = cluster_id.clone();
                return Err(IdentityError::OtherCluster { directory, found, expected });
            }
            Some(record) if record.node_id != node_id => {
                let found = record.node_id;
                let expected = node_id;
                return Err(IdentityError::OtherNode { directory, found, expected });
            }
            Some(record) if record.stage == Stage::Removed => {
                return Err(IdentityError::Removed { node_id, cluster_id: cluster_id.clone(), witness: None });
            }
            Some(record) => record,
            None => IdentityRecord::new(cluster_id.clone(), node_id, Incarnation::draw(random)),
        };

        let (record, start) = record.starting(random);
        file::write(&directory, &record)?;
        Ok(Self::new(record, Some(directory), start))
    }

    /// The cluster of the node whose data is in `directory`; It is `None` if the directory has no identity. Blocks.
    pub fn recorded_cluster(directory: &std::path::Path) -> Result<Option<ClusterId>, IdentityError> {
        Ok(file::read(directory)?.map(|record| record.cluster_id))
    }

    /// An identity without a file, for simulations: the value stands for the node's data.
    pub fn in_memory(cluster_id: &ClusterId, node_id: u64, random: &mut impl RngCore) -> Self {
        let record = IdentityRecord::new(cluster_id.clone(), node_id, Incarnation::draw(random));
        let (record, start) = record.starting(random);
        Self::new(record.started().shown(), None, start)
    }

    /// The identity of another process with the same file content: this node's next process, or one on a copy of its data. For
    /// simulations.
    pub fn start_again(&self, random: &mut impl RngCore) -> Self {
        let (record, start) = self.record.borrow().clone().starting(random);
        Self::new(record.started().shown(), None, start)
    }

    fn new(record: IdentityRecord, directory: Option<PathBuf>, start: Start) -> Self {
        Self {
            cluster_id: record.cluster_id.clone(),
            node_id: record.node_id,
            incarnation: record.incarnation,
            directory,
            record: Arc::new(watch::Sender::new(record)),
            writing: Arc::new(Mutex::new(())),
            start,
            earlier_starts: std::sync::Mutex::default(),
            outdated: watch::Sender::new(None),
            removed: watch::Sender::new(None),
        }
    }

    /// The log that belongs to this directory.
    pub fn log_owner(&self) -> LogOwner {
        let record = self.record.borrow();
        let starting = record.starting.iter().filter(|start| **start != self.start);
        LogOwner {
            incarnation: self.incarnation,
            last: record.starts.last().into_iter().chain(starting).copied().collect(),
            was_noted: !record.starts.is_empty(),
            next: self.start,
            may_be_new: record.stage == Stage::New,
        }
    }

    /// Finishes the start: the log has recorded it. Blocks, as [`open_or_create`](Self::open_or_create).
    pub fn started(&self) -> Result<(), IdentityError> {
        let record = self.record.borrow().clone().started();
        if let Some(directory) = &self.directory {
            file::write(directory, &record)?;
        }
        self.record.send_replace(record);
        Ok(())
    }

    /// Records that peers may know of this start from now on, so that it stays among those of this directory. Durable when it returns; only
    /// then the start may be a part of a call to a peer, or of an answer.
    ///
    /// One write for each start that comes so far. Those that do not (a file of the node is missing, or there is no memory for its table)
    /// may be very many, and would push out of the file what peers remember.
    pub async fn show_start(&self) -> Result<(), IdentityError> {
        // Before each call to a peer, and nearly always done.
        if self.record.borrow().unshown.is_none() {
            return Ok(());
        }
        self.update(|record| {
            *record = record.clone().shown();
            Ok(())
        })
        .await
    }

    /// The start of this process.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Whether this start is one of this directory's, present or past.
    pub fn has_started_as(&self, start: Start) -> bool {
        start == self.start || self.record.borrow().starts.contains(&start)
    }

    /// What this node remembers of a peer.
    pub fn remembered(&self, node_id: u64) -> Option<RememberedPeer> {
        self.record.borrow().remembered.iter().find(|peer| peer.node_id == node_id).copied()
    }

    /// Remembers a peer's start durably, since this node is about to rely on the peer's promise.
    pub async fn remember_start(&self, node_id: u64, start: Start) -> Result<(), IdentityError> {
        // Known already in nearly all calls.
        if self.remembered(node_id).is_some_and(|peer| peer.start == Some(start)) {
            return Ok(());
        }
        self.update(move |record| {
            record.peer(node_id).start = Some(start);
            Ok(())
        })
        .await
    }

    /// Checks a start of this node that a peer remembers. Fails if the directory does not have this start: it must then no longer be used.
    pub fn check_start(&self, witness: u64, start: Start) -> Result<(), IdentityError> {
        if !self.has_started_as(start) {
            return Err(
                self.mark_outdated(witness, format!("a start ({start}) that is none of this directory's starts"))
            );
        }
        let mut earlier_starts = self.earlier_starts.lock().expect("no code panics with the lock held");
        if start == self.start {
            earlier_starts.remove(&witness)
        } else {
            earlier_starts.insert(witness, start)
        };
        Ok(())
    }

    /// The start to show a peer, as proof that the present start follows from one that the peer remembers.
    pub fn earlier_start_for(&self, node_id: u64) -> Option<Start> {
        self.earlier_starts.lock().expect("no code panics with the lock held").get(&node_id).copied()
    }

    /// An entry up to this index is committed, as far as the file knows.
    pub fn committed_index(&self) -> Option<u64> {
        self.record.borrow().committed_index
    }

    /// Records that a member says that the cluster has removed this node: the node must end.
    pub fn mark_removed(&self, witness: u64) {
        self.removed.send_replace(Some(witness));
    }

    /// Returns once it is known that the cluster has removed this node, and that is recorded: the directory cannot be used again.
    pub async fn removed(&self) -> IdentityError {
        let mut removed = self.removed.subscribe();
        let witness = *removed.wait_for(Option::is_some).await.expect("the sender is in self");
        let recorded = self.update(|record| {
            record.stage = Stage::Removed;
            Ok(())
        });
        match recorded.await {
            Ok(()) => IdentityError::Removed { node_id: self.node_id, cluster_id: self.cluster_id.clone(), witness },
            Err(error) => error,
        }
    }

    /// The cluster that this node belongs to, or is configured for.
    pub fn cluster_id(&self) -> &ClusterId {
        &self.cluster_id
    }

    /// This node's id.
    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// The incarnation of this node's data directory.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// This node's stage.
    pub fn stage(&self) -> Stage {
        self.record.borrow().stage
    }

    /// Returns once this node is no longer [`Stage::New`].
    pub async fn no_longer_new(&self) {
        let mut record = self.record.subscribe();
        record.wait_for(|record| record.stage != Stage::New).await.expect("the sender is in self");
    }

    /// The incarnation of a founder, or of this node, that is known without the log.
    pub fn known(&self, node_id: u64) -> Option<Incarnation> {
        self.record.borrow().known(node_id)
    }

    /// The founders, while their cluster may still lack its first entry.
    pub fn founders(&self) -> Option<BTreeMap<u64, MemberNode>> {
        let record = self.record.borrow();
        if record.stage != Stage::Founding {
            return None;
        }
        let founder = |member: &Founder| {
            let FounderAddresses { peer_address, client_address } = member.addresses.clone()?;
            let incarnation = Some(member.incarnation);
            Some((member.node_id, MemberNode { incarnation, peer_address, client_address, ..MemberNode::default() }))
        };
        Some(record.members.iter().filter_map(founder).collect())
    }

    /// Records all founders, so that no other node can later pass for one of them. Does nothing at a later stage.
    pub async fn found(&self, founders: Vec<Founder>) -> Result<(), IdentityError> {
        self.update(move |record| {
            if record.stage == Stage::New {
                record.stage = Stage::Founding;
                record.members = founders;
            }
            Ok(())
        })
        .await
    }

    /// Records that the cluster exists, and its first entry is in this node's log or will come from the leader. Does nothing if this node
    /// is a member already.
    pub async fn founded(&self, first_entry: FirstEntry) -> Result<(), IdentityError> {
        self.update(move |record| {
            if record.stage == Stage::Founding {
                record.stage = Stage::Member;
                if first_entry == FirstEntry::Written {
                    record.committed_index = record.committed_index.max(Some(0));
                }
            }
            Ok(())
        })
        .await
    }

    /// Records that an existing cluster knows this node by its incarnation. Does nothing at a later stage.
    pub async fn join(&self) -> Result<(), IdentityError> {
        self.update(|record| {
            if record.stage == Stage::New {
                record.stage = Stage::Member;
            }
            Ok(())
        })
        .await
    }

    /// Records that the log reaches at least to `index`: an entry that is *committed*, since others can be truncated, and *durable* here;
    /// and what peers acknowledged to this node. Called periodically. After an error nothing is changed, and the node goes on: see the
    /// module's documentation.
    pub async fn record_progress(
        &self,
        index: u64,
        acknowledged: BTreeMap<u64, AcknowledgedEntry>,
    ) -> Result<(), IdentityError> {
        self.update(move |record| {
            record.committed_index = record.committed_index.max(Some(index));
            for (node_id, acknowledged) in acknowledged {
                let peer = record.peer(node_id);
                peer.acknowledged = peer.acknowledged.max(Some(acknowledged));
            }
            Ok(())
        })
        .await
    }

    /// Checks that a log can be this node's. `last_index` is that of its last entry, or of its snapshot; `has_voted` says whether it has a
    /// vote.
    ///
    /// A node with a snapshot, or an entry after the first one, has it from a leader whose term it stored before, as a vote.
    pub fn check_log(&self, last_index: Option<u64>, has_voted: bool) -> Result<(), IdentityError> {
        match self.record.borrow().committed_index {
            committed_index if last_index > Some(0) && !has_voted => {
                let committed_index = committed_index.max(last_index).unwrap_or_default();
                Err(IdentityError::LogLost { last_index: None, committed_index })
            }
            Some(committed_index) if last_index < Some(committed_index) => {
                Err(IdentityError::LogLost { last_index, committed_index })
            }
            _ => Ok(()),
        }
    }

    /// Applies a change to the file, then to memory. Changes nothing if it fails. A write that has begun also finishes, and the next one
    /// waits for it, even if the caller's future is dropped.
    async fn update(
        &self,
        change: impl FnOnce(&mut IdentityRecord) -> Result<(), IdentityError>,
    ) -> Result<(), IdentityError> {
        let one_at_a_time = Arc::clone(&self.writing).lock_owned().await;
        let mut record = self.record.borrow().clone();
        change(&mut record)?;

        if record == *self.record.borrow() {
            return Ok(());
        }

        let Some(directory) = self.directory.clone() else {
            self.record.send_replace(record);
            return Ok(());
        };

        let known = Arc::clone(&self.record);
        let written = tokio::task::spawn_blocking(move || {
            let _one_at_a_time = one_at_a_time;
            file::write(&directory, &record)?;
            known.send_replace(record);
            Ok(())
        });
        written.await.expect("the writer does not panic, and it is never aborted")
    }
}

impl IdentityRecord {
    fn new(cluster_id: ClusterId, node_id: u64, incarnation: Incarnation) -> Self {
        Self {
            format: file::FORMAT,
            cluster_id,
            node_id,
            incarnation,
            stage: Stage::New,
            committed_index: None,
            members: Vec::new(),
            starts: Vec::new(),
            unshown: None,
            starting: Vec::new(),
            remembered: Vec::new(),
        }
    }

    /// Begins a start.
    fn starting(mut self, random: &mut impl RngCore) -> (Self, Start) {
        let start = Start::draw(random);
        while self.starting.len() >= starts::STARTING_KEPT {
            // Any of them may be the log's: the last that opened it, whose process ended before this file said so. Mostly that is the
            // first, or one of the latest. So one of those between is given up, and that only after more failures than a node has.
            self.starting.remove(1);
        }
        self.starting.push(start);
        (self, start)
    }

    /// Finishes the latest start: the log has recorded it. It replaces the one before if nobody can know of that: a peer remembers none but
    /// those that it was shown, and the log none but the latest.
    fn started(mut self) -> Self {
        if let Some(start) = std::mem::take(&mut self.starting).pop() {
            self.starts.pop_if(|last| Some(*last) == self.unshown || Planted::ShownStartForgotten.is_on());
            self.starts.push(start);
            self.unshown = Some(start);
        }
        let too_many = self.starts.len().saturating_sub(starts::STARTS_KEPT);
        self.starts.drain(..too_many);
        self
    }

    /// Peers may know of the latest start.
    fn shown(self) -> Self {
        Self { unshown: None, ..self }
    }

    fn peer(&mut self, node_id: u64) -> &mut RememberedPeer {
        let place = self.remembered.iter().position(|peer| peer.node_id == node_id).unwrap_or_else(|| {
            self.remembered.push(RememberedPeer { node_id, start: None, acknowledged: None });
            self.remembered.len() - 1
        });
        &mut self.remembered[place]
    }

    fn known(&self, node_id: u64) -> Option<Incarnation> {
        if node_id == self.node_id {
            return Some(self.incarnation);
        }
        self.members.iter().find(|member| member.node_id == node_id).map(|member| member.incarnation)
    }
}

#[cfg(test)]
mod tests;
