//! Whether a member may be taken down now.

use lockkeeper_proto::v1::Member;

/// A member that lacks more entries than this does not count as caught up: without another one, commits wait for it.
const LAG_MAX: u64 = 1_000;

/// Returns why a member must not be taken down now, as a text for people, or an empty text if it may be. `last` is the last index of
/// `leader`, which answers this question. `joint` says that the voters are being exchanged, and `hears` whether a member has answered
/// lately.
pub(crate) fn reason_not_to_stop(
    node_id: u64,
    members: &[Member],
    last: u64,
    leader: u64,
    joint: bool,
    hears: impl Fn(u64) -> bool,
) -> String {
    let voters: Vec<&Member> = members.iter().filter(|member| member.voter).collect();
    if !voters.iter().any(|voter| voter.node_id == node_id) {
        return String::new();
    }

    if joint {
        return "the voters are being exchanged: wait until that is done".to_owned();
    }
    if voters.len() == 1 {
        return "it is the only voter: without it the cluster stops".to_owned();
    }

    let is_ready = |voter: &&&Member| {
        voter.node_id == leader || (hears(voter.node_id) && voter.matched_index.saturating_add(LAG_MAX) >= last)
    };

    let others = || voters.iter().filter(|voter| voter.node_id != node_id);
    let ready = others().filter(is_ready).count();
    let majority = voters.len() / 2 + 1;
    if ready >= majority {
        return String::new();
    }

    let missing: Vec<String> =
        others().filter(|voter| !is_ready(voter)).map(|voter| format!("node {}", voter.node_id)).collect();
    if missing.is_empty() {
        format!("{majority} of {} voters are needed, and {ready} would be left", voters.len())
    } else {
        format!(
            "{majority} of {} voters are needed, and {ready} would be left: {} must answer and be caught up first",
            voters.len(),
            missing.join(" and ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voters(ids: &[u64]) -> Vec<Member> {
        ids.iter().map(|id| Member { node_id: *id, voter: true, matched_index: 5_000, ..Member::default() }).collect()
    }

    #[test]
    fn one_of_three_may_stop_while_the_others_answer() {
        let members = voters(&[1, 2, 3]);
        for node_id in 1..=3 {
            assert_eq!(reason_not_to_stop(node_id, &members, 5_000, 1, false, |_| true), "");
        }
    }

    #[test]
    fn none_may_stop_if_another_is_down_but_that_one() {
        let members = voters(&[1, 2, 3]);
        let judge = |node_id| reason_not_to_stop(node_id, &members, 5_000, 1, false, |id| id != 3);
        assert!(judge(1).ends_with("1 would be left: node 3 must answer and be caught up first"), "{}", judge(1));
        assert!(!judge(2).is_empty());
        assert_eq!(judge(3), "");
    }

    #[test]
    fn a_voter_that_lags_does_not_count() {
        let mut members = voters(&[1, 2, 3]);
        members[2].matched_index = 5_000 - LAG_MAX - 1;
        assert!(!reason_not_to_stop(2, &members, 5_000, 1, false, |_| true).is_empty());
        members[2].matched_index += 1;
        assert_eq!(reason_not_to_stop(2, &members, 5_000, 1, false, |_| true), "");
    }

    #[test]
    fn one_node_two_nodes_an_exchange_and_a_learner() {
        assert!(!reason_not_to_stop(1, &voters(&[1]), 0, 1, false, |_| true).is_empty());
        assert!(!reason_not_to_stop(2, &voters(&[1, 2]), 5_000, 1, false, |_| true).is_empty());
        assert!(!reason_not_to_stop(2, &voters(&[1, 2, 3]), 5_000, 1, true, |_| true).is_empty());
        let mut members = voters(&[1, 2]);
        members.push(Member { node_id: 3, ..Member::default() });
        assert_eq!(reason_not_to_stop(3, &members, 5_000, 1, false, |_| true), "");
    }
}
