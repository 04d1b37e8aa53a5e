//! The table, and the lines below it.

use super::*;
use crate::{client::Member, machine::Token};

/// A member of three that answers; it is the leader with `leads`.
fn up(node_id: u64, leads: bool, serving: bool) -> Node {
    let member = |node_id| {
        let mut member = Member::default();
        (member.node_id, member.client_address, member.voter) = (node_id, format!("h{node_id}:1"), true);
        member
    };
    let mut status = NodeStatus::default();
    (status.node_id, status.serving) = (node_id, serving);
    status.role = if leads { Role::Leader } else { Role::Follower };
    (status.last_log_index, status.applied_index) = (12, 10);
    status.members = (1..=3).map(member).collect();
    Node { address: format!("h{node_id}:1"), node_id: Some(node_id), answer: Ok(status) }
}

fn silent(address: &str, node_id: Option<u64>) -> Node {
    Node { address: address.into(), node_id, answer: Err(Error::NoCluster { why: "connection refused".into() }) }
}

#[test]
fn a_node_that_is_down_is_a_row_that_says_why() {
    let nodes = [up(1, true, true), silent("h2:1", Some(2)), silent("b:2", None)];
    let text = text(&nodes, 12, false);
    let cells = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(cells(1), "1 h1:1 leader 0 12 0 10 0 2 - ok");
    assert_eq!(cells(2), "2 h2:1 - - - - - - - - - down: connection refused");
    assert_eq!(cells(3), "- b:2 - - - - - - - - - down: connection refused");
}

#[test]
fn a_cluster_is_healthy_when_all_serve_and_any_node_may_stop() {
    let with = |change: fn(&mut Member)| {
        let mut nodes = [up(1, true, true), up(2, false, true), up(3, false, true)];
        let leader = nodes[0].answer.as_mut().unwrap();
        leader.members.iter_mut().for_each(|member| member.may_stop = Some(Ok(())));
        change(&mut leader.members[2]);
        nodes
    };
    assert_eq!(ailment(&with(|_| {})), None);
    let nodes = with(|member| member.may_stop = Some(Err("the others need it".to_owned())));
    assert_eq!(ailment(&nodes).unwrap(), "node 3 may not be taken down: the others need it");
    assert!(text(&nodes, 12, false).contains("\nnode 3 may not be taken down now: the others need it\n"));
    assert_eq!(ailment(&with(|member| member.is_leaving = true)).unwrap(), "node 3 is being replaced");
    let learner = with(|member| member.voter = false);
    assert_eq!(ailment(&learner).unwrap(), "node 3 is catching up, to become a voter");
    let mut one_down = with(|_| {});
    one_down[1] = silent("h2:1", Some(2));
    assert_eq!(ailment(&one_down).unwrap(), "node 2: connection refused");
    assert_eq!(ailment(&[up(2, false, true)]).unwrap(), "no leader serves");
}

#[test]
fn a_table_that_differs_is_told_from_those_of_a_majority() {
    let said = |hashes: [Option<u64>; 3]| {
        let mut nodes = [up(1, true, true), up(2, false, true), up(3, false, true)];
        for (node, hash) in nodes.iter_mut().zip(hashes) {
            node.answer.as_mut().expect("it answers").table_hash = hash;
        }
        differing(&nodes)
    };
    assert_eq!(said([Some(7), Some(7), Some(7)]), None);
    assert_eq!(said([Some(7), None, None]), None);
    let majority = said([Some(8), Some(7), Some(7)]).expect("node 1 differs");
    assert!(majority.starts_with("node 1 has another table at index 10 than nodes 2 and 3"), "{majority}");
    let none = said([Some(8), None, Some(7)]).expect("one of two differs");
    assert!(none.contains("have different tables at index 10, and no majority shows"), "{none}");
}

#[test]
fn a_disk_that_is_nearly_full_is_a_line_below_the_table() {
    let mut nodes = [up(1, true, true), up(2, false, true)];
    assert!(!text(&nodes, 12, false).contains("disks"));
    nodes[1].answer.as_mut().unwrap().disk_trouble = Some("its disk is nearly full".to_owned());
    assert!(text(&nodes, 12, false).ends_with("\nnode 2 reports about disks: its disk is nearly full\n"));
}

#[test]
fn a_certificate_that_expires_soon_is_a_line_below_the_table() {
    let mut nodes = [up(1, true, true), up(2, false, true)];
    let mut line = |left| {
        nodes[1].answer.as_mut().unwrap().certificate_seconds_left = left;
        text(&nodes, 12, false).lines().find(|line| line.contains("certificate")).map(str::to_owned)
    };
    assert_eq!((line(None), line(Some(30 * DAY))), (None, None));
    let advice = ": make another with `lockkeeper certs node`";
    for (left, what) in [
        (30 * DAY - 1, "expires in 29 days"),
        (DAY, "expires in 1 day"),
        (DAY - 1, "expires within a day"),
        (-1, "has expired"),
    ] {
        assert_eq!(line(Some(left)), Some(format!("the certificate of node 2 {what}{advice}")));
    }
}

