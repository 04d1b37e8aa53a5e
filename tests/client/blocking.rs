//! The blocking client, in programs without a runtime and in programs with their own.

use std::time::Duration;

use lockkeeper::{
    client::{Error, Loss, NewData, SessionOptions, blocking::Client},
    machine::Token,
    proto::v1::release_request::Target,
};

use super::{
    TTL,
    fake::{Answer, Call, Node},
};

fn options() -> SessionOptions {
    SessionOptions { ttl: TTL, label: "test".into() }
}

fn released(node: &Node) -> bool {
    node.calls().iter().any(|call| matches!(call, Call::Release(request) if request.target == Some(Target::Token(7))))
}

#[test]
fn a_program_without_a_runtime_acquires_and_releases_a_lock() {
    let node = Node::start();
    let client = Client::new(&node.address).unwrap();
    assert_eq!(client.get("jobs").unwrap().index, 42);
    let session = client.open(options()).unwrap();
    let held = session.acquire("jobs").wait_at_most(Duration::from_secs(5)).lock().unwrap();
    assert_eq!(held.token(), Token(7));
    held.update("jobs", NewData::Held(b"half done")).unwrap();
    // The thread sleeps longer than the TTL: the session is renewed in the background.
    assert_eq!(held.lost_within(3 * TTL), None);
    assert!(held.ensure(TTL / 3).unwrap() >= TTL / 3);
    held.release().unwrap();
    assert_eq!(held.loss(), Some(Loss::Released));
    assert!(released(&node));
    node.answers([Answer::Busy]);
    assert!(matches!(session.acquire("jobs").no_wait().lock(), Err(Error::NotAcquired(_))));
    session.close().unwrap();
    assert!(node.calls().iter().any(|call| matches!(call, Call::Close(_))));
}

#[test]
fn a_guard_that_is_dropped_is_released_when_the_drop_returns() {
    let node = Node::start();
    let held = Client::new(&node.address).unwrap().open(options()).unwrap().acquire("jobs").lock().unwrap();
    drop(held);
    assert!(released(&node));
}

#[tokio::test]
async fn the_blocking_client_works_inside_a_runtime() {
    let node = Node::start();
    let client = Client::new(&node.address).unwrap();
    let session = client.open(options()).unwrap();
    let held = session.acquire("jobs").lock().unwrap();
    drop((client, session, held));
    node.asked_to_release().await;
    node.asked_to_close().await;
}

#[test]
fn an_invalid_endpoint_is_an_error() {
    assert!(matches!(Client::new("here"), Err(Error::Endpoint(endpoint)) if endpoint == "here"));
}
