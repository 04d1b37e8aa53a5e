//! Which requests of this node, as leader, each peer has acknowledged: the evidence for a linearizable read.
//!
//! A leader may answer a read from its own table once a quorum has acknowledged a request that was *sent after the read began*, in the
//! term in which the read index was taken (read index, §6.4 of Ongaro's thesis). openraft collects such evidence, but it matches an
//! answer with its requests by log id: for openraft, the answer to an append that ends at X also acknowledges every later request without
//! entries at X, and counts as sent when *that* request was. So with pipelined appends, an answer that was under way before the read
//! began can confirm the read, although the quorum has elected another leader meanwhile. (openraft 0.10.0-alpha.37,
//! `replication/inflight_append_queue.rs`; tests/network/late_answers.rs has the order of events.)
//!
//! Here answers and requests are matched one to one. gRPC keeps the order within a stream, a follower answers in the order of requests,
//! and the pipeline ([`super::append`]) takes one sent request from its queue for each answer. Requests and reads draw their numbers from
//! one counter, so "sent after the read began" needs no clock.
//!
//! Proof. Let a read take number r, then the read index in term t; and let a quorum have acknowledged, in term t, requests with numbers
//! above r. No member of this quorum had accepted a vote above t when it answered, so neither when r was drawn. A leader of a later term
//! needs a vote from one of them, so none was elected before r, and everything acknowledged to a client before r was committed by this
//! leader or an earlier one: the read index covers it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, time::Instant};

use crate::identity::AcknowledgedEntry;
use crate::types::{LogId, Membership, StoredMembership};
use lockkeeper_planted::Planted;

/// The latest request that each peer acknowledged. Clones share the state.
#[derive(Clone, Debug)]
pub struct Acknowledgements {
    numbers: Arc<AtomicU64>,
    latest: watch::Sender<BTreeMap<u64, Sent>>,
    /// The last entry that each peer is known to have on disk, from the latest term in which this node led.
    matched: Arc<Mutex<BTreeMap<u64, AcknowledgedEntry>>>,
    /// Why each peer refused the last call that it answered, for people.
    refused: Arc<Mutex<BTreeMap<u64, String>>>,
}

/// A position in the order of all requests that this node sends to its peers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RequestNumber(u64);

/// A request that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// The leader's term.
    term: u64,
    number: RequestNumber,
    at: Instant,
}

impl Sent {
    /// The time since then.
    pub(super) fn elapsed(&self) -> std::time::Duration {
        self.at.elapsed()
    }
}

impl Default for Acknowledgements {
    fn default() -> Self {
        let latest = watch::Sender::new(BTreeMap::new());
        Self { numbers: Arc::default(), latest, matched: Arc::default(), refused: Arc::default() }
    }
}

impl Acknowledgements {
    /// Draws a number: requests sent from now on have higher ones.
    pub fn draw(&self) -> RequestNumber {
        // A read-modify-write for reads and requests alike: it cannot return an older value than one drawn before.
        RequestNumber(self.numbers.fetch_add(1, Ordering::SeqCst))
    }

    /// Numbers a request that is sent in this term.
    pub(super) fn sending(&self, term: u64) -> Sent {
        Sent { term, number: self.draw(), at: Instant::now() }
    }

    /// Records that a peer accepted a request: it knew of no later term when it answered.
    pub(super) fn acknowledged(&self, peer: u64, sent: Sent) {
        self.latest.send_if_modified(|latest| {
            let is_newer = latest.get(&peer).is_none_or(|known| (known.term, known.number) < (sent.term, sent.number));
            if is_newer {
                latest.insert(peer, sent);
            }
            is_newer
        });
        lock(&self.refused).remove(&peer);
    }

    /// Records why a peer refused a call.
    pub(super) fn refused(&self, peer: u64, why: &str) {
        lock(&self.refused).insert(peer, why.to_owned());
    }

    /// Why a peer refused the last call that it answered. It is `None` if the peer accepted it.
    pub fn why_refused(&self, peer: u64) -> Option<String> {
        lock(&self.refused).get(&peer).cloned()
    }

