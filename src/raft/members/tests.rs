//! Tests of the rules.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Candidate, MEMBERS_MAX, MemberError,
    rules::{self, Admission, Change, Step, View},
};
use crate::{identity::Incarnation, types::Membership};
use lockkeeper_table::MemberNode;

fn incarnation(id: u64) -> Incarnation {
    Incarnation::try_from([id as u8; 16].as_slice()).expect("16 bytes")
}

fn node(id: u64) -> MemberNode {
    let incarnation = Some(incarnation(id));
    MemberNode {
        incarnation,
        peer_address: format!("n{id}:2"),
        client_address: format!("n{id}:1"),
        ..MemberNode::default()
    }
}

fn candidate(node_id: u64) -> Candidate {
    let MemberNode { peer_address, client_address, .. } = node(node_id);
    Candidate { node_id, incarnation: incarnation(node_id), peer_address, client_address, stays_learner: false }
}

/// A membership of these sets of voters and these learners, some nodes changed.
fn membership(configs: &[&[u64]], learners: &[u64], change: impl Fn(u64, &mut MemberNode)) -> Membership {
    let configs: Vec<BTreeSet<u64>> = configs.iter().map(|ids| ids.iter().copied().collect()).collect();
    let ids = configs.iter().flatten().chain(learners).copied();
    let nodes: BTreeMap<u64, MemberNode> = ids
        .map(|id| {
            let mut node = node(id);
            change(id, &mut node);
            (id, node)
        })
        .collect();
    Membership::new(configs, nodes).expect("all voters are nodes")
}

fn three() -> Membership {
    membership(&[&[1, 2, 3]], &[], |_, _| {})
}

