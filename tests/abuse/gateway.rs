//! etcd's JSON: pages of other sites, and bodies that take memory.

use std::{net::SocketAddr, time::Duration};

use futures::future::join_all;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{
    sized,
    stage::{Descriptors, MEMORY_SLACK_MIB, Stage, address, memory_mib},
};
use crate::support::{LONG, leader};

/// A put of the key "a" with the value "b".
const PUT: &str = r#"{"key":"YQ==","value":"Yg=="}"#;
/// Bytes of a body that is allowed, and nearly complete.
const LARGE: usize = 4_000_000;
/// Between two looks at the memory of the nodes.
const LOOK: Duration = Duration::from_millis(20);

async fn port(stage: &Stage) -> SocketAddr {
    let leader = usize::try_from(leader(&stage.cluster).await).expect("few nodes");
    address(&stage.cluster.etcd_endpoints()[leader - 1])
}

/// The status of the answer, and its text.
async fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut text = String::new();
    timeout(LONG, stream.read_to_string(&mut text)).await.expect("in time").expect("it is answered");
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    (status, text)
}

/// What the node says to a request with this line, and these headers.
async fn ask(port: SocketAddr, line: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(port).await.expect("it listens");
    let length = body.len();
    let request = format!("{line} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    answer(stream).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_of_another_site_reads_or_writes_keys() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.etcd = true).await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        let range = r#"{"key":"YQ=="}"#;
        for (what, headers, status) in [
            ("a form", format!("host: {port}\r\ncontent-type: text/plain\r\n"), 415),
            ("a page", format!("host: {port}\r\norigin: http://evil.example\r\n"), 403),
            ("a sandboxed page", format!("host: {port}\r\norigin: null\r\n"), 403),
            ("a page of another site", format!("host: {port}\r\nsec-fetch-site: cross-site\r\n"), 403),
            ("a name that points here", "host: evil.example\r\ncontent-type: application/json\r\n".to_owned(), 421),
            ("the same as gRPC", "host: evil.example\r\ncontent-type: application/grpc\r\n".to_owned(), 421),
        ] {
            for (path, body) in [("put", PUT), ("deleterange", range), ("range", range)] {
                let (found, text) = ask(port, &format!("POST /v3/kv/{path}"), &headers, body).await;
                assert_eq!(found, status, "{what}: {text}");
                assert!(!text.to_lowercase().contains("access-control-allow"), "{what}: {text}");
            }
        }
        assert_eq!(ask(port, "GET /version", "host: evil.example\r\n", "").await.0, 421);
        // Nothing was written, and clients that are no browsers are served as before.
        let own = format!("host: {port}\r\n");
        let (status, text) = ask(port, "POST /v3/kv/range", &own, range).await;
        assert!(status == 200 && !text.contains("kvs"), "{text}");
        for kind in ["application/json", "application/x-www-form-urlencoded"] {
            let headers = format!("{own}content-type: {kind}\r\n");
            let (status, text) = ask(port, "POST /v3/kv/put", &headers, PUT).await;
            assert_eq!(status, 200, "{kind}: {text}");
        }
    };
    stage.survives("pages of other sites", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_do_not_end_take_no_more_memory_than_their_budget() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.etcd = true).await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        let largest = || stage.cluster.nodes().map(memory_mib).max().unwrap_or_default();
        let before = largest();
        let head = format!("POST /v3/kv/put HTTP/1.1\r\nhost: {port}\r\ncontent-length: {}\r\n\r\n", LARGE + 1);
        let body = vec![b' '; LARGE];
        let bodies = join_all((0..sized(100, 300)).map(async |_| {
            let mut stream = TcpStream::connect(port).await.ok()?;
            stream.write_all(head.as_bytes()).await.ok()?;
            // An error: it was refused meanwhile.
            let _ = timeout(LONG, stream.write_all(&body)).await.expect("it is read or refused");
            Some(stream)
        }));
        let bodies: Vec<_> = bodies.await.into_iter().flatten().collect();
        // A small request is served whatever the large ones take.
        let (status, text) = ask(port, "POST /v3/kv/put", &format!("host: {port}\r\n"), PUT).await;
        assert_eq!(status, 200, "{text}");

        let ends = join_all(bodies.into_iter().map(async |mut stream| {
            let mut text = Vec::new();
            // A connection that was closed while it sent gets a reset.
            let _ = timeout(LONG, stream.read_to_end(&mut text)).await.expect("each one ends");
            usize::from(text.starts_with(b"HTTP/1.1 429"))
        }));
        let mut ends = std::pin::pin!(ends);
        let mut most = largest();
        let refused: usize = loop {
            tokio::select! {
                ended = &mut ends => break ended.into_iter().sum(),
                () = sleep(LOOK) => most = most.max(largest()),
            }
        };
        println!("unfinished bodies: {refused} were refused with a reason; {before} MiB before, {most} MiB with them");
        assert!(most <= before + 2 * MEMORY_SLACK_MIB, "{before} MiB before, {most} MiB with unfinished bodies");
    };
    stage.survives("bodies that do not end", abuse).await;
}
