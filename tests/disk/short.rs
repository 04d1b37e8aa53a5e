//! Below the reserve: refusals before a disk is full.

use std::time::Duration;

use lockkeeper::{
    client::{self, Client, Refusal, Session, SessionOptions},
    config::DiskConfig,
    local::{ClusterOptions, LocalCluster},
    proto::v1::{AcquireRequest, RequestId, StatusResponse, Want, locks_client::LocksClient},
};
use tokio::time::timeout;
use tonic::Code;

use super::mounts::{self, Disks};
use crate::children;
use crate::support::{LONG, client, cluster_with, leader, lockkeeper, long_session, output, text, until};

/// Data of a lock.
const DATA: [u8; 16 << 10] = [7; 16 << 10];
/// Acquires in flight.
const AT_ONCE: usize = 16;
/// A request id that the client of the session does not use.
const FIRST_ID: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

/// Three nodes on small disks, with this reserve. Long election timeouts: a busy machine must not change the leader.
pub(crate) async fn cluster_on(disks: &Disks, reserve_mib: u64) -> LocalCluster {
    cluster_with_disks(disks, reserve_mib, |_| {}).await
}

/// The same with changed options.
pub(crate) async fn cluster_with_disks(
    disks: &Disks,
    reserve_mib: u64,
    change: impl FnOnce(&mut ClusterOptions),
) -> LocalCluster {
    cluster_with(|options| {
        options.directory = Some(disks.path());
        options.disk = DiskConfig { reserve_bytes: reserve_mib * MIB };
        options.raft.election_timeout_ms_min = 2_000;
        options.raft.election_timeout_ms_max = 4_000;
        change(options);
    })
    .await
}

/// The refusal for lack of disk space; `None`: the request was executed.
fn refusal<T>(answer: Result<T, client::Error>) -> Option<client::Refused> {
    match answer {
        Ok(_) => None,
        Err(client::Error::Refused(refused)) if refused.reason == Refusal::DiskSpaceLow => Some(refused),
        Err(error) => panic!("{error:?}"),
    }
}

async fn try_acquire(session: &Session, name: &str) -> Option<client::Refused> {
    refusal(session.acquire(name).no_wait().await)
}

async fn until_refused(session: &Session) -> client::Refused {
    until("a refusal", async || try_acquire(session, "try/refused").await).await
}

async fn until_served(session: &Session) {
    until("an acquire", async || try_acquire(session, "try/served").await.is_none().then_some(())).await;
}

async fn status_of_leader(cluster: &LocalCluster) -> StatusResponse {
    let leads = leader(cluster).await;
    cluster.node(leads).status().await.expect("it answers")
}

