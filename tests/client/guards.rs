//! Guards: deadlines, releases, losses and warnings of a holder.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::{
    client::{BootClock, Clock, Danger, Error, Loss, NewData, SessionOptions},
    proto::v1::{Revocation, keep_alive_response::What, release_request::Target},
};
use tonic::Code;

use super::{
    TTL, client,
    fake::{Answer, Call, Node},
    open, soon,
};

fn releases(node: &Node) -> usize {
    node.calls().iter().filter(|call| matches!(call, Call::Release(_))).count()
}

fn renewed(call: &Call) -> Option<()> {
    matches!(call, Call::Renew(_)).then_some(())
}

#[tokio::test]
async fn a_deadline_is_on_the_boot_clock() {
    let node = Node::start();
    let before = BootClock.now();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    let deadline = held.deadline();
    let now = BootClock.now();
    assert!(deadline > now && deadline.0 < now.0 + TTL, "{deadline:?} at {now:?}");
    // A hundredth of the TTL is taken off, for clocks that run at different rates.
    assert!(deadline.0 + TTL / 50 >= before.0 + TTL, "{deadline:?}, opened after {before:?}");
}

#[tokio::test]
async fn data_is_set_on_a_lock_by_its_token() {
    let node = Node::start();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    held.update("jobs", NewData::Kept(b"half done")).await.unwrap();
    let update = node.asked(|call| if let Call::Update(update) = call { Some(update.clone()) } else { None }).await;
    assert_eq!((update.token, update.name.as_str(), update.keep_data), (7, "jobs", true));
    assert_eq!(update.data.as_deref(), Some(&b"half done"[..]));
}

#[tokio::test]
async fn a_second_release_sends_no_call() {
    let node = Node::start();
    let held = Arc::new(open(&[&node]).await.acquire("jobs").await.unwrap());
    let other = Arc::clone(&held);
    let waiting = tokio::spawn(async move { other.lost().await });
    held.release().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(soon(waiting).await.unwrap(), Loss::Released);
    assert_eq!((held.loss(), held.remaining()), (Some(Loss::Released), Duration::ZERO));
    let session = held.session().clone();
    drop(held);
    session.close().await.unwrap();
    assert_eq!(releases(&node), 1);
}

