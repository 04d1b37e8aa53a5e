//! Misbehaving connections, in virtual time.

use std::{convert::Infallible, io, time::Duration};

use bytes::Bytes;
use h2::{Reason, client::SendRequest};
use hyper::body::Frame;
use lockkeeper_accept::UNREAD_TIMEOUT;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tonic::{Code, Status};
use tower::{service_fn, util::BoxCloneService};

use super::*;
use crate::{FIRST_MESSAGE_TIMEOUT, UNREAD_HTTP2_TIMEOUT, Windows};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Longer than any deadline of a connection.
const LONG: Duration = Duration::from_secs(3600);
/// How long a deaf service reads nothing.
const DEAF: Duration = Duration::from_secs(1);
/// A gRPC message of one byte.
const MESSAGE: &[u8] = &[0, 0, 0, 0, 1, 7];
/// About the smallest request of a pipeline.
const REQUEST: &[u8] = &[0, 0, 0, 0, 6, 7, 7, 7, 7, 7, 7];

struct Incoming(mpsc::Receiver<DuplexStream>);

impl Listen for Incoming {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
        match self.0.recv().await {
            Some(stream) => Ok((stream, ([10, 0, 0, 1], 1).into())),
            None => std::future::pending().await,
        }
    }
}

/// An answer that has no end.
struct Endless;

impl HttpBody for Endless {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[7; 16 << 10])))))
    }
}

/// A port whose service reads a whole request at once, and then answers; if it is deaf, it starts reading later, and if it is hasty, the
/// first bytes are enough for it.
struct Port(mpsc::Sender<DuplexStream>);

impl Port {
    fn open(settings: Settings) -> Self {
        let (sender, receiver) = mpsc::channel(8);
        let service = service_fn(async |request: Request<Body>| {
            let is_deaf = request.uri().path().ends_with("/deaf");
            let is_endless = request.uri().path().ends_with("/endless");
            if request.uri().path().ends_with("/close") {
                request.extensions().get::<Remote>().expect("each call has one").close();
            }
            let is_hasty = request.uri().path().ends_with("/first");
            let mut body = request.into_body();
            if is_deaf {
                sleep(DEAF).await;
            }

            let mut status = Status::ok("");
            while let Some(frame) = poll_fn(|context| hyper::body::Body::poll_frame(Pin::new(&mut body), context)).await
            {
                if let Err(refusal) = frame {
                    status = refusal;
                    break;
                }
                if is_hasty {
                    break;
                }
            }
            let answer = if is_endless { Response::new(Body::new(Endless)) } else { status.into_http() };
            Ok::<_, Infallible>(answer)
        });
        tokio::spawn(serve(
            Incoming(receiver),
            None,
            settings,
            BoxCloneService::new(service),
            CancellationToken::new(),
        ));
        Self(sender)
    }

    async fn connect(&self) -> DuplexStream {
        let (near, far) = duplex(1 << 20);
        self.0.send(far).await.expect("it serves");
        near
    }

    async fn client(&self) -> Client {
        let (requests, connection) = h2::client::handshake(self.connect().await).await.expect("it speaks HTTP/2");
        Client { requests, connection: tokio::spawn(connection) }
    }
}

struct Client {
    requests: SendRequest<Bytes>,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Client {
    /// Begins a call.
    async fn call(&mut self) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        self.call_of("http://node/service/call").await
    }

    async fn call_of(&mut self, uri: &str) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let request = http::Request::post(uri).body(()).expect("a request");
        self.requests = self.requests.clone().ready().await.expect("the connection is there");
        self.requests.send_request(request, false).expect("a stream")
    }

    async fn call_with_message(&mut self) -> Code {
        let (response, mut stream) = self.call().await;
        stream.send_data(Bytes::from_static(MESSAGE), true).expect("there is room");
        code(response).await
    }

    /// How the connection ends.
    async fn end(self) -> Result<(), h2::Error> {
        timeout(LONG, self.connection).await.expect("it ends").expect("no panic")
    }
}