    /// Records that a peer has this entry, and all before it, on disk, by an answer in this term.
    pub(super) fn matched(&self, peer: u64, sent: Sent, last: LogId) {
        let acknowledged = AcknowledgedEntry::new(sent.term, last);
        let mut matched = lock(&self.matched);
        let known = matched.entry(peer).or_insert(acknowledged);
        *known = acknowledged.max(*known);
    }

    /// The time since this node sent the last request of this term that the peer has acknowledged. It is `None` if it acknowledged none.
    pub fn silence_of(&self, peer: u64, term: u64) -> Option<Duration> {
        self.latest.borrow().get(&peer).filter(|sent| sent.term == term).map(|sent| sent.at.elapsed())
    }

    /// The last entry that a peer acknowledged to this node.
    pub fn last_from(&self, peer: u64) -> Option<AcknowledgedEntry> {
        lock(&self.matched).get(&peer).copied()
    }

    /// The last acknowledged entries of all peers.
    pub fn last_from_all(&self) -> BTreeMap<u64, AcknowledgedEntry> {
        lock(&self.matched).clone()
    }

    /// Returns once a quorum of the members, including this node, has acknowledged requests of this term that were sent after `since`.
    /// Has no deadline. Cancel safe.
    pub async fn confirmed(
        &self,
        node_id: u64,
        membership: impl Fn() -> Arc<StoredMembership>,
        term: u64,
        since: RequestNumber,
    ) {
        let confirms = |latest: &BTreeMap<u64, Sent>| {
            let is_later = |sent: &Sent| sent.term == term && sent.number > since;
            let is_in = |peer| peer == node_id || latest.get(&peer).is_some_and(is_later);
            is_quorum(membership().membership(), is_in)
        };

        // Cannot fail: the sender is in self.
        let _ = self.latest.subscribe().wait_for(confirms).await;
    }

    /// The time at which the latest requests of this term were sent that a quorum of the members, including this node, has acknowledged.
    /// It is `None` if there were none yet, or this node alone is a quorum.
    pub fn quorum_reached_at(&self, node_id: u64, membership: &Membership, term: u64) -> Option<Instant> {
        let latest = self.latest.borrow();
        let sent_at = |peer: &u64| latest.get(peer).filter(|sent| sent.term == term).map(|sent| sent.at);
        let reached = |voters: &BTreeSet<u64>| {
            let others = voters.iter().chain(learners_by_mistake(membership)).filter(|peer| **peer != node_id);
            let mut times: Vec<_> = others.map(sent_at).collect();
            times.sort_unstable_by(|a, b| b.cmp(a));
            let others_needed = (voters.len() / 2 + 1).checked_sub(usize::from(voters.contains(&node_id)))?;
            times.get(others_needed.checked_sub(1)?).copied()
        };
        // A quorum of a joint membership is one in each of its parts.
        membership.get_joint_config().iter().filter_map(reached).min().flatten()
    }
}

/// No code panics while it holds this lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the members for which `is_in` returns true are a majority in each part of the membership.
pub(crate) fn is_quorum(membership: &Membership, is_in: impl Fn(u64) -> bool) -> bool {
    let is_majority = |voters: &BTreeSet<u64>| {
        let all = voters.iter().chain(learners_by_mistake(membership));
        all.filter(|peer| is_in(**peer)).count() > voters.len() / 2
    };
    membership.get_joint_config().iter().all(is_majority)
}

