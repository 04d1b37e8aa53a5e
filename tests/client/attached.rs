//! Attached sessions: sessions that another process opened.

use lockkeeper::{
    client::{AttachedSession, Error, Loss},
    machine::{Acquire, LockName, Mode, SessionId, Token, Wait, Want},
    proto::v1::{RequestId, Revocation, release_request::Target},
};
use tonic::Code;

use super::{
    client,
    fake::{Answer, Call, Node},
    soon,
};

fn attach(node: &Node) -> AttachedSession {
    client(&[node]).attach(SessionId(7))
}

fn jobs(wait: Wait) -> Acquire {
    let name = LockName::new("jobs").unwrap();
    let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
    Acquire::new(vec![want], wait, 0).unwrap()
}

fn memory_full() -> Answer {
    Answer::RefuseAbout(Code::ResourceExhausted, "LIMIT_REACHED", ("limit", "replies_per_session".to_owned()))
}

fn stale(lowest: u64) -> Answer {
    Answer::RefuseAbout(Code::FailedPrecondition, "REQUEST_STALE", ("lowest", lowest.to_string()))
}

fn acquires(node: &Node) -> Vec<RequestId> {
    let acquire = |call| if let Call::Acquire(acquire) = call { acquire.request } else { None };
    node.calls().into_iter().filter_map(acquire).collect()
}

#[tokio::test]
async fn request_ids_are_forgotten_only_when_the_reply_memory_is_full_and_oldest_first() {
    let node = Node::start();
    node.answers([memory_full(), memory_full(), memory_full()]);
    assert_eq!(soon(attach(&node).acquire(jobs(Wait::Forever)).granted()).await.unwrap(), Token(7));
    let sent = acquires(&node);
    let [first, others @ ..] = &*sent else { panic!("nothing was sent") };
    assert_eq!(first.lowest, 1);
    assert!(sent.iter().all(|again| again.id == first.id && again.lowest <= first.id), "{sent:?}");
    let seconds_ago: Vec<u64> = others.iter().map(|again| (first.id >> 32) - (again.lowest >> 32)).collect();
    assert_eq!(seconds_ago, [3_600, 60, 5]);
}

#[tokio::test]
async fn a_reply_memory_that_stays_full_refuses_the_acquire() {
    let node = Node::start();
    node.answers([memory_full(), memory_full(), memory_full(), memory_full()]);
    let refused = soon(attach(&node).acquire(jobs(Wait::Forever)).granted()).await;
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
}

#[tokio::test]
async fn a_stale_id_from_a_slow_clock_is_replaced_by_a_later_one() {
    let node = Node::start();
    let lowest = u64::MAX - (10 << 32);
    node.answers([stale(lowest)]);
    assert_eq!(soon(attach(&node).acquire(jobs(Wait::Forever)).granted()).await.unwrap(), Token(7));
    let sent = acquires(&node);
    assert!(sent.len() == 2 && sent[0].id < lowest && sent[1].id > lowest, "{sent:?}");
}

#[tokio::test]
async fn a_retry_with_a_forgotten_id_has_an_unknown_outcome() {
    let node = Node::start();
    node.answers([Answer::Hang, stale(u64::MAX - (10 << 32))]);
    let mut acquire = attach(&node).acquire(jobs(Wait::Never));
    let answer = soon(acquire.granted()).await;
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
    let sent = acquires(&node);
    assert!(sent.len() == 2 && sent[0].id == sent[1].id, "{sent:?}");
    soon(acquire.abandon()).await.unwrap();
    assert_eq!(node.asked_to_release().await.target, Some(Target::AcquireRequestId(sent[0].id)));
}

/// A dropped future may have sent the request, so the outcome is unknown.
#[tokio::test]
async fn granted_called_again_repeats_the_same_request() {
    let node = Node::start();
    node.answers([Answer::Hang]);
    let mut acquire = attach(&node).acquire(jobs(Wait::Forever));
    tokio::select! {
        answer = acquire.granted() => panic!("{answer:?}"),
        _ = node.asked_to_acquire() => {}
    }
    node.answers([stale(u64::MAX - (10 << 32))]);
    let answer = soon(acquire.granted()).await;
    assert!(matches!(answer, Err(Error::Unknown { .. })), "{answer:?}");
    let sent = acquires(&node);
    assert!(sent.len() == 2 && sent[0].id == sent[1].id, "{sent:?}");
}

/// An attached session leaves the release to the caller: the cluster keeps the notice until then.
#[tokio::test]
async fn a_revoked_grant_is_reported_and_not_released() {
    let node = Node::start();
    let about = |what| ("revoked_reason", String::from(what));
    node.answers_releases([Answer::RefuseAbout(Code::FailedPrecondition, "REVOKED", about("dead"))]);
    node.revokes([Revocation { token: 7, reason: "dead".into(), remaining_ms: 0 }]);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let session = attach(&node);
    let keeping = session.keep_alive(None, |token, _| tell.send(token).unwrap());
    tokio::select! {
        ended = keeping => panic!("{ended:?}"),
        told = soon(told.recv()) => assert_eq!(told, Some(Token(7))),
    }
    assert!(!node.calls().iter().any(|call| matches!(call, Call::Release(_))));
    let released = session.release(Token(7)).await;
    assert!(matches!(&released, Err(Error::Lost(Loss::Revoked { reason })) if reason == "dead"), "{released:?}");
}

/// The first renewal, a unary call, may be the only message that reports it.
#[tokio::test]
async fn keep_alive_reports_an_earlier_revocation() {
    let node = Node::start();
    node.revokes([Revocation { token: 7, reason: "stuck".into(), remaining_ms: 300 }]);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let session = attach(&node);
    let keeping = session.keep_alive(None, |token, reason| tell.send((token, reason.to_owned())).unwrap());
    tokio::select! {
        ended = keeping => panic!("{ended:?}"),
        told = soon(told.recv()) => assert_eq!(told, Some((Token(7), "stuck".to_owned()))),
    }
    assert_eq!(attach(&node).renew().await.unwrap().revoked.len(), 1);
}

#[tokio::test]
async fn an_acquire_that_was_never_sent_is_abandoned_without_a_call() {
    let node = Node::start();
    attach(&node).acquire(jobs(Wait::Forever)).abandon().await.unwrap();
    assert!(node.calls().is_empty());
}
