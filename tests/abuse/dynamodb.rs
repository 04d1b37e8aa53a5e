//! DynamoDB's port: requests of few bytes that ask for much work, answers that nobody reads, bodies that do not end.

use std::net::SocketAddr;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

use super::{
    sized,
    stage::{Descriptors, MEMORY_SLACK_MIB, Stage, address, memory_mib},
};
use crate::support::{LONG, leader};

/// Bytes of a text that an item has.
const LARGE: usize = 350 << 10;

async fn stage() -> Stage {
    Stage::open_with(Descriptors::AsTheyAre, |options| options.dynamodb = true).await
}

/// DynamoDB's port of the leader.
pub(super) async fn port(stage: &Stage) -> SocketAddr {
    let leader = usize::try_from(leader(&stage.cluster).await).expect("few nodes");
    let endpoint = &stage.cluster.dynamodb_endpoints()[leader - 1];
    address(endpoint.strip_prefix("http://").expect("no TLS").trim_end_matches('/'))
}

pub(super) fn request(operation: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("POST / HTTP/1.1\r\nhost: node\r\nx-amz-target: DynamoDB_20120810.{operation}\r\n");
    format!("{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

/// Sends a request over a connection that takes little of the answer: the kernel would else hold a whole one for a client that reads
/// nothing.
async fn ask_without_reading(port: SocketAddr, request: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4 << 10).expect("a small buffer");
    let mut stream = socket.connect(port).await.expect("it listens");
    stream.write_all(request).await.expect("it is small");
    stream
}

/// The status and the body of the answer.
pub(super) async fn call(port: SocketAddr, operation: &str, body: &str) -> (String, String) {
    let exchange = async {
        let mut stream = TcpStream::connect(port).await.expect("it listens");
        // An answer may come before all of the body was sent.
        let _ = stream.write_all(&request(operation, body)).await;
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    };
    let answer = timeout(LONG, exchange).await.expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    (head.split(' ').nth(1).unwrap_or_default().to_owned(), body.to_owned())
}

async fn ok(port: SocketAddr, operation: &str, body: &Value) {
    let (status, answer) = call(port, operation, &body.to_string()).await;
    assert_eq!(status, "200", "{operation}: {answer}");
}

/// A table with some large items.
pub(super) async fn create(port: SocketAddr, items: usize) {
    let table = json!({
        "TableName": "locks", "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
    });
    ok(port, "CreateTable", &table).await;
    for key in 0..items {
        let item = json!({"key": {"S": key.to_string()}, "x": {"B": "A".repeat(LARGE / 4 * 4)}});
        ok(port, "PutItem", &json!({"TableName": "locks", "Item": item})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_ask_for_much_work_harm_no_other_client() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        create(port, 2).await;
        let names: Vec<_> = (0..40_000).map(|number| format!("attribute{number}")).collect();
        let values: Vec<_> = (0..100_000).map(|number| json!({"N": number.to_string()})).collect();
        // Zeros and at last a one: each place of a large item of zeros begins like it.
        let part = "A".repeat(LARGE / 2 / 4 * 4) + "AAAB";
        let searches = vec!["contains(x, :p)"; 200].join(" OR ");
        let requests = [
            ("GetItem", json!({"TableName": "locks", "Key": {"key": {"S": "0"}}, "AttributesToGet": names})),
            (
                "Scan",
                json!({"TableName": "locks", "ScanFilter": {"n": {"ComparisonOperator": "IN", "AttributeValueList": values}}}),
            ),
            (
                "Scan",
                json!({
                    "TableName": "locks", "FilterExpression": searches,
                    "ExpressionAttributeValues": {":p": {"B": part}},
                }),
            ),
        ];
        let all = (0..sized(4, 64)).flat_map(|_| &requests).map(async |(operation, body)| {
            let (status, answer) = call(port, operation, &body.to_string()).await;
            assert!(["200", "400"].contains(&&*status), "{operation}: {status} {answer:.300}");
            if *operation == "GetItem" {
                assert!(answer.contains("Member must have length between 1 and 255"), "{answer:.300}");
            }
        });
        join_all(all).await;
    };
    stage.survives("requests that ask for much work", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_and_bodies_that_do_not_end_harm_no_other_client() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        create(port, 0).await;
        // Each of its characters is six in an answer. An answer of both is nearly as large as one may be, and larger than what the kernel
        // takes of it.
        let text = "\u{1}".repeat(330_000);
        for key in ["0", "1"] {
            let item = json!({"key": {"S": key}, "x": {"S": text}});
            ok(port, "PutItem", &json!({"TableName": "locks", "Item": item})).await;
        }
        let count = sized(100, 300);
        let before = memory_mib(stage.cluster.node(leader(&stage.cluster).await));
        let scan = request("Scan", r#"{"TableName":"locks"}"#);
        let mut unread = join_all((0..count).map(async |_| ask_without_reading(port, &scan).await)).await;
        // All of them are answered, and nobody has read anything.
        join_all(unread.iter().map(async |stream| {
            timeout(LONG, stream.readable()).await.expect("an answer in time").expect("it is connected");
        }))
        .await;
        let after = memory_mib(stage.cluster.node(leader(&stage.cluster).await));
        // The limit of one address is 16 MiB: the others are refused, whatever their number is.
        let heads = join_all(unread.iter_mut().map(async |stream| {
            let mut head = [0; 12];
            timeout(LONG, stream.read_exact(&mut head)).await.expect("an answer in time").expect("an answer");
            String::from_utf8_lossy(&head).into_owned()
        }))
        .await;
        let whole = heads.iter().filter(|head| head.ends_with("200")).count();
        println!("unread answers: {whole} of {count} are whole; {before} MiB before, {after} MiB with them");
        assert!(whole > 0 && whole <= count / 2, "{whole} of {count} answers wait to be read");
        assert!(after <= before + 2 * MEMORY_SLACK_MIB, "{before} MiB before, {after} MiB while nobody reads");
        let half = " ".repeat(4 << 20);
        let head = request("BatchWriteItem", "");
        let head = String::from_utf8(head).expect("text").replace("content-length: 0", "content-length: 16777216");
        let mut bodies = Vec::new();
        for _ in 0..sized(16, 64) {
            let mut stream = TcpStream::connect(port).await.expect("it listens");
            // It breaks off where the node refuses more.
            let _ = timeout(LONG, stream.write_all(format!("{head}{half}").as_bytes())).await;
            bodies.push(stream);
        }
        // The small requests of others go on.
        let get = r#"{"TableName":"locks","Key":{"key":{"S":"none"}}}"#;
        for _ in 0..20 {
            let (status, answer) = call(port, "GetItem", get).await;
            assert_eq!(status, "200", "{answer:.300}");
        }
        drop((unread, bodies));
    };
    stage.survives("unread answers and endless bodies", abuse).await;
}
