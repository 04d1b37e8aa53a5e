//! Nodes join, leave and are replaced while the cluster serves.

use std::{collections::BTreeSet, fs, time::Duration};

use lockkeeper::{
    client::{Client, Error, Refusal, Refused},
    config::RaftConfig,
    local::LocalCluster,
    proto::v1::{Member, Role, StatusResponse},
};
use rustix::process::Signal;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// The status of the leader that serves.
async fn leader_status(cluster: &LocalCluster) -> StatusResponse {
    until("a leader", async || {
        let statuses = cluster.statuses().await;
        let leaders = statuses.into_values().filter(|status| status.role() == Role::Leader && status.serving);
        leaders.max_by_key(|status| status.term)
    })
    .await
}

/// Waits until the leader has exactly these voters and no other member.
async fn has_voters(cluster: &LocalCluster, voters: &[u64]) {
    let expected: BTreeSet<u64> = voters.iter().copied().collect();
    until(&format!("the voters {voters:?}"), async || {
        let members = leader_status(cluster).await.members;
        let found: BTreeSet<u64> = members.iter().filter(|member| member.voter).map(|member| member.node_id).collect();
        (found == expected && members.len() == expected.len()).then_some(())
    })
    .await;
}

/// Removes a member. The voters of the change before may still be exchanged: a status shows them as soon as that begins.
async fn removed(admin: &Client, gone: u64) {
    let changing = |refused: &Refused| refused.reason == Refusal::MembershipChanging;
    until("the removal", async || match admin.remove_member(gone).await {
        Err(Error::Refused(refused)) if changing(&refused) => None,
        ended => {
            ended.expect("it may be removed");
            Some(())
        }
    })
    .await;
}

/// A client that acquires and releases one lock after the other, and checks that tokens rise.
struct Load {
    stop: CancellationToken,
    task: JoinHandle<u64>,
}

impl Load {
    fn start(client: Client) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let session = long_session(&client).await;
            let mut last = 0;
            let mut count = 0;
            while !stopped.is_cancelled() {
                let guard = session.acquire("load").wait_at_most(LONG).await.expect("the cluster serves");
                let token = guard.token().0;
                assert!(token > last, "token {token} after {last}");
                guard.release().await.expect("the cluster serves");
                (last, count) = (token, count + 1);
            }
            count
        });
        Self { stop, task }
    }

    /// Stops it, and returns how many locks it acquired.
    async fn end(self) -> u64 {
        self.stop.cancel();
        timeout(LONG, self.task).await.expect("it ends").expect("no call failed")
    }
}

#[tokio::test]
async fn a_cluster_grows_from_one_node_to_five_and_shrinks_to_three() {
    let mut cluster = cluster_of(1).await;
    let load = Load::start(client(&cluster));
    for (node_id, voters) in [(2, vec![1, 2]), (3, vec![1, 2, 3]), (4, vec![1, 2, 3, 4]), (5, vec![1, 2, 3, 4, 5])] {
        cluster.add(node_id).expect("its configuration").spawn().expect("it starts");
        has_voters(&cluster, &voters).await;
    }
    cluster.ready(LONG).await.expect("five nodes serve");
    // The founder goes, the only node that the client was told of: by now it has learned of the others.
    let admin = client(&cluster);
    for (gone, voters) in [(1, vec![2, 3, 4, 5]), (3, vec![2, 4, 5])] {
        removed(&admin, gone).await;
        has_voters(&cluster, &voters).await;
        let (ended, status) = timeout(LONG, cluster.next_death()).await.expect("the removed node ends");
        assert_eq!((ended, status.code()), (gone, Some(24)), "{}", cluster.node(gone).log_tail());
        let log = cluster.node(gone).log_tail();
        assert!(log.contains(&format!("node {gone} was removed from cluster")), "{log}");
    }
    assert!(load.end().await > 0);
    // Its data cannot be used again.
    cluster.node_mut(1).spawn().expect("it starts");
    let (ended, status) = timeout(LONG, cluster.next_death()).await.expect("it refuses to start");
    assert_eq!((ended, status.code()), (1, Some(24)), "{}", cluster.node(1).log_tail());
    has_voters(&cluster, &[2, 4, 5]).await;
}

#[tokio::test]
async fn a_dead_machine_is_replaced_by_one_command() {
    let mut cluster = prompt_cluster().await;
    let load = Load::start(client(&cluster));
    cluster.discard(2).await.expect("its disk is gone");
    let endpoints = cluster.endpoints().join(",");
    let replacing =
        tokio::spawn(
            async move { output(&mut lockkeeper(&["member", "replace", "2", "--endpoints", &endpoints])).await },
        );
    until("the mark", async || {
        leader_status(&cluster).await.members.iter().any(|member| member.is_leaving).then_some(())
    })
    .await;
    cluster.add(4).expect("its configuration").spawn().expect("it starts");
    let (code, out, err) = text(&timeout(LONG, replacing).await.expect("it ends").expect("no panic"));
    assert_eq!((code, out.as_str()), (0, "node 2 is no longer a member; delete its data directory\n"), "{err}");
    assert!(err.contains("waiting for a new node: start it with `lockkeeper serve --config FILE --join "), "{err}");
    has_voters(&cluster, &[1, 3, 4]).await;
    assert!(load.end().await > 0);
    // The new node is as good as the old one was.
    let first = leader(&cluster).await;
    cluster.node_mut(first).kill().await;
    assert_ne!(leader(&cluster).await, first);
}

