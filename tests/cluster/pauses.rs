//! Leaders that are paused (SIGSTOP) and resume much later.

use lockkeeper::{
    local::Signal,
    proto::v1::{AcquireRequest, GetRequest, Role, Want, locks_client::LocksClient},
};

use super::load::Load;
use crate::support::{LONG, client, cluster_with, leader, long_session, prompt_cluster, until};

/// A follower by itself trusts a silent leader for the longest election timeout, and then waits for the shortest: 64 s here, more than
/// [`LONG`]. Followers agree after three quarters of the shortest.
#[tokio::test(flavor = "multi_thread")]
async fn followers_agree_that_the_leader_is_silent_and_elect_at_once() {
    let mut cluster = cluster_with(|options| {
        (options.raft.election_timeout_ms_min, options.raft.election_timeout_ms_max) = (4_000, 60_000);
    })
    .await;
    for _ in 0..2 {
        let frozen = leader(&cluster).await;
        cluster.node(frozen).pause().await;
        let next = until("another leader", async || {
            let statuses = cluster.statuses().await;
            let next =
                statuses.iter().find(|(id, status)| **id != frozen && status.role() == Role::Leader && status.serving);
            next.map(|(id, _)| *id)
        })
        .await;
        cluster.node(frozen).signal(Signal::CONT);
        cluster.ready(LONG).await.expect("it serves again");
        // The former leader follows.
        until("one leader", async || {
            let status = cluster.node(frozen).status().await.ok()?;
            (status.role() == Role::Follower && cluster.node(next).status().await.ok()?.serving).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: pauses, beside those of chaos"]
async fn nothing_acknowledged_is_lost_when_leaders_are_paused() {
    let mut cluster = prompt_cluster().await;
    let mut load = Load::start(&client(&cluster), 8);
    for _ in 0..3 {
        load.progress(100).await;
        let paused = leader(&cluster).await;
        cluster.node(paused).pause().await;
        // Another node leads meanwhile.
        load.progress(100).await;
        cluster.node(paused).signal(Signal::CONT);
        cluster.ready(LONG).await.expect("it serves again");
    }
    load.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_leader_returns_no_stale_reads() {
    let cluster = prompt_cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let old = session.acquire("seat").await.expect("free");
    let old_token = old.token().0;
    let paused = leader(&cluster).await;
    let mut locks = LocksClient::new(cluster.node(paused).channel().await.expect("it serves"));
    cluster.node(paused).pause().await;

    // These requests wait in its sockets. It reads them first when it resumes, while it still takes itself for the leader.
    let get = GetRequest { name: "seat".to_string(), ..GetRequest::default() };
    let asked: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let mut locks = locks.clone();
                let get = get.clone();
                async move { locks.get(get).await }
            })
        })
        .collect();
    let acquire = AcquireRequest {
        session_id: session.id().to_string(),
        locks: vec![Want { name: "other".to_string(), ..Want::default() }],
        ..AcquireRequest::default()
    };
    let tried = tokio::spawn(async move { locks.acquire(acquire).await });

    old.release().await.expect("the others serve");
    let new = session.acquire("seat").await.expect("free");
    assert!(new.token().0 > old_token);
    cluster.node(paused).signal(Signal::CONT);

    for answer in asked {
        // An error is allowed.
        if let Ok(answer) = tokio::time::timeout(LONG, answer).await.expect("it answers").expect("no panic") {
            let lock = answer.into_inner().lock.expect("a lock");
            let tokens: Vec<_> = lock.holders.iter().map(|holder| holder.token).collect();
            assert_eq!(tokens, [new.token().0], "a stale read");
        }
    }
    // The acquire is granted completely or not at all.
    let granted = tokio::time::timeout(LONG, tried).await.expect("it answers").expect("no panic").is_ok();
    let held = until("an answer", async || Some(client.get("other").await.ok()?.lock.holder_count)).await;
    assert!(!granted || held == 1, "what was acknowledged is held");
    new.release().await.expect("it was held");
}
