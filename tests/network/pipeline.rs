//! The pipeline of appends against peers that misbehave.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use lockkeeper::{
    raft::{
        identity::{Founder, Incarnation, NodeIdentity},
        messages::{
            self as pb,
            peer_server::{Peer, PeerServer},
        },
        network::{APPENDS_IN_FLIGHT_MAX, Network, PeerClient},
        types::{AppendRequest, EntryPayload, LogEntry, LogId, StreamAppendResult, TypeConfig, Vote},
    },
    table::MemberNode,
    transport::{self, Connector, TcpConnector},
};
use openraft::{
    RaftNetworkFactory,
    errors::RPCError,
    network::{NetStreamAppend, RPCOption},
    type_config::alias::CommittedLeaderIdOf,
};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, service::Routes};

use super::{cluster::*, table::MemorySnapshot};

/// Receives every append; answers only if `answers` is set, and until `is_frozen` is.
#[derive(Clone, Default)]
struct Stub {
    opened: Arc<AtomicUsize>,
    received: Arc<AtomicUsize>,
    answers: bool,
    is_frozen: Arc<AtomicBool>,
}

/// Opens connections by TCP that take this long, and counts them.
#[derive(Clone, Default)]
struct SlowConnector {
    takes: Duration,
    dials: Arc<AtomicUsize>,
}

impl Connector for SlowConnector {
    type Stream = TcpStream;

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        self.dials.fetch_add(1, Ordering::Relaxed);
        sleep(self.takes).await;
        TcpConnector.connect(address).await
    }
}

#[tonic::async_trait]
impl Peer for Stub {
    async fn hello(&self, _: Request<pb::HelloRequest>) -> Result<Response<pb::HelloResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    type AppendStream = BoxStream<'static, Result<pb::AppendResponse, Status>>;

    async fn append(
        &self,
        request: Request<Streaming<pb::AppendRequest>>,
    ) -> Result<Response<Self::AppendStream>, Status> {
        let Self { opened, received, answers, is_frozen } = self.clone();
        opened.fetch_add(1, Ordering::Relaxed);
        let answered = request.into_inner().filter_map(move |_| {
            received.fetch_add(1, Ordering::Relaxed);
            let success = pb::AppendResponse { kind: Some(pb::append_response::Kind::Success(true)), disk: None };
            std::future::ready((answers && !is_frozen.load(Ordering::Relaxed)).then_some(Ok(success)))
        });
        Ok(Response::new(answered.boxed()))
    }

    async fn vote(&self, _: Request<pb::VoteRequest>) -> Result<Response<pb::VoteResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn pre_vote(&self, _: Request<pb::VoteRequest>) -> Result<Response<pb::VoteResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn transfer_leader(
        &self,
        _: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::TransferLeaderResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn leader_silence(
        &self,
        _: Request<pb::LeaderSilenceRequest>,
    ) -> Result<Response<pb::LeaderSilenceResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn hash_table(&self, _: Request<pb::HashTableRequest>) -> Result<Response<pb::HashTableResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn compare_table(
        &self,
        _: Request<pb::CompareTableRequest>,
    ) -> Result<Response<pb::CompareTableResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn note_act(&self, _: Request<pb::NoteActRequest>) -> Result<Response<pb::NoteActResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }

    async fn install_snapshot(
        &self,
        _: Request<Streaming<pb::SnapshotPiece>>,
    ) -> Result<Response<pb::SnapshotResponse>, Status> {
        Err(Status::unimplemented("not part of this test"))
    }
}

/// A client of `stub` for entries.
async fn client_of(stub: Stub) -> PeerClient<TcpConnector, MemorySnapshot> {
    let (mut network, node) = network_of(TcpConnector, stub).await;
    network.new_client(2, &node).await
}

/// A network in which `stub` is node 2; the stub's server ends with the test's runtime.
async fn network_of<C: Connector>(connector: C, stub: Stub) -> (Network<C, MemorySnapshot>, MemberNode) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let peer_address = listener.local_addr().expect("it is bound").to_string();
    let routes = Routes::new(PeerServer::new(stub));
    tokio::spawn(transport::serve(listener, None, transport::Settings::PEERS, routes, CancellationToken::new()));

    let identity = NodeIdentity::in_memory(&cluster_id(), 1, &mut rand::rng());
    let target = Founder { node_id: 2, incarnation: Incarnation::draw(&mut rand::rng()), addresses: None };
    identity.found(vec![target]).await.expect("in memory");
    (Network::new(connector, Arc::new(identity)), MemberNode { peer_address, ..MemberNode::default() })
}

fn log_id(index: u64) -> LogId {
    LogId { leader_id: CommittedLeaderIdOf::<TypeConfig>::new(1), index }
}