#[tokio::test]
async fn a_leader_that_is_replaced_hands_over_first() {
    let mut cluster = cluster().await;
    let first = leader(&cluster).await;
    let admin = client(&cluster);
    let load = Load::start(admin.clone());
    admin.replace_member(first, None).await.expect("it may be replaced");
    cluster.add(4).expect("its configuration").spawn().expect("it starts");
    let rest: Vec<u64> = (1..=4).filter(|id| *id != first).collect();
    has_voters(&cluster, &rest).await;
    let (ended, _) = timeout(LONG, cluster.next_death()).await.expect("the old node ends");
    assert_eq!(ended, first);
    assert!(load.end().await > 0);
}

#[tokio::test]
async fn what_would_harm_the_cluster_is_refused() {
    let mut cluster = prompt_cluster().await;
    let admin = client(&cluster);
    let refusal = |refused: Result<(), Error>| refused.expect_err("it is refused").to_string();
    let leading = leader(&cluster).await;
    let followers: Vec<u64> = (1..=3).filter(|id| *id != leading).collect();
    assert!(refusal(admin.remove_member(7).await).contains("node 7 is not a member; the members are 1, 2, 3"));
    cluster.node_mut(followers[0]).kill().await;
    // The leader counts a member as alive for a while after its last answer.
    let silent = until("a refusal", async || match admin.replace_member(99, None).await {
        Err(_) => {
            let status = leader_status(&cluster).await;
            let down = status.members.into_iter().find(|member| member.node_id == followers[0])?;
            (down.silent_ms? > 1_500).then_some(status.node_id)
        }
        Ok(()) => panic!("node 99 does not exist"),
    })
    .await;
    let living = (1..=3).find(|id| *id != silent && *id != followers[0]).expect("the third");
    let text = refusal(admin.remove_member(living).await);
    assert!(text.contains(&format!("2 voters, of which node {} does not answer; it needs 2", followers[0])), "{text}");
    let status = leader_status(&cluster).await;
    let judged = |id| -> Member { status.members.iter().find(|member| member.node_id == id).expect("it").clone() };
    assert!(judged(followers[0]).safe_to_stop, "it is down already");
    assert!(!judged(living).safe_to_stop && judged(living).unsafe_reason.contains("must answer"));
    // A node that lost its data does not come back under its old id, also by joining.
    cluster.discard(followers[0]).await.expect("its disk is gone");
    cluster.add(followers[0]).expect("its configuration").spawn().expect("it starts");
    let (ended, exit) = timeout(LONG, cluster.next_death()).await.expect("it is refused");
    let log = cluster.node(ended).log_tail();
    assert_eq!(ended, followers[0], "{log}");
    assert!(matches!(exit.code(), Some(24 | 25)), "{exit}: {log}");
    assert!(
        log.contains("this node's data is gone") || log.contains("is a member with another data directory"),
        "{log}"
    );
}

/// A leader that was just elected has heard from a quorum at the most. It does not call the others silent at once.
#[tokio::test]
async fn a_new_leader_gives_members_time_to_answer_before_it_refuses_a_removal() {
    let cluster = prompt_cluster().await;
    let admin = client(&cluster);
    let first = leader(&cluster).await;
    let [next, paused] = (1..=3).filter(|id| *id != first).collect::<Vec<u64>>()[..] else { panic!("three nodes") };
    cluster.node(paused).pause().await;
    until("a transfer", async || admin.transfer_leader(Some(next)).await.ok().filter(|led| *led == next)).await;

    let asked = Instant::now();
    let refused = admin.remove_member(first).await.expect_err("the new leader would be alone");
    let text = refused.to_string();
    assert!(text.contains(&format!("2 voters, of which node {paused} does not answer; it needs 2")), "{text}");
    let silence_max = 2 * Duration::from_millis(RaftConfig::default().election_timeout_ms_max);
    assert!(asked.elapsed() >= silence_max, "it was refused after {:?}", asked.elapsed());

    cluster.node(paused).signal(Signal::CONT);
    removed(&admin, first).await;
}

