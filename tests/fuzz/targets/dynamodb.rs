//! DynamoDB's API: requests, expressions, numbers, stored items, HTTP with signatures.

use std::{
    collections::BTreeMap,
    future::{pending, ready},
    io,
    net::SocketAddr,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockkeeper_dynamodb::{
    ConnectionSource, DynamoCaller, DynamoCommitted, DynamoEntry, DynamoOptions, DynamoPage, DynamoStore,
    DynamoStoreError, DynamoTxn, DynamoWrite, HttpListen, Item, Secrets, fuzzing, serve,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
    runtime::Runtime,
};
use tokio_util::sync::CancellationToken;

use super::says;

/// A store in memory, without leases.
#[derive(Clone, Debug, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    revision: u64,
    entries: BTreeMap<Vec<u8>, DynamoEntry>,
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DynamoStore for Memory {
    async fn get(&self, _: &DynamoCaller, keys: Vec<Vec<u8>>) -> Result<Vec<Option<DynamoEntry>>, DynamoStoreError> {
        let state = self.state();
        Ok(keys.iter().map(|key| state.entries.get(key).cloned()).collect())
    }

    async fn list(
        &self,
        _: &DynamoCaller,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: usize,
        backwards: bool,
    ) -> Result<DynamoPage, DynamoStoreError> {
        if to.as_ref().is_some_and(|to| *to <= from) {
            return Ok(DynamoPage::default());
        }
        let state = self.state();
        let range = state.entries.range((Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded)));
        let mut entries: Vec<_> = range.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        if backwards {
            entries.reverse();
        }
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(DynamoPage { entries, more })
    }

    async fn commit(&self, _: &DynamoCaller, txn: DynamoTxn) -> Result<DynamoCommitted, DynamoStoreError> {
        let mut state = self.state();
        let State { revision, entries } = &mut *state;
        let modified = |key| entries.get(key).map_or(0, |entry: &DynamoEntry| entry.modified);
        let succeeded = txn.expected.iter().all(|(key, expected)| modified(key) == *expected);
        if succeeded && !txn.writes.is_empty() {
            *revision += 1;
            for write in txn.writes {
                match write {
                    DynamoWrite::Delete { key } => drop(entries.remove(&key)),
                    DynamoWrite::Put { key, value, lease: _ } => {
                        let (created, version) = entries.get(&key).map_or((*revision, 0), |e| (e.created, e.version));
                        let entry = DynamoEntry {
                            created,
                            modified: *revision,
                            version: version + 1,
                            leased: false,
                            expired: false,
                            revoked: false,
                            value,
                        };
                        entries.insert(key, entry);
                    }
                }
            }
        }
        Ok(DynamoCommitted { succeeded, revision: *revision })
    }
}

thread_local! {
    static RUNTIME: Runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// Requests as clients of lock libraries sent them, and the tables for them.
const RECORDED: &str = include_str!("../../../src/dynamodb/tests/requests.jsonl");

/// The operation and the body of each recorded request.
fn recorded() -> impl Iterator<Item = (String, String)> {
    RECORDED.lines().map(|line| {
        let request: serde_json::Value = serde_json::from_str(line).expect("JSON");
        (request["operation"].as_str().expect("a name").to_owned(), request["body"].to_string())
    })
}

thread_local! {
    /// A store with the tables and some items of the recorded requests; each input finds it as it was.
    static FILLED: BTreeMap<Vec<u8>, DynamoEntry> = {
        let store = Memory::default();
        let operations = fuzzing::Operations::new(store.clone());
        for (operation, body) in recorded() {
            let makes = ["CreateTable", "PutItem", "UpdateItem"].contains(&&*operation);
            if makes {
                let _ = block_on(operations.call(&operation, body.as_bytes()));
            }
        }
        let entries = store.state().entries.clone();
        assert!(entries.len() > 10, "few items: {}", entries.len());
        entries
    };
}

fn filled() -> Memory {
    Memory(Arc::new(Mutex::new(State { revision: 1 << 20, entries: FILLED.with(Clone::clone) })))
}

/// An input is the name of an operation, a line feed, and a body.
pub(super) fn operation_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = recorded().map(|(operation, body)| format!("{operation}\n{body}").into_bytes()).collect();
    let further = [
        "Scan\n{\"TableName\":\"tab\",\"Limit\":2,\"Segment\":0,\"TotalSegments\":3}",
        "ListTables\n{\"Limit\":1,\"ExclusiveStartTableName\":\"a\"}",
        "UpdateTable\n{\"TableName\":\"tab\",\"BillingMode\":\"PROVISIONED\"}",
        "BatchGetItem\n{\"RequestItems\":{\"tab\":{\"Keys\":[{\"id\":{\"S\":\"x\"}}]}}}",
        "DeleteTable\n{\"TableName\":\"tab\"}",
    ];
    seeds.extend(further.map(|request| request.as_bytes().to_vec()));
    seeds
}

pub(super) fn operation(input: &[u8]) {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (Ok(operation), body) = (str::from_utf8(&input[..at]), input.get(at + 1..).unwrap_or_default()) else { return };
    let answer = block_on(fuzzing::Operations::new(filled()).call(operation, body));
    let (is_error, body) = answer.map_or_else(|body| (true, body), |body| (false, body));
    let body: serde_json::Value = serde_json::from_slice(&body).expect("answers are JSON");
    if is_error {
        says(&body["__type"].as_str().expect("an error has a type"));
        says(&body["message"].as_str().expect("an error has a message"));
    }
}

