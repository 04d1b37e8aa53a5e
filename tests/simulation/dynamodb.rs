//! DynamoDB's clients in a simulated run: contenders for locks by the recipe of the Java lock client, at the nodes' real port for it.
//!
//! Who finds no item, or one that reads as released, puts its own under that condition; who sees one version for a whole lease takes it
//! over. The version changes with each heartbeat, and a release deletes the item or marks it. A request without an answer is sent again, as
//! SDKs do, under the same id.

use std::{collections::BTreeMap, io, time::Duration};

use hmac::{Hmac, Mac as _};
use jiff::Timestamp;
use rand::{Rng as _, rngs::StdRng};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::sleep,
};

use crate::{
    contenders::{Attempt, Contender, HeldLock, TTL, in_time},
    network,
    protocols::{ContendedProtocol, ContenderParts},
    system,
};

const LOCKS: u32 = 2;
/// How often a request is sent.
const TRIES: u32 = 3;
/// The access key of the contenders. All that begins with `dynamodb/` is theirs.
pub(crate) const CONTENDER: AccessKey = AccessKey { id: "contender", secret: "contender-secret" };
/// All names of attributes that expressions use.
const NAMES: [(&str, &str); 5] = [
    ("#pk", "key"),
    ("#rvn", "recordVersionNumber"),
    ("#on", "ownerName"),
    ("#ld", "leaseDuration"),
    ("#ir", "isReleased"),
];

/// What a write was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Written {
    Yes,
    /// Its condition did not hold.
    No,
}

/// Contends until the run is over.
pub(crate) async fn contend(parts: ContenderParts) {
    let ContenderParts { seats, mut contender, random, finish } = parts;
    let mut client = LockClient { seats, random, seen: BTreeMap::new() };
    let mut has_table = false;
    while !finish.is_cancelled() {
        if has_table {
            client.take_turn(&mut contender).await;
        } else {
            has_table = client.create_table().await;
        }
        let pause = client.random.random_range(10..250);
        sleep(Duration::from_millis(pause)).await;
    }
}

struct LockClient {
    seats: u64,
    random: StdRng,
    /// The version of each lock that it saw last, and since when.
    seen: BTreeMap<String, (String, Duration)>,
}

impl LockClient {
    /// Returns whether the table is there.
    async fn create_table(&mut self) -> bool {
        let created = self.call("CreateTable", &table("locks")).await;
        created.is_some_and(|(status, answer)| status == 200 || kind(&answer).ends_with("ResourceInUseException"))
    }

    /// Holds a lock once, or finds that another one does. `None`: some answer did not come.
    async fn take_turn(&mut self, contender: &mut Contender) -> Option<()> {
        let key = format!("contended-{}", self.random.random_range(0..LOCKS));
        let Some(condition) = self.condition(&key).await? else { return Some(()) };
        let attempt = contender.ask(&format!("dynamodb/locks/{key}")).recorded();
        let owner = attempt.who().to_owned();
        let mut version = self.version();
        let Some(mut held) = self.acquire(&key, &owner, &version, condition, attempt).await? else { return Some(()) };

        for _ in 0..self.random.random_range(0..4) {
            sleep(contender.pause(&mut self.random)).await;
            let sent = system::elapsed();
            let next = self.version();
            let written = self.write("UpdateItem", &heartbeat(&key, &owner, &version, &next)).await?;
            if written == Written::No {
                held.lost();
                return Some(());
            }
            held.renewed(sent);
            version = next;
        }

        // Some holders fall silent: their locks pass on when their leases end.
        if self.random.random_range(0..100) < 70 {
            sleep(contender.pause(&mut self.random)).await;
            let releasing = held.release();
            let request = release(&key, &owner, &version);
            let written = if self.random.random() {
                self.write("DeleteItem", &request).await?
            } else {
                let mut marked = request;
                marked["UpdateExpression"] = json!("SET #ir = :ir");
                marked["ExpressionAttributeNames"]["#ir"] = json!("isReleased");
                marked["ExpressionAttributeValues"][":ir"] = json!({"S": "1"});
                self.write("UpdateItem", &marked).await?
            };
            // Otherwise it may have been released by a request whose answer was lost, and belong to another by now.
            if written == Written::Yes {
                releasing.done();
            }
        }
        Some(())
    }

