//! The client against scripted nodes, without a cluster: its behaviour when nodes lead, follow, hang and die.

#![expect(clippy::disallowed_methods, reason = "the ids of a client rise by wall time")]
#![expect(clippy::unwrap_used, reason = "in the helpers of tests, a panic is how they fail")]

mod attached;
mod blocking;
pub(crate) mod fake;
mod guards;
mod program;
mod watches;

use std::time::Duration;

use fake::{Answer, Call, Node};
use lockkeeper::{
    client::{Client, Error, Loss, Refusal, Session, SessionOptions},
    machine::Token,
    proto::v1::{Revocation, SessionEnd, SessionEnded, keep_alive_response::What, release_request::Target},
};
use tonic::Code;

/// A machine that stalls for less loses no session.
const TTL: Duration = Duration::from_millis(TTL_MS as u64);
const TTL_MS: u32 = 1_500;

fn client(nodes: &[&Node]) -> Client {
    let endpoints: Vec<&str> = nodes.iter().map(|node| &*node.address).collect();
    let limits = Client::builder(&endpoints.join(",")).attempt_limit(Duration::from_millis(300));
    limits.call_limit(Duration::from_secs(5)).build().unwrap()
}

async fn open(nodes: &[&Node]) -> Session {
    let options = SessionOptions { ttl: TTL, label: "test".into() };
    client(nodes).open(options).await.unwrap()
}

/// A deadline for an event that must happen: the test fails instead of hanging.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what).await.expect("it happens in time")
}

fn gets(node: &Node) -> usize {
    node.calls().iter().filter(|call| matches!(call, Call::Get(_))).count()
}

#[tokio::test]
async fn a_session_is_closed_at_a_node_of_the_version_before() {
    let node = Node::start();
    node.is_old();
    let closed = || node.calls().iter().filter(|call| matches!(call, Call::Close(_))).count();
    let session = open(&[&node]).await;
    let id = session.id();
    session.close().await.unwrap();
    assert_eq!(closed(), 1);
    client(&[&node]).close_session(id, "by an operator").await.unwrap();
    assert_eq!(closed(), 2);
}

#[tokio::test]
async fn calls_go_to_the_named_leader() {
    let follower = Node::start();
    let leader = Node::start();
    follower.names_leader(&leader.address);
    leader.names_leader(&leader.address);
    // No attempt is over before its answer, however busy the machine is.
    let client = Client::builder(&follower.address).attempt_limit(Duration::from_secs(20)).build().unwrap();
    for _ in 0..3 {
        client.get("jobs").await.unwrap();
    }
    assert_eq!((gets(&follower), gets(&leader)), (1, 2));
}

#[tokio::test]
async fn calls_are_retried_while_there_is_no_leader() {
    let node = Node::start();
    let no_leader = Answer::Refuse(Code::Unavailable, "NO_LEADER", "safe");
    node.answers([no_leader.clone(), no_leader.clone(), no_leader]);
    assert_eq!(client(&[&node]).get("jobs").await.unwrap().index, 42);
    assert_eq!(gets(&node), 4);
}

#[tokio::test]
async fn a_dead_node_and_a_hanging_node_are_skipped() {
    let mut dead = Node::start();
    let hanging = Node::start();
    let good = Node::start();
    dead.kill();
    hanging.answers([Answer::Hang]);
    let client = client(&[&dead, &hanging, &good]);
    assert_eq!(soon(client.get("jobs")).await.unwrap().index, 42);
}

#[tokio::test]
async fn a_call_without_a_reachable_node_is_no_cluster() {
    let mut dead = Node::start();
    dead.kill();
    let client = Client::builder(&dead.address).call_limit(Duration::from_millis(200)).build().unwrap();
    let error = soon(client.get("jobs")).await.unwrap_err();
    assert!(matches!(error, Error::NoCluster { .. }), "{error:?}");
}

#[tokio::test]
async fn an_unanswered_read_is_no_cluster() {
    let node = Node::start();
    node.answers([Answer::Hang, Answer::Hang, Answer::Hang, Answer::Hang]);
    let limits = Client::builder(&node.address).attempt_limit(Duration::from_millis(100));
    let client = limits.call_limit(Duration::from_millis(300)).build().unwrap();
    let error = soon(client.get("jobs")).await.unwrap_err();
    assert!(matches!(error, Error::NoCluster { .. }), "{error:?}");
}