/// The first byte says which grammar; the rest is the text.
pub(super) fn expression_seeds() -> Vec<Vec<u8>> {
    [
        "0attribute_not_exists(#a) OR (b.c[2] BETWEEN :a AND :b AND NOT contains(d, :a))",
        "0size(#a) >= :b AND begins_with(#b, :a) OR #a IN (:a, :b) AND attribute_type(#a, :a)",
        "1#a, b.c[0].d, e",
        "2SET #a = if_not_exists(#a, :a) + :b, c[1] = list_append(c, :a) REMOVE d.e ADD f :a DELETE g :b",
        "0((((((((#a <> :a))))))))",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(super) fn expression(input: &[u8]) {
    let Some((kind, text)) = input.split_first() else { return };
    let Ok(text) = str::from_utf8(text) else { return };
    let _ = fuzzing::expression(*kind, text).map_err(|error| says(&error));
}

pub(super) fn item_seeds() -> Vec<Vec<u8>> {
    // A JSON text.
    let json = concat!(
        r#"{"n":{"N":"-12.50"},"s":{"S":"\u00e9"},"b":{"B":"AP8="},"z":{"NULL":true},"f":{"BOOL":false},"l":{"L":[{"N":"1"},{"M":{"k":"#,
        r#"{"SS":["a","b"]}}}]},"ns":{"NS":["1","2e3"]},"bs":{"BS":["AA==","AQ=="]}}"#
    );
    // And what lies in the store.
    let stored = FILLED.with(|entries| entries.values().map(|entry| entry.value.clone()).collect::<Vec<_>>());
    [vec![json.as_bytes().to_vec()], stored].concat()
}

/// An item as JSON, and as it lies in the store.
pub(super) fn item(bytes: &[u8]) {
    if let Some(encoded) = fuzzing::record(bytes) {
        assert!(encoded.len() <= bytes.len() + 64, "{} bytes became {}", bytes.len(), encoded.len());
    }
    match serde_json::from_slice::<Item>(bytes) {
        Ok(item) => {
            let text = serde_json::to_vec(&item).expect("an item has a text");
            assert_eq!(serde_json::from_slice::<Item>(&text).ok(), Some(item));
        }
        Err(error) => says(&error),
    }
}

pub(super) fn number_seeds() -> Vec<Vec<u8>> {
    ["0", "-00012.3400", "123E-5", "9.9999999999999999999999999999999999999E+125", "1E-130", "0e99999999999999999999"]
        .map(|text| text.as_bytes().to_vec())
        .into()
}

pub(super) fn number(bytes: &[u8]) {
    super::texts::number(bytes);
}

const HTTP: &str =
    "POST / HTTP/1.1\r\nhost: localhost\r\nx-amz-date: 19700101T000000Z\r\nx-amz-target: DynamoDB_20120810.";

pub(super) fn http_seeds() -> Vec<Vec<u8>> {
    let authorization = "authorization: AWS4-HMAC-SHA256 Credential=ann/19700101/us-east-1/dynamodb/aws4_request, \
                         SignedHeaders=host;x-amz-date;x-amz-target, Signature=00\r\n";
    let body = "{\"TableName\":\"tab\",\"Key\":{\"id\":{\"S\":\"x\"}}}";
    [
        "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        format!("{HTTP}GetItem\r\n{authorization}content-length: {}\r\n\r\n{body}", body.len()),
        format!("{HTTP}ListTables\r\n{authorization}transfer-encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"),
        format!("{HTTP}ListTables\r\n{authorization}content-length: 18446744073709551615\r\n\r\n{{}}"),
        format!("{HTTP}ListTables\r\namz-sdk-invocation-id: 7\r\ncontent-length: 2\r\n\r\n{{}}"),
    ]
    .map(String::into_bytes)
    .into()
}

/// Gives a request of one part the length of its body, which a mutation of the body would make wrong.
pub(super) fn repair_http(input: &mut Vec<u8>) {
    const FIELD: &[u8] = b"content-length: ";
    let find = |input: &[u8], what: &[u8]| input.windows(what.len()).position(|window| window == what);
    let (Some(field), Some(end)) = (find(input, FIELD), find(input, b"\r\n\r\n")) else { return };
    let from = field + FIELD.len();
    let digits = input[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A length that is far too large stays so.
    if from < end && digits < 10 {
        let length = (input.len() - end - 4).to_string();
        input.splice(from..from + digits, length.into_bytes());
    }
}

/// One connection, and then none.
struct One(Option<DuplexStream>);

impl HttpListen for One {}

impl ConnectionSource for One {
    type Stream = DuplexStream;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<DuplexStream>> + Send + 'static, SocketAddr)> {
        match self.0.take() {
            Some(stream) => Ok((ready(Ok(stream)), ([127, 0, 0, 1], 4000).into())),
            None => pending().await,
        }
    }
}

/// The bytes of a connection, with and without secrets; each answer is HTTP.
pub(super) fn http(input: &[u8]) {
    let store = filled();
    for secrets in [None, Some(Secrets::new([("ann".to_owned(), "secret".to_owned())]))] {
        let is_signed = secrets.is_some();
        let answer = block_on(answer(input, store.clone(), DynamoOptions { secrets, ..DynamoOptions::new(|| 0, 7) }));
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "{}", answer.escape_ascii());
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("secret"), "a secret in an answer: {text}");
        // The signature of the seeds is wrong, and no mutation finds the right one.
        assert!(!is_signed || !text.contains("TableNames"), "served without a signature: {text}");
    }
}

async fn answer(input: &[u8], store: Memory, options: DynamoOptions) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(1 << 20);
    let mut answer = Vec::new();
    let asking = async {
        // The server may have hung up.
        let _ = client.write_all(input).await;
        let _ = client.shutdown().await;
        let _ = client.read_to_end(&mut answer).await;
    };
    tokio::select! {
        () = serve(One(Some(server)), store, options, CancellationToken::new()) => {}
        () = asking => {}
    }
    answer
}
