//! What a recovery must keep: all that the node which went on had in its log, up to the last entry.
//!
//! By its documentation, the command applies all entries of the log, also those of which the node did not know that they were committed.
//! Only `--through` ends the copy earlier, and no run gives it. So:
//!
//! * the copy ends with the last entry that was on the disk, and has the table that the same entries make when they are replayed here, one
//!   by one, on top of the snapshot;
//! * a client puts one key after the other up to the loss. The new cluster has them as the copy has them; and each that was acknowledged is
//!   there, if its entry was in that log. The run knows this from the nodes, which said what they applied, and not from the files.
//!
//! Left out: the snapshot is read by the code of the command. Its table is seen where the tables of all nodes are compared
//! ([`Site::judge_remains`]). And what only the lost nodes had may be gone.

use std::{collections::BTreeMap, io, thread, time::Duration};

use lockkeeper::{
    machine::{Compare, Key, Operand, Relation, Revision},
    raft::{
        backup::StoppedNodeData,
        identity::ClusterId,
        types::{EntryPayload, LogEntry, StoredMembership, entry_id, to_applied},
    },
    table::{Applied, Audit, EntryContent, Table},
};
use tokio::time::{Instant, sleep, timeout_at};

use super::{BOUND, RecoveredCluster};
use crate::{
    faults::World,
    network,
    node::{LeftDirectory, Site},
};

/// The pause between two puts.
const BETWEEN_PUTS: Duration = Duration::from_millis(20);
/// So many of the newest ones are read again.
const NEWEST_MAX: usize = 32;

/// A put that was acknowledged, of a key that is put once.
#[derive(Clone, Debug)]
pub(super) struct AcknowledgedPut {
    key: Key,
    revision: Revision,
}

/// Compares a copy with the disk of which it was made.
pub(super) fn judge_copy(site: &Site, left: &LeftDirectory, remains: &StoppedNodeData) -> Result<(), String> {
    let node = site.id();
    let contents = site.disk().synced();
    let last = contents.last().max(remains.snapshot);
    if remains.last != last || remains.through != last {
        let StoppedNodeData { last: read, through, .. } = remains;
        site.complain(format!("the log of node {node} ends at {last:?}; of {read:?}, its copy has {through:?}"));
        return Ok(());
    }

    let start = match remains.snapshot {
        Some(snapshot) => left.read(Some(snapshot.index)).map_err(|error| format!("of node {node}: {error}"))?.applied,
        None => Applied::default(),
    };
    let cluster_id = remains.identity.cluster_id.clone();
    // As for the command itself, a thread that is not simulated.
    let replaying = thread::spawn(move || replay(start, &cluster_id, contents.entries));
    let replayed = replaying.join().expect("a panic ends the process");
    let replayed = replayed.map_err(|error| format!("the log of node {node} cannot be replayed: {error}"))?;

    if !is_same(&replayed, &remains.applied) {
        let index = replayed.index();
        return Err(format!("the data that node {node} left show another table at index {index} than its log makes"));
    }
    site.count_recovered("logs of recoveries that were replayed");
    Ok(())
}

/// Applies the entries after a snapshot.
fn replay(start: Applied, cluster_id: &ClusterId, entries: BTreeMap<u64, LogEntry>) -> io::Result<Applied> {
    let after = start.index();
    let table = Table::default().with_audit(Audit::new(cluster_id.as_str(), None));
    drop(table.restore(start));

    for entry in entries.into_values().filter(|entry| entry.log_id.index > after) {
        let id = entry_id(entry.log_id);
        let content = match entry.payload {
            EntryPayload::Blank => Ok(EntryContent::Blank),
            EntryPayload::Normal(payload) => EntryContent::decode(id, &payload.0),
            EntryPayload::Membership(membership) => {
                let membership = StoredMembership::new(Some(entry.log_id), membership);
                Ok(EntryContent::Membership(to_applied(&membership)))
            }
        };
        table.apply_entry(id, content, false)?;
    }
    Ok(table.read(Clone::clone))
}

fn is_same(one: &Applied, other: &Applied) -> bool {
    let Applied { machine, last_entry, membership, ids_used, trail } = one;
    machine.hash() == other.machine.hash()
        && *last_entry == other.last_entry
        && *membership == other.membership
        && *ids_used == other.ids_used
        && *trail == other.trail
}

impl World {
    /// Puts one key after the other until this time. Returns those that were acknowledged.
    pub(super) async fn put_until(&self, until: Instant) -> Vec<AcknowledgedPut> {
        let mut acknowledged = Vec::new();
        let puts = async {
            for number in 0_u64.. {
                let key = Key::new(format!("recovered/newest/{number}").as_bytes()).expect("it is short");
                let put = self.put(network::peer_seat_address, (&key, "newest"), vec![absent(&key)], until).await;

                // A put that finds its key is a repetition: the revision of the first attempt is not known.
                let revision = put.ok().filter(|put| put.succeeded).map(|put| Revision(put.revision));
                acknowledged.extend(revision.map(|revision| AcknowledgedPut { key, revision }));
                sleep(BETWEEN_PUTS).await;
            }
        };

        // The outcome of the put that is under way then is unknown.
        let _ = timeout_at(until, puts).await;
        acknowledged
    }

    /// Fails unless the new cluster has the newest puts as its copy has them, and each that was in the log of the node that went on.
    pub(super) async fn ensure_newest_kept(
        &self,
        recovered: &RecoveredCluster,
        acknowledged: &[AcknowledgedPut],
    ) -> Result<(), String> {
        let newest = &acknowledged[acknowledged.len().saturating_sub(NEWEST_MAX)..];
        if newest.is_empty() {
            return Ok(());
        }

        let keys: Vec<Key> = newest.iter().map(|put| put.key.clone()).collect();
        let found = self.entries(&keys, Instant::now() + BOUND).await?;
        if found.len() != keys.len() {
            return Err(format!("a read of {} keys has {} entries", keys.len(), found.len()));
        }

        let site = self.site(recovered.node);
        for (put, now) in newest.iter().zip(found) {
            let copied = recovered.copy.machine.entry(&put.key);
            if now != copied {
                return Err(format!("the cluster that was recovered has {now:?} in the place of {copied:?}"));
            }

            let was_logged = recovered.logged.is_some_and(|logged| put.revision <= logged);
            let is_kept = now.as_ref().is_some_and(|entry| entry.modified == put.revision);
            if was_logged && !is_kept {
                return Err(format!("the cluster that was recovered has {now:?} in the place of {put:?}"));
            }

            let outcome = if is_kept { "newest puts that a recovery kept" } else { "newest puts that were lost" };
            site.count_recovered(outcome);
        }
        Ok(())
    }
}

/// The condition that nothing is under a key.
pub(super) fn absent(key: &Key) -> Compare {
    Compare { key: key.clone(), up_to: None, relation: Relation::Equal, operand: Operand::Version(0) }
}
