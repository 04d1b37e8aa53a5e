//! Who a node is: a small file in its data directory, beside the log and outside of its database.
//!
//! A vote and an acknowledged entry are promises. A node that lost its data has forgotten its promises, and under its old id it
//! would break them: vote twice in one term, or miss an entry that counts as stored. So every data directory gets an
//! *incarnation*, 16 random bytes, when it is made. The members remember each other's, every call between them names both ends',
//! and a node whose data is gone comes back with another one and is refused. It is removed from the cluster and added with a new id.
//!
//! The incarnations of the founders are exchanged when the cluster forms ([`super::forming`]), and are part of the membership in the
//! log's first entry; that of a node added later is part of the membership that adds it. So whoever has any of the log knows every
//! member by its data, whether the two have ever talked or not. This file says who the founders are only until the first entry is
//! written. An id is never given twice.
//!
//! What is in memory is on disk already: an update is written aside, synced, renamed and the directory synced, before it shows.
//!
//! The file counts its starts as well, and what peers remember of them tells an older copy of the directory from the directory itself
//! ([`Start`]). The log has the incarnation and the latest start in its own files ([`LogOwner`]), so that neither of the two can be
//! put back, or taken from elsewhere, without the other.
//!
//! The file also says how far the log once reached, so that a log which is lost or cut short as a whole, and therefore consistent in
//! itself, is noticed: see [`Identity::check_log`].
//!
//! What a failed write means depends on what was to be written.
//! * *Promises* must be durable before anybody relies on them: who the founders are ([`Identity::found`], [`founded`](Identity::founded),
//!   [`join`](Identity::join)), a start of this node ([`Identity::started`]) or of a peer ([`Identity::remember_start`]). Without the write,
//!   the step that needs it does not happen: the node does not start or ends, or the peer's call is refused.
//! * *Advice* is how far the log reached and what peers acknowledged ([`Identity::record_progress`]). It only ever lags behind, nothing
//!   waits for it, and the older note is as true as the newer one. It notices a loss that must not happen in the first place. So a failed write
//!   is logged and tried again; to end a node for it would turn a shortage of file descriptors into the loss of a member.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use rand::RngCore;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

pub use super::ids::{ClusterId, Incarnation, InvalidId};
use super::types::Node;

mod file;
mod starts;

pub use file::FILE_NAME;
pub use starts::{Acknowledged, Remembered, Start};

/// How far a node has come on its way into a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Belongs to no cluster yet. Has voted for nobody and stored nothing.
    New,
    /// All founders know each other; the first entry of the log may not be written yet.
    Founding,
    /// Belongs to the cluster.
    Member,
}

/// Where the first entry of a founder's log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstEntry {
    /// In the log. It is the same on all founders, so it counts as committed.
    Written,
    /// On its way: another founder was faster, and asked for a vote before this one had written it.
    Awaited,
}

/// A founder, as the file knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Its data directory.
    pub incarnation: Incarnation,
    /// Its addresses when the cluster was founded; `None` in files of before, which also had members that came later. Where it is now, the
    /// log says.
    #[serde(flatten)]
    pub addresses: Option<Addresses>,
}

/// Where a founder was reached.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Addresses {
    /// By its peers.
    pub peer_address: String,
    /// By clients.
    pub client_address: String,
}

/// What the file holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    format: u32,
    cluster_id: ClusterId,
    node_id: u64,
    incarnation: Incarnation,
    stage: Stage,
    /// An entry up to this index is committed, so no log may end before it.
    committed_index: Option<u64>,
    #[serde(default)]
    members: Vec<Member>,
    /// Of this directory, the latest last. Empty in files of before this field.
    #[serde(default)]
    starts: Vec<Start>,
    /// Starts that were begun: the log may have one of them already.
    #[serde(default)]
    starting: Vec<Start>,
    #[serde(default)]
    remembered: Vec<Remembered>,
}

/// Which log belongs to a data directory, at the start of its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogOwner {
    /// The directory's.
    pub incarnation: Incarnation,
    /// Which starts the log may have noted last. Empty: that is not known.
    pub last: Vec<Start>,
    /// Some start was noted in it.
    pub was_noted: bool,
    /// The start to note now.
    pub next: Start,
    /// There need not be a log yet: this node has promised nothing.
    pub may_be_new: bool,
}

