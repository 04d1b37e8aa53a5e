//! Clients that die without closing their sessions.

use std::{process::Stdio, time::Duration};

use lockkeeper::{
    client::{Client, Error},
    proto::v1::{
        AcquireRequest, OpenSessionRequest, Want, acquire_request, acquire_response, locks_client::LocksClient,
        sessions_client::SessionsClient,
    },
};
use tokio::{process::Command, time::Instant};

use crate::support::{LONG, client, cluster, long_session, program, until};

async fn queue_length(client: &Client, name: &str) -> u64 {
    client.get(name).await.expect("the cluster answers").lock.queue_length
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_loses_its_lock_to_the_first_in_the_queue() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let mut holder = Command::new(program())
        .args(["lock", "seat", "--ttl", "1s", "--", "sleep", "1000"])
        .env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let before =
        until("the holder", async || client.get("seat").await.ok()?.lock.holders.first().map(|holder| holder.token))
            .await;

    let session = long_session(&client).await;
    let first = tokio::spawn(session.acquire("seat").into_future());
    until("the first in the queue", async || (queue_length(&client, "seat").await == 1).then_some(())).await;
    let second = tokio::spawn(session.acquire("seat").into_future());
    until("the second", async || (queue_length(&client, "seat").await == 2).then_some(())).await;

    holder.kill().await.expect("it was running");
    let held = tokio::time::timeout(LONG, first).await.expect("within the TTL").expect("no panic").expect("granted");
    assert!(held.token() > before, "the next token is higher");
    assert!(!second.is_finished(), "a second holder at the same time");
    held.release().await.expect("it was held");
    second.await.expect("no panic").expect("granted").release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_expire_before_its_ttl() {
    const TTL_MS: u32 = 1500;
    let cluster = cluster().await;
    let client = client(&cluster);
    let channel = cluster.node(1).channel().await.expect("it serves");
    let mut sessions = SessionsClient::new(channel.clone());
    let mut locks = LocksClient::new(channel);

    let sent = Instant::now();
    let request = OpenSessionRequest { ttl_ms: TTL_MS, ..OpenSessionRequest::default() };
    let silent = sessions.open(request).await.expect("opened").into_inner().session_id;
    let acquire = |wait| AcquireRequest {
        session_id: silent.clone(),
        locks: vec![Want { name: "seat".to_string(), ..Want::default() }],
        wait,
        ..AcquireRequest::default()
    };
    let granted = locks.acquire(acquire(None)).await.expect("granted").into_inner().outcome;
    assert!(matches!(granted, Some(acquire_response::Outcome::Granted(_))));

    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("granted once the silent one is gone");
    let waited = sent.elapsed();
    assert!(waited >= Duration::from_millis(TTL_MS.into()), "granted after {waited:?}, before the TTL was over");

    let late = locks.acquire(acquire(Some(acquire_request::Wait::WaitForever(true)))).await.expect_err("it expired");
    assert_eq!(late.code(), tonic::Code::NotFound);
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_wait_leaves_nothing_behind() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let waiting = tokio::spawn(session.acquire("seat").into_future());
    until("the waiter", async || (queue_length(&client, "seat").await == 1).then_some(())).await;
    waiting.abort();
    until("an empty queue", async || (queue_length(&client, "seat").await == 0).then_some(())).await;
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_learns_the_reason_of_a_forced_release() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let waiting = tokio::spawn(session.acquire("seat").into_future());
    until("the waiter", async || (queue_length(&client, "seat").await == 1).then_some(())).await;
    client.force_release("seat", "maintenance").await.expect("an operator may");
    let loss = tokio::time::timeout(LONG, held.lost()).await.expect("told at once");
    assert_eq!(loss.to_string(), "an operator revoked the grant: maintenance");
    assert!(!waiting.is_finished(), "the holder keeps the lock until its deadline or its release");
    let token = held.token();
    // A revoked grant is released like any other.
    match held.release().await {
        Ok(()) | Err(Error::Lost(_)) => {}
        Err(error) => panic!("{error}"),
    }
    let next = waiting.await.expect("no panic").expect("granted after the release");
    assert!(next.token() > token);
}
