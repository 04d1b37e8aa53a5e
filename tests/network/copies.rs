//! Data directories that are replaced by an older copy.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::cluster::*;

/// A cluster of three, and the index of a follower.
async fn cluster_and_follower(lab: &Lab) -> (Vec<TestNode>, Vec<Disk>, usize) {
    let (nodes, disks) = lab.cluster(3).await;
    let leader = nodes[0].leader_other_than(None).await;
    let follower = nodes.iter().position(|node| node.id != leader).expect("there are two");
    nodes[leader as usize - 1].write(b"one".to_vec()).await;
    nodes[follower].catch_up_with(&nodes[leader as usize - 1]).await;
    (nodes, disks, follower)
}

/// Ends the node at this index and restarts it on `disk`.
async fn restart(lab: &Lab, nodes: &mut Vec<TestNode>, place: usize, disk: &Disk) {
    let node = nodes.remove(place);
    let (id, plan) = (node.id, node.plan.clone());
    lab.kill(node).await;
    lab.wires.heal(id);
    nodes.insert(place, lab.start(id, disk, plan).await);
}

/// The reason why a node's data are outdated. Panics if a peer accepts the data first.
async fn why_outdated(nodes: &[TestNode], place: usize) -> String {
    let node = &nodes[place];
    let start = |of: &TestNode| of.identity.remembered(node.id).and_then(|peer| peer.start);
    let counted_on = async {
        while nodes.iter().all(|other| start(other) != Some(node.identity.start())) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let told = async {
        tokio::select! {
            why = node.identity.outdated() => why.to_string(),
            () = counted_on => panic!("an older copy was counted on"),
        }
    };
    timeout(SOON, told).await.expect("told in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_goes_on_through_any_number_of_starts() {
    let lab = Lab::default();
    let (mut nodes, disks, place) = cluster_and_follower(&lab).await;
    for line in [b"two", b"too"] {
        restart(&lab, &mut nodes, place, &disks[place]).await;
        let leader = nodes[place].leader_other_than(None).await;
        nodes[leader as usize - 1].write(line.to_vec()).await;
        nodes[place].catch_up_with(&nodes[leader as usize - 1]).await;
        let remembered = nodes[leader as usize - 1].identity.remembered(nodes[place].id).expect("it acknowledged");
        assert_eq!(remembered.start, Some(nodes[place].identity.start()));
    }
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_from_before_the_last_start_is_detected_as_outdated() {
    let lab = Lab::default();
    let (mut nodes, disks, place) = cluster_and_follower(&lab).await;
    let older = disks[place].copy();
    restart(&lab, &mut nodes, place, &disks[place]).await;
    let leader = nodes[place].leader_other_than(None).await;
    // The copy has all acknowledged entries; it lacks only the last start.
    nodes[leader as usize - 1].raft.trigger().heartbeat().await.expect("it runs");
    let counted_on = async {
        let remembers = || {
            let remembered = nodes[leader as usize - 1].identity.remembered(nodes[place].id);
            remembered.and_then(|peer| peer.start) == Some(nodes[place].identity.start())
        };
        while !remembers() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, counted_on).await.expect("in time");

    restart(&lab, &mut nodes, place, &older).await;
    let why = why_outdated(&nodes, place).await;
    assert!(why.contains("older copy") && why.contains("none of this directory's"), "{why}");
    // The current directory is still accepted.
    restart(&lab, &mut nodes, place, &disks[place]).await;
    let leader = nodes[place].leader_other_than(None).await;
    nodes[leader as usize - 1].write(b"two".to_vec()).await;
    nodes[place].catch_up_with(&nodes[leader as usize - 1]).await;
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_lacks_what_was_acknowledged_is_known_as_one() {
    let lab = Lab::default();
    let (mut nodes, disks, place) = cluster_and_follower(&lab).await;
    let older = disks[place].copy();
    let leader = nodes[place].leader_other_than(None).await as usize - 1;
    nodes[leader].write(b"two".to_vec()).await;
    nodes[place].catch_up_with(&nodes[leader]).await;
    let id = nodes[place].id;
    let acknowledged = async {
        let last = || nodes[leader].metrics().last_log_index;
        while nodes[leader].acknowledgements.of(id).map(|acknowledged| acknowledged.index) != last() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, acknowledged).await.expect("in time");

    restart(&lab, &mut nodes, place, &older).await;
    let why = why_outdated(&nodes, place).await;
    assert!(why.contains("older copy") && why.contains("that it had entry"), "{why}");
    end_all(nodes).await;
}
