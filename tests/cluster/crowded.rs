//! Sessions at the limit of waits.

use futures::future::join_all;
use lockkeeper::{
    client::{Error, Guard, Refusal, Session},
    proto::{
        LEADER_KEY,
        v1::{
            AcquireRequest, OpenSessionRequest, PipelineRequest, ReleaseRequest, Want, acquire_request::Wait,
            locks_client::LocksClient, pipeline_request::What as Asked, pipeline_response::What as Answer,
            release_request::Target, sessions_client::SessionsClient,
        },
    },
};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic_types::StatusExt as _;

use crate::support::{LONG, client, cluster_of, leader, long_session, steady_cluster, until};

/// Maximum of waits of one session.
const MOST: usize = 1_024;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_at_its_limit_of_waits_can_still_release() {
    let cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let others = [session.acquire("other").await.expect("free"), session.acquire("third").await.expect("free")];
    let mut waiting = JoinSet::new();
    for _ in 0..MOST {
        waiting.spawn(session.acquire("seat").into_future());
    }
    let queue_length = async || Some(client.get("seat").await.ok()?.lock.queue_length);
    until("all in the queue", async || (queue_length().await? == MOST as u64).then_some(())).await;
    let error = session.acquire("free").await.expect_err("it asks for more than it may");
    assert!(matches!(&error, Error::Refused(refused) if refused.reason == Refusal::LimitReached), "{error:?}");

    // Release works for dropped guards and for an explicit call.
    drop(others);
    held.release().await.expect("it was held");
    until("nothing but the seat", async || (client.list("", "").await.ok()?.locks.len() == 1).then_some(())).await;
    let first: Guard = timeout(LONG, waiting.join_next())
        .await
        .expect("granted in time")
        .expect("one")
        .expect("no panic")
        .expect("granted");
    assert!(first.token() > held.token());
    // Cancel all waits at once.
    waiting.shutdown().await;
    first.release().await.expect("it was held");
    until("nothing at all", async || client.list("", "").await.ok()?.locks.is_empty().then_some(())).await;
    assert_eq!(session.loss(), None);
    let again = session.acquire("seat").await.expect("free");
    assert!(again.token() > first.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_without_request_ids_count_towards_the_limit() {
    let cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let _held = session.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    let locks = LocksClient::new(cluster.node(leading).channel().await.expect("it serves"));
    let message = wait_for_ever("seat", &session);
    let mut calls = JoinSet::new();
    for _ in 0..=MOST {
        let mut locks = locks.clone();
        let message = message.clone();
        calls.spawn(async move { locks.acquire(message).await });
    }
    let answer = timeout(LONG, calls.join_next()).await.expect("one is refused").expect("one").expect("no panic");
    let refused = answer.expect_err("it waits once too often");
    let info = refused.get_details_error_info().expect("a reason");
    assert_eq!(info.metadata.get("limit").map(String::as_str), Some("waits_per_session"), "{refused:?}");
    assert_eq!(client.get("seat").await.expect("it answers").lock.queue_length, MOST as u64);
}

/// Attempts at a follower that is full. On a machine that stalls, calls that wait may break off, and then there is room for one more.
const ATTEMPTS: usize = 3;

/// Waiting acquires fill a follower's slots for waits, but not its slots for other calls.
#[tokio::test(flavor = "multi_thread")]
async fn waits_through_a_follower_leave_room_for_short_calls() {
    for _ in 0..ATTEMPTS {
        if a_full_follower_answers_short_calls().await {
            return;
        }
    }
    panic!("waits broke off, {ATTEMPTS} times");
}

/// `false`: some of the waits broke off before the follower was asked for one more.
async fn a_full_follower_answers_short_calls() -> bool {
    // Maximum of waits that a follower forwards; see `server::service`.
    const PASSED_ON: usize = 4_096;
    let cluster = steady_cluster().await;
    let client = client(&cluster);
    let leading = leader(&cluster).await;
    let follower = (1..=3).find(|id| *id != leading).expect("three nodes");
    let channel = cluster.node(follower).channel().await.expect("it serves");
    let mut locks = LocksClient::new(channel.clone());
    let holder = long_session(&client).await;
    let held = holder.acquire("seat").await.expect("free");

    let (requests, stream) = mpsc::channel(64);
    let mut answers = locks.pipeline(ReceiverStream::new(stream)).await.expect("it serves").into_inner();
    let sessions = join_all((0..PASSED_ON / MOST).map(|_| long_session(&client))).await;
    let mut sent = 0;
    for session in &sessions {
        // In steps, since the test is about the number of waits, not about their rate.
        for _ in 0..MOST {
            sent += 1;
            let what = Some(Asked::Acquire(wait_for_ever("seat", session)));
            requests.send(PipelineRequest { number: sent, what }).await.expect("it is read");
        }
        let queue_length = async || Some(client.get("seat").await.ok()?.lock.queue_length);
        tokio::select! {
            () = until("all in the queue", async || (queue_length().await? == sent).then_some(())) => {}
            broken = answers.message() => {
                eprintln!("a wait broke off: {broken:?}");
                return false;
            }
        }
    }

    // One wait more is refused, with the leader's address.
    let one_more = long_session(&client).await;
    let Ok(answer) = timeout(LONG, locks.acquire(wait_for_ever("seat", &one_more))).await else {
        let queue_length = client.get("seat").await.expect("it answers").lock.queue_length;
        assert!(queue_length < PASSED_ON as u64, "{queue_length} wait, and one more was let in");
        return false;
    };
    let refused = answer.expect_err("there is no room");
    let info = refused.get_details_error_info().expect("a reason");
    assert_eq!(info.metadata.get("limit").map(String::as_str), Some("waits_passed_on"), "{refused:?}");
    assert!(refused.metadata().contains_key(LEADER_KEY), "{refused:?}");
    // Short requests are answered: a unary call, and a release behind all those waits on the pipeline.
    let open = OpenSessionRequest { ttl_ms: 60_000, ..OpenSessionRequest::default() };
    timeout(LONG, SessionsClient::new(channel).open(open)).await.expect("in time").expect("it is opened");
    let release = ReleaseRequest {
        session_id: holder.id().to_string(),
        target: Some(Target::Token(held.token().0)),
        ..ReleaseRequest::default()
    };
    requests.send(PipelineRequest { number: 0, what: Some(Asked::Release(release)) }).await.expect("it is read");
    let mut released = false;
    let mut granted = false;
    while !(released && granted) {
        let answer = timeout(LONG, answers.message()).await.expect("in time").expect("it goes on").expect("an answer");
        match answer.what.expect("something") {
            Answer::Release(_) => released = true,
            Answer::Acquire(_) => granted = true,
            Answer::Failure(_) if answer.number != 0 => return false,
            other @ (Answer::Check(_) | Answer::Get(_) | Answer::Failure(_)) => panic!("{other:?}"),
        }
    }
    true
}

fn wait_for_ever(name: &str, session: &Session) -> AcquireRequest {
    AcquireRequest {
        session_id: session.id().to_string(),
        locks: vec![Want { name: name.to_owned(), ..Want::default() }],
        wait: Some(Wait::WaitForever(true)),
        ..AcquireRequest::default()
    }
}
