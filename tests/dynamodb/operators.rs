//! What operators see and do of items that are locks.

use std::time::Duration;

use lockkeeper::{
    client::{Client, LockInfo, LockKind},
    config::AuditConfig,
    local::{ClusterOptions, LocalCluster},
};
use lockkeeper_audit::{AuditEvent, files_in, verify};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use super::LONG;

pub(crate) const NAME: &str = "dynamodb/locks/jobs";

/// One request, as an HTTP client sends it that knows nothing of AWS. Returns the status and the body.
pub(crate) async fn call(endpoint: &str, operation: &str, body: &Value) -> (u16, Value) {
    call_with(endpoint, operation, "", body).await
}

/// The same with further headers, each with its end of line.
pub(crate) async fn call_with(endpoint: &str, operation: &str, headers: &str, body: &Value) -> (u16, Value) {
    let address = endpoint.strip_prefix("http://").expect("no TLS").trim_end_matches('/');
    let body = body.to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: DynamoDB_20120810.{operation}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    };
    let answer = timeout(LONG, exchange).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

pub(crate) async fn ok(endpoint: &str, operation: &str, body: Value) -> Value {
    let (status, answer) = call(endpoint, operation, &body).await;
    assert_eq!(status, 200, "{operation}: {answer}");
    answer
}

pub(crate) async fn fails(endpoint: &str, operation: &str, body: Value) {
    let (status, answer) = call(endpoint, operation, &body).await;
    let kind = answer["__type"].as_str().unwrap_or_default();
    assert!(status == 400 && kind.ends_with("#ConditionalCheckFailedException"), "{operation}: {answer}");
}

/// A version as its clients write it.
fn uuid(version: &str) -> String {
    format!("00000000-0000-4000-8000-{version:0>12}")
}

/// An acquire of the Java client: of a lock that is not there, or of one that reads as released.
pub(crate) fn acquire(owner: &str, version: &str, of_released: bool) -> Value {
    let item = json!({
        "key": {"S": "jobs"}, "ownerName": {"S": owner}, "recordVersionNumber": {"S": uuid(version)}, "leaseDuration": {"S": "600000"},
    });
    if of_released {
        json!({
            "TableName": "locks", "Item": item, "ConditionExpression": "attribute_exists(#pk) AND #ir = :ir",
            "ExpressionAttributeNames": {"#pk": "key", "#ir": "isReleased"},
            "ExpressionAttributeValues": {":ir": {"S": "1"}},
        })
    } else {
        json!({
            "TableName": "locks", "Item": item, "ConditionExpression": "attribute_not_exists(#pk)",
            "ExpressionAttributeNames": {"#pk": "key"},
        })
    }
}

pub(crate) fn heartbeat(owner: &str, from: &str, to: &str) -> Value {
    json!({
        "TableName": "locks", "Key": {"key": {"S": "jobs"}}, "UpdateExpression": "SET #ld = :ld, #rvn = :newRvn",
        "ConditionExpression": "attribute_exists(#pk) AND #rvn = :rvn AND #on = :on",
        "ExpressionAttributeNames": {"#pk": "key", "#ld": "leaseDuration", "#rvn": "recordVersionNumber", "#on": "ownerName"},
        "ExpressionAttributeValues": {
            ":ld": {"S": "600000"}, ":rvn": {"S": uuid(from)}, ":newRvn": {"S": uuid(to)}, ":on": {"S": owner},
        },
    })
}

/// The release of the Java client that deletes.
fn release(owner: &str, version: &str) -> Value {
    json!({
        "TableName": "locks", "Key": {"key": {"S": "jobs"}},
        "ConditionExpression": "attribute_exists(#pk) AND #rvn = :rvn AND #on = :on",
        "ExpressionAttributeNames": {"#pk": "key", "#rvn": "recordVersionNumber", "#on": "ownerName"},
        "ExpressionAttributeValues": {":rvn": {"S": uuid(version)}, ":on": {"S": owner}},
    })
}

async fn token(endpoint: &str) -> u64 {
    let key = json!({"TableName": "locks", "Key": {"key": {"S": "jobs"}}, "ConsistentRead": true});
    let item = ok(endpoint, "GetItem", key).await;
    item["Item"]["fencingToken"]["N"].as_str().expect("a token").parse().expect("a number")
}

