//! Calls with a gRPC deadline: the leader and any other node answer before it, with the known outcome.

use std::time::Duration;

use lockkeeper::{
    local::LocalCluster,
    proto::{
        LEADER_KEY,
        v1::{
            AcquireRequest, GetRequest, OpenSessionRequest, PipelineRequest, ReleaseRequest, RequestId, Want,
            WatchRequest, acquire_request, locks_client::LocksClient, pipeline_request::What as Asked,
            pipeline_response::What as Answer, release_request::Target, sessions_client::SessionsClient,
        },
    },
};
use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt;

use crate::support::{LONG, client, cluster, leader, long_session, steady_cluster};

const TIME: Duration = Duration::from_millis(500);
/// Long enough for quick calls on a busy machine.
const LONGER: Duration = Duration::from_secs(4);
/// Answers to check from each node: a single one could be right by chance.
const ANSWERS: usize = 8;
/// Concurrent calls.
const CALLS: u64 = 4;

/// An acquire of a held lock, with a wait without a limit.
fn acquire(session_id: &str, id: u64) -> AcquireRequest {
    AcquireRequest {
        session_id: session_id.to_owned(),
        request: Some(RequestId { id, lowest: 1, kept: vec![] }),
        locks: vec![Want { name: "seat".to_owned(), ..Want::default() }],
        wait: Some(acquire_request::Wait::WaitForever(true)),
        ..AcquireRequest::default()
    }
}

fn timed<T>(message: T, time: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(time);
    request
}

async fn open(channel: &Channel) -> String {
    let request = OpenSessionRequest { ttl_ms: 600_000, ..OpenSessionRequest::default() };
    SessionsClient::new(channel.clone()).open(request).await.expect("a session").into_inner().session_id
}

async fn channel(cluster: &LocalCluster, id: u64) -> Channel {
    cluster.node(id).channel().await.expect("it serves")
}

/// The code, the reason and the advice on retries.
fn said(status: &Status) -> (Code, String, String) {
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("{status:?} has no reason"));
    (status.code(), info.reason, info.metadata["retry"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn any_node_reports_a_passed_deadline_and_the_wait_keeps_its_place() {
    let cluster = steady_cluster().await;
    let held = long_session(&client(&cluster)).await.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    let leader_address = cluster.node(leading).config().client_listen.clone();
    let unknown = (Code::DeadlineExceeded, "OUTCOME_UNKNOWN".to_owned(), "same-id".to_owned());
    let at_node = async |id: u64| {
        let channel = channel(&cluster, id).await;
        let session = open(&channel).await;
        let mut answered = 0;
        while answered < ANSWERS {
            let calls = (1..=CALLS).map(|id| {
                let mut locks = LocksClient::new(channel.clone());
                let request = timed(acquire(&session, id), TIME);
                async move { locks.acquire(request).await.expect_err("it is held") }
            });
            // On a busy machine the client's own timer may fire first. Count only answers of the node.
            let statuses = futures::future::join_all(calls).await;
            for status in statuses.into_iter().filter(|status| std::error::Error::source(status).is_none()) {
                answered += 1;
                assert_eq!(said(&status), unknown, "from node {id}: {status:?}");
                assert_eq!(status.metadata().get(LEADER_KEY).expect("the leader is named"), leader_address.as_str());
            }
        }
        // The outcome was unknown indeed: each acquire waits in the table.
        let mut locks = LocksClient::new(channel);
        for id in 1..=CALLS {
            let request = Some(RequestId { id: 100 + id, lowest: 1, kept: vec![] });
            let session_id = session.clone();
            let target = Some(Target::AcquireRequestId(id));
            locks.release(ReleaseRequest { session_id, request, target }).await.expect("it is taken back");
        }
        let status = locks.watch(timed(WatchRequest { prefix: "seat".to_owned(), after_index: 0 }, LONGER)).await;
        let mut changes = status.expect("it watches").into_inner();
        let end = tokio::time::timeout(LONG, async {
            while changes.message().await?.is_some() {}
            Ok::<_, Status>(())
        });
        let status = end.await.expect("it ends").expect_err("by its deadline");
        let safe = (Code::DeadlineExceeded, "DEADLINE_EXCEEDED".to_owned(), "safe".to_owned());
        assert_eq!(said(&status), safe, "from node {id}: {status:?}");
    };
    // Side by side: each mostly waits for deadlines.
    tokio::join!(at_node(1), at_node(2), at_node(3));
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn pipeline_answers_report_a_passed_deadline_too() {
    let cluster = steady_cluster().await;
    let held = long_session(&client(&cluster)).await.acquire("seat").await.expect("free");
    let at_node = async |id: u64| {
        let channel = channel(&cluster, id).await;
        let session = open(&channel).await;
        let acquire = PipelineRequest { number: 1, what: Some(Asked::Acquire(acquire(&session, 1))) };
        let get = GetRequest { name: "seat".to_owned(), ..GetRequest::default() };
        let get = PipelineRequest { number: 2, what: Some(Asked::Get(get)) };
        let requests = futures::StreamExt::chain(tokio_stream::iter([acquire, get]), futures::stream::pending());
        let answers = LocksClient::new(channel).pipeline(timed(requests, LONGER)).await.expect("it is opened");
        let mut answers = answers.into_inner();
        let mut next = async || tokio::time::timeout(LONG, answers.message()).await.expect("in time");
        let first = next().await.expect("no error").expect("an answer");
        assert!(matches!(first.what, Some(Answer::Get(_))), "{first:?}");
        let second = next().await.expect("no error").expect("an answer");
        let Some(Answer::Failure(failure)) = second.what else { panic!("{second:?}") };
        let status = Status::with_details(Code::from_i32(failure.code), failure.message, failure.details.into());
        let unknown = (Code::DeadlineExceeded, "OUTCOME_UNKNOWN".to_owned(), "same-id".to_owned());
        assert_eq!((second.number, said(&status)), (1, unknown), "from node {id}: {status:?}");
        let end = next().await.expect_err("the stream's own deadline");
        assert_eq!(end.code(), Code::DeadlineExceeded, "{end:?}");
    };
    // Side by side: each mostly waits for a deadline.
    tokio::join!(at_node(1), at_node(2), at_node(3));
    held.release().await.expect("it was held");
}

/// A watch changes nothing, so that repeating it is always safe.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_watch_is_reported_as_safe_to_repeat() {
    let mut cluster = cluster().await;
    let leading = leader(&cluster).await;
    let follower = leading % 3 + 1;
    let mut locks = LocksClient::new(channel(&cluster, follower).await);
    let mut changes = locks.watch(WatchRequest::default()).await.expect("it watches").into_inner();
    changes.message().await.expect("no error").expect("the state");
    cluster.node_mut(leading).kill().await;
    let end = tokio::time::timeout(LONG, async {
        while changes.message().await?.is_some() {}
        Ok::<_, Status>(())
    });
    let status = end.await.expect("it ends").expect_err("its leader is gone");
    assert_eq!(said(&status), (Code::Unavailable, "NO_LEADER".to_owned(), "safe".to_owned()), "{status:?}");
}
