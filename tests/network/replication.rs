//! Replication of entries and snapshots, and elections, with three nodes.

use std::time::Duration;

use futures::future::join_all;
use lockkeeper::{
    raft::log::slow_followers::{self, LogBytes},
    transport::KEEP_ALIVE,
};
use openraft::async_runtime::WatchReceiver;
use tokio::time::{sleep, timeout};

use super::cluster::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_are_pipelined() {
    let lab = Lab::default();
    let (nodes, disks) = lab.cluster(3).await;
    let (leader, followers) = split(&nodes, nodes[0].leader_other_than(None).await);
    let slow = &disks[followers[0].id as usize - 1].log;

    // Until the first answer shows that the logs agree, openraft sends one append at a time.
    leader.write(0_u32.to_be_bytes().to_vec()).await;
    followers[0].catch_up_with(leader).await;
    // From here on, this follower answers no append. The other follower commits each write, so that there is more to send.
    slow.hold_flushes(true);
    for n in 1..5_u32 {
        leader.write(n.to_be_bytes().to_vec()).await;
    }
    let several_under_way = async {
        while slow.unflushed() < 3 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, several_under_way).await.expect("appends are sent before earlier ones are answered");
    slow.hold_flushes(false);

    join_all((5..1000_u32).map(|n| leader.write(n.to_be_bytes().to_vec()))).await;
    assert_eq!(leader.table.lines().len(), 8 * 1000);
    for follower in followers {
        follower.catch_up_with(leader).await;
    }
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_have_a_connection_of_their_own() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let (leader, followers) = split(&nodes, nodes[0].leader_other_than(None).await);
    leader.write(b"one".to_vec()).await;
    for follower in followers {
        // One for entries, one for heartbeats; the connections for votes are closed.
        let settled = async {
            while lab.wires.laid(leader.id, follower.id) != 2 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, settled).await.expect("in time");
    }
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_is_followed_by_another_and_catches_up_later() {
    let lab = Lab::default();
    let (mut nodes, disks) = lab.cluster(3).await;
    let first = nodes[0].leader_other_than(None).await;
    split(&nodes, first).0.write(b"one".to_vec()).await;

    let dead = nodes.remove(nodes.iter().position(|node| node.id == first).expect("the leader is a node"));
    let plan = dead.plan.clone();
    lab.kill(dead).await;
    let second = nodes[0].leader_other_than(Some(first)).await;
    let leader = split(&nodes, second).0;
    leader.write(b"two".to_vec()).await;

    lab.wires.heal(first);
    let back = lab.start(first, &disks[first as usize - 1], plan).await;
    back.form().await.expect("it is a member");
    back.catch_up_with(leader).await;
    nodes.push(back);
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lags_gets_a_snapshot() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let (leader, followers) = split(&nodes, nodes[0].leader_other_than(None).await);
    let [lagging, other] = followers[..] else { panic!("three nodes") };

    // The leader may still be connecting. Entries that it has read for a pending connection would be delivered despite the isolation.
    leader.write(b"before".to_vec()).await;
    lagging.catch_up_with(leader).await;
    lab.wires.isolate(lagging.id);
    join_all((0..50_u8).map(|n| leader.write(vec![n; 50_000]))).await;
    other.catch_up_with(leader).await;
    leader.purge().await;
    leader.write(b"after the snapshot".to_vec()).await;

    lab.wires.heal(lagging.id);
    lagging.catch_up_with(leader).await;
    let pieces = lagging.sink.pieces();
    assert!(pieces >= 10, "{pieces} pieces of 256 KiB for 2.5 MB");
    assert_eq!(other.sink.pieces(), 0);
    end_all(nodes).await;
}

/// Its answers are in time, so its stream never fails, and openraft does not purge entries that a stream may still send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_follower_keeps_no_more_of_the_log_than_the_limit_and_gets_a_snapshot() {
    const LINE_BYTES: usize = 50_000;
    const KEPT: usize = 40;
    let lab = Lab::default();
    let (nodes, disks) = lab.cluster(3).await;
    let (leader, followers) = split(&nodes, nodes[0].leader_other_than(None).await);
    let [slow, other] = followers[..] else { panic!("three nodes") };
    let log = |node: &TestNode| &disks[node.id as usize - 1].log;
    leader.write(b"one".to_vec()).await;
    slow.catch_up_with(leader).await;

    let log_bytes = LogBytes::default();
    let limit = slow_followers::limit(
        leader.raft.metrics(),
        log_bytes.clone(),
        leader.cuts.clone(),
        0,
        (KEPT * LINE_BYTES) as u64,
    );
    let limit = tokio::spawn(limit);
    log(slow).slow_down(true);
    let written = async {
        let mut lines = 0_u32;
        // Much faster than the follower flushes them.
        while lines < 15 * KEPT as u32 {
            join_all((lines..lines + 20).map(|n| leader.write(n.to_be_bytes().repeat(LINE_BYTES / 4)))).await;
            (0..20).for_each(|_| {
                lines += 1;
                // The three entries before are the membership, the leader's blank entry, and one line.
                log_bytes.note(3 + u64::from(lines), LINE_BYTES);
            });
            leader.raft.trigger().snapshot().await.expect("it runs");
        }
    };
    timeout(SOON, written).await.expect("in time");
    // The purge comes long before the follower has all entries.
    let is_purged = async {
        while log(leader).entries() > KEPT + 20 {
            sleep(Duration::from_millis(20)).await;
            leader.raft.trigger().snapshot().await.expect("it runs");
        }
    };
    timeout(SOON, is_purged).await.expect("in time");

    log(slow).slow_down(false);
    slow.catch_up_with(leader).await;
    assert!(slow.sink.pieces() > 0, "it caught up without a snapshot");
    assert_eq!(other.sink.pieces(), 0);
    limit.abort();
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_entries_pass_however_many_are_asked_for_at_once() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let (leader, followers) = split(&nodes, nodes[0].leader_other_than(None).await);

    lab.wires.isolate(followers[0].id);
    // Together far above the maximum size of a message.
    join_all((0..16_u8).map(|n| leader.write(vec![n; 1_100_000]))).await;
    lab.wires.heal(followers[0].id);
    followers[0].catch_up_with(leader).await;
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_is_handed_over() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let first = nodes[0].leader_other_than(None).await;
    let (leader, followers) = split(&nodes, first);
    leader.write(b"one".to_vec()).await;
    let term = leader.term();
    let heir = followers[0].id;
    for follower in &followers {
        follower.catch_up_with(leader).await;
    }

    leader.raft.trigger().transfer_leader(heir).await.expect("it runs");
    for node in &nodes {
        let wait = node.raft.wait(Some(SOON));
        wait.current_leader(heir, "the target leads").await.expect("in time");
    }
    assert_eq!(followers[0].term(), term + 1, "the target needed more than one election");
    followers[0].write(b"two".to_vec()).await;
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cut_off_disturbs_nobody_when_it_is_back() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let first = nodes[0].leader_other_than(None).await;
    let (leader, followers) = split(&nodes, first);
    followers[0].leader_other_than(None).await;
    let term = leader.term();

    lab.wires.isolate(followers[0].id);
    // Its election timeout expires, and its pre-votes fail.
    sleep(Duration::from_millis(2 * 2000)).await;
    leader.write(b"one".to_vec()).await;
    assert_eq!(followers[0].term(), term, "it raised its term without a quorum");

    lab.wires.heal(followers[0].id);
    // It reconnects. The keep-alive of the old connections would take longer to detect the failure.
    timeout(KEEP_ALIVE, followers[0].catch_up_with(leader)).await.expect("soon");
    assert_eq!((leader.term(), followers[0].term()), (term, term));
    assert_eq!(followers[1].leader_other_than(None).await, first);
    end_all(nodes).await;
}

/// The server depends on this: it ends when raft ends, and learns that from a channel that seldom wakes it otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_replica_closes_its_channels_and_leaves_the_reason() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(1).await;
    let raft = nodes[0].raft.clone();
    let mut changes = raft.server_metrics();
    let ended = tokio::spawn(async move { while changes.changed().await.is_ok() {} });
    nodes[0].write(b"alive".to_vec()).await;
    assert!(!ended.is_finished());
    end_all(nodes).await;
    timeout(SOON, ended).await.expect("its channels are closed").expect("no panic");
    assert!(raft.metrics().borrow_watched().running_state.is_err());
}