/// Judges with these members silent. Id 9 was removed.
fn with<T>(membership: &Membership, silent: &[u64], judge: impl FnOnce(&View<'_>) -> T) -> T {
    let is_alive = |id| !silent.contains(&id);
    judge(&View { membership, is_alive: &is_alive, was_removed: &|id| id == 9 })
}

/// The membership after a change, without the joint one.
fn after(membership: &Membership, change: Change) -> Membership {
    let mut voters: BTreeSet<u64> = membership.get_joint_config().last().cloned().unwrap_or_default();
    let mut nodes: BTreeMap<u64, MemberNode> = membership.nodes().map(|(id, node)| (*id, node.clone())).collect();
    let changes = if let Change::Batch(changes) = change { changes } else { vec![change] };
    for change in changes {
        match change {
            Change::AddVoterIds(ids) => voters.extend(ids),
            Change::RemoveVoters(ids) => {
                voters.retain(|id| !ids.contains(id));
                nodes.retain(|id, _| !ids.contains(id));
            }
            Change::SetNodes(new) => nodes.extend(new),
            Change::AddNodes(new) => new.into_iter().for_each(|(id, node)| _ = nodes.entry(id).or_insert(node)),
            Change::RemoveNodes(ids) => nodes.retain(|id, _| !ids.contains(id)),
            Change::AddVoters(_) | Change::ReplaceAllVoters(_) | Change::ReplaceAllNodes(_) | Change::Batch(_) => {
                panic!("not one of ours")
            }
        }
    }
    Membership::new(vec![voters], nodes).expect("all voters are nodes")
}

fn added(membership: &Membership, candidate: &Candidate) -> Membership {
    match with(membership, &[], |view| rules::add(view, candidate)).expect("allowed") {
        Admission::Change(change) => after(membership, change),
        Admission::IsMember => membership.clone(),
    }
}

#[test]
fn a_new_node_is_a_learner_and_then_a_voter() {
    let grown = added(&three(), &candidate(4));
    assert_eq!(grown.voter_ids().collect::<Vec<_>>(), [1, 2, 3]);
    let Step::Promote { learner: 4, instead_of: None } = with(&grown, &[], rules::next_step) else {
        panic!("promoted")
    };
    let change = with(&grown, &[], |view| rules::promotion(view, 4, None)).expect("allowed");
    let grown = after(&grown, change);
    assert_eq!(grown.voter_ids().collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(matches!(with(&grown, &[], rules::next_step), Step::None));
    assert_eq!(added(&grown, &candidate(4)), grown, "a repetition changes nothing");
}

#[test]
fn a_dead_voter_is_replaced_in_one_change_whichever_comes_first() {
    let replace = |membership: &Membership| {
        let change = with(membership, &[2], |view| rules::replace(view, 2, None)).expect("allowed").expect("a change");
        after(membership, change)
    };
    for membership in [added(&replace(&three()), &candidate(4)), replace(&added(&three(), &candidate(4)))] {
        let step = with(&membership, &[2], rules::next_step);
        let Step::Promote { learner: 4, instead_of: Some(2) } = step else { panic!("{step:?}") };
        let change = with(&membership, &[2], |view| rules::promotion(view, 4, Some(2))).expect("allowed");
        let replaced = after(&membership, change);
        assert_eq!(replaced.voter_ids().collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(replaced.get_node(&2), None);
    }
    let marked = replace(&three());
    assert_eq!(with(&marked, &[], |view| rules::replace(view, 2, None)), Ok(None), "a repetition changes nothing");
    let other = with(&marked, &[], |view| rules::replace(view, 3, None));
    assert!(matches!(other, Err(MemberError::UnderWay { .. })), "{other:?}");
    let kept = with(&marked, &[], |view| rules::keep(view, 2)).expect("allowed").expect("a change");
    assert_eq!(after(&marked, kept), three());
}

#[test]
fn a_new_node_that_is_a_voter_already_only_removes_the_old_one() {
    let four = membership(&[&[1, 2, 3, 4]], &[], |_, _| {});
    let change = with(&four, &[2], |view| rules::replace(view, 2, Some(4))).expect("allowed").expect("a change");
    assert_eq!(after(&four, change).voter_ids().collect::<Vec<_>>(), [1, 3, 4]);
}

#[test]
fn what_would_stop_the_cluster_is_refused() {
    let remove = |membership: &Membership, silent: &[u64], id| {
        with(membership, silent, |view| rules::remove(view, id)).map(|change| after(membership, change))
    };
    assert_eq!(remove(&three(), &[3], 2), Err(MemberError::LosesQuorum { voters: 2, silent: vec![3] }));
    let left = remove(&three(), &[3], 3).expect("the dead one may go");
    assert_eq!(left.voter_ids().collect::<Vec<_>>(), [1, 2]);
    let one = membership(&[&[1]], &[], |_, _| {});
    assert_eq!(remove(&one, &[], 1), Err(MemberError::LastVoter { node_id: 1 }));
    let five = membership(&[&[1, 2, 3, 4, 5]], &[6], |_, _| {});
    assert_eq!(with(&five, &[2, 3], |view| rules::promotion(view, 6, None)).map(|_| ()), Ok(()), "four of six answer");
    let refused = with(&five, &[2, 3, 4], |view| rules::promotion(view, 6, None)).map(|_| ());
    assert_eq!(refused, Err(MemberError::LosesQuorum { voters: 6, silent: vec![2, 3, 4] }));
}

#[test]
fn the_only_voter_is_not_replaced_since_no_other_could_lead_meanwhile() {
    let one = added(&membership(&[&[1]], &[], |_, _| {}), &candidate(2));
    for new in [None, Some(2)] {
        let refused = with(&one, &[], |view| rules::replace(view, 1, new));
        assert_eq!(refused, Err(MemberError::LastVoter { node_id: 1 }));
    }
    let leaves = membership(&[&[1, 2]], &[], |id, node| node.is_leaving = id == 1);
    let refused = with(&leaves, &[], |view| rules::remove(view, 2)).map(|_| ());
    assert!(matches!(refused, Err(MemberError::UnderWay { .. })), "{refused:?}");
    assert!(with(&leaves, &[], |view| rules::remove(view, 1)).is_ok());
}

#[test]
fn an_id_is_never_used_again() {
    let add = |id, made: u64| {
        let candidate = Candidate { incarnation: incarnation(made), ..candidate(id) };
        with(&three(), &[], |view| rules::add(view, &candidate)).map(|_| ())
    };
    assert_eq!(add(2, 7), Err(MemberError::IdInUse { node_id: 2 }));
    assert_eq!(add(9, 9), Err(MemberError::IdUsedBefore { node_id: 9 }));
}

#[test]
fn one_change_at_a_time() {
    let catching_up = added(&three(), &candidate(4));
    let joint = membership(&[&[1, 2, 3], &[1, 2, 4]], &[], |_, _| {});
    for membership in [&catching_up, &joint] {
        let refused = with(membership, &[], |view| rules::add(view, &candidate(5))).map(|_| ());
        assert!(matches!(refused, Err(MemberError::UnderWay { .. })), "{refused:?}");
        let refused = with(membership, &[], |view| rules::remove(view, 2)).map(|_| ());
        assert!(matches!(refused, Err(MemberError::UnderWay { .. })), "{refused:?}");
    }
    assert!(matches!(with(&joint, &[], rules::next_step), Step::EndExchange));
    let change = with(&catching_up, &[], |view| rules::remove(view, 4)).expect("a learner that fails may go");
    assert_eq!(after(&catching_up, change), three());
}

#[test]
fn a_learner_stays_one_until_it_is_promoted() {
    let with_learner = added(&three(), &Candidate { stays_learner: true, ..candidate(4) });
    assert!(matches!(with(&with_learner, &[], rules::next_step), Step::None));
    let refused = with(&with_learner, &[], |view| rules::replace(view, 4, None));
    assert_eq!(refused, Err(MemberError::NotVoter { node_id: 4 }));
    let change = with(&with_learner, &[], |view| rules::promote(view, 4)).expect("allowed").expect("a change");
    let promoted = after(&with_learner, change);
    assert!(matches!(with(&promoted, &[], rules::next_step), Step::Promote { learner: 4, instead_of: None }));
    assert_eq!(with(&promoted, &[], |view| rules::promote(view, 4)), Ok(None));
}

#[test]
fn new_addresses_are_recorded() {
    let moved = Candidate { peer_address: "elsewhere:2".to_owned(), ..candidate(2) };
    let members = added(&three(), &moved);
    let node = members.get_node(&2).expect("a member");
    assert_eq!((node.peer_address.as_str(), node.has_moved), ("elsewhere:2", true));
    let other_way = Candidate { client_address: "proxy:1".to_owned(), ..candidate(2) };
    let members = added(&three(), &other_way);
    assert!(!members.get_node(&2).expect("a member").has_moved, "peers reach it as before");
}

#[test]
fn unknown_members_and_too_many() {
    let unknown = with(&three(), &[], |view| rules::remove(view, 7)).map(|_| ());
    assert_eq!(unknown, Err(MemberError::Unknown { node_id: 7, members: vec![1, 2, 3] }));
    let itself = with(&three(), &[], |view| rules::replace(view, 2, Some(2)));
    assert_eq!(itself, Err(MemberError::Itself { node_id: 2 }));
    let all: Vec<u64> = (10..10 + MEMBERS_MAX as u64).collect();
    let full = membership(&[&all], &[], |_, _| {});
    assert_eq!(with(&full, &[], |view| rules::add(view, &candidate(4))).map(|_| ()), Err(MemberError::TooMany));
}