/// Why a node cannot be who it is to be. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The directory belongs to another cluster.
    #[error(
        "data directory {} belongs to cluster {found}, not {expected}: correct the cluster id in the configuration, or give this \
         cluster a directory of its own", .directory.display()
    )]
    OtherCluster {
        /// Which.
        directory: PathBuf,
        /// As the file says.
        found: ClusterId,
        /// As the configuration says.
        expected: ClusterId,
    },
    /// The directory belongs to another node.
    #[error(
        "data directory {} belongs to node {found}, not {expected}: correct the node id in the configuration, or give this node a \
         directory of its own", .directory.display()
    )]
    OtherNode {
        /// Which.
        directory: PathBuf,
        /// As the file says.
        found: u64,
        /// As the configuration says.
        expected: u64,
    },
    /// The directory holds something, but not the data of a node.
    #[error(
        "directory {} is not empty and holds no {FILE_NAME}: name an empty directory; if this was the data of a node, what was \
         lost cannot be made up for: remove the member from its cluster and add a new one, with a new id", .directory.display()
    )]
    Foreign {
        /// Which.
        directory: PathBuf,
    },
    /// The file is not what was written.
    #[error(
        "{} is damaged ({reason}): restore it if there is a copy, otherwise remove the member from its cluster and add a new one, \
         with a new id", .file.display()
    )]
    Damaged {
        /// Which.
        file: PathBuf,
        /// In what way.
        reason: String,
    },
    /// The log ends before an entry that is known to have been in it.
    #[error(
        "the log ends at {}, but entry {committed_index} was in it: data of this node is lost; remove the member from its cluster \
         and add a new one, with a new id", .last_index.map_or("nothing".into(), |last| format!("entry {last}"))
    )]
    LogLost {
        /// Where it ends; `None`: it is empty.
        last_index: Option<u64>,
        /// Where it cannot end before.
        committed_index: u64,
    },
    /// A node with a known id has other data than before.
    #[error(
        "node {node_id} is known as incarnation {known} and now calls itself {found}: its data is gone; remove member {node_id} \
         and add it with a new id"
    )]
    OtherIncarnation {
        /// Which.
        node_id: u64,
        /// As recorded.
        known: Incarnation,
        /// As it says.
        found: Incarnation,
    },
    /// Another node remembers what this directory does not know of.
    #[error(
        "the data directory of node {node_id} is an older copy, or a second one: node {witness} remembers {what}; it has forgotten votes \
         or entries that others rely on, and takes no part in the cluster: put its newest data back, or leave this node stopped; the \
         cluster serves while most of its members run"
    )]
    Outdated {
        /// Whose directory.
        node_id: u64,
        /// Who remembers.
        witness: u64,
        /// What.
        what: String,
    },
    /// The file could not be read or written.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
}

/// A node's identity, shared by all that speak for it. See the module's documentation.
#[derive(Debug)]
pub struct Identity {
    cluster_id: ClusterId,
    node_id: u64,
    incarnation: Incarnation,
    /// `None`: lives in memory alone.
    directory: Option<PathBuf>,
    /// What is on disk.
    record: Arc<watch::Sender<Record>>,
    /// One update at a time.
    writing: Arc<Mutex<()>>,
    /// This process's.
    start: Start,
    /// What peers remember of this node's starts, where it is not the present one: it shows them that this node goes on from there.
    shown: std::sync::Mutex<BTreeMap<u64, Start>>,
    /// Why this directory must not be used any more.
    outdated: watch::Sender<Option<(u64, String)>>,
}

