//! The endpoint over real sockets: limits, deadlines, signatures, shutdown.

use std::{net::SocketAddr, time::Duration};

use serde_json::Value as Json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{memory::Memory, options, table};
use crate::{DynamoOptions, Secrets, serve};

/// A bound on failures: nothing takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    address: SocketAddr,
    stopping: CancellationToken,
    task: JoinHandle<()>,
}

async fn served(options: DynamoOptions) -> Served {
    served_from(Memory::default(), options).await
}

async fn served_from(store: Memory, options: DynamoOptions) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stopping = CancellationToken::new();
    let task = tokio::spawn(serve(listener, store, options, stopping.clone()));
    Served { address, stopping, task }
}

/// Sends bytes, and reads an answer: its status line and headers in lower case, and its body.
async fn exchange(stream: &mut TcpStream, request: &[u8]) -> (String, String) {
    stream.write_all(request).await.unwrap();
    answer(stream).await
}

async fn answer(stream: &mut TcpStream) -> (String, String) {
    let mut read = Vec::new();
    let whole = async {
        loop {
            let text = String::from_utf8_lossy(&read).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let head = head.to_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
                if body.len() >= length.unwrap_or(0) {
                    return (head, body.to_owned());
                }
            }
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "closed after {text:?}");
        }
    };
    timeout(PATIENCE, whole).await.expect("an answer")
}

