//! The console's HTTP without a browser: what protects it.

use std::fs;

use lockkeeper::local::LocalCluster;
use serde_json::Value;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::timeout,
};

use super::acts::{EYES, OPS, POLICY, guarded_by, secret};
use crate::{
    encrypted::{encrypted, replace_authority, with_and_without_certificate},
    support::{LONG, cluster_with, lockkeeper, output, text, until},
};

/// The answer of node 1: its status, its headers in lower case, and its body.
async fn ask(cluster: &LocalCluster, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String, String) {
    let mut stream = send(cluster, line, headers, body).await;
    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("readable");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_lowercase(), body.to_owned())
}

async fn send(cluster: &LocalCluster, line: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("http://");
    let mut request = format!("{line} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        request += &format!("host: {address}\r\n");
    }
    headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).await.expect("it reads");
    stream
}

/// A request whose body does not arrive.
async fn send_half(cluster: &LocalCluster, line: &str, headers: &[(&str, &str)]) -> TcpStream {
    let never = [headers, &[("transfer-encoding", "chunked")]].concat();
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("http://");
    let mut request = format!("{line} HTTP/1.1\r\nhost: {address}\r\n");
    never.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(format!("{request}\r\n").as_bytes()).await.expect("it reads");
    stream
}

/// What a node answers to a call of the page: its status, and the JSON. `token`: who asks.
pub(super) async fn call(
    cluster: &LocalCluster,
    node: u64,
    call: &str,
    token: Option<&str>,
    body: &Value,
) -> (u16, Value) {
    let url = cluster.node(node).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("http://");
    let body = body.to_string();
    let mut request = format!("POST /console/api/{call} HTTP/1.1\r\nconnection: close\r\nhost: {address}\r\n");
    OWN.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    if let Some(token) = token {
        request += &format!("authorization: Bearer {token}\r\n");
    }
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let length = body.len();
    stream.write_all(format!("{request}content-length: {length}\r\n\r\n{body}").as_bytes()).await.expect("it reads");

    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("readable");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

const OWN: [(&str, &str); 2] = [("content-type", "application/json"), ("x-lockkeeper-console", "1")];

#[tokio::test(flavor = "multi_thread")]
async fn only_the_page_itself_can_ask() {
    let cluster = cluster_with(|options| (options.http, options.nodes) = (true, Some(1))).await;
    for path in ["/", "/console/main.js", "/console/console.css"] {
        let (status, head, body) = ask(&cluster, &format!("GET {path}"), &[], "").await;
        assert!(status == 200 && !body.is_empty(), "{path}: {head}");
        for part in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
             img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(part), "{path}: {part} is not in {head}");
        }
        assert!(!head.contains("access-control-"), "{head}");
        let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).expect("a tag");
        assert_eq!(ask(&cluster, &format!("GET {path}"), &[("if-none-match", tag)], "").await.0, 304);
        // A name that somebody points at this node.
        assert_eq!(ask(&cluster, &format!("GET {path}"), &[("host", "evil.example")], "").await.0, 421);
    }
    assert_eq!(ask(&cluster, "GET /console/nothing.js", &[], "").await.0, 404);

    let force = r#"{"name": "a", "token": "1", "reason": "none", "now": true}"#;
    let close = r#"{"id": "00000000000000000000000000000001", "reason": "none"}"#;
    let remove = r#"{"name": "a", "ticket": "1"}"#;
    let lift = r#"{"name": "a"}"#;
    let calls = [("status", "{}"), ("feed", "{}x"), ("history", "{}"), ("changes", "{}")];
    let acts = [("force-release", force), ("close-session", close), ("remove-waiter", remove), ("lift-delay", lift)];
    for (call, body) in calls.into_iter().chain(acts) {
        let line = format!("POST /console/api/{call}");
        let foreign: [&[(&str, &str)]; 5] = [
            &[("content-type", "application/json")],
            &[("x-lockkeeper-console", "1"), ("content-type", "text/plain")],
            &[OWN[0], OWN[1], ("origin", "http://evil.example")],
            &[OWN[0], OWN[1], ("sec-fetch-site", "cross-site")],
            &[OWN[0], OWN[1], ("host", "evil.example")],
        ];
        for headers in foreign {
            let (status, head, _) = ask(&cluster, &line, headers, body).await;
            assert!([403, 415, 421].contains(&status), "{call} {headers:?}: {head}");
        }
        assert_eq!(ask(&cluster, &format!("GET /console/api/{call}"), &OWN, body).await.0, 405);
        // No other site learns that it could ask.
        let preflight = [("origin", "http://evil.example"), ("access-control-request-method", "POST")];
        let (_, head, _) = ask(&cluster, &format!("OPTIONS /console/api/{call}"), &preflight, "").await;
        assert!(!head.contains("access-control-allow"), "{head}");
    }
    assert_eq!(ask(&cluster, "POST /console/api/status", &OWN, "{}").await.0, 200);
    let (status, _, body) = ask(&cluster, "POST /console/api/force-release", &OWN, force).await;
    assert!(status == 200 && body.contains("\"forced\":[]"), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_caller_sends_is_checked_and_bounded() {
    let cluster = cluster_with(|options| (options.http, options.nodes) = (true, Some(1))).await;
    let long = format!(r#"{{"name": "{}"}}"#, "x".repeat(17 << 10));
    for (call, body, field) in [
        ("lock", "{}", "body"),
        ("lock", "nothing", "body"),
        ("lock", r#"{"name": ""}"#, "name"),
        ("lock", r#"{"name": "a", "waiters_after": "-1"}"#, "waiters_after"),
        ("lock", &long, "body"),
        ("level", r#"{"after_lock": ""}"#, "after_lock"),
        ("session", r#"{"id": "x"}"#, "id"),
        ("force-release", r#"{"name": "a", "token": "1", "reason": "", "now": true}"#, "reason"),
        ("close-session", r#"{"id": "x", "reason": "dead"}"#, "id"),
        ("close-session", r#"{"id": "00000000000000000000000000000001", "reason": ""}"#, "reason"),
        ("close-session", r#"{"id": "00000000000000000000000000000001"}"#, "body"),
        ("remove-waiter", r#"{"name": "a", "ticket": "-1"}"#, "ticket"),
        ("remove-waiter", r#"{"name": "", "ticket": "1"}"#, "name"),
        ("lift-delay", r#"{"name": ""}"#, "name"),
        ("history", r#"{"sample": -1}"#, "body"),
        ("changes", r#"{"lock": ""}"#, "lock"),
        ("nothing", "{}", "call"),
    ] {
        let (status, _, answer) = ask(&cluster, &format!("POST /console/api/{call}"), &OWN, body).await;
        assert_eq!(status, 400, "{call}: {answer}");
        assert!(
            answer.contains("INVALID_ARGUMENT") && answer.contains(&format!("\"message\":\"{field}")),
            "{call}: {answer}"
        );
    }
    // Requests for feeds that do not arrive whole take no place.
    let mut half = Vec::new();
    for _ in 0..40 {
        half.push(send_half(&cluster, "POST /console/api/feed", &OWN).await);
    }
    // Feeds are open at the same time up to a number; one that its reader leaves makes room.
    let mut feeds = Vec::new();
    loop {
        let mut feed = send(&cluster, "POST /console/api/feed", &OWN, "{}").await;
        let mut first = [0; 12];
        timeout(LONG, feed.read_exact(&mut first)).await.expect("in time").expect("an answer");
        if &first != b"HTTP/1.1 200" {
            assert_eq!(&first, b"HTTP/1.1 429");
            break;
        }
        feeds.push(feed);
    }
    assert_eq!(feeds.len(), 32);
    feeds.pop();
    until("room", async || {
        let mut feed = send(&cluster, "POST /console/api/feed", &OWN, "{}").await;
        let mut first = [0; 12];
        timeout(LONG, feed.read_exact(&mut first)).await.expect("in time").expect("an answer");
        (&first == b"HTTP/1.1 200").then_some(())
    })
    .await;
}

/// Begins a request of the page on a connection that stays open.
async fn begin(cluster: &LocalCluster, call: &str, token: &str) -> TcpStream {
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("http://");
    let mut request = format!("POST /console/api/{call} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 2\r\n");
    OWN.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("{request}authorization: Bearer {token}\r\n\r\n{{}}");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    stream
}

/// The status of the answer to that request.
async fn begun(cluster: &LocalCluster, call: &str, token: &str) -> (u16, TcpStream) {
    let mut stream = begin(cluster, call, token).await;
    let mut first = [0; 12];
    timeout(LONG, stream.read_exact(&mut first)).await.expect("in time").expect("an answer");
    let status = std::str::from_utf8(&first[9..]).ok().and_then(|status| status.parse().ok());
    (status.expect("a status"), stream)
}

/// The limits of an identity hold for the console as for every other port.
#[tokio::test(flavor = "multi_thread")]
async fn the_calls_and_the_connections_of_an_identity_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let limits = "[limits.eyes]\nconnections = 1\n\n[limits.ops]\ncalls-per-second = 1\n";
    let cluster = guarded_by(&directory, 1, &format!("{POLICY}\n{limits}")).await;

    let eyes = secret(EYES);
    let (status, first) = begun(&cluster, "status", &eyes).await;
    assert_eq!(status, 200);
    // The answer is followed by the end of the connection: a client that keeps it gets nothing on it.
    let mut second = begin(&cluster, "status", &eyes).await;
    let mut answer = String::new();
    timeout(LONG, second.read_to_string(&mut answer)).await.expect("it ends").expect("readable");
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("limit of 1 for connections"), "{answer}");
    drop(first);
    until("room for another one", async || (begun(&cluster, "status", &eyes).await.0 == 200).then_some(())).await;

    // The first two of a second are within the limit.
    for call in ["status", "history"] {
        let mut statuses = Vec::new();
        for _ in 0..6 {
            statuses.push(begun(&cluster, call, &secret(OPS)).await.0);
        }
        assert!(statuses.contains(&429) && statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    }
}

/// Whoever opens many feeds keeps nobody else from his.
#[tokio::test(flavor = "multi_thread")]
async fn a_feed_of_who_has_most_gives_way_to_one_of_who_has_few() {
    let directory = tempfile::tempdir().expect("a directory");
    let cluster = guarded_by(&directory, 1, POLICY).await;
    let mut feeds = Vec::new();
    for _ in 0..32 {
        let (status, feed) = begun(&cluster, "feed", &secret(EYES)).await;
        assert_eq!(status, 200);
        feeds.push(feed);
    }
    assert_eq!(begun(&cluster, "feed", &secret(EYES)).await.0, 429, "all places are its own");

    let (status, mut of_ops) = begun(&cluster, "feed", &secret(OPS)).await;
    assert_eq!(status, 200);
    let mut oldest = String::new();
    timeout(LONG, feeds.remove(0).read_to_string(&mut oldest)).await.expect("it ends").expect("readable");
    let end = r#""reason":"LIMIT_REACHED","message":"this node serves as many feeds as it can, and you have the most of them"#;
    assert!(oldest.contains(end), "{oldest}");
    assert_eq!(begun(&cluster, "feed", &secret(EYES)).await.0, 429, "it takes nothing back");
    // Lines come to the others, also when nothing changes.
    for feed in [&mut of_ops, &mut feeds[0]] {
        let mut some = [0; 256];
        for _ in 0..3 {
            let read = timeout(LONG, feed.read(&mut some)).await.expect("in time").expect("readable");
            assert_ne!(read, 0, "it goes on");
        }
    }
}

/// With TLS, the certificate of a connection says who asks; a probe needs none.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_an_identity() {
    let cluster = cluster_with(|options| (options.http, options.tls, options.nodes) = (true, true, Some(1))).await;
    let (known, anonymous) = with_and_without_certificate(&cluster);
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("https://");
    let ask = async |config, line: &str| {
        let mut stream = encrypted(address, config).await.expect("it listens, and its certificate is good");
        let own = "content-type: application/json\r\nx-lockkeeper-console: 1\r\ncontent-length: 2\r\nconnection: close";
        let request = format!("{line} HTTP/1.1\r\nhost: {address}\r\n{own}\r\n\r\n{{}}");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        timeout(LONG, stream.read_to_string(&mut answer)).await.expect("in time").expect("readable");
        answer
    };
    let answer = ask(&known, "POST /console/api/status").await;
    assert!(answer.contains("\"you\":\"local\""), "{answer}");
    let answer = ask(&anonymous, "POST /console/api/status").await;
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("UNAUTHENTICATED"), "{answer}");
    let answer = ask(&anonymous, "GET /readyz").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// The answer to a request on a connection that may stay open: its headers in lower case, and its body.
async fn ask_on(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(timeout(LONG, stream.read_u8()).await.expect("in time").expect("an answer"));
    }
    let head = String::from_utf8(head).expect("UTF-8").to_lowercase();
    let length: usize =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).expect("a length");
    let mut body = vec![0_u8; length];
    timeout(LONG, stream.read_exact(&mut body)).await.expect("in time").expect("all of it");
    (head, String::from_utf8(body).expect("UTF-8"))
}

/// A browser keeps its connections, and shows a renewed certificate only on a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_certificate_counts_no_more_is_closed_with_the_answer() {
    let cluster = cluster_with(|options| (options.http, options.tls, options.nodes) = (true, true, Some(1))).await;
    let (known, _) = with_and_without_certificate(&cluster);
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("https://");
    let mut stream = encrypted(address, &known).await.expect("it listens, and its certificate is good");
    let own = "content-type: application/json\r\nx-lockkeeper-console: 1\r\ncontent-length: 2";
    let request = format!("POST /console/api/status HTTP/1.1\r\nhost: {address}\r\n{own}\r\n\r\n{{}}");
    let (head, body) = ask_on(&mut stream, &request).await;
    assert!(body.contains("\"you\":\"local\"") && !head.contains("connection: close"), "{head}{body}");

    replace_authority(&cluster);
    let (head, body) = until("a refusal", async || {
        let (head, body) = ask_on(&mut stream, &request).await;
        (!head.starts_with("http/1.1 200")).then_some((head, body))
    })
    .await;
    assert!(head.starts_with("http/1.1 503") && body.contains("connect again"), "{head}{body}");
    assert!(head.contains("connection: close"), "{head}");
    let mut rest = Vec::new();
    timeout(LONG, stream.read_to_end(&mut rest)).await.expect("it ends").expect("in order");
    assert_eq!(rest, b"");
}

/// The certificate of a client as a file for its browser: packed by the command, with a password that is printed or one of the operator's.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_packed_for_a_browser_and_its_password_is_printed_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    let certs = certs.to_str().expect("a path in UTF-8");
    let run = async |arguments: &[&str]| text(&output(&mut lockkeeper(&[arguments, &["--dir", certs]].concat())).await);
    let (code, _, error) = run(&["certs", "init", "shop", "--nodes", "127.0.0.1", "--clients", "ann"]).await;
    assert_eq!(code, 0, "{error}");

    let (code, told, error) = run(&["certs", "browser", "ann"]).await;
    assert_eq!(code, 0, "{error}");
    let password = told.lines().find_map(|line| line.strip_prefix("password  ")).expect("a password").to_owned();
    assert_eq!((password.len(), password.split('-').count()), (23, 4), "{password}");
    let packed = format!("{certs}/client-ann.p12");
    assert!(told.contains(&packed), "{told}");
    let opens = async |password: &str| {
        let password = format!("pass:{password}");
        let arguments = ["pkcs12", "-in", &packed, "-passin", &password, "-nokeys"];
        let mut openssl = Command::new("openssl");
        let Ok(opened) = openssl.args(arguments).output().await else {
            crate::skipped::skipped(format_args!("no openssl"));
            return None;
        };
        Some(opened.status.success() && String::from_utf8_lossy(&opened.stdout).contains("BEGIN CERTIFICATE"))
    };
    assert_ne!(opens(&password).await, Some(false));

    // One of the operator's own is not printed.
    let file = directory.path().join("password");
    fs::write(&file, "correct horse battery staple\nanother line\n").expect("written");
    let (code, told, error) = run(&["certs", "browser", "ann", "--password-file", file.to_str().expect("UTF-8")]).await;
    assert_eq!(code, 0, "{error}");
    assert!(!told.contains("password"), "{told}");
    assert_ne!(opens("correct horse battery staple").await, Some(false));
    assert_ne!(opens(&password).await, Some(true), "it was packed anew");

    let (code, _, error) = run(&["certs", "browser", "bob"]).await;
    assert!(code == 2 && error.contains("`lockkeeper certs client bob`"), "{code}: {error}");
}