/// A request with a commit index and no entries.
fn committed(index: u64) -> AppendRequest {
    let prev_log_id = Some(log_id(index));
    let leader_commit = Some(log_id(index));
    AppendRequest { vote: Vote::new_committed(1, 1), prev_log_id, entries: vec![], leader_commit }
}

/// A request with the entry after `index`.
fn request(index: u64) -> AppendRequest {
    let entry = LogEntry { log_id: log_id(index + 1), payload: EntryPayload::Blank };
    AppendRequest { entries: vec![entry], ..committed(index) }
}

#[tokio::test]
async fn answers_come_in_order_and_the_stream_ends() {
    let mut client = client_of(Stub { answers: true, ..Stub::default() }).await;
    let requests = stream::iter((0..500).map(request));
    let answers = client.stream_append(requests, RPCOption::new(SOON)).await.expect("it opens");
    let answers: Vec<_> = timeout(SOON, answers.collect()).await.expect("in time");
    let indexes: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.expect("answered").expect("the logs agree").expect("an index").index)
        .collect();
    assert_eq!(indexes, Vec::from_iter(1..=500));
}

/// The first `N` answers to a stream of these requests, which stays open; and the number of requests received.
async fn answers<const N: usize>(requests: impl IntoIterator<Item = AppendRequest>) -> ([u64; N], usize) {
    let stub = Stub { answers: true, ..Stub::default() };
    let received = stub.received.clone();
    let mut client = client_of(stub).await;
    let requests = Vec::from_iter(requests);
    let requests = Box::pin(stream::iter(requests).chain(stream::pending()));
    let answers = client.stream_append(requests, RPCOption::new(SOON)).await.expect("it opens");
    let answers: Vec<_> = timeout(SOON, answers.take(N).collect()).await.expect("in time");
    let index = |answer: Result<_, _>| match answer {
        Ok(Ok(Some(LogId { index, .. }))) => index,
        other => panic!("{other:?}"),
    };
    let indexes: Vec<_> = answers.into_iter().map(index).collect();
    (indexes.try_into().expect("N answers were taken"), received.load(Ordering::Relaxed))
}

#[tokio::test]
async fn what_is_committed_is_told_with_entries_or_without() {
    // The first request is sent at once, to probe the peer. After the last commit index, no entries follow that could carry it.
    let requests = [committed(0), committed(0), request(0), committed(1), committed(1), request(1), committed(2)];
    assert_eq!(answers(requests).await, ([0, 1, 2, 2], 4));
}

#[tokio::test]
async fn a_commit_index_is_sent_alone_if_the_next_request_does_not_cover_it() {
    let later = |change: fn(&mut AppendRequest)| {
        let mut later = request(1);
        change(&mut later);
        [committed(0), committed(1), later]
    };
    assert_eq!(answers(later(|_| {})).await, ([0, 2], 2));
    assert_eq!(answers(later(|later| later.vote = Vote::new_committed(2, 1))).await, ([0, 1, 2], 3));
    assert_eq!(answers(later(|later| later.leader_commit = Some(log_id(0)))).await, ([0, 1, 2], 3));
    let further_back = |later: &mut AppendRequest| {
        *later = AppendRequest { leader_commit: Some(log_id(1)), ..request(0) };
    };
    assert_eq!(answers(later(further_back)).await, ([0, 1, 1], 3));
}

#[tokio::test]
async fn a_peer_that_does_not_answer_is_given_up_and_was_not_flooded() {
    let stub = Stub::default();
    let received = stub.received.clone();
    let mut client = client_of(stub).await;
    let requests = stream::iter((0..).map(request));
    let option = RPCOption::new(Duration::from_millis(400));
    let mut answers = client.stream_append(requests, option).await.expect("it opens");
    let answer = timeout(SOON, answers.next()).await.expect("in time").expect("an error");
    assert!(matches!(answer, Err(RPCError::Timeout(_))), "{answer:?}");
    assert!(answers.next().await.is_none(), "nothing follows");
    assert_eq!(received.load(Ordering::Relaxed), APPENDS_IN_FLIGHT_MAX);
}

#[tokio::test]
async fn an_idle_stream_is_not_given_up() {
    let mut client = client_of(Stub { answers: true, ..Stub::default() }).await;
    let late = stream::once(async {
        sleep(Duration::from_secs(2)).await;
        request(1)
    });
    let requests = Box::pin(stream::iter([request(0)]).chain(late));
    let answers = client.stream_append(requests, RPCOption::new(Duration::from_millis(400))).await.expect("it opens");
    let answers: Vec<_> = timeout(SOON, answers.collect()).await.expect("in time");
    assert!(answers.len() == 2 && answers.iter().all(Result::is_ok), "{answers:?}");
}

