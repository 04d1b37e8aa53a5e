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
    let id = node.id;
    let plan = node.plan.clone();
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

/// A copy that was made since the last start, and is started while the only member that knows better is down: nobody can tell, and
/// acknowledged entries are lost. The member that has them must notice it when it returns, and not serve a table of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_applied_what_the_others_lost_ends_and_says_what_to_do() {
    let lab = Lab::default();
    let (nodes, disks) = lab.cluster(3).await;
    let first = nodes[0].leader_other_than(None).await;
    let place = first as usize - 1;
    nodes[place].write(b"one".to_vec()).await;
    for node in &nodes {
        node.catch_up_with(&nodes[place]).await;
    }
    let copied = (place + 1) % 3;
    let away = (place + 2) % 3;
    let older = disks[copied].copy();
    let plan = nodes[place].plan.clone();
    let mut nodes: Vec<_> = nodes.into_iter().map(Some).collect();

    // Acknowledged by two of three, of which one is replaced by its older copy while the other is down.
    lab.kill(nodes[away].take().expect("it runs")).await;
    let leader = nodes[place].take().expect("it runs");
    let follower = nodes[copied].take().expect("it runs");
    leader.write(b"two".to_vec()).await;
    follower.catch_up_with(&leader).await;
    let last = leader.metrics().last_applied.expect("it has entries").index;
    leader.identity.record_progress(last, Default::default()).await.expect("written");
    lab.kill(leader).await;
    lab.kill(follower).await;
    let restarted = async |place: usize, disk: &Disk| {
        let id = place as u64 + 1;
        lab.wires.heal(id);
        lab.start(id, disk, plan.clone()).await
    };
    let others = [restarted(copied, &older).await, restarted(away, &disks[away]).await];
    let second = others[0].leader_other_than(Some(first)).await;
    let leads = others.iter().position(|node| node.id == second).expect("one of the two");
    others[leads].write(b"another".to_vec()).await;
    others[1 - leads].catch_up_with(&others[leads]).await;

    let returned = restarted(place, &disks[place]).await;
    let why = timeout(SOON, returned.identity.outdated()).await.expect("in time").to_string();
    assert!(why.contains(&format!("the copies of nodes {first} and {second} disagree about entry")), "{why}");
    assert!(why.contains(&format!("Node {first} has all entries up to {last}")), "{why}");
    assert!(why.contains("`lockkeeper recover --data-dir DIR --inspect`"), "{why}");
    // It has not taken their entries.
    assert_eq!(returned.metrics().last_log_index, Some(last));
    end_all(others.into_iter().chain([returned]).collect()).await;
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
        while nodes[leader].acknowledgements.last_from(id).map(|acknowledged| acknowledged.index) != last() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, acknowledged).await.expect("in time");

    restart(&lab, &mut nodes, place, &older).await;
    let why = why_outdated(&nodes, place).await;
    assert!(why.contains("older copy") && why.contains("that it had entry"), "{why}");
    end_all(nodes).await;
}
