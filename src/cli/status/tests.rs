//! When a cluster is healthy, and the fields of the document.

use super::{
    super::{
        nodes::tests::{silent, up},
        table::TableLayout,
    },
    document::NodeReport,
    *,
};
use crate::{client::NodeStatus, machine::Token};

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
    assert!(
        text(&nodes, 12, false, TableLayout::default())
            .contains("\nnode 3 may not be taken down now: the others need it\n")
    );
    assert_eq!(ailment(&with(|member| member.is_leaving = true)).unwrap(), "node 3 is being replaced");
    let learner = with(|member| member.voter = false);
    assert_eq!(ailment(&learner).unwrap(), "node 3 is catching up, to become a voter");
    let mut one_down = with(|_| {});
    one_down[1] = silent("h2:1", Some(2));
    assert_eq!(ailment(&one_down).unwrap(), "node 2: connection refused");
    assert_eq!(ailment(&[up(2, false, true)]).unwrap(), "no leader serves");
}

#[test]
fn a_document_has_null_or_0_for_none() {
    let document = |status: &NodeStatus| {
        let answer = Ok(status.clone());
        let node = AskedNode { address: "h1:1".to_owned(), node_id: Some(status.node_id), answer };
        serde_json::to_value(NodeReport::new(&node, 0)).unwrap()
    };
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