/// The learners with the planted bug that counts them; else none.
fn learners_by_mistake(membership: &Membership) -> impl Iterator<Item = &u64> {
    let voters: BTreeSet<u64> = membership.voter_ids().filter(|_| Planted::LearnerCounts.is_on()).collect();
    let nodes = membership.nodes().map(|(id, _)| id);
    nodes.filter(move |id| Planted::LearnerCounts.is_on() && !voters.contains(id))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn membership(configs: &[&[u64]]) -> Arc<StoredMembership> {
        let configs: Vec<BTreeSet<u64>> = configs.iter().map(|ids| ids.iter().copied().collect()).collect();
        let nodes: BTreeMap<_, _> = configs.iter().flatten().map(|id| (*id, Default::default())).collect();
        Arc::new(StoredMembership::new(None, Membership::new(configs, nodes).expect("all of them are nodes")))
    }

    fn is_confirmed(
        acknowledgements: &Acknowledgements,
        members: &Arc<StoredMembership>,
        since: RequestNumber,
    ) -> bool {
        acknowledgements.confirmed(1, || Arc::clone(members), 5, since).now_or_never().is_some()
    }

    #[test]
    fn only_later_requests_confirm_a_read() {
        let (all, acknowledgements) = (membership(&[&[1, 2, 3]]), Acknowledgements::default());
        let before = acknowledgements.sending(5);
        let read = acknowledgements.draw();
        acknowledgements.acknowledged(2, before);
        acknowledgements.acknowledged(3, before);
        assert!(!is_confirmed(&acknowledgements, &all, read), "those answers say nothing of the time of the read");
        let after = acknowledgements.sending(5);
        acknowledgements.acknowledged(4, after);
        assert!(!is_confirmed(&acknowledgements, &all, read), "4 is no member");
        acknowledgements.acknowledged(3, after);
        assert!(is_confirmed(&acknowledgements, &all, read));
        acknowledgements.acknowledged(3, before);
        assert!(is_confirmed(&acknowledgements, &all, read), "a late answer takes nothing back");
    }

    #[test]
    fn a_learner_confirms_nothing() {
        let voters = [BTreeSet::from([1, 2, 3])];
        let nodes: BTreeMap<u64, _> = (1..=4).map(|id| (id, Default::default())).collect();
        let membership = Membership::new(voters.into(), nodes).expect("all of them are nodes");
        let (all, acknowledgements) = (Arc::new(StoredMembership::new(None, membership)), Acknowledgements::default());
        let read = acknowledgements.draw();
        acknowledgements.acknowledged(4, acknowledgements.sending(5));
        assert!(!is_confirmed(&acknowledgements, &all, read));
        assert_eq!(acknowledgements.quorum_reached_at(1, all.membership(), 5), None);
    }

    #[test]
    fn another_term_confirms_nothing() {
        let (all, acknowledgements) = (membership(&[&[1, 2, 3]]), Acknowledgements::default());
        let read = acknowledgements.draw();
        for term in [4, 6] {
            let sent = acknowledgements.sending(term);
            acknowledgements.acknowledged(2, sent);
            assert!(!is_confirmed(&acknowledgements, &all, read), "term {term}");
        }
    }

    #[test]
    fn a_joint_membership_needs_a_majority_in_each_part() {
        let (joint, acknowledgements) = (membership(&[&[1, 2, 3], &[3, 4, 5]]), Acknowledgements::default());
        let read = acknowledgements.draw();
        let sent = acknowledgements.sending(5);
        for peer in [2, 4] {
            acknowledgements.acknowledged(peer, sent);
            assert!(!is_confirmed(&acknowledgements, &joint, read));
            assert_eq!(acknowledgements.quorum_reached_at(1, joint.membership(), 5), None);
        }
        acknowledgements.acknowledged(5, sent);
        assert!(is_confirmed(&acknowledgements, &joint, read));
        assert_eq!(acknowledgements.quorum_reached_at(1, joint.membership(), 5), Some(sent.at));
    }

    #[tokio::test(start_paused = true)]
    async fn a_quorum_was_reached_when_its_slowest_member_was() {
        let (all, acknowledgements) = (membership(&[&[1, 2, 3, 4, 5]]), Acknowledgements::default());
        let start = Instant::now();
        for peer in 2..=5 {
            acknowledgements.acknowledged(peer, acknowledgements.sending(5));
            let reached = acknowledgements.quorum_reached_at(1, all.membership(), 5).map(|at| at - start);
            let expected = [None, Some(0), Some(1), Some(2)][peer as usize - 2].map(Duration::from_secs);
            assert_eq!(reached, expected, "after {peer}");
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(acknowledgements.quorum_reached_at(1, all.membership(), 6), None);
        assert_eq!(acknowledgements.quorum_reached_at(1, membership(&[&[1]]).membership(), 5), None);
        assert!(is_confirmed(&acknowledgements, &membership(&[&[1]]), acknowledgements.draw()), "alone it is a quorum");
    }
}
