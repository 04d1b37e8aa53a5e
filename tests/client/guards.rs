//! What a holder has in hand.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::{
    client::{BootClock, Clock, Danger, Error, Loss},
    proto::v1::{Revocation, keep_alive_response::What},
};

use crate::{
    TTL,
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
async fn its_deadline_is_a_moment_on_the_clock_that_counts_suspension() {
    let node = Node::start();
    let before = BootClock.now();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    let (deadline, now) = (held.deadline(), BootClock.now());
    assert!(deadline > now && deadline.0 < now.0 + TTL, "{deadline:?} at {now:?}");
    assert!(deadline.0 + Duration::from_millis(10) >= before.0 + TTL, "{deadline:?}, opened after {before:?}");
}

#[tokio::test]
async fn data_is_set_on_a_lock_by_its_token() {
    let node = Node::start();
    let held = open(&[&node]).await.acquire("jobs").await.unwrap();
    held.update("jobs", Some(b"half done"), true).await.unwrap();
    let update = node.asked(|call| if let Call::Update(update) = call { Some(update.clone()) } else { None }).await;
    assert_eq!((update.token, update.name.as_str(), update.keep_data), (7, "jobs", true));
    assert_eq!(update.data.as_deref(), Some(&b"half done"[..]));
}

#[tokio::test]
async fn to_release_twice_is_to_ask_once() {
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
async fn what_is_left_is_enough_or_is_made_enough() {
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

#[tokio::test]
async fn danger_comes_while_there_is_time_left_to_stop_in() {
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
async fn danger_is_told_with_the_reason_of_a_revocation_and_not_after_a_release() {
    let node = Node::start();
    let session = open(&[&node]).await;
    let (first, second) = (session.acquire("a").await.unwrap(), session.acquire("b").await.unwrap());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    for held in [&first, &second] {
        let tell = tell.clone();
        held.on_danger(Duration::from_millis(1), move |danger| tell.send(danger).unwrap());
    }
    drop(tell);
    second.release().await.unwrap();
    node.asked(|call| matches!(call, Call::KeepAlive(_)).then_some(())).await;
    // The fake's token is the same for all: `second` would hear of it too, had it not been released.
    node.says(What::Revoked(Revocation { token: 7, reason: "stuck".into(), remaining_ms: 300 }));
    let danger = soon(told.recv()).await.unwrap();
    assert_eq!(danger.loss, Some(Loss::Revoked { reason: "stuck".into() }));
    assert!(soon(told.recv()).await.is_none(), "the one that was released says nothing");
}

#[tokio::test]
async fn whoever_is_inside_enters_again_under_the_same_grant_and_the_last_one_out_releases() {
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
async fn nobody_enters_beside_one_whose_grant_is_lost() {
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
async fn those_who_come_while_the_first_waits_share_what_it_gets() {
    let node = Node::start();
    let session = open(&[&node]).await;
    node.answers([Answer::Hang]);
    let lock = session.acquire("jobs").reentrant();
    let (one, two) = (lock.clone(), lock.clone());
    let first = tokio::spawn(async move { one.enter().await });
    node.asked_to_acquire().await;
    let second = tokio::spawn(async move { two.enter().await });
    // The first one gives up: the second acquires in its place.
    first.abort();
    let entered = soon(second).await.unwrap().unwrap();
    assert_eq!(entered.token().0, 7);
}
