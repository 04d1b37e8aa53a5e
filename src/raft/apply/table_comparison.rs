//! What this node knows of how its table compares with those of the other members.
//!
//! Replicas that applied the same log have the same table, and so the same hash of it at the same entry.
//! [`crate::members::compared_tables`] lets the leader compare them. What a node does with the outcome is decided here:
//!
//! * It has the hash of a majority of the voters: all is well.
//! * A majority has another one: this node cannot prove its table, and the majority goes on without it. It ends, with the advice of
//!   [`IdentityError::OtherTable`](crate::identity::IdentityError::OtherTable).
//! * The leader's table differs, and no majority has the same table: it is unknown which of the two is right. If this node stopped, a
//!   cluster with another node down would lose its quorum, and the node with the wrong table might go on. So this node does not stop: it
//!   counts as not healthy until the tables are equal, or until a majority has the same table.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::identity::NodeIdentity;
use lockkeeper_environment::Blocking;
use lockkeeper_planted::{Planted, planted};
use lockkeeper_table::Table;

/// How long a node waits for the entry at which it is asked for its hash.
const ENTRY_PATIENCE: Duration = Duration::from_secs(5);

/// The hash of a table right after an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableHash {
    /// The entry.
    pub index: u64,
    /// The hash, of the form [`HASH_FORM`](lockkeeper_machine::HASH_FORM).
    pub hash: u64,
}

/// The outcome of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableVerdict {
    /// The hash of a majority of the voters; without one, that of the leader.
    pub right: TableHash,
    /// The members that have it.
    pub agreeing: Vec<u64>,
    /// These are a majority of the voters.
    pub is_majority: bool,
}

/// How this node's table compares.
#[derive(Debug)]
pub struct TableComparison {
    table: Arc<Table>,
    identity: Arc<NodeIdentity>,
    blocking: Blocking,
    /// One hash is computed at a time, for all callers together.
    computing: Semaphore,
    known: Mutex<ComparisonState>,
}

#[derive(Debug, Default)]
struct ComparisonState {
    /// The last hash that this node computed, and how long that took.
    own: Option<TableHash>,
    took: Duration,
    /// The last entry after which the tables were compared, and this node's was as it should be.
    agreed: u64,
    /// The entry after which this node's table was another one than the leader's.
    differs_at: Option<u64>,
    /// As the leader: the members with another table than this node's, and the entry.
    others: BTreeMap<u64, u64>,
}

impl TableComparison {
    /// Makes the comparison for this table of the node with this identity. Hashes are computed at low priority, apart from Raft's thread.
    pub fn new(table: Arc<Table>, identity: Arc<NodeIdentity>, blocking: Blocking) -> Self {
        Self { table, identity, blocking, computing: Semaphore::new(1), known: Mutex::default() }
    }

    /// The hash of the table right after this entry. It is `None` if later entries are applied already, or it does not come within
    /// `ENTRY_PATIENCE`, or another hash is computed now.
    pub async fn hash_at(&self, index: u64) -> Option<u64> {
        let _permit = self.computing.try_acquire().ok()?;
        // A large apply holds the table's lock, and the caller may run on Raft's thread.
        let table = Arc::clone(&self.table);
        let machine = self.blocking.run(move || Ok(table.machine_at(index))).await.ok()??;
        let machine = timeout(ENTRY_PATIENCE, machine).await.ok()?.ok()?;
        let began = Instant::now();
        let hash = self.blocking.run_in_background("table-hash", move || Ok(machine.hash())).await.ok()?;

        let mut known = self.known();
        known.own = Some(TableHash { index, hash });
        known.took = began.elapsed();
        Some(hash)
    }

    /// Takes the outcome of a comparison, by the leader `witness`. It says nothing of this node's table unless that was hashed at the same
    /// entry.
    pub fn hear(&self, witness: u64, verdict: &TableVerdict) {
        let TableVerdict { right, agreeing, is_majority } = verdict;
        let mut known = self.known();
        let Some(own) = known.own.filter(|own| own.index == right.index) else { return };
        if own.hash == right.hash {
            if known.differs_at.take().is_some() {
                tracing::info!(index = own.index, "this node's table is equal to the leader's again");
            }
            known.agreed = own.index;
            return;
        }

        // Tables that differ by a bug that a test planted are to be found by what clients see.
        let is_to_be_seen = planted().is_some_and(|bug| !bug.is_found_by_suites());
        if is_to_be_seen || Planted::DifferingTableGoesOn.is_on() {
            return;
        }
        let first = known.differs_at.replace(own.index).is_none();
        drop(known);
        if *is_majority {
            let error = self.identity.mark_other_table(own.index, own.hash, right.hash, agreeing);
            tracing::error!(%error, "this node's table differs from that of the majority");
        } else if first {
            tracing::error!(
                index = own.index,
                own = format_args!("{:016x}", own.hash),
                leaders = format_args!("{:016x}", right.hash),
                "this node's table differs from that of the leader, node {witness}, and no majority shows which one is right: start the \
                 members that are down; if none is, compare what each copy has with `lockkeeper recover --data-dir DIR --inspect`"
            );
        }
    }

    /// As the leader: records the members whose table is another one than this node's, after this entry.
    pub fn found(&self, index: u64, differing: impl IntoIterator<Item = u64>) {
        let others: BTreeMap<u64, u64> = differing.into_iter().map(|id| (id, index)).collect();
        let before = std::mem::replace(&mut self.known().others, others.clone());
        for node_id in others.keys().filter(|id| !before.contains_key(*id)) {
            tracing::error!(index, "the table of member {node_id} differs from this leader's");
        }
    }

    /// Whether this node's table is known to be another one than the leader's.
    pub fn differs(&self) -> bool {
        self.known().differs_at.is_some()
    }

    /// The last entry after which this node's table was compared and was the right one; 0: none since its start.
    pub fn agreed(&self) -> u64 {
        self.known().agreed
    }

    /// As the leader: the members with another table than this node's, and the entry after which they had it.
    pub fn others(&self) -> BTreeMap<u64, u64> {
        self.known().others.clone()
    }

    /// How long the last hash took.
    pub(crate) fn took(&self) -> Duration {
        self.known().took
    }

    /// No code panics while it holds this lock.
    fn known(&self) -> MutexGuard<'_, ComparisonState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
