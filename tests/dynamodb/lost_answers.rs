//! Answers that are lost for longer than a lease, and the same request again, as an SDK sends it by itself.
//!
//! The request takes effect, its answer does not come, and when the SDK gives up on the connection the lease is over. Whoever is told then
//! that he has the lock must have it: nobody else may have been told so. botocore waits for 60 s, and leases of 30 s are usual.

use std::{net::TcpListener, time::Duration};

use lockkeeper::{
    chaos::links::{Direction, Link},
    local::{ClusterOptions, LocalCluster},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep},
};

use super::{
    LONG,
    operators::{acquire, create_table, fails, heartbeat, ok},
};

const LEASE: Duration = Duration::from_secs(3);
/// The identity of a caller, without which no answer is kept. Signatures are not checked here.
const AUTHORIZATION: &str =
    "AWS4-HMAC-SHA256 Credential=AKIDANN/20260101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0";

/// What of ann's loses its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Write {
    /// A put of a lock that is not there.
    Put,
    /// A put of a lock that reads as released.
    PutOfReleased,
    Heartbeat,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    write: Write,
    /// Whether the answer has the values of before.
    with_old: bool,
    /// Whether another client has the lock when the request comes again.
    is_taken: bool,
    /// Whether it comes to another node.
    elsewhere: bool,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let writes = [Write::Put, Write::PutOfReleased, Write::Heartbeat];
        let of = |write, bits: u8| {
            let [with_old, is_taken, elsewhere] = [1, 2, 4].map(|bit| bits & bit != 0);
            Self { write, with_old, is_taken, elsewhere }
        };
        writes.into_iter().flat_map(move |write| (0..8).map(move |bits| of(write, bits)))
    }

    fn key(self) -> String {
        format!("{self:?}")
    }

    /// The request of a client about the lock of this case.
    fn of_lock(self, mut request: Value, lease: Duration) -> Value {
        let key = json!({"S": self.key()});
        let lease_ms = json!({"S": lease.as_millis().to_string()});
        if let Some(item) = request.get_mut("Item") {
            item["key"] = key;
            item["leaseDuration"] = lease_ms;
        } else {
            request["Key"]["key"] = key;
            request["ExpressionAttributeValues"][":ld"] = lease_ms;
        }
        request
    }

    async fn item(self, node: &str) -> Value {
        let get = json!({"TableName": "locks", "Key": {"key": {"S": self.key()}}, "ConsistentRead": true});
        ok(node, "GetItem", get).await["Item"].clone()
    }

    async fn until(self, node: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + LONG;
        loop {
            let item = self.item(node).await;
            if is_so(&item) {
                return item;
            }
            assert!(Instant::now() < deadline, "{self:?}: it is never {what}: {item}");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_released(item: &Value) -> bool {
    item["isReleased"]["S"] == "1"
}

fn owner(item: &Value) -> &str {
    item["ownerName"]["S"].as_str().unwrap_or_default()
}

/// One try of a request. `None`: the connection broke before the answer.
async fn try_once(address: &str, operation: &str, invocation: &str, body: &Value) -> Option<(u16, Value)> {
    let body = body.to_string();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Target: DynamoDB_20120810.{operation}\r\nAuthorization: {AUTHORIZATION}\r\n\
         amz-sdk-invocation-id: {invocation}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).unwrap_or(Value::Null)))
}

fn address(endpoint: &str) -> &str {
    endpoint.strip_prefix("http://").expect("no TLS").trim_end_matches('/')
}

/// Whether the request that came again was answered with success.
async fn play(case: Case, near: &str, far: &str) -> bool {
    let of_lock = |request: Value| case.of_lock(request, LEASE);
    match case.write {
        Write::Put => {}
        Write::PutOfReleased => {
            ok(far, "PutItem", of_lock(acquire("carl", "7", false))).await;
            case.until(far, "over", is_released).await;
        }
        Write::Heartbeat => _ = ok(far, "PutItem", of_lock(acquire("ann", "1", false))).await,
    }
    let (operation, mut request) = match case.write {
        Write::Put => ("PutItem", of_lock(acquire("ann", "2", false))),
        Write::PutOfReleased => ("PutItem", of_lock(acquire("ann", "2", true))),
        Write::Heartbeat => ("UpdateItem", of_lock(heartbeat("ann", "1", "2"))),
    };
    if case.with_old {
        request["ReturnValues"] = json!("ALL_OLD");
    }

    // The request takes effect, and its answer is lost for longer than the lease.
    let target = address(near).parse().expect("an address");
    let link = Link::new(TcpListener::bind("127.0.0.1:0").expect("a port"), target, 1).expect("a link");
    let by_link = link.address().to_string();
    let invocation = case.key();
    link.set_backward(Direction::Held);
    let lost = async {
        let version = &request["Item"]["recordVersionNumber"]["S"];
        let version = version.as_str().or(request["ExpressionAttributeValues"][":newRvn"]["S"].as_str());
        let written = |item: &Value| item["recordVersionNumber"]["S"].as_str() == version;
        let first = case.until(far, "written", written).await;
        case.until(far, "over", is_released).await;
        link.reset();
        first
    };
    let (answer, first) = tokio::join!(try_once(&by_link, operation, &invocation, &request), lost);
    // Not before the connection has broken: what is held would pass otherwise.
    link.heal();
    assert_eq!(answer, None, "{case:?}: it was to be lost");

    let of_bob = case.of_lock(acquire("bob", "9", true), Duration::from_secs(600));
    if case.is_taken {
        ok(far, "PutItem", of_bob.clone()).await;
    }
    let sent = Instant::now();
    let again = if case.elsewhere { address(far) } else { &by_link };
    let (status, answer) = try_once(again, operation, &invocation, &request).await.expect("an answer");
    let item = case.item(far).await;
    let is_granted = status == 200;
    if !is_granted {
        let kind = answer["__type"].as_str().unwrap_or_default();
        assert!(kind.ends_with("#ConditionalCheckFailedException"), "{case:?}: {status} {answer}");
    }
    if case.is_taken {
        assert!(!is_granted && owner(&item) == "bob", "{case:?}: ann was told that she has it: {answer}; {item}");
        return false;
    }
    if is_granted && sent.elapsed() < LEASE {
        assert!(owner(&item) == "ann" && !is_released(&item), "{case:?}: she was told that she has it: {item}");
        assert_ne!(item["fencingToken"], first["fencingToken"], "{case:?}: another tenure");
        // Judged by what the answer says: a lease that is over by now is no failure.
        let (status, _) = super::operators::call(far, "PutItem", &of_bob).await;
        assert!(status == 400 || sent.elapsed() >= LEASE, "{case:?}: both have it");
    } else if !is_granted {
        ok(far, "PutItem", of_bob).await;
    }
    fails(near, "UpdateItem", case.of_lock(heartbeat("ann", "8", "3"), LEASE)).await;
    is_granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_told_of_a_lock_after_its_lease_has_it() {
    let options =
        ClusterOptions { dynamodb: true, timeout: LONG, ..ClusterOptions::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let endpoints = cluster.dynamodb_endpoints();
    let [near, far] = [&*endpoints[0], &*endpoints[1]];
    create_table(near).await;
    let plays = Case::all().map(async |case| (case, play(case, near, far).await));
    let granted: Vec<_> = futures::future::join_all(plays).await.into_iter().filter(|(_, granted)| *granted).collect();
    // Only what reads as released can be had again by the same words.
    assert_eq!(granted.len(), 4, "{granted:?}");
    assert!(granted.iter().all(|(case, _)| case.write == Write::PutOfReleased), "{granted:?}");
    cluster.stop().await;
}
