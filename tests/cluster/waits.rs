//! Places in the queue: kept across a broken connection and the loss of the leader, given up when the client does not return.

use std::time::Duration;

use futures::future::join_all;
use lockkeeper::{
    chaos::links::Links,
    client::{Client, SessionOptions},
    local::{LocalCluster, Signal},
    proto::v1::{
        AcquireRequest, GetRequest, OpenSessionRequest, ReleaseRequest, RequestId, Want, acquire_request,
        acquire_response, locks_client::LocksClient, release_request, sessions_client::SessionsClient,
    },
    server::GRACE,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{Status, transport::Channel};
use tonic_types::StatusExt;

use crate::support::{LONG, client, cluster, leader, long_session, until};

/// A session of a plain gRPC client, which repeats nothing by itself.
struct Plain {
    session_id: String,
    locks: LocksClient<Channel>,
}

impl Plain {
    async fn open(channel: Channel) -> Self {
        let request = OpenSessionRequest { ttl_ms: 600_000, ..OpenSessionRequest::default() };
        let opened = SessionsClient::new(channel.clone()).open(request).await.expect("a session");
        Self { session_id: opened.into_inner().session_id, locks: LocksClient::new(channel) }
    }

    fn acquire(&self, id: Option<u64>, name: &str) -> JoinHandle<Result<u64, Status>> {
        let request = AcquireRequest {
            session_id: self.session_id.clone(),
            request: id.map(|id| RequestId { id, lowest: 1, kept: vec![] }),
            locks: vec![Want { name: name.to_string(), ..Want::default() }],
            wait: Some(acquire_request::Wait::WaitForever(true)),
            ..AcquireRequest::default()
        };
        let mut locks = self.locks.clone();
        tokio::spawn(async move {
            match locks.acquire(request).await?.into_inner().outcome {
                Some(acquire_response::Outcome::Granted(grant)) => Ok(grant.token),
                other => panic!("{other:?}"),
            }
        })
    }

    /// Repeats the acquire until it is granted, as long as the errors allow that.
    async fn acquire_at_last(self, id: u64, name: &str) -> u64 {
        loop {
            match self.acquire(Some(id), name).await.expect("no panic") {
                Ok(token) => return token,
                Err(status) => assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}"),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn release(&mut self, target: release_request::Target) -> Result<(), Status> {
        let request = ReleaseRequest {
            session_id: self.session_id.clone(),
            request: Some(RequestId { id: 1000, lowest: 1, kept: vec![] }),
            target: Some(target),
        };
        self.locks.release(request).await.map(drop)
    }
}

async fn tickets(client: &Client, name: &str) -> Vec<u64> {
    let lock = client.get(name).await.expect("the cluster answers").lock;
    lock.waiters.iter().map(|waiter| waiter.ticket.0).collect()
}

async fn until_waiting(client: &Client, name: &str, count: usize) -> Vec<u64> {
    until("the queue", async || Some(tickets(client, name).await).filter(|tickets| tickets.len() == count)).await
}

async fn leaders_channel(cluster: &LocalCluster) -> Channel {
    cluster.node(leader(cluster).await).channel().await.expect("it serves")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_call_keeps_its_place_and_an_abandoned_one_loses_it() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    // Through a follower: a call that is cancelled there is cancelled at the leader.
    let follower = leader(&cluster).await % 3 + 1;
    let first = Plain::open(cluster.node(follower).channel().await.expect("it serves")).await;
    let mut second = Plain::open(leaders_channel(&cluster).await).await;

    let broken = first.acquire(Some(1), "seat");
    let place = until_waiting(&client, "seat", 1).await;
    let behind = second.acquire(Some(1), "seat");
    let both = until_waiting(&client, "seat", 2).await;
    broken.abort();
    let again = first.acquire(Some(1), "seat");
    // A third acquire has no request id and is cancelled: no retry could find its place, so the place is given up at once.
    let unnamed = first.acquire(None, "seat");
    until_waiting(&client, "seat", 3).await;
    unnamed.abort();
    assert_eq!(until_waiting(&client, "seat", 2).await, both, "the repeated call is where it was: {place:?}");

    behind.abort();
    // It is not repeated: after the grace period its place is gone. The other acquire still waits.
    assert_eq!(until_waiting(&client, "seat", 1).await, place);
    assert!(!again.is_finished());
    held.release().await.expect("it was held");
    again.await.expect("no panic").expect("granted");
    let late = second.acquire(Some(1), "seat").await.expect("no panic").expect_err("its wait is over");
    assert_eq!(late.code(), tonic::Code::Cancelled, "{late:?}");
    second.release(release_request::Target::AcquireRequestId(1)).await.expect("nothing to release, and no error");
}

/// A session keeps 1,024 replies for retries. A long wait does not make it keep all later replies.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_does_not_fill_its_sessions_reply_memory() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let session = long_session(&client).await;
    let waiting = tokio::spawn(session.acquire("seat").into_future());
    until_waiting(&client, "seat", 1).await;
    // Two replies for each turn, of eight at a time: the machine that runs them is busy enough.
    for round in 0..75 {
        let turns = (0..8).map(async |number| {
            let other = session.acquire(&format!("other/{number}")).await?;
            other.release().await
        });
        for turn in join_all(turns).await {
            turn.unwrap_or_else(|error| panic!("in round {round}: {error}"));
        }
    }
    assert!(!waiting.is_finished());
    held.release().await.expect("it was held");
    let granted = tokio::time::timeout(LONG, waiting).await.expect("in its turn").expect("no panic").expect("granted");
    granted.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_queue_survives_its_leader() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let token = held.token();
    let mut waiting = Vec::new();
    for number in 1..=5 {
        let session = long_session(&client).await;
        waiting.push(tokio::spawn(session.acquire("seat").into_future()));
        until_waiting(&client, "seat", number).await;
    }
    let before = tickets(&client, "seat").await;
    let leading = leader(&cluster).await;
    cluster.node_mut(leading).kill().await;
    assert_eq!(tickets(&client, "seat").await, before, "the queue is in the table, not in the leader");

    held.release().await.expect("it was held throughout");
    let mut last = token;
    for next in waiting {
        let held = tokio::time::timeout(LONG, next).await.expect("in its turn").expect("no panic").expect("granted");
        assert!(held.token() > last, "first come, first served");
        last = held.token();
        held.release().await.expect("it was held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_its_old_answer_from_the_next_leader() {
    let mut cluster = cluster().await;
    let mut before = Plain::open(leaders_channel(&cluster).await).await;
    let token = before.acquire(Some(1), "seat").await.expect("no panic").expect("free");
    before.release(release_request::Target::Token(token)).await.expect("it was held");
    let leading = leader(&cluster).await;
    cluster.node_mut(leading).kill().await;

    let mut after = Plain { session_id: before.session_id, locks: LocksClient::new(leaders_channel(&cluster).await) };
    let again = after.acquire(Some(1), "seat").await.expect("no panic").expect("the same answer");
    assert_eq!(again, token, "the same request is the same grant");
    after
        .release(release_request::Target::Token(token))
        .await
        .expect("the same answer, though it is not held any more");
    let fresh = after.acquire(Some(2), "seat").await.expect("no panic").expect("it was released once, and is free");
    assert!(fresh > token);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_at_a_deposed_leader_is_answered_with_an_unknown_outcome_and_keeps_its_place() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let deposed = leader(&cluster).await;
    let mut waiter = Plain::open(cluster.node(deposed).channel().await.expect("it serves")).await;
    let waiting = waiter.acquire(Some(1), "seat");
    let place = until_waiting(&client, "seat", 1).await;
    cluster.node(deposed).pause().await;
    // The next leader answers.
    assert_eq!(tickets(&client, "seat").await, place);
    cluster.node(deposed).signal(Signal::CONT);

    let told = tokio::time::timeout(LONG, waiting).await.expect("told").expect("no panic").expect_err("not granted");
    let info = told.get_details_error_info().expect("a reason");
    assert_eq!((info.reason.as_str(), info.metadata["retry"].as_str()), ("OUTCOME_UNKNOWN", "same-id"), "{told:?}");
    waiter.locks = LocksClient::new(leaders_channel(&cluster).await);
    let again = waiter.acquire(Some(1), "seat");
    assert_eq!(until_waiting(&client, "seat", 1).await, place, "in its old place");
    held.release().await.expect("it was held");
    again.await.expect("no panic").expect("granted");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_removes_waits_whose_clients_do_not_return() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    let gone = Plain::open(cluster.node(leading).channel().await.expect("it serves")).await;
    let lost = gone.acquire(Some(1), "seat");
    until_waiting(&client, "seat", 1).await;
    let session = long_session(&client).await;
    let patient = tokio::spawn(session.acquire("seat").into_future());
    let [_, place] = until_waiting(&client, "seat", 2).await[..] else { panic!("two wait") };
    cluster.node_mut(leading).kill().await;
    lost.await.expect("no panic").expect_err("its node is gone, and it does not ask again");
    assert_eq!(until_waiting(&client, "seat", 1).await, [place], "the repeated acquire still waits");
    held.release().await.expect("it was held");
    patient.await.expect("no panic").expect("granted").release().await.expect("it was held");
}

/// Nobody can repeat a request without an id, so a grant to it would be known to nobody.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_removes_a_wait_without_a_request_id_first() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    let gone = Plain::open(cluster.node(leading).channel().await.expect("it serves")).await;
    let named = gone.acquire(Some(1), "seat");
    let place = until_waiting(&client, "seat", 1).await;
    let unnamed = gone.acquire(None, "seat");
    until_waiting(&client, "seat", 2).await;
    cluster.node_mut(leading).kill().await;
    for lost in [named, unnamed] {
        lost.await.expect("no panic").expect_err("its node is gone, and it does not ask again");
    }
    assert_eq!(until_waiting(&client, "seat", 1).await, place, "the one that could be repeated is kept for longer");
    held.release().await.expect("it was held");
}

/// A new leader removes the waits that it found and that no call repeated. A wait whose repeated call broke off again is not removed at
/// once, whenever that happens.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_breaks_shortly_after_an_election_keeps_its_place() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    cluster.node_mut(leading).kill().await;
    let waiting = Plain::open(leaders_channel(&cluster).await).await;
    let elected = Instant::now();
    let mut call = waiting.acquire(Some(1), "seat");
    let place = until_waiting(&client, "seat", 1).await;
    while elected.elapsed() < 2 * GRACE {
        call.abort();
        // The call is broken most of the time, but never for longer than the grace period.
        sleep(GRACE / 4).await;
        call = waiting.acquire(Some(1), "seat");
        sleep(GRACE / 100).await;
        assert_eq!(tickets(&client, "seat").await, place, "{:?} after the election", elected.elapsed());
    }
    held.release().await.expect("it was held");
    call.await.expect("no panic").expect("granted");
}

/// Clients reach the leader, which is partitioned from its peers. It must end its waiting calls itself: a client with a session of 60 s
/// renews only every 20 s, and the new leader removes unrepeated waits long before.
#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_leader_ends_its_waiting_calls_so_that_they_keep_their_places() {
    let mut cluster = cluster().await;
    cluster.stop().await;
    let links = Links::new(&cluster.node(1).config().members.clone(), 1).expect("free ports");
    cluster.route(|node, member| links.member(node, member)).expect("the configurations can be written");
    for id in 1..=3 {
        cluster.node_mut(id).spawn().expect("it starts again");
    }
    cluster.ready(LONG).await.expect("they serve again");
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let deposed = leader(&cluster).await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != deposed).collect();

    let ttl = Duration::from_secs(60);
    let session = client.open(SessionOptions { ttl, label: "patient".to_owned() }).await.expect("a session");
    let patient = tokio::spawn(session.acquire("seat").into_future());
    until_waiting(&client, "seat", 1).await;
    // At a follower, which forwards it to the leader.
    let plain = Plain::open(cluster.node(others[0]).channel().await.expect("it serves")).await;
    let passed_on = plain.acquire(Some(1), "seat");
    let places = until_waiting(&client, "seat", 2).await;
    let gone = Plain::open(cluster.node(deposed).channel().await.expect("it serves")).await;
    let lost = gone.acquire(Some(1), "seat");
    until_waiting(&client, "seat", 3).await;

    for other in &others {
        links.silence(deposed, *other);
        links.silence(*other, deposed);
    }
    let told = timeout(LONG, passed_on).await.expect("told").expect("no panic").expect_err("not granted");
    let info = told.get_details_error_info().expect("a reason");
    assert_eq!((info.reason.as_str(), info.metadata["retry"].as_str()), ("OUTCOME_UNKNOWN", "same-id"), "{told:?}");
    let again = tokio::spawn(plain.acquire_at_last(1, "seat"));
    let told = timeout(LONG, lost).await.expect("told").expect("no panic").expect_err("not granted");
    assert_eq!(told.code(), tonic::Code::Unavailable, "{told:?}");

    // The new leader removes only the wait that is not repeated.
    let left = until("the new leader's sweep", async || {
        let channel = cluster.node(others[0]).channel().await.ok()?;
        let request = GetRequest { name: "seat".to_owned(), ..GetRequest::default() };
        let lock = LocksClient::new(channel).get(request).await.ok()?.into_inner().lock?;
        let tickets: Vec<u64> = lock.waiters.iter().map(|waiter| waiter.ticket).collect();
        (tickets.len() < 3).then_some(tickets)
    })
    .await;
    assert_eq!(left, places, "repeated acquires keep their places");
    held.release().await.expect("it was held");
    let granted = timeout(LONG, patient).await.expect("in its turn").expect("no panic").expect("granted");
    assert!(!granted.place_lost());
    granted.release().await.expect("it was held");
    timeout(LONG, again).await.expect("in its turn").expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_its_own_client_releases_ends_as_abandoned() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let mut plain = Plain::open(leaders_channel(&cluster).await).await;
    let waiting = plain.acquire(Some(1), "seat");
    until_waiting(&client, "seat", 1).await;
    plain.release(release_request::Target::AcquireRequestId(1)).await.expect("it waited");
    let told = waiting.await.expect("no panic").expect_err("it was released");
    assert_eq!(told.get_details_error_info().expect("a reason").reason, "ABANDONED");
    assert!(told.message().contains("while it waited"), "{told:?}");
    held.release().await.expect("it was held");
}
