//! The answer to the close of a session: what it held is free by then.

use lockkeeper::proto::v1::{
    AcquireRequest, CloseSessionRequest, OpenSessionRequest, Want, acquire_response, locks_client::LocksClient,
    sessions_client::SessionsClient,
};
use tonic::transport::Channel;

use crate::support::{cluster_of, leader};

/// Acquires, each of as many locks as one may name: ten times as many locks as one entry of the log frees.
const ACQUIRES: usize = 80;
const LOCKS_EACH: usize = 64;

async fn open(channel: Channel) -> String {
    let request = OpenSessionRequest { ttl_ms: 600_000, ..OpenSessionRequest::default() };
    SessionsClient::new(channel).open(request).await.expect("a session").into_inner().session_id
}

/// Acquires some locks without waiting. `false`: one of them is held.
async fn acquire(channel: Channel, session_id: &str, names: impl Iterator<Item = String>) -> bool {
    let locks = names.map(|name| Want { name, ..Want::default() }).collect();
    let request = AcquireRequest { session_id: session_id.to_owned(), locks, ..AcquireRequest::default() };
    let acquired = LocksClient::new(channel).acquire(request).await.expect("the cluster answers").into_inner();
    matches!(acquired.outcome, Some(acquire_response::Outcome::Granted(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_locks_of_a_session_are_free_when_its_close_is_answered() {
    let cluster = cluster_of(1).await;
    let channel = cluster.node(leader(&cluster).await).channel().await.expect("it serves");
    let many = open(channel.clone()).await;
    let other = open(channel.clone()).await;
    for number in 0..ACQUIRES {
        let names = (0..LOCKS_EACH).map(|lock| format!("{number}/{lock}"));
        assert!(acquire(channel.clone(), &many, names).await, "all are free");
    }
    let request = CloseSessionRequest { session_id: many, ..CloseSessionRequest::default() };
    SessionsClient::new(channel.clone()).close_session(request).await.expect("the cluster answers");

    // They are freed in the order in which they were granted.
    let last = (0..LOCKS_EACH).map(|lock| format!("{}/{lock}", ACQUIRES - 1));
    assert!(acquire(channel, &other, last).await, "the close was answered, and some of the locks are held");
}
