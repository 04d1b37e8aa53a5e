//! The conclusions from rounds of answers.

use rand::{SeedableRng, rngs::StdRng};

use super::*;

fn node(id: u64) -> MemberNode {
    MemberNode { peer_address: format!("n{id}:1"), client_address: format!("n{id}:2"), ..MemberNode::default() }
}

fn plan(ids: &[u64]) -> FormingConfig {
    FormingConfig { bootstrap: true, members: ids.iter().map(|id| (*id, node(*id))).collect() }
}

fn incarnation(seed: u64) -> Incarnation {
    Incarnation::draw(&mut StdRng::seed_from_u64(seed))
}

/// Node 1, whose incarnation is `incarnation(1)`.
fn identity() -> NodeIdentity {
    NodeIdentity::in_memory(&"blue".parse().expect("an id"), 1, &mut StdRng::seed_from_u64(1))
}

/// A new node, which would found the cluster of `plan`.
fn ready(node_id: u64, plan: &FormingConfig) -> pb::HelloResponse {
    pb::HelloResponse {
        cluster_id: "blue".into(),
        node_id,
        incarnation: incarnation(node_id).as_bytes().to_vec().into(),
        members: plan.members.iter().map(|(id, node)| pb::Node::new(*id, node)).collect(),
        formed: false,
        asker_incarnation: Default::default(),
        asker_start: String::new(),
        asker_removed: false,
    }
}

fn formed(node_id: u64, plan: &FormingConfig, asker: Option<Incarnation>) -> pb::HelloResponse {
    let asker_incarnation = asker.map(|asker| asker.as_bytes().to_vec().into()).unwrap_or_default();
    pb::HelloResponse { formed: true, asker_incarnation, ..ready(node_id, plan) }
}

fn conclusion(
    plan: &FormingConfig,
    said: impl IntoIterator<Item = (u64, pb::HelloResponse)>,
) -> Result<Conclusion, FormingError> {
    let answers = said.into_iter().map(|(node_id, said)| HelloAnswer { node_id, said: Ok(said) }).collect();
    judge(&identity(), plan, answers)
}

fn reason(plan: &FormingConfig, said: pb::HelloResponse) -> String {
    match conclusion(plan, [(2, said), (3, ready(3, plan))]).expect("no error") {
        Conclusion::Wait(reasons) => reasons.join("; "),
        other @ (Conclusion::Found(_) | Conclusion::Join) => panic!("{other:?}"),
    }
}

#[test]
fn founds_when_all_agree() {
    let plan = plan(&[1, 2, 3]);
    let Ok(Conclusion::Found(founders)) = conclusion(&plan, [(2, ready(2, &plan)), (3, ready(3, &plan))]) else {
        panic!("all agree")
    };
    let founders: Vec<_> = founders.iter().map(|founder| (founder.node_id, founder.incarnation)).collect();
    assert_eq!(founders, [(1, incarnation(1)), (2, incarnation(2)), (3, incarnation(3))]);
}

#[test]
fn founds_alone_when_it_is_alone() {
    assert!(matches!(conclusion(&plan(&[1]), []), Ok(Conclusion::Found(founders)) if founders.len() == 1));
}

#[test]
fn waits_for_all_members_and_gives_the_reason() {
    let plan = plan(&[1, 2, 3]);
    let silent = HelloAnswer { node_id: 3, said: Err("no answer in time".into()) };
    let answers = vec![HelloAnswer { node_id: 2, said: Ok(ready(2, &plan)) }, silent];
    let Ok(Conclusion::Wait(reasons)) = judge(&identity(), &plan, answers) else { panic!("one is missing") };
    assert_eq!(reasons, ["for node 3: no answer in time"]);

    let other = pb::HelloResponse { cluster_id: "red".into(), ..ready(2, &plan) };
    assert_eq!(reason(&plan, other), "for node 2: it belongs to cluster red, not blue");
    assert_eq!(reason(&plan, ready(7, &plan)), "for node 2: node 7 answers at its address");
    let others = self::plan(&[1, 2]);
    assert_eq!(
        reason(&plan, ready(2, &others)),
        "for node 2: its configuration names other members, or other addresses"
    );
    assert_eq!(
        reason(&plan, formed(2, &plan, None)),
        "for node 2: it belongs to a cluster that does not have node 1 as a member"
    );
}

#[test]
fn joins_a_cluster_that_knows_it() {
    let plan = plan(&[1, 2, 3]);
    // One member of a cluster is enough, whatever the others answer.
    let answers = [(2, formed(2, &plan, Some(incarnation(1)))), (3, ready(7, &plan))];
    assert!(matches!(conclusion(&plan, answers), Ok(Conclusion::Join)), "node 2 knows it");
}

#[test]
fn does_not_come_back_without_its_data() {
    let plan = plan(&[1, 2, 3]);
    let answers = [(2, ready(2, &plan)), (3, formed(3, &plan, Some(incarnation(99))))];
    let error = conclusion(&plan, answers).expect_err("node 3 knows other data");
    assert!(matches!(error, FormingError::DataGone { asked: 3, node_id: 1, .. }));
    assert!(error.to_string().contains("put its own data directory back"), "{error}");
}
