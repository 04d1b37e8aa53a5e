//! Misbehaving connections, in virtual time.

use std::{future::pending, io};

use http_body_util::Full;
use hyper::body::Bytes;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::*;

/// Half of the slots are for arrivals.
const LIMITS: PortLimits = PortLimits {
    connections_max: 16,
    header_bytes_max: 8 << 10,
    header_timeout: Duration::from_secs(10),
    probes: &["/livez"],
    refuses: true,
    browsers: false,
};
/// Longer than any deadline of a connection.
const LONG: Duration = Duration::from_secs(3600);
/// Bytes of an answer to `/large`: more than a connection of a test takes.
const LARGE: usize = 1 << 20;

struct Arriving(mpsc::Receiver<(DuplexStream, SocketAddr)>);

impl ConnectionSource for Arriving {
    type Stream = DuplexStream;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<DuplexStream>> + Send + 'static, SocketAddr)> {
        match self.0.recv().await {
            Some((stream, client)) => Ok((std::future::ready(Ok(stream)), client)),
            None => pending().await,
        }
    }
}

impl HttpListen for Arriving {}

#[derive(Clone)]
struct Port(mpsc::Sender<(DuplexStream, SocketAddr)>);

impl Port {
    fn open() -> Self {
        let (sender, receiver) = mpsc::channel(8);
        let answer = async |request: Request<Incoming>, _client| {
            let bytes = match request.uri().path() {
                "/large" => Bytes::from(vec![7; LARGE]),
                "/never" => pending().await,
                _ => Bytes::from_static(b"here"),
            };
            Response::new(Full::new(bytes))
        };
        let answer = move |request, client| Box::pin(answer(request, client));
        tokio::spawn(serve(Arriving(receiver), LIMITS, answer, CancellationToken::new()));
        Self(sender)
    }

    /// A connection from an address that ends with this number, which says these words.
    async fn say(&self, last: u8, words: &str) -> DuplexStream {
        let (mut near, far) = duplex(4 << 10);
        near.write_all(words.as_bytes()).await.expect("there is room");
        self.0.send((far, ([10, 0, 0, last], 1).into())).await.expect("it serves");
        near
    }

    /// The status of the answer to a request for this path.
    async fn get(&self, last: u8, path: &str) -> String {
        let mut stream = self.say(last, &format!("GET {path} HTTP/1.1\r\nhost: node\r\n\r\n")).await;
        status(&mut stream).await
    }
}

/// The status of the answer that is read next; empty: the connection was closed.
async fn status(stream: &mut DuplexStream) -> String {
    let mut line = String::new();
    while !line.ends_with('\n') {
        match timeout(LONG, stream.read_u8()).await.expect("it is answered or closed") {
            Ok(byte) => line.push(byte.into()),
            Err(_) => break,
        }
    }
    line.split(' ').nth(1).unwrap_or_default().to_owned()
}

async fn rest(stream: &mut DuplexStream) -> Vec<u8> {
    let mut rest = Vec::new();
    timeout(LONG, stream.read_to_end(&mut rest)).await.expect("it ends").expect("it ends in order");
    rest
}

#[tokio::test(start_paused = true)]
async fn silent_and_half_requests_keep_nobody_out() {
    let port = Port::open();
    let began = Instant::now();
    for words in ["", "GET / HTTP/1.1\r\nhost:"] {
        let mut flood = Vec::new();
        for _ in 0..10 * LIMITS.connections_max {
            flood.push(port.say(1, words).await);
        }
        assert_eq!(port.get(1, "/").await, "200");
        assert_eq!(port.get(2, "/").await, "200");
        assert_eq!(port.get(1, "/livez").await, "200");
        assert_eq!(began.elapsed(), Duration::ZERO, "nobody waits for a deadline");
    }
}

#[tokio::test(start_paused = true)]
async fn unread_answers_keep_nobody_out_and_end() {
    let port = Port::open();
    let began = Instant::now();
    let mut unread = Vec::new();
    for _ in 0..10 * LIMITS.connections_max {
        unread.push(port.say(1, "GET /large HTTP/1.1\r\nhost: node\r\n\r\n").await);
    }
    assert_eq!(port.get(1, "/livez").await, "200");
    assert_eq!(port.get(1, "/").await, "200");
    assert_eq!(port.get(2, "/").await, "200");
    assert_eq!(began.elapsed(), Duration::ZERO, "nobody waits for a deadline");

    sleep(2 * lockkeeper_accept::UNREAD_TIMEOUT).await;
    for stream in &mut unread {
        assert!(rest(stream).await.len() < LARGE, "it was closed before its end");
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_keeps_all_slots_busy_yields_to_another_and_is_refused_more() {
    let port = Port::open();
    let request = "GET /never HTTP/1.1\r\nhost: node\r\n\r\n";
    let mut busy = Vec::new();
    for _ in 0..LIMITS.connections_max / 2 {
        busy.push(port.say(1, request).await);
    }
    let mut refused = port.say(1, request).await;
    assert_eq!(status(&mut refused).await, "503");
    let why = String::from_utf8(rest(&mut refused).await).expect("text");
    assert!(why.contains("all 8 slots"), "{why}");
    assert_eq!(port.get(1, "/livez").await, "200", "a probe needs no slot");
    assert_eq!(port.get(2, "/").await, "200", "another address gets a slot of the one that has all");
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_gives_way_to_a_request() {
    let port = Port::open();
    let mut idle = Vec::new();
    for _ in 0..LIMITS.connections_max {
        let mut stream = port.say(1, "GET / HTTP/1.1\r\nhost: node\r\n\r\n").await;
        assert_eq!(status(&mut stream).await, "200");
        idle.push(stream);
    }
    assert_eq!(port.get(1, "/").await, "200");
}

#[tokio::test(start_paused = true)]
async fn probes_are_answered_while_all_slots_are_busy_and_their_connections_end() {
    let port = Port::open();
    let mut busy = Vec::new();
    for last in 0..20 {
        // Of so many addresses that none has more than half of the slots.
        busy.push(port.say(last, "GET /never HTTP/1.1\r\nhost: node\r\n\r\n").await);
    }
    assert_eq!(port.get(99, "/").await, "503");
    for _ in 0..3 * LIMITS.connections_max {
        let mut probe = port.say(99, "GET /livez HTTP/1.1\r\nhost: node\r\n\r\n").await;
        assert_eq!(status(&mut probe).await, "200");
        let rest = String::from_utf8(rest(&mut probe).await).expect("text");
        assert!(rest.contains("connection: close") && rest.ends_with("here"), "{rest}");
    }
}

#[tokio::test(start_paused = true)]
async fn half_a_request_ends_at_its_deadline() {
    let port = Port::open();
    let began = Instant::now();
    for words in ["", "GET / HTTP/1.1\r\n"] {
        let mut stream = port.say(1, words).await;
        rest(&mut stream).await;
    }
    assert_eq!(began.elapsed(), 2 * LIMITS.header_timeout);
}

#[tokio::test(start_paused = true)]
async fn a_port_for_programs_refuses_web_pages() {
    let port = Port::open();
    for header in ["origin: http://evil.example", "Sec-Fetch-Site: same-origin"] {
        let mut stream = port.say(1, &format!("POST / HTTP/1.1\r\nhost: evil.example\r\n{header}\r\n\r\n")).await;
        assert_eq!(status(&mut stream).await, "403", "{header}");
    }
    // As fetch of Node.js says it.
    let mut stream = port.say(1, "POST / HTTP/1.1\r\nhost: node\r\nsec-fetch-mode: cors\r\n\r\n").await;
    assert_eq!(status(&mut stream).await, "200");
}