/// Not before all members know the keyspace.
pub(crate) async fn create_table(endpoint: &str) {
    let table = json!({
        "TableName": "locks", "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST",
    });
    let created = async {
        while call(endpoint, "CreateTable", &table).await.0 != 200 {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LONG, created).await.expect("a table");
}

async fn lock(client: &Client) -> LockInfo {
    let lock = client.get(NAME).await.expect("read").lock;
    let listed = client.list("dynamodb/", "").await.expect("listed").locks;
    let holders = |lock: &LockInfo| lock.holders.iter().map(|holder| holder.token).collect::<Vec<_>>();
    match lock.holder_count {
        0 => assert_eq!(listed, []),
        _ => assert_eq!(
            listed.iter().map(|lock| (lock.name.as_str(), lock.kind, holders(lock))).collect::<Vec<_>>(),
            [(NAME, LockKind::Entry, holders(&lock))]
        ),
    }
    lock
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_is_a_lock_is_listed_taken_back_and_in_the_audit() {
    let directory = TempDir::new().expect("a directory");
    let audit = AuditConfig { directory: directory.path().to_owned(), ..AuditConfig::default() };
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let options = ClusterOptions { dynamodb: true, timeout: LONG, audit, ..ClusterOptions::new(program) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let client = Client::builder(&cluster.endpoints().join(",")).build().expect("endpoints");
    let endpoints = cluster.dynamodb_endpoints();
    let [ann, bob] = [&*endpoints[0], &*endpoints[1]];
    create_table(ann).await;

    ok(ann, "PutItem", acquire("ann", "1", false)).await;
    let first = token(bob).await;
    ok(ann, "UpdateItem", heartbeat("ann", "1", "2")).await;
    let held = lock(&client).await;
    let holder = &held.holders[0];
    assert_eq!((holder.label.as_str(), holder.token.0, held.holder_count), ("ann", first, 1));
    assert!(holder.remaining.as_secs() > 0);
    assert!(client.check(NAME, holder.token).await.expect("read").held);
    assert_eq!(token(bob).await, first, "a renewal is no acquisition");
    fails(bob, "PutItem", acquire("bob", "9", true)).await;

    // No other client can hide it.
    let session = client.open(Default::default()).await.expect("a session");
    let refused = session.acquire("dynamodb/locks/other").await.expect_err("reserved").to_string();
    assert!(refused.contains("dynamodb/locks/other") && refused.contains("choose another"), "{refused}");
    session.close().await.expect("it is open");

    // The lease has ten minutes left: only the operator ends it.
    let forced = client.force_release(NAME, "stuck").await.expect("an operator may");
    assert_eq!((forced[0].token.0, forced.len(), forced[0].remaining.as_millis()), (first, 1, 0));
    fails(ann, "UpdateItem", heartbeat("ann", "2", "3")).await;
    fails(ann, "DeleteItem", release("ann", "2")).await;
    assert_eq!(lock(&client).await.holder_count, 0);
    ok(bob, "PutItem", acquire("bob", "9", true)).await;
    let second = token(ann).await;
    assert!(second > first);
    assert_eq!(lock(&client).await.holders[0].token.0, second);
    ok(bob, "DeleteItem", release("bob", "9")).await;
    assert_eq!(lock(&client).await.holder_count, 0);
    drop(client);
    cluster.stop().await;

    let mut story = Vec::new();
    for node in 1..=3 {
        let mut told = Vec::new();
        let files = files_in(&directory.path().join(format!("node-{node}"))).expect("files");
        verify(&files, None, |line| {
            if line.lock.as_deref() == Some(NAME) {
                told.push((line.what, line.token, line.label.as_deref().map(str::to_owned)));
            }
        })
        .expect("sound");
        // A node that stopped first may lack the last lines.
        if told.len() > story.len() {
            story = told;
        }
    }
    let label = |label: &str| Some(label.to_owned());
    let expected = [
        (AuditEvent::Granted, Some(first), label("ann")),
        (AuditEvent::ForcedRelease, None, None),
        (AuditEvent::Lost, Some(first), None),
        (AuditEvent::Granted, Some(second), label("bob")),
        (AuditEvent::Released, Some(second), None),
    ];
    assert_eq!(story, expected);
}