/// The attempt that the deadline cuts short is not what went wrong.
#[tokio::test]
async fn a_call_that_gives_up_says_what_a_node_answered_last() {
    // On a busy machine not even the first answer comes within a short limit: then there is nothing to say, and a longer one is tried.
    for limit_ms in [500, 4_000, 16_000] {
        let node = Node::start();
        node.answers([Answer::Refuse(Code::Unavailable, "NO_LEADER", "safe"), Answer::Hang]);
        let limit = Duration::from_millis(limit_ms);
        let client = Client::builder(&node.address).attempt_limit(limit).call_limit(limit).build().unwrap();
        let error = soon(client.get("jobs")).await.unwrap_err();
        if gets(&node) < 2 {
            continue;
        }
        assert!(
            matches!(error, Error::NoCluster { .. }) && !error.to_string().contains("no answer in time"),
            "{error}"
        );
        return;
    }
    panic!("the node was never asked a second time");
}

#[tokio::test]
async fn a_forced_release_without_a_token_is_not_repeated_after_an_unknown_outcome() {
    let node = Node::start();
    let unknown = Answer::Refuse(Code::DeadlineExceeded, "OUTCOME_UNKNOWN", "same-id");
    node.answers([unknown.clone(), unknown]);
    let client = client(&[&node]);
    let error = client.force_release("jobs", "stuck").await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    // With a token, the repetition cannot affect another grant.
    client.force_release("jobs", "stuck").token(Token(7)).await.unwrap();
}

#[tokio::test]
async fn the_leadership_is_handed_to_a_named_node_again_after_an_unknown_outcome() {
    let node = Node::start();
    let unknown = Answer::Refuse(Code::DeadlineExceeded, "OUTCOME_UNKNOWN", "same-id");
    let transfers = || node.calls().iter().filter(|call| matches!(call, Call::Transfer(_))).count();
    let client = client(&[&node]);

    node.answers([unknown.clone()]);
    assert_eq!(soon(client.transfer_leader(Some(3))).await.unwrap(), 3);
    assert_eq!(transfers(), 2);

    // To any other node: a second one could take it from the first.
    node.answers([unknown]);
    let error = soon(client.transfer_leader(None)).await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert_eq!(transfers(), 3);
}

#[tokio::test]
async fn a_session_that_ended_before_its_answer_arrived_is_opened_under_another_id() {
    let node = Node::start();
    // As if the answer to the first attempt was lost, and the session had expired when the second attempt arrived.
    let unknown = Answer::Refuse(Code::DeadlineExceeded, "OUTCOME_UNKNOWN", "same-id");
    let expired = Answer::Refuse(Code::FailedPrecondition, "SESSION_EXPIRED", "no");
    node.answers_opens([unknown.clone(), expired.clone()]);
    let session = soon(client(&[&node]).open(SessionOptions { ttl: TTL, label: "test".into() })).await.unwrap();
    let opened = |node: &Node| -> Vec<String> {
        let id = |call| if let Call::Open(request) = call { Some(request.session_id) } else { None };
        let ids = node.calls().into_iter().filter_map(id);
        ids.collect()
    };
    let ids = opened(&node);
    assert_eq!(ids.len(), 3);
    assert!(ids[0] == ids[1] && ids[1] != ids[2] && ids[2] == session.id().to_string(), "{ids:?}");

    let other = Node::start();
    other.answers_opens([unknown, expired]);
    let (detached, _) = soon(client(&[&other]).open_detached(SessionOptions::default())).await.unwrap();
    assert_eq!(opened(&other)[2], detached.id().to_string());
}