/// Waits until all nodes know a node at the addresses of its configuration.
async fn know_address_of(cluster: &LocalCluster, node_id: u64) {
    let config = cluster.node(node_id).config();
    until("the new address at all nodes", async || {
        let statuses = cluster.statuses().await;
        let is_there = |member: &Member| {
            (member.node_id, &member.peer_address, &member.client_address)
                == (node_id, &config.peer_listen, &config.client_listen)
        };
        let knows = |status: &StatusResponse| status.members.iter().any(is_there);
        (statuses.len() == cluster.nodes().count() && statuses.values().all(knows)).then_some(())
    })
    .await;
}

/// A client that knows one node alone.
fn client_of(cluster: &LocalCluster, node_id: u64) -> Client {
    Client::builder(&cluster.node(node_id).endpoint()).call_limit(LONG).build().expect("a valid endpoint")
}

/// There is nobody whom it could ask.
#[tokio::test]
async fn the_only_member_moves_and_nodes_that_join_later_find_it() {
    let mut cluster = cluster_of(1).await;
    cluster.node_mut(1).stop().await;
    cluster.relocate(1).expect("its configuration");
    cluster.node_mut(1).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it serves");
    know_address_of(&cluster, 1).await;

    cluster.add(2).expect("its configuration").spawn().expect("it starts");
    has_voters(&cluster, &[1, 2]).await;
    know_address_of(&cluster, 1).await;
    // One of the two does not lead, and passes the request on.
    for node_id in [1, 2] {
        let session = long_session(&client_of(&cluster, node_id)).await;
        let _guard = session.acquire(&format!("by/{node_id}")).await.expect("a lock");
    }
}

/// The others know the leader only at its old addresses, and could not tell it what it asks them for.
#[tokio::test]
async fn a_member_that_moves_and_leads_is_found() {
    let mut cluster = cluster().await;
    let is_level = async || {
        let statuses = cluster.statuses().await;
        let ends: BTreeSet<u64> = statuses.values().map(|status| status.last_log_index).collect();
        (statuses.len() == 3 && ends.len() == 1).then_some(())
    };
    until("equal logs", is_level).await;
    cluster.kill().await;
    cluster.relocate(1).expect("its configuration");
    // So that node 1 stands for election first.
    for waits in [2, 3] {
        let file = cluster.node(waits).config_file();
        let config = fs::read_to_string(file).expect("readable");
        let later = config.replace("election_timeout_ms_min = 1500", "election_timeout_ms_min = 30000");
        let later = later.replace("election_timeout_ms_max = 3000", "election_timeout_ms_max = 60000");
        assert_ne!(config, later, "{config}");
        fs::write(file, later).expect("written");
    }
    for node_id in 1..=3 {
        cluster.node_mut(node_id).spawn().expect("it starts");
    }
    cluster.ready(LONG).await.expect("they serve");
    assert_eq!(leader(&cluster).await, 1);

    know_address_of(&cluster, 1).await;
    for node_id in 1..=3 {
        let session = long_session(&client_of(&cluster, node_id)).await;
        let _guard = session.acquire(&format!("by/{node_id}")).await.expect("a lock");
    }
}

#[tokio::test]
async fn a_member_with_new_addresses_is_found() {
    let mut cluster = cluster().await;
    let follower = (1..=3).find(|id| *id != 1).expect("a node");
    cluster.node_mut(follower).stop().await;
    cluster.relocate(follower).expect("its configuration");
    cluster.node_mut(follower).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it is found at its new addresses");
    know_address_of(&cluster, follower).await;
    // It can lead, and the others find it.
    let admin = client(&cluster);
    let led = until("a transfer", async || admin.transfer_leader(Some(follower)).await.ok()).await;
    assert_eq!(led, follower);
    let session = long_session(&admin).await;
    let _guard = session.acquire("after").await.expect("a lock");
}

#[tokio::test]
async fn the_leadership_goes_where_it_is_sent() {
    let mut cluster = cluster().await;
    let load = Load::start(client(&cluster));
    let endpoints = cluster.endpoints().join(",");
    for to in [2, 3, 1] {
        let to = to.to_string();
        let arguments = ["transfer-leader", &to, "--endpoints", &endpoints];
        let (code, out, err) = text(&output(&mut lockkeeper(&arguments)).await);
        assert_eq!((code, out), (0, format!("node {to} leads\n")), "{err}");
    }
    let (code, _, err) = text(&output(&mut lockkeeper(&["transfer-leader", "9", "--endpoints", &endpoints])).await);
    assert_eq!(code, 13, "{err}");
    assert!(err.contains("node 9 is not a voter"), "{err}");
    assert!(load.end().await > 0);
    // A node that does not answer cannot take over.
    cluster.node_mut(2).kill().await;
    let admin = client(&cluster);
    until("a refusal", async || match admin.transfer_leader(Some(2)).await {
        Err(Error::Refused(refused)) => refused.to_string().contains("node 2").then_some(()),
        Err(_) | Ok(_) => {
            sleep(Duration::from_millis(50)).await;
            None
        }
    })
    .await;
}
