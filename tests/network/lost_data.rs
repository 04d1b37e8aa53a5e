//! A founder that lost its data, among members that have never called it.

use std::time::Duration;

use lockkeeper::raft::{
    identity::Stage,
    members::forming::{FormingConfig, FormingError},
};

use super::cluster::*;

/// Two followers have exchanged calls only with the leader; then one loses its data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_without_its_data_is_known_to_those_who_never_met_it() {
    let lab = Lab::default();
    let plan = || FormingConfig { bootstrap: true, members: members(1..=3) };
    let mut disks = [Disk::new(), Disk::new(), Disk::new()];
    let mut nodes = Vec::new();
    for (id, disk) in (1..).zip(&disks) {
        nodes.push(lab.start(id, disk, plan()).await);
    }
    // Node 2 founds the cluster; the others learn of it from its calls.
    nodes[1].form().await.expect("all members answer");
    assert_eq!(nodes[0].leader_other_than(None).await, 2);
    nodes[1].write(b"one".to_vec()).await;
    nodes[2].catch_up_with(&nodes[1]).await;
    nodes[0].catch_up_with(&nodes[1]).await;

    let [one, two, three] = <[TestNode; 3]>::try_from(nodes).ok().expect("three nodes");
    lab.kill(one).await;
    two.write(b"acknowledged by 2 and 3".to_vec()).await;
    lab.kill(two).await;
    lab.kill(three).await;
    disks[2] = Disk::new();

    [1, 3].into_iter().for_each(|id| lab.wires.heal(id));
    let one = lab.start(1, &disks[0], plan()).await;
    let three = lab.start(3, &disks[2], plan()).await;
    let error = three.form().await.expect_err("node 1 knows its data by the log");
    assert!(matches!(error, FormingError::DataGone { asked: 1, node_id: 3, .. }), "{error}");
    // Node 1 does not accept it either: its calls name the incarnation in its log.
    one.raft.trigger().elect(false).await.expect("it runs");
    let wait = one.raft.wait(Some(Duration::from_secs(5)));
    let elected = wait.metrics(|metrics| [Some(1), Some(3)].contains(&metrics.current_leader), "a leader");
    elected.await.expect_err("node 3 has no vote");
    assert_eq!((three.identity.stage(), three.metrics().last_log_index), (Stage::New, None));
    end_all(vec![one, three]).await;
}