fn post(target: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST / HTTP/1.1\r\nhost: x\r\nx-amz-target: {target}\r\ncontent-length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn kind(body: &str) -> String {
    let error: Json = serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
    error["__type"].as_str().unwrap().rsplit('#').next().unwrap().to_owned()
}

#[tokio::test]
async fn an_answer_has_the_headers_of_dynamodb() {
    let served = served(options()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let create = post("DynamoDB_20120810.CreateTable", &table("locks", &["key"]));
    let (head, body) = exchange(&mut stream, &create).await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: application/x-amz-json-1.0"), "{head}");
    assert!(head.contains(&format!("x-amz-crc32: {}", crc32fast::hash(body.as_bytes()))), "{head}");
    let id = head.lines().find_map(|line| line.strip_prefix("x-amzn-requestid: ")).unwrap().to_owned();
    assert_eq!(id.len(), 52);
    let (head, body) = exchange(&mut stream, &create).await;
    assert!(head.starts_with("http/1.1 400") && !head.contains(&id), "{head}");
    assert_eq!(kind(&body), "ResourceInUseException");
    let (head, body) = exchange(&mut stream, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(head.starts_with("http/1.1 200") && body.starts_with("healthy"));
    // A path of another kind, as some clients have it.
    let odd =
        String::from_utf8(post("DynamoDB_20120810.ListTables", "{}")).unwrap().replace("POST /", "POST //dynamodb/");
    assert!(exchange(&mut stream, odd.as_bytes()).await.1.contains("locks"));
}

#[tokio::test]
async fn bad_requests_are_told_so() {
    let served = served(options()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    for (target, body, expected) in [
        ("DynamoDB_20120810.Nothing", "{}", "UnknownOperationException"),
        ("DynamoDB_20111205.GetItem", "{}", "UnknownOperationException"),
        ("", "{}", "UnknownOperationException"),
        ("DynamoDB_20120810.GetItem", "", "SerializationException"),
        ("DynamoDB_20120810.GetItem", "{\"TableName\":", "SerializationException"),
        ("DynamoDB_20120810.GetItem", "\u{0}", "SerializationException"),
    ] {
        assert_eq!(kind(&exchange(&mut stream, &post(target, body)).await.1), expected, "{target} {body}");
    }
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (head, _) = exchange(&mut stream, b"nonsense\r\n\r\n").await;
    assert!(head.starts_with("http/1.1 400"), "{head}");
}

#[tokio::test]
async fn a_body_is_bounded_in_bytes_and_time() {
    let mut options = options();
    options.body_bytes_max = 64 << 10;
    options.all_bodies_bytes_max = 80 << 10;
    options.body_timeout = Duration::from_millis(300);
    let served = served(options).await;
    let target = "DynamoDB_20120810.ListTables";
    let announced = "POST / HTTP/1.1\r\nhost: x\r\nx-amz-target: DynamoDB_20120810.ListTables\r\n";
    // Refused by its announced length, before it is sent.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (head, body) = exchange(&mut stream, format!("{announced}content-length: 65537\r\n\r\n").as_bytes()).await;
    assert!(head.starts_with("http/1.1 413"), "{head}");
    assert_eq!(kind(&body), "RequestEntityTooLargeException");
    // Refused by what arrives, where nothing is announced.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let chunk = format!("8000\r\n{}\r\n", " ".repeat(0x8000)).repeat(3);
    let (head, _) =
        exchange(&mut stream, format!("{announced}transfer-encoding: chunked\r\n\r\n{chunk}").as_bytes()).await;
    assert!(head.starts_with("http/1.1 413"), "{head}");
    // All bodies together are bounded. The first is told that it is late; before that, its bytes leave no room for another.
    let mut slow = TcpStream::connect(served.address).await.unwrap();
    let most = " ".repeat(60 << 10);
    slow.write_all(format!("{announced}content-length: 65536\r\n\r\n{most}").as_bytes()).await.unwrap();
    let mut refused = false;
    while !refused {
        let mut other = TcpStream::connect(served.address).await.unwrap();
        let (_, body) = exchange(&mut other, &post(target, &format!("{most}{{}}"))).await;
        refused = body.contains("ProvisionedThroughputExceededException");
        if !refused {
            // The first bytes had not arrived yet, or were given up already.
            slow = TcpStream::connect(served.address).await.unwrap();
            slow.write_all(format!("{announced}content-length: 65536\r\n\r\n{most}").as_bytes()).await.unwrap();
        }
    }
    // A small body always has room.
    let mut other = TcpStream::connect(served.address).await.unwrap();
    let (head, _) = exchange(&mut other, &post(target, "{}")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let (_, body) = answer(&mut slow).await;
    assert!(body.contains("the body did not arrive within 300 ms"), "{body}");
    // All is free again.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (head, _) = exchange(&mut stream, &post(target, &format!("{most}{{}}"))).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

#[tokio::test]
async fn a_connection_that_its_client_may_not_have_is_closed_after_an_answer() {
    let store = Memory::default();
    let served = served_from(store.clone(), options()).await;
    let list = String::from_utf8(post("DynamoDB_20120810.ListTables", "{}")).unwrap();
    let list_of = |access_key: &str| {
        let credential = format!("Credential={access_key}/20250101/us-east-1/dynamodb/aws4_request");
        let header =
            format!("authorization: AWS4-HMAC-SHA256 {credential}, SignedHeaders=host, Signature=0\r\ncontent-");
        list.replace("content-", &header)
    };

    store.admit_only("ANN");
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    for request in [&list_of("ANN"), &list] {
        let (head, _) = exchange(&mut stream, request.as_bytes()).await;
        assert!(head.starts_with("http/1.1 200") && !head.contains("connection: close"), "{head}");
    }
    let (head, body) = exchange(&mut stream, list_of("BOB").as_bytes()).await;
    assert!(
        kind(&body).starts_with("ProvisionedThroughputExceeded") && body.contains("too many connections"),
        "{body}"
    );
    assert!(head.contains("connection: close"), "{head}");
    let mut rest = [0; 16];
    assert_eq!(timeout(PATIENCE, stream.read(&mut rest)).await.expect("closed").unwrap_or(0), 0);
}

/// Its bytes have room, and what they would become has none.
#[tokio::test]
async fn a_body_is_bounded_in_what_it_decodes_to() {
    let mut options = options();
    options.address_decoded_bytes_max = 4 << 20;
    let served = served(options).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    exchange(&mut stream, &post("DynamoDB_20120810.CreateTable", &table("locks", &["key"]))).await;
    let put = |count: usize| {
        let maps = vec![r#"{"M":{"a":{"NULL":true}}}"#; count].join(",");
        let body = format!(r#"{{"TableName":"locks","Item":{{"key":{{"S":"a"}},"maps":{{"L":[{maps}]}}}}}}"#);
        post("DynamoDB_20120810.PutItem", &body)
    };

    let (_, body) = exchange(&mut stream, &put(20_000)).await;
    assert!(kind(&body) == "ValidationException" && body.contains("bytes of memory"), "{body}");
    let (head, body) = exchange(&mut stream, &put(1000)).await;
    assert!(head.starts_with("http/1.1 200"), "{body}");
}

#[tokio::test]
async fn a_client_that_sends_no_headers_is_closed() {
    let mut options = options();
    options.header_timeout = Duration::from_millis(100);
    let served = served(options).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"POST / HT").await.unwrap();
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("closed").ok();
}

#[tokio::test]
async fn where_secrets_are_configured_a_signature_is_demanded() {
    let mut options = options();
    options.secrets = Some(Secrets::new([("AKID".to_owned(), "secret".to_owned())]));
    let served = served(options).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let (_, body) = exchange(&mut stream, &post("DynamoDB_20120810.ListTables", "{}")).await;
    assert_eq!(kind(&body), "MissingAuthenticationTokenException");
}

#[tokio::test]
async fn nothing_is_kept_for_a_client_whose_access_key_is_unknown() {
    let mut options = options();
    options.secrets = Some(Secrets::new([("AKID".to_owned(), "secret".to_owned())]));
    // No body beyond its first bytes has room.
    options.all_bodies_bytes_max = 0;
    let served = served(options).await;
    let body = "x".repeat(100 << 10);
    for (authorization, expected) in [
        ("", "MissingAuthenticationTokenException"),
        (
            "authorization: AWS4-HMAC-SHA256 Credential=OTHER/20250101/us-east-1/dynamodb/aws4_request, \
             SignedHeaders=host;x-amz-date;x-amz-target, Signature=0\r\nx-amz-date: 20250101T000000Z\r\n",
            "UnrecognizedClientException",
        ),
        (
            "authorization: AWS4-HMAC-SHA256 Credential=AKID/20250101/us-east-1/s3/aws4_request, \
             SignedHeaders=host;x-amz-date;x-amz-target, Signature=0\r\nx-amz-date: 20250101T000000Z\r\n",
            "InvalidSignatureException",
        ),
        (
            "authorization: AWS4-HMAC-SHA256 Credential=AKID/20250101/us-east-1/dynamodb/aws4_request, \
             SignedHeaders=host;x-amz-date;x-amz-target, Signature=0\r\nx-amz-date: 20250101T000000Z\r\n",
            "ProvisionedThroughputExceededException",
        ),
    ] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        let head = format!(
            "POST / HTTP/1.1\r\nhost: x\r\nx-amz-target: DynamoDB_20120810.GetItem\r\n{authorization}content-length: {}\r\n\r\n",
            body.len()
        );
        // Without its end: the answer does not wait for it.
        stream.write_all(format!("{head}{}", &body[1..]).as_bytes()).await.unwrap();
        let (_, answer) = answer(&mut stream).await;
        assert_eq!(kind(&answer), expected, "{authorization}");
    }
}

#[tokio::test]
async fn answers_that_nobody_reads_are_bounded_and_dropped() {
    let mut options = options();
    // Room for one answer, and not for another beside it.
    options.unread.connection = 8_000_000;
    options.unread.address = 8_000_000;
    options.unread.patience = Duration::from_secs(5);
    let served = served(options).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    exchange(&mut stream, &post("DynamoDB_20120810.CreateTable", &table("large", &["key"]))).await;
    // Three bytes a number in the store, and 120 in JSON: 6 MB. The operating system keeps 2.6 MB of it.
    let numbers: Vec<_> = (1..50_000).map(|number| format!(r#""{number}E115""#)).collect();
    let numbers = numbers.join(",");
    let put = format!(r#"{{"TableName":"large","Item":{{"key":{{"S":"a"}},"n":{{"NS":[{numbers}]}}}}}}"#);
    let (head, body) = exchange(&mut stream, &post("DynamoDB_20120810.PutItem", &put)).await;
    assert!(head.starts_with("http/1.1 200"), "{body}");
    let get = post("DynamoDB_20120810.GetItem", r#"{"TableName":"large","Key":{"key":{"S":"a"}}}"#);

    // The beginning of an answer, of which no more is read.
    let ask = async || {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(served.address).await.unwrap();
        stream.write_all(&get).await.unwrap();
        let mut beginning = [0; 12];
        timeout(PATIENCE, stream.read_exact(&mut beginning)).await.expect("an answer").unwrap();
        (stream, &beginning == b"HTTP/1.1 200")
    };
    let mut unread = Vec::new();
    let refused = loop {
        let (mut stream, is_answered) = ask().await;
        if !is_answered {
            break answer(&mut stream).await.1;
        }
        unread.push(stream);
        assert!(unread.len() < 64, "no limit was reached");
    };
    assert_eq!(kind(&refused), "ProvisionedThroughputExceededException");
    assert!(refused.contains("to this address wait to be read, and the limit is 8000000"), "{refused}");
    // Small answers go on, and all is free again when nobody has read for a while.
    let (head, _) = exchange(&mut stream, &post("DynamoDB_20120810.ListTables", "{}")).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let free = async {
        while !ask().await.1 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, free).await.expect("they are dropped");
}

#[tokio::test]
async fn stopping_ends_idle_connections_and_the_task() {
    let served = served(options()).await;
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    exchange(&mut stream, &post("DynamoDB_20120810.ListTables", "{}")).await;
    served.stopping.cancel();
    timeout(PATIENCE, served.task).await.expect("ends").unwrap();
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 16])).await.expect("closed").unwrap_or(0), 0);
    assert!(TcpStream::connect(served.address).await.is_err());
}