    /// The condition under which it may put its lock, if it may.
    async fn condition(&mut self, key: &str) -> Option<Option<(String, Value)>> {
        let item = self.item(key).await?;
        if item.is_null() {
            return Some(Some(("attribute_not_exists(#pk)".to_owned(), json!({}))));
        }
        if item["isReleased"]["S"] == "1" {
            let released = "attribute_exists(#pk) AND #ir = :ir".to_owned();
            return Some(Some((released, json!({":ir": {"S": "1"}}))));
        }
        let version = item["recordVersionNumber"]["S"].as_str()?.to_owned();
        let now = system::elapsed();
        let (seen, since) = self.seen.entry(key.to_owned()).or_insert_with(|| (version.clone(), now));
        if *seen != version {
            (*seen, *since) = (version, now);
            return Some(None);
        }
        // Its holder has let a whole lease pass.
        let is_over = now > *since + TTL + Duration::from_millis(100);
        let same = "attribute_exists(#pk) AND #rvn = :rvn".to_owned();
        Some(is_over.then(|| (same, json!({":rvn": {"S": version}}))))
    }

    async fn acquire(
        &mut self,
        key: &str,
        owner: &str,
        version: &str,
        (condition, values): (String, Value),
        attempt: Attempt,
    ) -> Option<Option<HeldLock>> {
        let mut put = json!({
            "TableName": "locks",
            "Item": {
                "key": {"S": key}, "ownerName": {"S": owner}, "recordVersionNumber": {"S": version},
                "leaseDuration": {"S": TTL.as_millis().to_string()},
            },
            "ExpressionAttributeNames": names(&condition),
            "ConditionExpression": condition,
        });
        if values.as_object().is_some_and(|values| !values.is_empty()) {
            put["ExpressionAttributeValues"] = values;
        }
        if self.write("PutItem", &put).await? == Written::No {
            return Some(None);
        }
        // The token, as long as the lock is its own.
        let item = self.item(key).await?;
        let token = item["fencingToken"]["N"].as_str().and_then(|token| token.parse().ok());
        let is_own = item["recordVersionNumber"]["S"] == version;
        Some(Some(attempt.granted(Some(token.filter(|_| is_own)?))))
    }

    async fn item(&mut self, key: &str) -> Option<Value> {
        let get = json!({"TableName": "locks", "Key": {"key": {"S": key}}, "ConsistentRead": true});
        let (status, answer) = self.call("GetItem", &get).await?;
        (status == 200).then(|| answer["Item"].clone())
    }

    async fn write(&mut self, operation: &str, request: &Value) -> Option<Written> {
        let (status, answer) = self.call(operation, request).await?;
        if status == 200 {
            return Some(Written::Yes);
        }
        kind(&answer).ends_with("ConditionalCheckFailedException").then_some(Written::No)
    }

    /// A version as the client writes it.
    fn version(&mut self) -> String {
        let bits: u64 = self.random.random();
        format!("00000000-0000-4000-8000-{:012x}", bits >> 16)
    }

    /// Sends a request, at most some times, to one node after the other.
    async fn call(&mut self, operation: &str, body: &Value) -> Option<(u16, Value)> {
        let id = self.version();
        for _ in 0..TRIES {
            let seat = self.random.random_range(1..=self.seats);
            let answer = in_time(async { exchange(seat, CONTENDER, operation, body, &id).await.ok() }).await;
            // Errors of the server's are tried again, too.
            if let Some((status, answer)) = answer.filter(|(status, _)| *status < 500) {
                return Some((status, answer));
            }
        }
        None
    }
}

