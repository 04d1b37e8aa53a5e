//! Data directories that are replaced by an older copy.

use std::{sync::Arc, time::Duration};

use lockkeeper::{
    raft::{members::forming::FormingConfig, network::Network, types::LogId},
    table::MemberNode,
};
use openraft::{
    RaftNetworkFactory, RaftSnapshotBuilder,
    network::{NetSnapshot, RPCOption},
};
use tokio::time::{sleep, timeout};

use super::{cluster::*, table::MemorySnapshot};

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

/// Two members that have lost acknowledged entries and lead on without them, and the one that has these entries, which is down.
struct SplitHistory {
    plan: FormingConfig,
    /// The two that run, the one that leads first.
    others: [TestNode; 2],
    /// The node that was the leader before.
    away: u64,
    disk: Disk,
    /// The last entry that it has applied.
    last: LogId,
}

/// Entries that are lost in a [`SplitHistory`].
const LOST: usize = 5;

impl SplitHistory {
    /// A copy that was made since the last start is started while the only member that knows better is down: nobody can tell.
    async fn make(lab: &Lab, is_purged: bool) -> Self {
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
        for _ in 0..LOST {
            leader.write(b"two".to_vec()).await;
        }
        follower.catch_up_with(&leader).await;
        if is_purged {
            leader.purge().await;
        }
        let last = leader.last_applied().await;
        leader.identity.record_progress(last.index, Default::default()).await.expect("written");
        lab.kill(leader).await;
        lab.kill(follower).await;

        let disk_away = &disks[away];
        let restarted = async |place: usize, disk: &Disk| {
            let id = place as u64 + 1;
            lab.wires.heal(id);
            lab.start(id, disk, plan.clone()).await
        };
        let mut others = [restarted(copied, &older).await, restarted(away, disk_away).await];
        let second = others[0].leader_other_than(Some(first)).await;
        if others[1].id == second {
            others.swap(0, 1);
        }
        others[0].write(b"another".to_vec()).await;
        others[1].catch_up_with(&others[0]).await;
        assert!(others[0].last_applied().await.index < last.index);

        let disk = disks.into_iter().nth(place).expect("there are three");
        Self { plan, others, away: first, disk, last }
    }

    /// The node that was away.
    async fn back(&self, lab: &Lab) -> TestNode {
        lab.wires.heal(self.away);
        lab.start(self.away, &self.disk, self.plan.clone()).await
    }

    /// Waits until the node that came back says that the histories differ.
    async fn is_noticed_by(&self, returned: &TestNode) {
        let first = self.away;
        let second = self.others[0].id;
        let last = self.last.index;
        let why = timeout(SOON, returned.identity.outdated()).await.expect("in time").to_string();
        assert!(why.contains(&format!("the copies of nodes {first} and {second} disagree about entry")), "{why}");
        assert!(why.contains(&format!("Node {first} has all entries up to {last}")), "{why}");
        assert!(why.contains("`lockkeeper recover --data-dir DIR --inspect`"), "{why}");
        // It has not taken their entries.
        assert_eq!(returned.metrics().last_log_index, Some(last));
    }
}

/// Acknowledged entries are lost. The member that has them must notice it when it returns, and not serve a table of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_applied_what_the_others_lost_ends_and_says_what_to_do() {
    let lab = Lab::default();
    let history = SplitHistory::make(&lab, false).await;
    let returned = history.back(&lab).await;
    history.is_noticed_by(&returned).await;
    end_all(history.others.into_iter().chain([returned]).collect()).await;
}

/// Raft takes each entry up to the last one that is committed for its own, whatever its term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_purged_what_the_others_lost_ends_as_well() {
    let lab = Lab::default();
    let history = SplitHistory::make(&lab, true).await;
    let returned = history.back(&lab).await;
    returned.raft.wait(Some(SOON)).purged(Some(history.last), "its log is purged").await.expect("in time");
    history.is_noticed_by(&returned).await;
    assert_eq!(returned.metrics().last_applied, Some(history.last));
    end_all(history.others.into_iter().chain([returned]).collect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_purged_what_the_others_lost_takes_no_snapshot_of_theirs() {
    let lab = Lab::default();
    let history = SplitHistory::make(&lab, true).await;
    let [leader, other] = &history.others;
    let vote = leader.metrics().vote;
    let mut table = leader.table.clone();
    let snapshot = table.build_snapshot().await.expect("in memory");

    // By hand: the leader itself would send entries first.
    lab.wires.isolate(other.id);
    lab.wires.isolate(leader.id);
    leader.raft.shutdown().await.expect("it ends");
    lab.wires.heal(leader.id);
    let returned = history.back(&lab).await;
    let incarnation = Some(returned.identity.incarnation());
    let node = MemberNode { incarnation, ..members([history.away])[&history.away].clone() };
    let mut network = Network::<_, MemorySnapshot>::new(leader.connector.clone(), Arc::clone(&leader.identity));
    let mut client = network.new_snapshot_client(history.away, &node).await;
    // The first call learns by which of its starts the leader is known there, and the second one is let in.
    for _ in 0..2 {
        let sent = client.full_snapshot(vote, snapshot.clone(), std::future::pending(), RPCOption::new(SOON)).await;
        assert!(sent.is_err(), "{sent:?}");
    }
    history.is_noticed_by(&returned).await;
    assert_eq!(returned.metrics().last_applied, Some(history.last));
    end_all(history.others.into_iter().chain([returned]).collect()).await;
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
