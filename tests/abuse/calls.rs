//! Calls that are opened and then left idle.

use bytes::Bytes;
use http::Request;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};
use tonic::{Code, Status};

use super::{
    frames::{EMPTY_MESSAGE, connect, data, farewell, headers, stream_id},
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::{LONG, long_session};

const ENHANCE_YOUR_CALM: u32 = 11;
/// Calls of the attack, on one connection: more than the open calls and the refusals together that a connection may have.
const HEADERS_ONLY: usize = 16_000;
/// Streams with one request each that are left open.
const SMALL_LEFT: usize = 1_000;
const FULL_LEFT: usize = 10_000;
/// Calls that are not finished, and whose client waits for an answer.
const PATIENT: usize = 32;

#[tokio::test(flavor = "multi_thread")]
async fn too_many_calls_without_a_message_close_their_connection() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let abuse = async |stage: &Stage| {
        let mut stream = connect(stage.leader().await).await.expect("it serves");
        let (mut answers, mut requests) = stream.split();
        let write = async {
            for call in 0..HEADERS_ONLY {
                let opened = headers(stream_id(call), "/lockkeeper.v1.Locks/Get");
                if requests.write_all(&opened).await.is_err() {
                    break;
                }
            }
            // Keep the connection open.
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = write => None,
            told = timeout(LONG, farewell(&mut answers)) => told.expect("in time"),
        }
    };
    let told = stage.survives("headers only", abuse).await;
    assert_eq!(told, Some((ENHANCE_YOUR_CALM, "too_many_internal_resets".to_owned())));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_without_a_message_get_an_error_and_idle_streams_stay_within_limits() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    for said in [&[][..], EMPTY_MESSAGE] {
        let unfinished = async |stage: &Stage| unfinished(stage, said).await;
        for status in stage.survives("calls without a message, or without an end", unfinished).await {
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
            assert!(status.message().contains("no message arrived"), "{status}");
        }
    }
    stage.survives("streams opened and left", opened_and_left).await;
}

/// The statuses of calls that say no more than this, and do not end.
async fn unfinished(stage: &Stage, said: &'static [u8]) -> Vec<Status> {
    let stream = TcpStream::connect(stage.leader().await).await.expect("it serves");
    let (mut client, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
    tokio::spawn(connection);
    let mut calls = Vec::new();
    for _ in 0..PATIENT {
        client = client.ready().await.expect("it is open");
        let request = Request::post("http://node/lockkeeper.v1.Locks/Get").header("te", "trailers");
        let request = request.header("content-type", "application/grpc").body(()).expect("a request");
        let (answer, mut stream) = client.send_request(request, false).expect("a stream");
        if !said.is_empty() {
            stream.send_data(Bytes::from_static(said), false).expect("it is open");
        }
        calls.push((answer, stream));
    }
    let mut told = Vec::new();
    for (answer, _stream) in calls {
        let answer = timeout(LONG, answer).await.expect("in time").expect("an answer");
        told.push(Status::from_header_map(answer.headers()).expect("a status"));
    }
    told
}

/// Opens many streams with one request each; the client does not read the answers.
async fn opened_and_left(stage: &Stage) {
    let mut stream = connect(stage.leader().await).await.expect("it serves");
    for call in 0..sized(SMALL_LEFT, FULL_LEFT) {
        let stream_id = stream_id(call);
        let opened = [headers(stream_id, "/lockkeeper.v1.Locks/Pipeline"), data(stream_id, EMPTY_MESSAGE)].concat();
        stream.write_all(&opened).await.expect("it reads");
    }
    // Another client connects while the streams are open.
    long_session(&stage.client).await.close().await.expect("it was open");
}
