//! The leader compares the table of each member with its own.
//!
//! Now and then it chooses an entry, and each member, the leader too, hashes its table as it is right after that entry. Without traffic
//! this is the last one of the log. With traffic it is one that comes about `AHEAD` later, so that the question is there before the
//! entry. A round that fails (an entry that does not come in time, or came too early; a member that is down) is left out; the next one
//! follows.
//!
//! *Cost:* two small messages for each member, and one hash on each node, on a thread of its own at low priority, of a copy that shares
//! its maps with the table. The pause between two rounds is `PAUSE_PER_HASH` times as long as the hash takes, at least: about a
//! hundredth of one processor for a large table.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;

use crate::{
    apply::table_comparison::{TableComparison, TableHash, TableVerdict},
    network::{Prober, SnapshotSource, is_quorum},
    replica::Replica,
    types::Membership,
};
use lockkeeper_transport::Connector;

/// How far ahead of the log's end the entry is, in time.
const AHEAD: Duration = Duration::from_secs(1);
/// The pause between two rounds, as a multiple of the time for a hash.
const PAUSE_PER_HASH: u32 = 100;
/// How long a member's hash is waited for: the longest wait for the entry, and a large table.
const HASH_PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for telling a member the outcome.
const VERDICT_PATIENCE: Duration = Duration::from_secs(1);

/// Compares the tables every `interval` while this node leads. Does not end.
pub async fn watch<C: Connector, D: SnapshotSource>(
    replica: Replica,
    comparison: Arc<TableComparison>,
    prober: Prober<C, D>,
    interval: Duration,
) {
    loop {
        sleep(interval.max(comparison.took() * PAUSE_PER_HASH)).await;
        if replica.leads() && !replica.cut_off() {
            compare(&replica, &comparison, &prober).await;
        } else {
            comparison.found(0, []);
        }
    }
}

/// One round. Says nothing if there is nothing to compare.
async fn compare<C: Connector, D: SnapshotSource>(
    replica: &Replica,
    comparison: &TableComparison,
    prober: &Prober<C, D>,
) -> Option<()> {
    let before = last_index(replica)?;
    sleep(AHEAD).await;
    let last = last_index(replica)?;
    let index = entry_ahead(before, last)?;

    let own = replica.node_id();
    let membership = Arc::clone(&replica.raft().server_metrics().borrow_watched().membership_config);
    let membership = membership.membership();
    let others = || membership.nodes().filter(|(id, _)| **id != own);
    let asked = join_all(others().map(async |(id, node)| {
        let hash = prober.hash_table(*id, node, index, HASH_PATIENCE).await.ok().flatten()?;
        Some((*id, hash))
    }));

    let (own_hash, answers) = tokio::join!(comparison.hash_at(index), asked);
    let own_hash = own_hash?;
    let mut hashes: BTreeMap<u64, u64> = answers.into_iter().flatten().collect();
    if hashes.is_empty() {
        return None;
    }

    comparison.found(index, hashes.iter().filter(|(_, hash)| **hash != own_hash).map(|(id, _)| *id));
    hashes.insert(own, own_hash);
    let verdict = judge(membership, own_hash, index, &hashes);
    join_all(others().filter(|(id, _)| hashes.contains_key(id)).map(async |(id, node)| {
        // A member that does not get the verdict gets one in the next round.
        let _ = prober.tell_verdict(*id, node, &verdict, VERDICT_PATIENCE).await;
    }))
    .await;
    comparison.hear(own, &verdict);
    Some(())
}

/// The last index of this node's log. It is `None` if Raft has stopped, or the log is empty.
fn last_index(replica: &Replica) -> Option<u64> {
    replica.raft().metrics().borrow_watched().last_log_index
}

/// The entry that comes as long after `last` as that came after `before`. It is `None` if the log was shortened in between, by the leader
/// that has replaced this one.
fn entry_ahead(before: u64, last: u64) -> Option<u64> {
    last.checked_add(last.checked_sub(before)?)
}

/// Which hash counts as the right one: that of a majority of the voters; without one, the leader's.
fn judge(membership: &Membership, leaders: u64, index: u64, hashes: &BTreeMap<u64, u64>) -> TableVerdict {
    let has = |hash: u64| move |id: u64| hashes.get(&id) == Some(&hash);
    let of_majority = hashes.values().copied().find(|hash| is_quorum(membership, has(*hash)));
    let hash = of_majority.unwrap_or(leaders);
    let agreeing = hashes.keys().copied().filter(|id| has(hash)(*id)).collect();
    TableVerdict { right: TableHash { index, hash }, agreeing, is_majority: of_majority.is_some() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn judged(voters: &[u64], learners: &[u64], hashes: &[(u64, u64)]) -> (u64, Vec<u64>, bool) {
        let nodes: BTreeMap<u64, _> = voters.iter().chain(learners).map(|id| (*id, Default::default())).collect();
        let voters: BTreeSet<u64> = voters.iter().copied().collect();
        let membership = Membership::new(vec![voters], nodes).expect("all of them are nodes");
        let hashes: BTreeMap<u64, u64> = hashes.iter().copied().collect();
        let TableVerdict { right, agreeing, is_majority } = judge(&membership, hashes[&1], 9, &hashes);
        (right.hash, agreeing, is_majority)
    }

    #[test]
    fn a_log_that_grows_is_compared_ahead_and_one_that_was_shortened_is_not() {
        assert_eq!(entry_ahead(100, 100), Some(100));
        assert_eq!(entry_ahead(100, 130), Some(160));
        assert_eq!(entry_ahead(100, 99), None, "a deposed leader");
        assert_eq!(entry_ahead(0, u64::MAX), None);
    }

    /// Node 1 leads.
    #[test]
    fn a_majority_of_the_voters_decides_and_without_one_nobody() {
        assert_eq!(judged(&[1, 2, 3], &[], &[(1, 7), (2, 7), (3, 7)]), (7, vec![1, 2, 3], true));
        assert_eq!(judged(&[1, 2, 3], &[], &[(1, 7), (2, 7), (3, 8)]), (7, vec![1, 2], true));
        assert_eq!(judged(&[1, 2, 3], &[], &[(1, 8), (2, 7), (3, 7)]), (7, vec![2, 3], true), "against the leader");
        assert_eq!(judged(&[1, 2, 3], &[], &[(1, 7), (3, 8)]), (7, vec![1], false), "the third one is down");
        assert_eq!(judged(&[1, 2], &[], &[(1, 7), (2, 8)]), (7, vec![1], false));
        assert_eq!(
            judged(&[1, 2, 3], &[4, 5], &[(1, 7), (4, 8), (5, 8)]),
            (7, vec![1], false),
            "learners decide nothing"
        );
        assert_eq!(judged(&[1, 2, 3], &[4], &[(1, 7), (2, 7), (4, 8)]), (7, vec![1, 2], true), "and are judged");
    }
}
