//! Identities without a running node: read from the directory of a stopped node, or made for a member of a restored cluster.

use std::path::Path;

use super::{
    ClusterId, IdentityError, IdentityRecord, Incarnation, LogOwner, NodeIdentity, RememberedPeer, Stage, Start, file,
};

/// The identity of a node that does not run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredIdentity {
    /// Its cluster.
    pub cluster_id: ClusterId,
    /// Its id.
    pub node_id: u64,
    /// The incarnation of the directory.
    pub incarnation: Incarnation,
    /// How far the node came on its way into the cluster.
    pub stage: Stage,
    /// An entry up to this index is committed, so the log must reach it.
    pub committed_index: Option<u64>,
    /// Its latest start.
    pub start: Option<Start>,
    /// What the node remembers of its peers.
    pub remembered: Vec<RememberedPeer>,
}

impl NodeIdentity {
    /// Reads the identity in a directory, and changes nothing. Returns `None` if the directory is empty or does not exist.
    pub fn read(directory: &Path) -> Result<Option<StoredIdentity>, IdentityError> {
        let record = file::read(directory)?;
        Ok(record.map(|record| StoredIdentity {
            cluster_id: record.cluster_id,
            node_id: record.node_id,
            incarnation: record.incarnation,
            stage: record.stage,
            committed_index: record.committed_index,
            start: record.starts.last().copied(),
            remembered: record.remembered,
        }))
    }

    /// Whether a directory holds no data, so that a node can be made there; it need not exist.
    pub fn is_free(directory: &Path) -> Result<bool, IdentityError> {
        match file::read(directory) {
            Ok(found) => Ok(found.is_none()),
            Err(IdentityError::Foreign { .. } | IdentityError::Damaged { .. } | IdentityError::Format { .. }) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The owner of the log of a directory that is made with this first start.
    pub fn owner_of_made(incarnation: Incarnation, start: Start) -> LogOwner {
        LogOwner { incarnation, last: Vec::new(), was_noted: false, next: start, may_be_new: true }
    }

    /// Makes the identity of a member whose log and snapshot are complete up to this index, and were opened by this start. Blocks.
    pub fn make_member(
        directory: &Path,
        cluster_id: &ClusterId,
        node_id: u64,
        incarnation: Incarnation,
        start: Start,
        committed_index: u64,
    ) -> Result<(), IdentityError> {
        file::write(directory, &made(cluster_id, node_id, incarnation, start, committed_index))
    }

    /// The same without a file, for simulations.
    pub fn member_in_memory(
        cluster_id: &ClusterId,
        node_id: u64,
        incarnation: Incarnation,
        start: Start,
        committed_index: u64,
    ) -> Self {
        Self::new(made(cluster_id, node_id, incarnation, start, committed_index), None, start)
    }
}

fn made(
    cluster_id: &ClusterId,
    node_id: u64,
    incarnation: Incarnation,
    start: Start,
    committed_index: u64,
) -> IdentityRecord {
    IdentityRecord {
        stage: Stage::Member,
        committed_index: Some(committed_index),
        starts: vec![start],
        ..IdentityRecord::new(cluster_id.clone(), node_id, incarnation)
    }
}
