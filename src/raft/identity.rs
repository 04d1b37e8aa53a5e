//! Who a node is: a small file in its data directory, beside the log and outside of its database.
//!
//! A vote and an acknowledged entry are promises. A node that lost its data has forgotten its promises, and under its old id it
//! would break them: vote twice in one term, or miss an entry that counts as stored. So every data directory gets an
//! *incarnation*, 16 random bytes, when it is made. The members remember each other's, every call between them names both ends',
//! and a node whose data is gone comes back with another one and is refused. It is removed from the cluster and added with a new id.
//!
//! The incarnations of the founders are exchanged when the cluster forms ([`super::forming`]). That of a node added later is
//! recorded by each member on first contact, in either direction: until then a member cannot tell it from a successor with the same
//! id. An id is therefore never given twice.
//!
//! What is in memory is on disk already: an update is written aside, synced, renamed and the directory synced, before it shows.
//!
//! The file also says how far the log once reached, so that a log which is lost or cut short as a whole, and therefore consistent in
//! itself, is noticed: see [`Identity::check_log`].

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

use rand::RngCore;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, watch};

use super::types::Node;

mod file;
mod ids;

pub use file::FILE_NAME;
pub use ids::{ClusterId, Incarnation, InvalidId};

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

/// A member, as the file knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its id.
    pub node_id: u64,
    /// Its data directory.
    pub incarnation: Incarnation,
    /// Its addresses when the cluster was founded; `None` if it came later. Where it is now, the log says.
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
}

impl Identity {
    /// The identity of the node whose data are in `directory`; a new one if the directory is empty or does not exist.
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
            None => {
                let record = Record::new(cluster_id.clone(), node_id, Incarnation::draw(random));
                file::write(&directory, &record)?;
                record
            }
        };
        Ok(Self::new(record, Some(directory)))
    }

    /// An identity without a file, for simulations: who keeps it keeps the node's data.
    pub fn in_memory(cluster_id: &ClusterId, node_id: u64, random: &mut impl RngCore) -> Self {
        Self::new(Record::new(cluster_id.clone(), node_id, Incarnation::draw(random)), None)
    }

    fn new(record: Record, directory: Option<PathBuf>) -> Self {
        Self {
            cluster_id: record.cluster_id.clone(),
            node_id: record.node_id,
            incarnation: record.incarnation,
            directory,
            record: Arc::new(watch::Sender::new(record)),
            writing: Arc::new(Mutex::new(())),
        }
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

    /// The incarnation under which this node knows another, or itself.
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
            Some((member.node_id, Node { peer_address, client_address }))
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

    /// Records who a node is on first contact, and checks it on every later one.
    ///
    /// A new node records nobody: those it meets may still lose their data and come back, as nothing depends on them yet.
    pub async fn meet(&self, node_id: u64, incarnation: Incarnation) -> Result<(), IdentityError> {
        let known = match self.record.borrow() {
            record if record.stage == Stage::New => return Ok(()),
            record => record.known(node_id),
        };
        match known {
            Some(known) if known == incarnation => Ok(()),
            Some(known) => Err(IdentityError::OtherIncarnation { node_id, known, found: incarnation }),
            None => {
                tracing::info!(node_id, %incarnation, "met a node for the first time");
                self.update(move |record| match record.known(node_id) {
                    Some(known) if known != incarnation => {
                        Err(IdentityError::OtherIncarnation { node_id, known, found: incarnation })
                    }
                    Some(_) => Ok(()),
                    None => {
                        record.members.push(Member { node_id, incarnation, addresses: None });
                        Ok(())
                    }
                })
                .await
            }
        }
    }

    /// Remembers that the log reaches at least to `index`: a *committed* one, as others can be truncated, and one that is *durable* here.
    /// To be called now and then.
    pub async fn record_committed(&self, index: u64) -> Result<(), IdentityError> {
        self.update(move |record| {
            record.committed_index = record.committed_index.max(Some(index));
            Ok(())
        })
        .await
    }

    /// Checks that a log whose last entry, or whose snapshot's, is `last_index` can be this node's.
    pub fn check_log(&self, last_index: Option<u64>) -> Result<(), IdentityError> {
        match self.record.borrow().committed_index {
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
        }
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
