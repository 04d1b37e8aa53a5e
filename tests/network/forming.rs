//! Cluster formation: once, by all members. A node that lost its data is refused.

use std::time::Duration;

use futures::future::join_all;
use lockkeeper::{
    raft::{
        identity::{NodeIdentity, Stage},
        members::forming::{self, FormingConfig, FormingError},
    },
    table::MemberNode,
};
use tokio::time::timeout;

use super::cluster::*;

fn plan() -> FormingConfig {
    FormingConfig { bootstrap: true, members: members(1..=3) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_members_must_be_there() {
    let lab = Lab::default();
    let disks = [Disk::new(), Disk::new(), Disk::new()];
    let one = lab.start(1, &disks[0], plan()).await;
    let two = lab.start(2, &disks[1], plan()).await;
    let mut two_of_three = Box::pin(async { tokio::join!(one.form(), two.form()) });
    // Enough rounds to agree, if two nodes sufficed.
    timeout(Duration::from_secs(2), &mut two_of_three).await.expect_err("node 3 is missing");
    assert_eq!((one.identity.stage(), two.identity.stage()), (Stage::New, Stage::New));

    let three = lab.start(3, &disks[2], plan()).await;
    let ((one_formed, two_formed), three_formed) = tokio::join!(two_of_three, three.form());
    for formed in [one_formed, two_formed, three_formed] {
        formed.expect("all members answer");
    }
    let leader = one.leader_other_than(None).await;
    assert_eq!(two.leader_other_than(None).await, leader);
    assert_eq!(three.leader_other_than(None).await, leader);
    end_all(vec![one, two, three]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_forms_at_once() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(1).await;
    assert_eq!(nodes[0].leader_other_than(None).await, 1);
    nodes[0].write(b"alone".to_vec()).await;
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_lists_of_members_do_not_agree() {
    let lab = Lab::default();
    let disks = [Disk::new(), Disk::new()];
    let one = lab.start(1, &disks[0], FormingConfig { bootstrap: true, members: members([1, 2]) }).await;
    let mut other = members([1, 2]);
    other.get_mut(&2).expect("there is one").client_address = "elsewhere:1".into();
    let two = lab.start(2, &disks[1], FormingConfig { bootstrap: true, members: other }).await;
    let both = async { tokio::join!(one.form(), two.form()) };
    timeout(Duration::from_secs(2), both).await.expect_err("the lists of members differ");
    assert_eq!((one.identity.stage(), two.identity.stage()), (Stage::New, Stage::New));
    end_all(vec![one, two]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_forms_after_a_crash_before_the_first_entry() {
    let lab = Lab::default();
    let disks = [Disk::new(), Disk::new(), Disk::new()];
    let mut nodes = Vec::new();
    for (id, disk) in (1..).zip(&disks) {
        nodes.push(lab.start(id, disk, plan()).await);
    }
    // The nodes agree, and end before they write the first entry.
    let agreed = join_all(nodes.iter().map(|node| forming::form(&node.identity, &node.plan, &node.connector)));
    for agreed in timeout(SOON, agreed).await.expect("in time") {
        agreed.expect("all members answer");
    }
    end_all(nodes).await;

    let mut nodes = Vec::new();
    for (id, disk) in (1..).zip(&disks) {
        nodes.push(lab.start(id, disk, plan()).await);
    }
    // Who was asked after another had agreed may know the cluster as one that it joins. The first to agree is always a founder.
    let is_founder = |node: &&TestNode| node.identity.stage() == Stage::Founding;
    let founder_id = nodes.iter().find(is_founder).expect("the first to agree founds").id;
    let (founder, others) = split(&nodes, founder_id);
    // One founder suffices: the others vote for it, and learn of the cluster from its calls.
    founder.form().await.expect("it knows all founders");
    assert_eq!(others[0].leader_other_than(None).await, founder_id);
    founder.write(b"one".to_vec()).await;
    others[0].form().await.expect("the founder has founded it");
    others[0].catch_up_with(founder).await;
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_without_its_data_does_not_come_back() {
    let lab = Lab::default();
    let (mut nodes, disks) = lab.cluster(3).await;
    let leader = nodes[0].leader_other_than(None).await;
    let victim = nodes.remove(nodes.iter().position(|node| node.id != leader).expect("there are two"));
    let id = victim.id;
    lab.kill(victim).await;
    lab.wires.heal(id);

    let back = lab.start(id, &Disk::new(), plan()).await;
    let error = back.form().await.expect_err("its data is gone");
    assert!(matches!(error, FormingError::DataGone { node_id, .. } if node_id == id), "{error}");
    assert!(error.to_string().contains("put its own data directory back"), "{error}");
    // The leader's calls name the old incarnation; the node refuses them.
    split(&nodes, leader).0.write(b"one".to_vec()).await;
    assert_eq!(back.identity.stage(), Stage::New);
    assert_eq!(back.metrics().last_log_index, None);
    back.end().await;

    // With its data, it is accepted.
    let back = lab.start(id, &disks[id as usize - 1], plan()).await;
    forming::check(&back.identity, &back.plan, &back.connector).await.expect("its incarnation is known");
    back.catch_up_with(split(&nodes, leader).0).await;
    nodes.push(back);
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_others_know_by_other_data_is_told_at_its_start() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    // A directory of node 3 from another cluster of the same name, as a copied configuration creates it.
    let stale = NodeIdentity::in_memory(&cluster_id(), 3, &mut rand::rng());
    stale.join().await.expect("in memory");
    let error = forming::check(&stale, &plan(), &nodes[0].connector).await.expect_err("another incarnation is known");
    assert!(matches!(error, FormingError::DataGone { node_id: 3, .. }), "{error}");
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_added_later() {
    let lab = Lab::default();
    let (mut nodes, _disks) = lab.cluster(3).await;
    let leader = nodes[0].leader_other_than(None).await;
    let disk = Disk::new();
    let four = lab.start(4, &disk, FormingConfig { bootstrap: false, members: members(1..=3) }).await;
    let mut forming = Box::pin(four.form());
    timeout(Duration::from_secs(1), &mut forming).await.expect_err("it is not a member yet");

    {
        let leader = split(&nodes, leader).0;
        let node = MemberNode { incarnation: Some(four.identity.incarnation()), ..members([4])[&4].clone() };
        let added = leader.raft.add_learner(4, node, true);
        timeout(SOON, added).await.expect("in time").expect("it is the leader");
        let promoted = leader.raft.change_membership([1, 2, 3, 4], false);
        timeout(SOON, promoted).await.expect("in time").expect("it is the leader");
        timeout(SOON, forming).await.expect("in time").expect("the leader has called it");
        four.catch_up_with(leader).await;
    }
    nodes.push(four);
    end_all(nodes).await;
}
