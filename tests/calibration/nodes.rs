//! Promises of nodes that run as processes.

use futures::{StreamExt as _, stream};
use lockkeeper::{
    machine::{Data, LockName, Mode, Want},
    proto::v1::{
        self, AcquireRequest, WatchRequest, acquire_request, locks_client::LocksClient,
        sessions_client::SessionsClient, watch_response::What,
    },
};
use tonic_types::StatusExt as _;

use super::alone::soon;
use crate::support::{client, cluster, cluster_of, leader, long_session, until};

/// The initial state is sent in parts, and flow control stops it while the watcher does not read. Changes made meanwhile must follow the
/// state, or the state is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_misses_nothing() {
    /// More parts than are buffered for a watcher that does not read.
    const PARTS: usize = 24;
    const LOCKS_IN_PART: usize = 64;
    const DATA_BYTES: usize = 16 * 1024;
    let cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let mut held = Vec::new();
    for part in 0..PARTS {
        let want = |number| {
            let name = LockName::new(&format!("watched/{part:02}/{number:02}")).expect("a name");
            let data = Some(Data::new(&[7; DATA_BYTES]).expect("as much as there may be"));
            Want { name, mode: Mode::Exclusive, data, keep_data: false, must_exist: false }
        };
        held.push(session.acquire_wants((0..LOCKS_IN_PART).map(want).collect()).await.expect("free"));
    }
    let channel = cluster.node(1).channel().await.expect("it serves");
    let mut watches = LocksClient::new(channel).max_decoding_message_size(4 << 20);
    let mut watch = watches
        .watch(WatchRequest { prefix: "watched/".to_owned(), after_index: 0 })
        .await
        .expect("it leads")
        .into_inner();

    let late = session.acquire("watched/99").await.expect("free");
    let index = client.get("watched/99").await.expect("it answers").index;
    let mut is_told = false;
    while !is_told {
        let message = soon(watch.message()).await.expect("the stream goes on").expect("it goes on");
        match message.what.expect("it says something") {
            What::State(state) => is_told |= state.locks.iter().any(|lock| lock.name == "watched/99"),
            What::Changes(changes) => is_told |= changes.changes.iter().any(|change| change.name == "watched/99"),
            What::Progress(progress) => {
                assert!(progress.index < index, "the watcher was not told of entry {index}, and is told {progress:?}");
            }
            What::TooOld(too_old) => panic!("it asked for the state, and is told {too_old:?}"),
        }
    }
    drop((held, late));
}

/// A client that gets the renewal first applies the new deadline to all its grants. Until it gets the revocation, it trusts a grant whose
/// locks become free before that deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revocation_is_sent_before_the_renewal() {
    let cluster = cluster_of(1).await;
    let channel = cluster.node(1).channel().await.expect("it serves");
    let (mut sessions, mut locks) = (SessionsClient::new(channel.clone()), LocksClient::new(channel));
    // Direct calls: the library would renew the session in the background, and release the revoked grant.
    let open = v1::OpenSessionRequest { ttl_ms: 600_000, ..v1::OpenSessionRequest::default() };
    let session_id = sessions.open(open).await.expect("it leads").into_inner().session_id;
    let locked = vec![v1::Want { name: "jobs".to_owned(), mode: Some(exclusive()), ..v1::Want::default() }];
    let acquire = AcquireRequest { session_id: session_id.clone(), locks: locked, ..AcquireRequest::default() };
    locks.acquire(acquire).await.expect("it leads");
    let force = v1::ForceReleaseRequest { name: "jobs".to_owned(), reason: "stuck".to_owned(), ..Default::default() };
    let forced = locks.force_release(force).await.expect("it leads").into_inner().forced;
    assert_eq!(forced.len(), 1);

    let renewal = v1::KeepAliveRequest { session_id, sequence: 1 };
    let renewals = stream::iter([renewal]).chain(stream::pending());
    let mut told = sessions.keep_alive(renewals).await.expect("it leads").into_inner();
    let first = soon(told.message()).await.expect("the stream goes on").and_then(|told| told.what);
    let is_revocation = matches!(first, Some(v1::keep_alive_response::What::Revoked(_)));
    assert!(is_revocation, "the holder is renewed before it knows what is revoked: {first:?}");
    let second = soon(told.message()).await.expect("the stream goes on").and_then(|told| told.what);
    assert!(matches!(second, Some(v1::keep_alive_response::What::Renewed(_))), "{second:?}");
}

fn exclusive() -> v1::Mode {
    v1::Mode { kind: Some(v1::mode::Kind::Exclusive(v1::mode::Exclusive {})) }
}

/// A follower forwards a call, and the leader is killed. The call has no request id: a client that takes it for a call without effect may
/// send it again, and acquire twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forwarded_call_whose_leader_dies_has_an_unknown_outcome() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("jobs").await.expect("free");
    let other = long_session(&client).await;
    let request = AcquireRequest {
        session_id: other.id().to_string(),
        request: None,
        locks: vec![v1::Want { name: "jobs".to_owned(), mode: Some(exclusive()), ..v1::Want::default() }],
        wait: Some(acquire_request::Wait::WaitForever(true)),
        lock_delay_ms: 0,
    };
    // On a busy machine the leader may change before the call reaches it.
    let (leads, acquires) = until("an acquire to be passed on and queued", async || {
        let leads = leader(&cluster).await;
        let follows = cluster.nodes().map(|node| node.id()).find(|id| *id != leads).expect("there are three");
        let channel = cluster.node(follows).channel().await.expect("it serves");
        let request = request.clone();
        let acquires = tokio::spawn(async move { LocksClient::new(channel).acquire(request).await });
        while !acquires.is_finished() {
            let lock = client.get("jobs").await.ok().map(|answer| answer.lock);
            if lock.is_some_and(|lock| lock.queue_length == 1) && leader(&cluster).await == leads {
                return Some((leads, acquires));
            }
        }
        None
    })
    .await;
    cluster.node_mut(leads).kill().await;
    let status = soon(acquires).await.expect("it did not panic").expect_err("its leader is dead");
    let reason = status.get_details_error_info().map(|info| info.reason);
    assert_eq!(
        reason.as_deref(),
        Some("OUTCOME_UNKNOWN"),
        "a call that was queued is said to have done nothing: {status}"
    );
    drop((held, other));
}