#[tokio::test]
async fn ensure_renews_only_if_too_little_time_is_left() {
    let node = Node::start();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    assert!(held.ensure(Duration::from_millis(1)).await.unwrap() > Duration::from_millis(1));
    assert!(!node.calls().iter().any(|call| renewed(call).is_some()), "there was enough left");

    node.falls_silent(true);
    soon(async {
        while held.remaining() > TTL / 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let left = held.ensure(TTL / 2).await.unwrap();
    assert!(left >= TTL / 2, "{left:?}");
    node.asked(renewed).await;

    let error = held.ensure(2 * TTL).await.unwrap_err();
    assert!(matches!(error, Error::NotEnsured { min_left, .. } if min_left == 2 * TTL), "{error:?}");
    held.release().await.unwrap();
    assert!(matches!(held.ensure(Duration::ZERO).await, Err(Error::Lost(Loss::Released))));
}

/// A renewal extends the session, but not the grant that its answer reports as revoked.
#[tokio::test]
async fn ensure_does_not_extend_a_revoked_grant() {
    let node = Node::start();
    let options = SessionOptions { ttl: Duration::from_secs(30), label: "test".into() };
    let session = client(&[&node]).open(options).await.unwrap();
    let held = session.acquire("jobs").await.unwrap();
    let wanted = Duration::from_secs(29);
    soon(async {
        while held.remaining() >= wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    node.revokes([Revocation { token: 7, reason: "stuck".into(), remaining_ms: 23_000 }]);
    let ensured = held.ensure(wanted).await;
    assert!(matches!(&ensured, Err(Error::Lost(Loss::Revoked { reason })) if reason == "stuck"), "{ensured:?}");
    assert!(held.remaining() <= Duration::from_secs(23), "{:?}", held.remaining());
    assert!(session.remaining() > wanted, "the session goes on: {:?}", session.remaining());
}

fn taken() -> Revocation {
    Revocation { token: 7, reason: "dead".into(), remaining_ms: 0 }
}

/// The cluster keeps the notice of a forced release until the client acknowledges it, even if the holder never releases its guard.
#[tokio::test]
async fn a_forced_release_is_acknowledged_once() {
    let node = Node::start();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    node.answers_releases([
        Answer::RefuseAbout(Code::FailedPrecondition, "REVOKED", ("revoked_reason", "dead".to_owned())),
        Answer::Refuse(Code::FailedPrecondition, "NOT_HELD", "no"),
    ]);
    node.says(What::Revoked(taken()));
    assert_eq!(soon(held.lost()).await, Loss::Revoked { reason: "dead".into() });
    assert_eq!(node.asked_to_release().await.target, Some(Target::Token(7)));
    // Each renewal repeats the notice.
    node.says(What::Revoked(taken()));
    held.session().renew().await.unwrap();
    assert_eq!((held.remaining(), releases(&node)), (Duration::ZERO, 1));
    let released = held.release().await;
    assert!(matches!(&released, Err(Error::Lost(Loss::Revoked { reason })) if reason == "dead"), "{released:?}");
    assert_eq!(releases(&node), 2);
}

#[tokio::test]
async fn a_retried_acquire_of_a_revoked_grant_reports_the_revocation() {
    let node = Node::start();
    let about = || ("revoked_reason", "dead".to_owned());
    node.answers([Answer::RefuseAbout(Code::FailedPrecondition, "REVOKED", about())]);
    let session = open(&[&node]).await;
    let error = session.acquire("jobs").await.unwrap_err();
    assert!(matches!(&error, Error::Lost(Loss::Revoked { reason }) if reason == "dead"), "{error:?}");
    assert_eq!(session.loss(), None, "the session goes on");
    let _held = session.acquire("jobs").await.unwrap();
}

/// The grant's answer may arrive after the notice of its revocation.
/// The first copy may still be granted, though a node that has another policy by then refuses the second.
#[tokio::test]
async fn an_acquire_that_is_refused_after_a_copy_without_an_answer_is_released() {
    let node = Node::start();
    let session = open(&[&node]).await;
    node.answers([Answer::Hang, Answer::Refuse(Code::PermissionDenied, "PERMISSION_DENIED", "no")]);

    let error = session.acquire("jobs").no_wait().await.unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error}");
    let asked = node.asked_to_acquire().await;
    let released = node.asked_to_release().await;
    assert_eq!(released.target, Some(Target::AcquireRequestId(asked.request.unwrap().id)));
}

#[tokio::test]
async fn a_grant_revoked_before_its_answer_arrives_is_lost_from_the_start() {
    let node = Node::start();
    let session = open(&[&node]).await;
    node.revokes([taken()]);
    session.renew().await.unwrap();
    node.asked_to_release().await;
    let held = session.acquire("jobs").await.unwrap();
    assert_eq!(held.loss(), Some(Loss::Revoked { reason: "dead".into() }));
}

/// The grant is held until the cluster answers otherwise.
#[tokio::test]
async fn a_release_that_is_refused_is_tried_again_as_the_same_request() {
    let node = Node::start();
    let limit =
        || Answer::RefuseAbout(Code::ResourceExhausted, "LIMIT_REACHED", ("limit", "replies_per_session".into()));
    node.answers_releases([limit(), limit()]);
    let session = open(&[&node]).await;
    let held = session.acquire("jobs").await.unwrap();
    soon(held.release()).await.unwrap();
    let ids: Vec<_> = node
        .calls()
        .into_iter()
        .filter_map(|call| if let Call::Release(release) = call { release.request } else { None })
        .map(|request| request.id)
        .collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]), "{ids:?}");

    // Retries end with the session.
    node.answers_releases(std::iter::repeat_with(limit).take(1_000));
    let held = session.acquire("jobs").await.unwrap();
    let releasing = tokio::spawn(async move { held.release().await });
    soon(async {
        while releases(&node) < 6 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    session.close().await.unwrap();
    let released = soon(releasing).await.unwrap();
    assert!(matches!(released, Err(Error::Lost(Loss::Closed))), "{released:?}");
}

/// One whose first copy had no answer, too: nobody knows then whether the grant is still held.
#[tokio::test]
async fn a_release_that_is_refused_after_a_copy_without_an_answer_is_tried_again() {
    let node = Node::start();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    node.answers_releases([Answer::Hang, Answer::Refuse(Code::Unauthenticated, "UNAUTHENTICATED", "no")]);
    soon(held.release()).await.unwrap();
    assert_eq!(releases(&node), 3);
}

#[tokio::test]
async fn an_explicit_renewal_reports_a_revocation() {
    let node = Node::start();
    let session = open(&[&node]).await;
    let held = session.acquire("jobs").await.unwrap();
    let lost = tokio::spawn(async move { held.lost().await });
    node.revokes([Revocation { token: 7, reason: "stuck".into(), remaining_ms: 300 }]);
    session.renew().await.unwrap();
    assert_eq!(soon(lost).await.unwrap(), Loss::Revoked { reason: "stuck".into() });
}

#[tokio::test]
async fn danger_is_reported_before_the_deadline() {
    let node = Node::start();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    let told = Arc::new(Mutex::new(None));
    let tell = Arc::clone(&told);
    held.on_danger(TTL / 2, move |danger| *tell.lock().unwrap() = Some(danger));
    node.falls_silent(true);
    let danger = soon(held.danger(TTL / 2)).await;
    assert!(danger.loss.is_none() && danger.left <= TTL / 2 && danger.left > Duration::ZERO, "{danger:?}");
    assert_eq!(soon(held.lost()).await, Loss::OutOfContact);
    let told = told.lock().unwrap().clone();
    assert!(matches!(told, Some(Danger { loss: None, .. })), "told before the loss: {told:?}");
}

#[tokio::test]
async fn danger_has_the_reason_of_a_revocation_and_is_not_reported_after_a_release() {
    let node = Node::start();
    let session = open(&[&node]).await;
    let first = session.acquire("a").await.unwrap();
    let second = session.acquire("b").await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    for held in [&first, &second] {
        let tell = tell.clone();
        held.on_danger(Duration::from_millis(1), move |danger| tell.send(danger).unwrap());
    }
    drop(tell);
    second.release().await.unwrap();
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    // The fake node grants one token for all locks: without its release, `second` would report the revocation too.
    node.says(What::Revoked(Revocation { token: 7, reason: "stuck".into(), remaining_ms: 300 }));
    let danger = soon(told.recv()).await.unwrap();
    assert_eq!(danger.loss, Some(Loss::Revoked { reason: "stuck".into() }));
    assert!(soon(told.recv()).await.is_none(), "the released guard reports nothing");
}

#[tokio::test]
async fn a_reentrant_lock_shares_one_grant_and_the_last_leave_releases_it() {
    let node = Node::start();
    let lock = open(&[&node]).await.acquire("jobs").reentrant();
    let outer = lock.enter().await.unwrap();
    let inner = soon(lock.clone().enter()).await.unwrap();
    assert_eq!(outer.token(), inner.token());
    inner.leave().await.unwrap();
    assert_eq!((releases(&node), outer.loss()), (0, None));
    outer.leave().await.unwrap();
    assert_eq!(releases(&node), 1);
    let _again = lock.enter().await.unwrap();
    assert_eq!(node.calls().iter().filter(|call| matches!(call, Call::Acquire(_))).count(), 2);
}

#[tokio::test]
async fn a_reentrant_lock_is_not_entered_while_a_lost_grant_is_inside() {
    let node = Node::start();
    let lock = open(&[&node]).await.acquire("jobs").reentrant();
    let inside = lock.enter().await.unwrap();
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    node.says(What::Revoked(Revocation { token: 7, reason: "stuck".into(), remaining_ms: 300 }));
    soon(inside.lost()).await;
    assert!(matches!(lock.enter().await, Err(Error::Lost(Loss::Revoked { .. }))));
    drop(inside);
    assert!(soon(lock.enter()).await.is_ok());
}

#[tokio::test]
async fn a_second_entry_acquires_when_the_first_is_cancelled() {
    let node = Node::start();
    let session = open(&[&node]).await;
    node.answers([Answer::Hang]);
    let lock = session.acquire("jobs").reentrant();
    let one = lock.clone();
    let two = lock.clone();
    let first = tokio::spawn(async move { one.enter().await });
    node.asked_to_acquire().await;
    let second = tokio::spawn(async move { two.enter().await });
    // The first entry is cancelled: the second acquires in its place.
    first.abort();
    let entered = soon(second).await.unwrap().unwrap();
    assert_eq!(entered.token().0, 7);
}
