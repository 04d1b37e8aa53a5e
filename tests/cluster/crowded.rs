//! One session, shared by more tasks than it may have acquires under way.

use lockkeeper::{
    client::{Error, Guard},
    proto::v1::{AcquireRequest, Reason, Want, acquire_request::Wait, locks_client::LocksClient},
};
use tokio::{task::JoinSet, time::timeout};
use tonic_types::StatusExt as _;

use crate::support::{LONG, client, cluster_of, leader, long_session, until};

/// So many may wait.
const MOST: usize = 1_024;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_tasks_all_wait_gives_back_what_it_holds() {
    let cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let others = [session.acquire("other").await.expect("free"), session.acquire("third").await.expect("free")];
    let mut waiting = JoinSet::new();
    for _ in 0..MOST {
        waiting.spawn(session.acquire("seat").into_future());
    }
    let queue_length = async || Some(client.get("seat", false).await.ok()?.lock?.queue_length);
    until("all in the queue", async || (queue_length().await? == MOST as u64).then_some(())).await;
    let error = session.acquire("free").await.expect_err("it asks for more than it may");
    assert!(matches!(&error, Error::Refused(refused) if refused.reason == Reason::LimitReached), "{error:?}");

    // Dropped, or released: in both ways it is given back.
    drop(others);
    held.release().await.expect("it was held");
    until("nothing but the seat", async || (client.list("", "", false).await.ok()?.locks.len() == 1).then_some(()))
        .await;
    let first: Guard = timeout(LONG, waiting.join_next())
        .await
        .expect("granted in time")
        .expect("one")
        .expect("no panic")
        .expect("granted");
    assert!(first.token() > held.token());
    // All of them give up at once.
    waiting.shutdown().await;
    first.release().await.expect("it was held");
    until("nothing at all", async || client.list("", "", false).await.ok()?.locks.is_empty().then_some(())).await;
    assert_eq!(session.loss(), None);
    let again = session.acquire("seat").await.expect("free");
    assert!(again.token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_does_not_wait_without_end_without_request_ids() {
    let cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let _held = session.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    let locks = LocksClient::new(cluster.node(leading).channel().await.expect("it serves"));
    let message = AcquireRequest {
        session_id: session.id().to_string(),
        locks: vec![Want { name: "seat".to_owned(), ..Want::default() }],
        wait: Some(Wait::WaitForever(true)),
        ..AcquireRequest::default()
    };
    let mut calls = JoinSet::new();
    for _ in 0..=MOST {
        let (mut locks, message) = (locks.clone(), message.clone());
        calls.spawn(async move { locks.acquire(message).await });
    }
    let answer = timeout(LONG, calls.join_next()).await.expect("one is refused").expect("one").expect("no panic");
    let refused = answer.expect_err("it waits once too often");
    let info = refused.get_details_error_info().expect("a reason");
    assert_eq!(info.metadata.get("limit").map(String::as_str), Some("waits_per_session"), "{refused:?}");
    assert_eq!(
        client.get("seat", false).await.expect("it answers").lock.expect("it is held").queue_length,
        MOST as u64
    );
}