/// As openraft sends one: on a stream of its own, to its end.
async fn heartbeat(client: &mut PeerClient<TcpConnector, MemorySnapshot>) {
    let answers = client.stream_append(stream::iter([committed(7)]), RPCOption::new(SOON)).await.expect("it opens");
    let answers: Vec<_> = timeout(SOON, answers.collect()).await.expect("in time");
    assert!(matches!(&answers[..], [Ok(Ok(Some(last)))] if *last == log_id(7)), "{answers:?}");
}

#[tokio::test]
async fn heartbeats_share_a_stream_for_some_time() {
    let stub = Stub { answers: true, ..Stub::default() };
    let opened = stub.opened.clone();
    let opened = || opened.load(Ordering::Relaxed);
    let (mut network, node) = network_of(TcpConnector, stub.clone()).await;
    let mut client = network.new_heartbeat_client(2, &node).await;
    let shared = async {
        loop {
            let before = opened();
            heartbeat(&mut client).await;
            if opened() == before {
                break;
            }
        }
    };
    timeout(SOON, shared).await.expect("one finds the stream of the one before");
    let renewed = async {
        let before = opened();
        while opened() == before {
            heartbeat(&mut client).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, renewed).await.expect("then a stream is opened again, with new metadata");
    assert!(stub.received.load(Ordering::Relaxed) > opened());
}

/// The interval of heartbeats on a short line, by default.
const BEAT: Duration = Duration::from_millis(75);

/// Sends a heartbeat every [`BEAT`], as openraft does, until one ends in the way that `is_done` looks for.
async fn beat_until(
    client: &mut PeerClient<SlowConnector, MemorySnapshot>,
    is_done: impl Fn(&[Result<StreamAppendResult, RPCError<TypeConfig>>]) -> bool,
) {
    let beaten = async {
        let mut beats = interval(BEAT);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            let answers = client.stream_append(stream::iter([committed(7)]), RPCOption::new(BEAT)).await;
            let answers: Vec<_> = answers.expect("it opens").collect().await;
            if is_done(&answers) {
                break;
            }
        }
    };
    timeout(SOON, beaten).await.expect("one of them ends like that");
}

/// The line is so long that TCP's and TLS' handshakes take longer than a heartbeat is waited for; an open connection would serve.
#[tokio::test]
async fn heartbeats_connect_though_none_of_them_waits_for_as_long() {
    let stub = Stub { answers: true, ..Stub::default() };
    let connector = SlowConnector { takes: BEAT * 4 / 5, ..SlowConnector::default() };
    let dials = Arc::clone(&connector.dials);
    let (mut network, node) = network_of(connector, stub.clone()).await;
    let mut client = network.new_heartbeat_client(2, &node).await;
    let is_answered = |answers: &[Result<_, _>]| matches!(answers, [Ok(_)]);
    beat_until(&mut client, is_answered).await;

    // The peer falls silent: it has answered on this connection, so the first answer that is missing ends it.
    stub.is_frozen.store(true, Ordering::Relaxed);
    let before = dials.load(Ordering::Relaxed);
    let is_late = |answers: &[Result<_, _>]| matches!(answers, [Err(RPCError::Timeout(_))]);
    beat_until(&mut client, is_late).await;
    assert_eq!(dials.load(Ordering::Relaxed), before);
    beat_until(&mut client, is_late).await;
    assert_eq!(dials.load(Ordering::Relaxed), before + 1, "it was dialled again at once");
}

/// What was dialled while the peer was cut off may never open, and TCP's timers find it out late.
#[tokio::test]
async fn a_connection_that_does_not_open_is_dialled_again_after_a_few_heartbeats() {
    let connector = SlowConnector { takes: SOON, ..SlowConnector::default() };
    let dials = Arc::clone(&connector.dials);
    let (mut network, node) = network_of(connector, Stub::default()).await;
    let mut client = network.new_heartbeat_client(2, &node).await;
    let beats = AtomicUsize::new(0);
    beat_until(&mut client, |answers| {
        assert!(matches!(answers, [Err(RPCError::Timeout(_))]), "{answers:?}");
        beats.fetch_add(1, Ordering::Relaxed);
        dials.load(Ordering::Relaxed) == 4
    })
    .await;
    let beats = beats.load(Ordering::Relaxed);
    assert!(beats <= 3 * 3 + 1, "three connections were given up in the course of {beats} heartbeats");
}

#[tokio::test]
async fn dropped_answers_drop_the_requests_at_once() {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let mut client = client_of(Stub { answers: true, ..Stub::default() }).await;
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(dropped.clone());
    let requests = Box::pin(stream::iter([request(0)]).chain(stream::pending()).inspect(move |_| {
        let _held = &flag;
    }));
    let mut answers = client.stream_append(requests, RPCOption::new(SOON)).await.expect("it opens");
    timeout(SOON, answers.next()).await.expect("in time").expect("an answer").expect("no error").expect("it agrees");
    drop(answers);
    // openraft's next session needs a lock that the requests of this session hold.
    assert!(dropped.load(Ordering::Relaxed));
}