impl Identity {
    /// The identity of the node whose data are in `directory`; a new one if the directory is empty or does not exist. This is the beginning of
    /// a start, which ends with [`started`](Self::started).
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
                let (found, expected) = (record.cluster_id, cluster_id.clone());
                return Err(IdentityError::OtherCluster { directory, found, expected });
            }
            Some(record) if record.node_id != node_id => {
                let (found, expected) = (record.node_id, node_id);
                return Err(IdentityError::OtherNode { directory, found, expected });
            }
            Some(record) => record,
            None => Record::new(cluster_id.clone(), node_id, Incarnation::draw(random)),
        };
        let (record, start) = record.starting(random);
        file::write(&directory, &record)?;
        Ok(Self::new(record, Some(directory), start))
    }

    /// An identity without a file, for simulations: who keeps it keeps the node's data.
    pub fn in_memory(cluster_id: &ClusterId, node_id: u64, random: &mut impl RngCore) -> Self {
        let record = Record::new(cluster_id.clone(), node_id, Incarnation::draw(random));
        let (record, start) = record.starting(random);
        Self::new(record.started(), None, start)
    }

    /// The identity of another process of the node, whose file now says what this one's does: of its successor, or of one on a copy of
    /// its data. For simulations.
    pub fn start_again(&self, random: &mut impl RngCore) -> Self {
        let (record, start) = self.record.borrow().clone().starting(random);
        Self::new(record.started(), None, start)
    }

    fn new(record: Record, directory: Option<PathBuf>, start: Start) -> Self {
        Self {
            cluster_id: record.cluster_id.clone(),
            node_id: record.node_id,
            incarnation: record.incarnation,
            directory,
            record: Arc::new(watch::Sender::new(record)),
            writing: Arc::new(Mutex::new(())),
            start,
            shown: std::sync::Mutex::default(),
            outdated: watch::Sender::new(None),
        }
    }

    /// Which log this directory has.
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

    /// The log has noted this start. Blocks, as [`open_or_create`](Self::open_or_create).
    pub fn started(&self) -> Result<(), IdentityError> {
        let record = self.record.borrow().clone().started();
        if let Some(directory) = &self.directory {
            file::write(directory, &record)?;
        }
        self.record.send_replace(record);
        Ok(())
    }

    /// This process's start.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Whether this directory was started so, now or before.
    pub fn has_started_as(&self, start: Start) -> bool {
        start == self.start || self.record.borrow().starts.contains(&start)
    }

    /// What this node remembers of a peer.
    pub fn remembered(&self, node_id: u64) -> Option<Remembered> {
        self.record.borrow().remembered.iter().find(|peer| peer.node_id == node_id).copied()
    }

    /// Remembers a peer's start from now on, as this node is about to count on it.
    pub async fn remember_start(&self, node_id: u64, start: Start) -> Result<(), IdentityError> {
        // Nearly always it is known.
        if self.remembered(node_id).is_some_and(|peer| peer.start == Some(start)) {
            return Ok(());
        }
        self.update(move |record| {
            record.peer(node_id).start = Some(start);
            Ok(())
        })
        .await
    }

    /// What a peer says that it remembers of this node. Fails if this directory does not go on from there: then it must not be used any more.
    pub fn goes_on_from(&self, witness: u64, start: Start) -> Result<(), IdentityError> {
        if !self.has_started_as(start) {
            return Err(self.is_outdated(witness, format!("a start ({start}) that is none of this directory's")));
        }
        let mut shown = self.shown.lock().expect("nobody panics with the lock held");
        match start == self.start {
            true => shown.remove(&witness),
            false => shown.insert(witness, start),
        };
        Ok(())
    }

    /// What to show a peer, for it to see that this start goes on from one that it remembers.
    pub fn shown_to(&self, node_id: u64) -> Option<Start> {
        self.shown.lock().expect("nobody panics with the lock held").get(&node_id).copied()
    }

    /// This directory lacks what a peer remembers: the node is to end.
    pub fn is_outdated(&self, witness: u64, what: String) -> IdentityError {
        self.outdated.send_replace(Some((witness, what.clone())));
        IdentityError::Outdated { node_id: self.node_id, witness, what }
    }

    /// Returns once it is known that this directory must not be used any more: why.
    pub async fn outdated(&self) -> IdentityError {
        let mut outdated = self.outdated.subscribe();
        let why = outdated.wait_for(Option::is_some).await.expect("the sender is in self");
        let (witness, what) = why.clone().expect("it was waited for");
        IdentityError::Outdated { node_id: self.node_id, witness, what }
    }

    /// The cluster that this node belongs to, or is to belong to.
    pub fn cluster_id(&self) -> &ClusterId {
        &self.cluster_id
    }

    /// This node's id.
    pub fn node_id(&self) -> u64 {
        self.node_id
    }

    /// This node's data directory.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// How far this node has come.
    pub fn stage(&self) -> Stage {
        self.record.borrow().stage
    }

    /// Returns once this node is no longer [`Stage::New`].
    pub async fn no_longer_new(&self) {
        let mut record = self.record.subscribe();
        record.wait_for(|record| record.stage != Stage::New).await.expect("the sender is in self");
    }

    /// The incarnation under which this node knows another without its log: as a founder, or itself.
    pub fn known(&self, node_id: u64) -> Option<Incarnation> {
        self.record.borrow().known(node_id)
    }

    /// The founders, while their cluster may still lack its first entry.
    pub fn founders(&self) -> Option<BTreeMap<u64, Node>> {
        let record = self.record.borrow();
        if record.stage != Stage::Founding {
            return None;
        }
        let founder = |member: &Member| {
            let Addresses { peer_address, client_address } = member.addresses.clone()?;
            let incarnation = Some(member.incarnation);
            Some((member.node_id, Node { incarnation, peer_address, client_address }))
        };
        Some(record.members.iter().filter_map(founder).collect())
    }

    /// All founders are known: no other node will ever be taken for one of them. Does nothing if this node is past that.
    pub async fn found(&self, founders: Vec<Member>) -> Result<(), IdentityError> {
        self.update(move |record| {
            if record.stage == Stage::New {
                record.stage = Stage::Founding;
                record.members = founders;
            }
            Ok(())
        })
        .await
    }

    /// The cluster exists, and its first entry is in this node's log or will come from the leader. Does nothing if this node is a
    /// member already.
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

    /// A cluster that exists knows this node by its incarnation. Does nothing if this node is past that.
    pub async fn join(&self) -> Result<(), IdentityError> {
        self.update(|record| {
            if record.stage == Stage::New {
                record.stage = Stage::Member;
            }
            Ok(())
        })
        .await
    }

    /// Remembers that the log reaches at least to `index`: a *committed* one, as others can be truncated, and one that is *durable* here; and what
    /// peers acknowledged to this node. To be called now and then. An error changes nothing, and is no reason to end: see the module's
    /// documentation.
    pub async fn record_progress(
        &self,
        index: u64,
        acknowledged: BTreeMap<u64, Acknowledged>,
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

    /// Checks that a log can be this node's: whose last entry, or whose snapshot's, is `last_index`. `has_voted`: it has a vote.
    ///
    /// Whoever has a snapshot, or an entry behind the first one, has it from a leader whose term it noted before.
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

    /// Applies a change to the file, then to what is in memory. Changes nothing if it fails. Once the write has begun, it also ends, and
    /// the next one waits for it, where whoever asked for it does not: a call that breaks off.
    async fn update(&self, change: impl FnOnce(&mut Record) -> Result<(), IdentityError>) -> Result<(), IdentityError> {
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
        written.await.expect("the writer does not panic, and nobody aborts it")
    }
}

impl Record {
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
            starting: Vec::new(),
            remembered: Vec::new(),
        }
    }

    /// The beginning of a start.
    fn starting(mut self, random: &mut impl RngCore) -> (Self, Start) {
        let start = Start::draw(random);
        self.starting.push(start);
        (self, start)
    }

    /// The end of the latest start.
    fn started(mut self) -> Self {
        self.starts.extend(std::mem::take(&mut self.starting).pop());
        let too_many = self.starts.len().saturating_sub(starts::STARTS_KEPT);
        self.starts.drain(..too_many);
        self
    }

    fn peer(&mut self, node_id: u64) -> &mut Remembered {
        let place = self.remembered.iter().position(|peer| peer.node_id == node_id).unwrap_or_else(|| {
            self.remembered.push(Remembered { node_id, start: None, acknowledged: None });
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