async fn code(response: h2::client::ResponseFuture) -> Code {
    let response = response.await.expect("an answer");
    Status::from_header_map(response.headers()).expect("a status").code()
}

#[tokio::test(start_paused = true)]
async fn half_a_preface_ends_the_connection() {
    let port = Port::open(Settings::CLIENTS);
    for said in [0, 1, 23, 24, PREFACE.len() - 1] {
        let mut stream = port.connect().await;
        let began = Instant::now();
        stream.write_all(&PREFACE[..said]).await.expect("there is room");
        stream.read_to_end(&mut Vec::new()).await.expect("it is closed in order");
        assert_eq!(began.elapsed(), HANDSHAKE_TIMEOUT, "after {said} bytes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_call_gets_a_goaway() {
    let port = Port::open(Settings::CLIENTS);
    let began = Instant::now();
    let client = port.client().await;
    client.end().await.expect("GOAWAY without an error");
    assert!(began.elapsed() >= FIRST_CALL_TIMEOUT && began.elapsed() <= FIRST_CALL_TIMEOUT + CLOSING_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn an_open_call_keeps_a_connection_and_idleness_ends_it() {
    let port = Port::open(Settings::CLIENTS);
    let mut client = port.client().await;
    let (response, mut stream) = client.call().await;
    stream.send_data(Bytes::from_static(MESSAGE), false).expect("there is room");
    sleep(3 * IDLE_TIMEOUT).await;
    assert!(!client.connection.is_finished());
    stream.send_data(Bytes::new(), true).expect("it is open");
    assert_eq!(code(response).await, Code::Ok);
    let began = Instant::now();
    sleep(IDLE_TIMEOUT - Duration::from_secs(1)).await;
    assert_eq!(client.call_with_message().await, Code::Ok, "it is in time");
    client.end().await.expect("GOAWAY without an error");
    assert!(began.elapsed() >= 2 * IDLE_TIMEOUT - Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_ignores_goaway_is_closed() {
    let port = Port::open(Settings::CLIENTS);
    let mut stream = port.connect().await;
    let began = Instant::now();
    stream.write_all(PREFACE).await.expect("there is room");
    stream.read_to_end(&mut Vec::new()).await.expect("it is closed in order");
    // The client does not answer keep-alive pings either, which is noticed first.
    assert!(began.elapsed() <= FIRST_CALL_TIMEOUT + CLOSING_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_message_gets_an_error() {
    let few = Settings { without_message_max: 1, ..Settings::CLIENTS };
    let port = Port::open(few);
    let mut client = port.client().await;
    let began = Instant::now();
    let (inside, _inside) = client.call().await;
    let (outside, _outside) = client.call().await;
    // A call whose message arrives is served from outside, too.
    assert_eq!(client.call_with_message().await, Code::Ok);
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!((code(inside).await, code(outside).await), (Code::DeadlineExceeded, Code::DeadlineExceeded));
    assert_eq!(began.elapsed(), FIRST_MESSAGE_TIMEOUT);
}

/// A message is decoded when it is complete, and a decoded one takes many times its bytes: no service gets it before the request ends.
#[tokio::test(start_paused = true)]
async fn a_request_of_one_message_is_seen_whole_or_not_at_all() {
    for without_message_max in [0, 1] {
        let whole = Settings { without_message_max, ..Settings::CLIENTS }.with_requests(|_| Some(1));
        let port = Port::open(whole);
        let mut client = port.client().await;
        assert_eq!(client.call_with_message().await, Code::Ok);

        let (late, mut stream) = client.call_of("http://node/service/first").await;
        stream.send_data(Bytes::from_static(MESSAGE), false).expect("there is room");
        sleep(FIRST_MESSAGE_TIMEOUT / 2).await;
        stream.send_data(Bytes::new(), true).expect("it is open");
        assert_eq!(code(late).await, Code::Ok, "it ends in time");

        let began = Instant::now();
        let (endless, mut stream) = client.call_of("http://node/service/first").await;
        stream.send_data(Bytes::from_static(MESSAGE), false).expect("there is room");
        assert_eq!(code(endless).await, Code::DeadlineExceeded, "the service has seen nothing of it");
        assert_eq!(began.elapsed(), FIRST_MESSAGE_TIMEOUT);
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_beyond_the_limit_of_its_call_is_refused_by_its_prefix() {
    let limit: fn(&str) -> Option<usize> = |path| path.ends_with("/first").then_some(6);
    let port = Port::open(Settings::CLIENTS.with_requests(limit));
    let mut client = port.client().await;
    for (uri, expected) in [("/first", Code::OutOfRange), ("/call", Code::Ok)] {
        let (response, mut stream) = client.call_of(&format!("http://node/service{uri}")).await;
        stream.send_data(Bytes::from_static(&[0, 0, 0, 0, 7]), expected == Code::Ok).expect("there is room");
        assert_eq!(code(response).await, expected, "{uri}");
    }
}

#[tokio::test(start_paused = true)]
async fn resets_of_unread_calls_end_the_connection() {
    let port = Port::open(Settings::CLIENTS);
    let mut stream = port.connect().await;
    let mut said = PREFACE.to_vec();
    // Frames by hand: a library would not send a call that was cancelled before.
    for call in 0..Settings::CLIENTS.resets_in_turn_max as u32 + 10 {
        let id = (2 * call + 1).to_be_bytes();
        said.extend([&[0, 0, 3, 1, 4][..], &id, &[0x83, 0x86, 0x84], &[0, 0, 4, 3, 0], &id, &[0, 0, 0, 8]].concat());
    }
    stream.write_all(&said).await.expect("there is room");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("it is closed in order");
    assert!(answer.ends_with(b"\0\0\0\x0btoo_many_resets"), "{}", answer.escape_ascii());
}

#[tokio::test(start_paused = true)]
async fn calls_that_were_read_may_all_be_reset_at_once() {
    let port = Port::open(Settings::CLIENTS);
    let mut client = port.client().await;
    let mut calls = Vec::new();
    for _ in 0..4 * Settings::CLIENTS.resets_in_turn_max {
        let (response, mut stream) = client.call().await;
        stream.send_data(Bytes::from_static(MESSAGE), false).expect("there is room");
        calls.push((response, stream));
    }
    assert_eq!(client.call_with_message().await, Code::Ok, "all before it were seen");
    calls.iter_mut().for_each(|(_, stream)| stream.send_reset(Reason::CANCEL));
    assert_eq!(client.call_with_message().await, Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_window_full_of_unread_small_frames_is_allowed() {
    let port = Port::open(Settings::CLIENTS);
    let mut client = port.client().await;
    let Windows { stream: window, .. } = Settings::CLIENTS.windows;
    let (response, mut stream) = client.call_of("http://node/service/deaf").await;
    for _ in 0..window as usize / REQUEST.len() {
        stream.send_data(Bytes::from_static(REQUEST), false).expect("there is room");
    }
    stream.send_data(Bytes::new(), true).expect("it is open");
    assert_eq!(code(response).await, Code::Ok);
}

#[tokio::test(start_paused = true)]
async fn a_client_of_http1_that_does_not_read_is_closed() {
    let port = Port::open(Settings::CLIENTS.with_http1());
    let mut stream = port.connect().await;
    let began = Instant::now();
    // The answers are more than the connection takes.
    let request = "POST /service/call HTTP/1.1\r\nhost: node\r\ncontent-length: 0\r\n\r\n";
    let requests = request.repeat((1 << 20) / request.len());
    stream.write_all(requests.as_bytes()).await.expect("there is room");
    sleep(2 * UNREAD_TIMEOUT).await;
    stream.read_to_end(&mut Vec::new()).await.expect("it was closed");
    assert_eq!(began.elapsed(), 2 * UNREAD_TIMEOUT);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_its_service_closes_ends_with_its_open_calls() {
    let port = Port::open(Settings::CLIENTS);
    let mut client = port.client().await;
    let (open, mut stream) = client.call().await;
    stream.send_data(Bytes::from_static(MESSAGE), false).expect("there is room");
    let (_closing, _requests) = client.call_of("http://node/service/close").await;
    let began = Instant::now();
    open.await.expect_err("its connection is closed");
    let _ = client.end().await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// Its calls are what HTTP/2's pings would take for a sign of life.
#[tokio::test(start_paused = true)]
async fn a_client_of_http2_that_calls_and_does_not_read_is_closed() {
    const APART: Duration = Duration::from_secs(2);
    // A preface with the largest window for each stream, and the largest for the connection.
    let mut said = PREFACE[..PREFACE.len() - 9].to_vec();
    said.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0");
    let call = |id: u32| [&b"\0\0\x0c\x01\x05"[..], &id.to_be_bytes(), b"\x83\x86\x44\x08/endless"].concat();

    let mut stream = Port::open(Settings::CLIENTS).connect().await;
    stream.write_all(&said).await.expect("there is room");
    let began = Instant::now();
    for id in (1..).step_by(2) {
        if stream.write_all(&call(id)).await.is_err() {
            break;
        }
        assert!(began.elapsed() < LONG, "it goes on");
        sleep(APART).await;
    }
    assert!(began.elapsed() >= UNREAD_HTTP2_TIMEOUT && began.elapsed() <= UNREAD_HTTP2_TIMEOUT + APART);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_number_of_slots() {
    // One slot for arrivals, seven for established connections.
    let port = Port::open(Settings::CLIENTS.with_connections_max(8));
    let mut busy = Vec::new();
    for _ in 0..7 {
        let mut client = port.client().await;
        let (response, mut stream) = client.call().await;
        stream.send_data(Bytes::from_static(MESSAGE), false).expect("there is room");
        // Once this call is answered, the call before it has been read.
        assert_eq!(client.call_with_message().await, Code::Ok);
        busy.push((client, response, stream));
    }
    let mut refused = port.client().await;
    assert_eq!(refused.call_with_message().await, Code::ResourceExhausted);
    refused.end().await.expect("GOAWAY without an error");
    assert!(busy.iter().all(|(client, ..)| !client.connection.is_finished()));
}

/// As Go's client of etcd 3.4 sends it, and then by its place in the table of fields.
#[tokio::test(start_paused = true)]
async fn an_authority_with_a_scheme_is_taken_where_clients_of_etcd_are_served() {
    // POST, http, a path, and `http://127.0.0.1:2379`, the latter two added to the table.
    let first = b"\x83\x86\x44\x05/call\x41\x8f\x9d\x29\xae\xe3\x0c\x04\x4e\xae\x05\xc0\xb8\x6e\x09\x97\x5f";
    let again = b"\x83\x86\xbf\xbe";
    let headers = |stream: u8, block: &[u8]| {
        let length = u8::try_from(block.len()).expect("short");
        [&[0, 0, length, 1, 5, 0, 0, 0, stream], block].concat()
    };
    let request = [PREFACE, &headers(1, first), &headers(3, again)].concat();
    // The types of the frames that answer these streams: HEADERS is 1, RST_STREAM 3.
    let answered = async |settings: Settings| {
        let mut stream = Port::open(settings).connect().await;
        stream.write_all(&request).await.expect("there is room");
        let mut answers = Vec::new();
        while answers.len() < 2 {
            let mut header = [0; 9];
            stream.read_exact(&mut header).await.expect("a frame");
            let length = usize::from(header[1]) << 8 | usize::from(header[2]);
            stream.read_exact(&mut vec![0; length]).await.expect("its payload");
            if header[8] != 0 {
                answers.push((header[8], header[3]));
            }
        }
        answers.sort_unstable();
        answers
    };
    assert_eq!(answered(Settings::CLIENTS.with_http1()).await, [(1, 1), (3, 1)]);
    assert_eq!(answered(Settings::CLIENTS).await, [(1, 3), (3, 3)], "elsewhere it is malformed");
}