/// Waits until the leader knows whether these nodes, and no others, are short of space.
async fn until_known_as_short(cluster: &LocalCluster, short: &[u64]) {
    until("the leader knows the disks", async || {
        let status = status_of_leader(cluster).await;
        let all_report = status.members.iter().all(|member| member.disk_total_bytes > 0);
        let low: Vec<u64> =
            status.members.iter().filter(|member| member.disk_low).map(|member| member.node_id).collect();
        (all_report && low == short).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acquires_that_fill_the_disks_are_refused_and_all_else_goes_on() {
    if !mounts::is_inside(&children::full_name(
        module_path!(),
        "acquires_that_fill_the_disks_are_refused_and_all_else_goes_on",
    )) {
        return;
    }
    let disks = Disks::mount(3, 48);
    let cluster = cluster_on(&disks, 26).await;
    let client = client(&cluster);
    let holder = long_session(&client).await;
    let other = long_session(&client).await;
    let held = holder.acquire("held").await.expect("free");
    let queued = other.clone();
    let waiting = held.names()[0].as_str().to_owned();
    let waiter = tokio::spawn(async move { queued.acquire(&waiting).await });
    until("the waiter queues", async || (status_of_leader(&cluster).await.waiters == 1).then_some(())).await;

    let leads = leader(&cluster).await;
    let mut locks = LocksClient::new(cluster.node(leads).channel().await.expect("it serves"));
    let by_id = |id| AcquireRequest {
        session_id: other.id().to_string(),
        request: Some(RequestId { id, lowest: 1, ..RequestId::default() }),
        locks: vec![Want { name: format!("by id/{id}"), ..Want::default() }],
        ..AcquireRequest::default()
    };
    let first = locks.acquire(by_id(FIRST_ID)).await.expect("granted").into_inner();

    let (refused, acquired) = fill_by_acquires(&holder).await;
    println!("refused after {acquired} acquires of 16 KiB: {refused}");
    assert!(refused.message.contains("below its reserve of 26.0 MiB"), "{refused}");
    assert_eq!(refused.details["reserve_bytes"], (26 * MIB).to_string());
    let free: u64 = refused.details["free_bytes"].parse().expect("a number");
    assert!(free < 26 * MIB && free > 8 * MIB, "the refusal comes long before the disk is full: {free}");

    // What adds is refused, what gives back or renews is not, nor what the cluster knows already.
    assert!(refusal(client.open(SessionOptions::default()).await).is_some());
    let late = timeout(Duration::from_secs(5), async { refusal(holder.acquire("late").await) }).await;
    assert!(late.expect("refused at once, not at the call's deadline").is_some());
    let status = locks.acquire(by_id(FIRST_ID + 1)).await.expect_err("it adds");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let again = locks.acquire(by_id(FIRST_ID)).await.expect("the cluster knows it already").into_inner();
    assert_eq!(again, first);
    holder.renew().await.expect("renewed");
    held.release().await.expect("released");
    let granted = timeout(LONG, waiter).await.expect("in time").expect("no panic").expect("the lock was released");
    granted.release().await.expect("released");
    assert!(!client.check("held", granted.token()).await.expect("readable").held, "a read is answered too");
    other.close().await.expect("closed");

    let status = status_of_leader(&cluster).await;
    assert!(status.serving && status.disk_trouble.contains("takes no new sessions"), "{status:?}");
    let shown = output(&mut lockkeeper(&["status", "--endpoints", &cluster.endpoints().join(",")])).await;
    let (code, shown, _) = text(&shown);
    assert!(code == 0 && shown.contains("reports about disks: the disk of node"), "{code}: {shown}");
    assert_eq!(cluster.statuses().await.len(), 3, "no node has ended");

    (1..=3).for_each(|node| disks.resize(node, 160));
    until_served(&holder).await;
    assert!(status_of_leader(&cluster).await.disk_trouble.is_empty());
    client.open(SessionOptions::default()).await.expect("there is space");
}

/// Acquires locks with data until one is refused. Returns the refusal, and the number of locks.
async fn fill_by_acquires(session: &Session) -> (client::Refused, usize) {
    let mut held = Vec::new();
    loop {
        let first = held.len();
        let names: Vec<String> = (first..first + AT_ONCE).map(|number| format!("fill/{number}")).collect();
        let acquires = names.iter().map(|name| async { session.acquire(name).data(&DATA).no_wait().await });
        let mut refused = None;
        for answer in futures::future::join_all(acquires).await {
            match answer {
                Ok(guard) => held.push(guard),
                Err(error) => refused = refusal::<()>(Err(error)),
            }
        }
        if let Some(refused) = refused {
            let count = held.len();
            // Held until the session ends: their releases would go on beside the test.
            held.into_iter().for_each(std::mem::forget);
            return (refused, count);
        }
        assert!(held.len() < 20_000, "never refused");
    }
}

async fn session(client: &Client) -> Session {
    until("a session", async || client.open(SessionOptions { ttl: 10 * LONG, label: "test".to_owned() }).await.ok())
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_short_disk_refuses_nothing_and_a_quorums_worth_does() {
    if !mounts::is_inside(&children::full_name(
        module_path!(),
        "one_short_disk_refuses_nothing_and_a_quorums_worth_does",
    )) {
        return;
    }
    let disks = Disks::mount(3, 48);
    let mut cluster = cluster_on(&disks, 16).await;
    let client = client(&cluster);
    let holder = session(&client).await;
    let leads = leader(&cluster).await;
    let others: Vec<u64> = (1..=3).filter(|node| *node != leads).collect();
    until_known_as_short(&cluster, &[]).await;

    // One follower: it says so, and nothing is refused.
    disks.fill_but(others[0], 8);
    until_known_as_short(&cluster, &[others[0]]).await;
    assert_eq!(try_acquire(&holder, "one").await, None);
    let status = cluster.node(others[0]).status().await.expect("it answers");
    assert!(status.serving && status.disk_low && status.disk_trouble.contains("nearly full"), "{status:?}");

    // With another node down, commits need the disk that is short.
    cluster.node_mut(others[1]).kill().await;
    let refused = until_refused(&holder).await;
    assert_eq!(refused.details["node_id"], others[0].to_string());
    cluster.node_mut(others[1]).spawn().expect("it starts");
    until_served(&holder).await;

    // The leader alone: it hands over to a voter with space, and nothing is refused either.
    disks.free(others[0]);
    until_known_as_short(&cluster, &[]).await;
    disks.fill_but(leads, 8);
    until("another leader", async || (leader(&cluster).await != leads).then_some(())).await;
    until_known_as_short(&cluster, &[leads]).await;
    assert_eq!(try_acquire(&holder, "leader").await, None);

    // Two of three.
    disks.fill_but(others[1], 4);
    // A disk may be read while it is being filled, and has more space then than the other one.
    let refused = until("a refusal for the one with the least space", async || {
        let refused = try_acquire(&holder, "try/refused").await?;
        (refused.details["node_id"] == others[1].to_string()).then_some(refused)
    })
    .await;
    assert!(refused.message.contains("2 of 3 voters"), "{refused}");
    holder.renew().await.expect("renewed");
    disks.free(leads);
    until_served(&holder).await;
}