#[tokio::test]
async fn a_refusal_has_its_reason_and_is_not_repeated() {
    let node = Node::start();
    node.answers([Answer::Refuse(Code::FailedPrecondition, "MODE_MISMATCH", "no"), Answer::Busy]);
    let session = open(&[&node]).await;
    let Error::Refused(refused) = session.acquire("jobs").await.unwrap_err() else { panic!("it was refused") };
    assert_eq!(refused.reason, Refusal::ModeMismatch);
    let error = session.acquire("jobs").no_wait().await.unwrap_err();
    assert!(
        matches!(&error, Error::NotAcquired(busy) if !busy.waited && busy.busy.name.as_str() == "jobs"),
        "{error:?}"
    );
    session.close().await.unwrap();
    assert!(!node.calls().iter().any(|call| matches!(call, Call::Release(_))), "there was nothing to release");
}

#[tokio::test]
async fn an_acquire_can_require_that_the_lock_exists() {
    let node = Node::start();
    node.answers([Answer::Refuse(Code::NotFound, "LOCK_UNKNOWN", "no")]);
    let session = open(&[&node]).await;
    let Error::Refused(refused) = session.acquire("jobs").must_exist().await.unwrap_err() else { panic!("refused") };
    assert_eq!(refused.reason, Refusal::LockUnknown);
    assert!(node.asked_to_acquire().await.locks[0].must_exist);
    let _held = session.acquire("jobs").await.unwrap();
    assert_eq!(session.loss(), None, "the session goes on");
}

#[tokio::test]
async fn a_refusal_as_expired_ends_the_session() {
    let node = Node::start();
    node.answers([Answer::Refuse(Code::NotFound, "SESSION_EXPIRED", "no")]);
    let session = open(&[&node]).await;
    assert!(matches!(session.acquire("jobs").await.unwrap_err(), Error::Lost(Loss::Expired)));
    assert_eq!(soon(session.lost()).await, Loss::Expired);
}

