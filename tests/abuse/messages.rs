//! Many small requests on one stream, a DATA frame each, as some gRPC libraries send them.

use bytes::{Bytes, BytesMut};
use http::Request;
use lockkeeper::proto::v1::{
    AcquireRequest, GetRequest, PipelineRequest, PipelineResponse, Want, acquire_request::Wait,
    pipeline_request::What as Asked, pipeline_response::What as Answer,
};
use prost::Message as _;
use tokio::time::timeout;

use super::{
    frames::framed,
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::{LONG, long_session, until};

/// This number of frames once closed the connection: "GOAWAY 11, too_many_data_frames".
const MANY: usize = 3_000;
/// Maximum of requests in flight on one stream.
const UNDER_WAY_MAX: usize = 16_384;
/// Maximum of waits of one session.
const WAITS_PER_SESSION: usize = 1_024;
/// Sizes for a debug build, which checks its whole table after each entry.
const SMALL_WAITS: usize = 500;
const SMALL_MOST: usize = 4_000;

/// Takes the complete messages from the received bytes.
fn unframed(bytes: &mut BytesMut) -> Vec<PipelineResponse> {
    let mut answers = Vec::new();
    while bytes.len() >= 5 {
        let length = u32::from_be_bytes(bytes[1..5].try_into().expect("four bytes")) as usize;
        if bytes.len() < 5 + length {
            break;
        }
        let message = bytes.split_to(5 + length).split_off(5);
        answers.push(PipelineResponse::decode(message).expect("a pipeline response"));
    }
    answers
}

/// A stream with one request per DATA frame.
struct Frames {
    requests: h2::SendStream<Bytes>,
    answers: h2::RecvStream,
    rest: BytesMut,
}

impl Frames {
    /// Sends all requests before it reads an answer.
    async fn send(stage: &Stage, requests: impl Iterator<Item = PipelineRequest>) -> Self {
        let stream = tokio::net::TcpStream::connect(stage.leader().await).await.expect("it serves");
        let (client, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        let request = Request::post("http://node/lockkeeper.v1.Locks/Pipeline").header("te", "trailers");
        let request = request.header("content-type", "application/grpc").body(()).expect("a request");
        let mut client = client.ready().await.expect("it is open");
        let (answer, mut sending) = client.send_request(request, false).expect("a stream");
        for request in requests {
            sending.send_data(framed(&request), false).expect("it is open");
        }
        let answer = timeout(LONG, answer).await.expect("in time").expect("the connection stays");
        Self { requests: sending, answers: answer.into_body(), rest: BytesMut::new() }
    }

    /// The next answers.
    async fn next(&mut self) -> Vec<PipelineResponse> {
        let bytes = timeout(LONG, self.answers.data()).await.expect("in time").expect("the stream stays");
        let bytes = bytes.expect("the connection stays");
        self.answers.flow_control().release_capacity(bytes.len()).expect("it came");
        self.rest.extend_from_slice(&bytes);
        unframed(&mut self.rest)
    }
}

/// A stale read: any node answers it alone, so that the test covers only the transport.
fn get(number: usize) -> PipelineRequest {
    let get = GetRequest { name: "x".to_owned(), stale: true, ..GetRequest::default() };
    PipelineRequest { number: number as u64, what: Some(Asked::Get(get)) }
}

async fn all_are_answered(stage: &Stage, requests: usize) {
    let mut frames = Frames::send(stage, (1..=requests).map(get)).await;
    let mut answered = 0;
    while answered < requests {
        for answer in frames.next().await {
            assert!(matches!(answer.what, Some(Answer::Get(_))), "{answer:?}");
            answered += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_requests_on_one_stream_are_answered() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let most = sized(SMALL_MOST, UNDER_WAY_MAX);
    stage.survives("small requests", async |stage: &Stage| all_are_answered(stage, MANY).await).await;
    stage.survives("as many as there may be", async |stage: &Stage| all_are_answered(stage, most).await).await;
    stage.survives("waits on one stream", as_many_wait_as_may).await;
}

async fn as_many_wait_as_may(stage: &Stage) {
    let waits = sized(SMALL_WAITS, UNDER_WAY_MAX - 1);
    let mut sessions = Vec::new();
    for _ in 0..waits.div_ceil(WAITS_PER_SESSION) {
        sessions.push(long_session(&stage.client).await);
    }
    let _held = sessions[0].acquire("awaited").await.expect("free");
    let wait = |number: usize| {
        let acquire = AcquireRequest {
            session_id: sessions[number % sessions.len()].id().to_string(),
            locks: vec![Want { name: "awaited".to_owned(), ..Want::default() }],
            wait: Some(Wait::WaitForever(true)),
            ..AcquireRequest::default()
        };
        PipelineRequest { number: number as u64 + 1, what: Some(Asked::Acquire(acquire)) }
    };
    let mut frames = Frames::send(stage, (0..waits).map(wait)).await;
    let waiting = async || {
        let lock = stage.client.get("awaited").await.ok()?.lock;
        (lock.queue_length == waits as u64).then_some(())
    };
    until("all to wait", waiting).await;
    // One request more is allowed, and the waits do not delay it.
    frames.requests.send_data(framed(&get(waits + 1)), false).expect("it is open");
    let answers = frames.next().await;
    assert!(matches!(&answers[..], [PipelineResponse { what: Some(Answer::Get(_)), .. }]), "{answers:?}");
}