#[test]
fn clients_of_an_earlier_cluster_are_a_line_below_the_table() {
    let mut nodes = [up(1, true, true), up(2, false, true)];
    let mut line = |seconds_left, clients| {
        let mut earlier = EarlierCluster::default();
        (earlier.cluster_id, earlier.seconds_left, earlier.clients) = ("shop".to_owned(), seconds_left, clients);
        let status = nodes[0].answer.as_mut().unwrap();
        (status.cluster_id, status.earlier_cluster) = ("shop-2".to_owned(), Some(earlier));
        text(&nodes, 12, false).lines().find(|line| line.contains("certificates")).map(str::to_owned).unwrap()
    };
    let accepts = "node 1 accepts clients' certificates of cluster shop for";
    let advice = "give them certificates of shop-2";
    assert_eq!(line(DAY, 1), format!("{accepts} 1 day more, and 1 client came with one: {advice}"));
    assert_eq!(line(1, 0), format!("{accepts} less than a day more, and 0 clients came with one: {advice}"));
    assert!(
        line(0, 3).starts_with("node 1 refuses certificates of cluster shop: the time of [earlier_cluster] is over")
    );
}

#[test]
fn members_that_are_down_are_named_and_the_others_counted() {
    let one_down = [up(1, true, true), up(2, false, true), silent("h3:1", Some(3))];
    let said = down(&one_down).unwrap();
    assert_eq!(said, "down: node 3 (h3:1); 2 of 3 voters answer, 2 are needed: enough to commit");
    let two_down = [up(1, true, false), silent("h2:1", Some(2)), silent("h3:1", Some(3))];
    let said = down(&two_down).unwrap();
    assert_eq!(said, "down: node 2 (h2:1), node 3 (h3:1); 1 of 3 voters answers, 2 are needed: too few to commit");
    assert_eq!(down(&[up(1, true, true), up(2, false, true), up(3, false, true)]), None);
}

#[test]
fn the_versions_are_one_line_when_they_differ() {
    let node = |node_id, version: &str, max| {
        let mut node = up(node_id, node_id == 1, true);
        let status = node.answer.as_mut().expect("it answers");
        (status.version, status.cluster_version) = (version.to_owned(), Some(1));
        status.cluster_versions = (max > 0).then_some((1, max));
        node
    };
    assert_eq!(versions(&[node(1, "0.1.0", 2), node(2, "0.1.0", 2)]), None);
    let mut nodes = [node(1, "0.2.0", 2), node(2, "0.1.0", 0)];
    nodes[0].answer.as_mut().expect("it answers").cluster_version_waits = Some("version 2 waits for node 2".into());
    let said = versions(&nodes).unwrap();
    let expected = "cluster version 1: node 1 runs 0.2.0, which supports 1 to 2; node 2 runs 0.1.0, which supports 1; version 2 waits \
                    for node 2";
    assert_eq!(said, expected);
}

#[test]
fn a_leader_that_cannot_commit_is_told_from_none() {
    assert_eq!(exit(&[up(1, true, true), up(2, true, false)]), Exit::Success);
    assert_eq!(exit(&[up(1, true, false), silent("h2:1", Some(2))]), Exit::Error);
    assert_eq!(exit(&[up(1, false, false), silent("h2:1", Some(2))]), Exit::NoCluster);
    assert_eq!(exit(&[silent("h2:1", None)]), Exit::NoCluster);
}

#[test]
fn a_document_has_null_or_0_for_none() {
    let document = |status: &NodeStatus| serde_json::to_value(StatusDocument::new(status, 0)).unwrap();
    let none = document(&NodeStatus::default());
    for field in ["leader_id", "table_bytes_max", "table_hash"] {
        assert_eq!(none[field], serde_json::Value::Null, "{field}");
    }
    for field in ["last_token", "snapshot_index", "turn_delay_us_max"] {
        assert_eq!(none[field], 0, "{field}");
    }
    assert_eq!(none["role"], "unknown");
    let mut status = NodeStatus::default();
    (status.leader_id, status.table_bytes_max, status.table_hash) = (Some(3), Some(5), Some(7));
    (status.last_token, status.turn_delay_max) = (Some(Token(9)), Duration::from_micros(1_500));
    let some = document(&status);
    assert_eq!((&some["leader_id"], &some["table_bytes_max"]), (&3.into(), &5.into()));
    assert_eq!((&some["last_token"], &some["turn_delay_us_max"]), (&9.into(), &1_500.into()));
    assert_eq!(some["table_hash"], "0000000000000007");
}
