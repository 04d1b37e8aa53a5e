//! Load shedding: more requests than the leader's queue takes.

use std::fs;

use lockkeeper::{
    local::Signal,
    proto::v1::{
        AcquireRequest, AcquireResponse, PipelineRequest, PipelineResponse, ReleaseRequest, Want,
        acquire_response::Outcome,
        locks_client::LocksClient,
        pipeline_request::What as Asked,
        pipeline_response::{Failure, What as Answer},
        release_request::Target,
    },
    raft::proposals::proposer::QUEUE,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::support::{client, cluster_with, leader, long_session};

/// More requests than the queue and the batches in flight take.
const CROWD: u64 = 14_000;
/// The number of the only release.
const RELEASE: u64 = CROWD + 1;
const LAST: u64 = RELEASE + 1;

#[tokio::test(flavor = "multi_thread")]
async fn an_overloaded_leader_sheds_acquires_and_admits_releases() {
    // The leader goes on without answers of its followers for as long as it takes to send it the crowd, on a slow machine too.
    let cluster = cluster_with(|options| {
        options.raft.election_timeout_ms_min = 50_000;
        options.raft.election_timeout_ms_max = 60_000;
    })
    .await;
    let client = client(&cluster);
    let holder = long_session(&client).await;
    let others = long_session(&client).await;
    let _held = holder.acquire("held").await.expect("free");
    let returned = holder.acquire("returned").await.expect("free");
    let leads = leader(&cluster).await;
    let followers: Vec<_> = cluster.nodes().filter(|node| node.id() != leads).collect();
    let mut locks = LocksClient::new(cluster.node(leads).channel().await.expect("it serves"));

    // From here on nothing is committed, so admitted requests wait.
    for follower in &followers {
        follower.pause().await;
    }
    // Keep the stream open: the server cancels requests in flight when it ends.
    let (requests, stream) = tokio::sync::mpsc::channel(64);
    let crowd = requests.clone();
    // One session and one held lock: a debug build checks its whole table after each entry.
    let acquire = AcquireRequest {
        session_id: others.id().to_string(),
        locks: vec![Want { name: "held".to_owned(), ..Want::default() }],
        ..AcquireRequest::default()
    };
    // By then the queue is full for acquires, but not for releases. The answer to the last request shows that the release was read.
    let target = Some(Target::Token(returned.token().0));
    let release = ReleaseRequest { session_id: holder.id().to_string(), target, ..ReleaseRequest::default() };
    tokio::spawn(async move {
        for number in 1..=LAST {
            let what = match number {
                RELEASE => Asked::Release(release.clone()),
                _ => Asked::Acquire(acquire.clone()),
            };
            crowd.send(PipelineRequest { number, what: Some(what) }).await.expect("the stream stays open");
        }
    });
    let mut answers = locks.pipeline(ReceiverStream::new(stream)).await.expect("it serves").into_inner();
    let first = answers.message().await.expect("the stream stays open").expect("an answer");
    assert_eq!(refusal(&first), Some((Code::ResourceExhausted, "OVERLOADED".to_owned(), "safe".to_owned())));
    let mut served = 0;
    let mut refused = 1;
    let mut released = false;
    while served + refused < LAST - 1 || !released {
        let answer = answers.message().await.expect("the stream stays open").expect("an answer");
        if answer.number == LAST {
            followers.iter().for_each(|node| node.signal(Signal::CONT));
        }
        match (&answer.what, refusal(&answer)) {
            (Some(Answer::Acquire(AcquireResponse { outcome: Some(Outcome::Busy(_)) })), _) => served += 1,
            (Some(Answer::Release(_)), _) => released = true,
            (_, Some((Code::ResourceExhausted, ..))) if answer.number != RELEASE => refused += 1,
            _ => panic!("{answer:?}"),
        }
    }
    drop(requests);
    assert!(served as usize > QUEUE / 2, "{served} were let in");
    // One line for all of them: the operators' page names it.
    let log = fs::read_to_string(cluster.node(leads).log_file()).expect("a log");
    let mut lines = log.lines().filter(|line| line.contains("requests were refused: the queue of commands is full "));
    let line = lines.next().unwrap_or_else(|| panic!("not logged: {log}"));
    assert!(line.contains("WARN") && line.contains(" count=1 "), "{line}");
    let queued: usize = line.split_once(" queued=").and_then(|(_, rest)| rest.trim().parse().ok()).expect("a number");
    assert!((QUEUE / 2..=QUEUE).contains(&queued), "{line}");
}

/// A refusal's code, reason and advice on retries.
fn refusal(answer: &PipelineResponse) -> Option<(Code, String, String)> {
    let Some(Answer::Failure(Failure { code, message, details })) = &answer.what else { return None };
    let details = prost::bytes::Bytes::from(details.clone());
    let status = Status::with_details(Code::from(*code), message, details);
    let info = status.get_details_error_info().unwrap_or_else(|| panic!("{status:?} has no reason"));
    Some((status.code(), info.reason, info.metadata["retry"].clone()))
}