#[tokio::test]
async fn a_grant_is_held_and_released_by_its_token() {
    let node = Node::start();
    let session = open(&[&node]).await;
    let held = session.acquire_all(["b", "a"]).await.unwrap();
    assert_eq!(held.token().0, 7);
    assert_eq!(held.names().iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(held.remaining() > Duration::ZERO && held.loss().is_none());
    held.release().await.unwrap();
    assert_eq!(node.asked_to_release().await.target, Some(Target::Token(7)));
    session.close().await.unwrap();
    node.asked_to_close().await;
}

#[tokio::test]
async fn a_node_without_pipeline_gets_unary_calls() {
    let node = Node::start();
    let session = open(&[node.is_old()]).await;
    let held = session.acquire("jobs").await.unwrap();
    held.release().await.unwrap();
    assert_eq!(node.asked_to_release().await.target, Some(Target::Token(7)));
}

#[tokio::test]
async fn a_dropped_guard_is_released_and_a_dropped_session_is_closed() {
    let node = Node::start();
    let session = open(&[&node]).await;
    let held = session.acquire("jobs").await.unwrap();
    drop(held);
    assert_eq!(node.asked_to_release().await.target, Some(Target::Token(7)));
    drop(session);
    node.asked_to_close().await;
}

#[tokio::test]
async fn a_wait_whose_connection_breaks_goes_on_elsewhere_as_the_same_request() {
    let mut first = Node::start();
    let second = Node::start();
    first.names_leader(&first.address);
    first.answers([Answer::Hang]);
    // Both nodes name the first as the leader.
    second.names_leader(&first.address);
    let session = open(&[&first, &second]).await;
    let waiting = session.clone();
    let acquire = tokio::spawn(async move { waiting.acquire("jobs").wait_at_most(Duration::from_secs(60)).await });
    let asked = first.asked_to_acquire().await;
    first.kill();
    let again = second.asked_to_acquire().await;
    assert_eq!(asked.request, again.request);
    assert_eq!(asked.session_id, again.session_id);
    assert_eq!(soon(acquire).await.unwrap().unwrap().token().0, 7);
}

/// The token that opened the stream was withdrawn. Whether the acquire was granted before, the end of the stream does not tell.
#[tokio::test]
async fn a_wait_whose_stream_is_refused_goes_on_as_the_same_request() {
    let node = Node::start();
    node.answers([Answer::EndStream(Code::Unauthenticated, "UNAUTHENTICATED")]);
    let session = open(&[&node]).await;
    let held = soon(session.acquire("jobs").into_future()).await.unwrap();
    assert_eq!(held.token().0, 7);

    let calls = node.calls();
    let ids = calls.iter().filter_map(|call| {
        let Call::Acquire(request) = call else { return None };
        request.request.as_ref().map(|request| request.id)
    });
    assert_eq!(ids.collect::<Vec<_>>(), [1, 1]);
}

#[tokio::test]
async fn a_wait_that_the_cluster_cancelled_is_begun_again_with_a_new_id() {
    let node = Node::start();
    node.answers([Answer::Refuse(Code::Cancelled, "WAIT_CANCELLED", "no")]);
    let session = open(&[&node]).await;
    let _held = soon(session.acquire("jobs").into_future()).await.unwrap();
    let calls = node.calls();
    let ids = calls.iter().filter_map(|call| {
        let Call::Acquire(request) = call else { return None };
        request.request.as_ref().map(|request| (request.id, request.lowest))
    });
    assert_eq!(ids.collect::<Vec<_>>(), [(1, 1), (2, 2)]);
}

#[tokio::test]
async fn an_acquire_that_is_dropped_is_released_by_its_request() {
    let node = Node::start();
    node.answers([Answer::Hang]);
    let session = open(&[&node]).await;
    let waiting = session.clone();
    let acquire = tokio::spawn(async move { waiting.acquire("jobs").await });
    let request = node.asked_to_acquire().await.request.unwrap();
    acquire.abort();
    // On the pipeline stream no call ends with the wait, so the client sends a cancellation.
    node.asked(|call| matches!(call, Call::Cancel).then_some(())).await;
    let release = node.asked_to_release().await;
    assert_eq!(release.target, Some(Target::AcquireRequestId(request.id)));
    // The server may not forget the acquire before it is released.
    assert_eq!(release.request.unwrap().lowest, request.id);
    assert_eq!(session.loss(), None);
}

#[tokio::test]
async fn keep_alives_move_on_when_a_node_stops_answering() {
    let first = Node::start();
    let second = Node::start();
    let session = open(&[&first, &second]).await;
    let renewed = |call: &Call| matches!(call, Call::KeepAlive(_)).then_some(());
    for (silent, other) in [(&first, &second), (&second, &first)] {
        other.falls_silent(false);
        silent.falls_silent(true);
        other.asked(renewed).await;
    }
    // Longer than the TTL: the session must have been renewed.
    let lost = tokio::time::timeout(2 * TTL, session.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
}

#[tokio::test]
async fn without_contact_the_session_is_lost_at_its_deadline_and_not_before() {
    let mut node = Node::start();
    let session = open(&[&node]).await;
    let held = session.acquire("jobs").await.unwrap();
    node.kill();
    let left = held.remaining();
    let began = tokio::time::Instant::now();
    assert_eq!(soon(held.lost()).await, Loss::OutOfContact);
    assert!(began.elapsed() + Duration::from_millis(5) >= left, "{:?} of {left:?}", began.elapsed());
    assert_eq!(held.remaining(), Duration::ZERO);
    assert!(matches!(soon(session.acquire("jobs").into_future()).await, Err(Error::Lost(Loss::OutOfContact))));
}

#[tokio::test]
async fn a_revoked_grant_is_lost_with_its_reason_and_the_session_lives_on() {
    let node = Node::start();
    let session = open(&[&node]).await;
    let held = session.acquire("jobs").await.unwrap();
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    node.says(What::Revoked(Revocation { token: 7, reason: "stuck".into(), remaining_ms: 300 }));
    assert_eq!(soon(held.lost()).await, Loss::Revoked { reason: "stuck".into() });
    assert!(held.remaining() <= Duration::from_millis(300));
    assert_eq!(session.loss(), None);
    held.release().await.unwrap();
}

#[tokio::test]
async fn a_session_that_the_cluster_ended_is_lost() {
    let node = Node::start();
    let session = open(&[&node]).await;
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    node.says(What::Ended(SessionEnded { why: SessionEnd::Expired.into() }));
    assert_eq!(soon(session.lost()).await, Loss::Expired);
}