/// An access key of a client.
#[derive(Clone, Copy)]
pub(crate) struct AccessKey<'a> {
    pub(crate) id: &'a str,
    pub(crate) secret: &'a str,
}

impl AccessKey<'_> {
    /// Signs a request as SDKs do, by AWS Signature Version 4.
    fn authorization(self, time: &str, target: &str, body: &str) -> String {
        let scope = format!("{}/us-east-1/dynamodb/aws4_request", &time[.."YYYYMMDD".len()]);
        let headers = format!("host:{HOST}\nx-amz-date:{time}\nx-amz-target:{target}\n");
        let canonical = format!("POST\n/\n\n{headers}\n{SIGNED_HEADERS}\n{}", hex(&Sha256::digest(body)));
        let signed = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
        let first = format!("AWS4{}", self.secret).into_bytes();
        let key = scope.split('/').fold(first, |key, part| hmac(&key, part));
        let signature = hex(&hmac(&key, &signed));
        let id = self.id;
        format!("{ALGORITHM} Credential={id}/{scope}, SignedHeaders={SIGNED_HEADERS}, Signature={signature}")
    }
}

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const HOST: &str = "dynamodb";
const SIGNED_HEADERS: &str = "host;x-amz-date;x-amz-target";

fn hmac(key: &[u8], message: &str) -> Vec<u8> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length is one");
    hmac.update(message.as_bytes());
    hmac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One request over a connection of its own. Returns the status and the answer.
pub(crate) async fn exchange(
    seat: u64,
    access_key: AccessKey<'_>,
    operation: &str,
    body: &Value,
    id: &str,
) -> io::Result<(u16, Value)> {
    let body = body.to_string();
    let wall_ms = i64::try_from(system::wall_ms()).expect("no run takes ages");
    let time = Timestamp::from_millisecond(wall_ms).expect("a time of this century").strftime("%Y%m%dT%H%M%SZ");
    let time = time.to_string();
    let target = format!("DynamoDB_20120810.{operation}");
    let authorization = access_key.authorization(&time, &target, &body);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/x-amz-json-1.0\r\n\
         X-Amz-Date: {time}\r\nX-Amz-Target: {target}\r\nAuthorization: {authorization}\r\namz-sdk-invocation-id: {id}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = network::open(&ContendedProtocol::DynamoDb.seat_address(seat)).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(cut)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(cut)?;
    Ok((status, serde_json::from_str(body)?))
}

/// A request that makes a table without a sort key.
pub(crate) fn table(name: &str) -> Value {
    json!({
        "TableName": name, "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST",
    })
}

/// The type of an error.
pub(crate) fn kind(answer: &Value) -> &str {
    answer["__type"].as_str().unwrap_or_default()
}

/// The names that an expression uses.
fn names(expression: &str) -> Value {
    let used = NAMES.iter().filter(|(short, _)| expression.contains(short));
    used.map(|(short, name)| ((*short).to_owned(), json!(name))).collect::<serde_json::Map<_, _>>().into()
}

const OWN: &str = "attribute_exists(#pk) AND #rvn = :rvn AND #on = :on";

fn heartbeat(key: &str, owner: &str, from: &str, to: &str) -> Value {
    let update = "SET #ld = :ld, #rvn = :next";
    json!({
        "TableName": "locks", "Key": {"key": {"S": key}}, "UpdateExpression": update, "ConditionExpression": OWN,
        "ExpressionAttributeNames": names(&format!("{OWN} {update}")),
        "ExpressionAttributeValues": {
            ":ld": {"S": TTL.as_millis().to_string()}, ":rvn": {"S": from}, ":next": {"S": to}, ":on": {"S": owner},
        },
    })
}

fn release(key: &str, owner: &str, version: &str) -> Value {
    json!({
        "TableName": "locks", "Key": {"key": {"S": key}}, "ConditionExpression": OWN, "ExpressionAttributeNames": names(OWN),
        "ExpressionAttributeValues": {":rvn": {"S": version}, ":on": {"S": owner}},
    })
}
