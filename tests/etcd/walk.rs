//! Random operations on keys and leases, and watches, on a cluster and on etcd: both must give the same answers.
//!
//! Their revisions differ, so each is replaced by its place among those that the walk has seen. What else may differ, each with its reason:
//!
//! * entries that are equal in what they are sorted by: etcd's order of them is arbitrary. So the values that were sorted by are compared;
//! * the seconds that a lease has left;
//! * which one of two mistakes in a transaction is named;
//! * the order of leases, and of the keys of a lease; and that of the events of one revision.
//!
//! Not asked for, since the answers are known to differ (see `src/etcd/README.md`): an order without a direction together with a limit,
//! an id of a lease that was used before, a transaction that deletes all keys from one on and puts one of them, a watch from the compacted
//! revision itself.

use std::{collections::BTreeMap, env, net::TcpListener, path::Path, process::Stdio};

use futures::stream::{self, StreamExt as _};
use lockkeeper_etcd::proto::{
    etcdserverpb::{
        CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest,
        LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, ResponseHeader, ResponseOp,
        TxnRequest, WatchCreateRequest, WatchRequest, compare::TargetUnion, kv_client::KvClient,
        lease_client::LeaseClient, range_request::SortTarget, request_op::Request, response_op::Response,
        watch_client::WatchClient, watch_create_request::FilterType, watch_request::RequestUnion,
    },
    mvccpb::{Event, KeyValue},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use tonic::{Status, transport::Channel};

use super::{LONG, steady_cluster};
use crate::unmodified::debian;

/// Operations of a walk.
const OPERATIONS: &str = "LOCKKEEPER_ETCD_OPERATIONS";
const OPERATIONS_DEFAULT: u64 = 500;
const SEED: &str = "LOCKKEEPER_ETCD_SEED";
/// What is only found when a transaction runs: of two of them, either may be named.
const MISTAKES: [&str; 4] = [
    "etcdserver: key not found",
    "etcdserver: requested lease not found",
    "etcdserver: mvcc: required revision has been compacted",
    "etcdserver: mvcc: required revision is a future revision",
];
const KEYS: [&str; 8] = ["a", "a/1", "a/2", "a/3", "b", "b/1", "c", "\0"];
const ENDS: [&[u8]; 5] = [b"", b"b", b"a0", b"\0", b"a/2"];

/// An operation, with the places of revisions instead of revisions.
#[derive(Clone, Debug)]
enum Operation {
    Range(RangeRequest),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Grant(i64),
    Revoke(i64),
    TimeToLive(i64),
    KeepAlive(i64),
    Leases,
    Compact(i64),
    /// Puts the key, and watches from the past up to that.
    Watch(WatchCreateRequest),
}

/// One of the two.
struct Side {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    endpoint: String,
    /// Revisions that were seen, by their place.
    revisions: Vec<i64>,
}

impl Side {
    async fn connect(endpoint: &str) -> Self {
        let endpoint = format!("http://{endpoint}");
        let channel = Channel::from_shared(endpoint.clone()).expect("a URL");
        let deadline = Instant::now() + LONG;
        let channel = loop {
            match channel.connect().await {
                Ok(channel) => break channel,
                Err(error) => assert!(Instant::now() < deadline, "{endpoint}: {error}"),
            }
            sleep(std::time::Duration::from_millis(50)).await;
        };
        let kv = KvClient::new(channel.clone());
        let lease = LeaseClient::new(channel);
        Self { kv, lease, endpoint, revisions: Vec::new() }
    }

    /// The present revision.
    async fn revision(&mut self) -> i64 {
        let all = RangeRequest { key: b"a".into(), count_only: true, ..Default::default() };
        header(self.kv.range(all).await.expect("an answer").into_inner().header)
    }

    /// A revision for the place that an operation names: 0 stays.
    fn at(&self, place: i64) -> i64 {
        match usize::try_from(place) {
            Ok(place) if place > 0 => self.revisions.get(place - 1).copied().unwrap_or(i64::MAX / 2),
            _ => place,
        }
    }

    /// The place of a revision that an answer shows: of the first one that was seen that is not below it.
    fn place(&self, revision: i64) -> i64 {
        if revision == 0 { 0 } else { self.revisions.partition_point(|seen| *seen < revision) as i64 + 1 }
    }

    fn range(&self, request: &RangeRequest) -> RangeRequest {
        RangeRequest {
            revision: self.at(request.revision),
            min_mod_revision: self.at(request.min_mod_revision),
            max_mod_revision: self.at(request.max_mod_revision),
            min_create_revision: self.at(request.min_create_revision),
            max_create_revision: self.at(request.max_create_revision),
            ..request.clone()
        }
    }

    fn txn(&self, request: &TxnRequest) -> TxnRequest {
        let compare = |compare: &Compare| Compare {
            target_union: match &compare.target_union {
                Some(TargetUnion::CreateRevision(place)) => Some(TargetUnion::CreateRevision(self.at(*place))),
                Some(TargetUnion::ModRevision(place)) => Some(TargetUnion::ModRevision(self.at(*place))),
                other => other.clone(),
            },
            ..compare.clone()
        };
        let operation = |operation: &RequestOp| RequestOp {
            request: operation.request.as_ref().map(|request| match request {
                Request::RequestRange(range) => Request::RequestRange(self.range(range)),
                Request::RequestTxn(txn) => Request::RequestTxn(self.txn(txn)),
                Request::RequestPut(_) | Request::RequestDeleteRange(_) => request.clone(),
            }),
        };
        TxnRequest {
            compare: request.compare.iter().map(compare).collect(),
            success: request.success.iter().map(operation).collect(),
            failure: request.failure.iter().map(operation).collect(),
        }
    }

    /// Runs an operation. Its answer as text, comparable with that of the other side.
    async fn run(&mut self, operation: &Operation) -> String {
        let answer = self.answer(operation).await;
        let now = self.revision().await;
        if self.revisions.last() != Some(&now) {
            self.revisions.push(now);
        }
        match answer {
            Ok(Answer::Operations(of_answer, responses)) => {
                let mut shown = String::new();
                let mut requests = Vec::new();
                flatten(operation, &mut requests);
                for response in &responses {
                    self.show(response, &mut requests.iter(), &mut shown);
                }
                format!("{shown} at {}", self.place(header(of_answer)))
            }
            Ok(Answer::Text(text)) => text,
            Ok(Answer::Events(events)) => self.events(events),
            Err(status) => format!("{} {}", status.code() as i32, status.message()),
        }
    }

    async fn answer(&mut self, operation: &Operation) -> Result<Answer, Status> {
        let one = |header, response| Answer::Operations(header, vec![ResponseOp { response: Some(response) }]);
        Ok(match operation {
            Operation::Range(request) => {
                let answer = self.kv.range(self.range(request)).await?.into_inner();
                one(answer.header, Response::ResponseRange(answer))
            }
            Operation::Put(request) => {
                let answer = self.kv.put(request.clone()).await?.into_inner();
                one(answer.header, Response::ResponsePut(answer))
            }
            Operation::Delete(request) => {
                let answer = self.kv.delete_range(request.clone()).await?.into_inner();
                one(answer.header, Response::ResponseDeleteRange(answer))
            }
            Operation::Txn(request) => {
                let answer = self.kv.txn(self.txn(request)).await?.into_inner();
                one(answer.header, Response::ResponseTxn(answer))
            }
            Operation::Grant(id) => {
                let answer = self.lease.lease_grant(LeaseGrantRequest { ttl: 600, id: *id }).await?.into_inner();
                Answer::Text(format!("{} for {} s {}", answer.id, answer.ttl, answer.error))
            }
            Operation::Revoke(id) => {
                self.lease.lease_revoke(LeaseRevokeRequest { id: *id }).await?;
                Answer::Text("revoked".to_owned())
            }
            Operation::TimeToLive(id) => {
                let request = LeaseTimeToLiveRequest { id: *id, keys: true };
                let mut answer = self.lease.lease_time_to_live(request).await?.into_inner();
                answer.keys.sort();
                let is_there = answer.ttl > 0;
                Answer::Text(format!("{} {is_there} of {} {:?}", answer.id, answer.granted_ttl, answer.keys))
            }
            Operation::KeepAlive(id) => {
                let asked = tokio_stream::iter([LeaseKeepAliveRequest { id: *id }]);
                let mut answers = self.lease.lease_keep_alive(asked).await?.into_inner();
                let answer = answers.message().await?.expect("an answer");
                Answer::Text(format!("{} {}", answer.id, answer.ttl))
            }
            Operation::Leases => {
                let answer = self.lease.lease_leases(LeaseLeasesRequest {}).await?.into_inner();
                let mut ids: Vec<i64> = answer.leases.iter().map(|lease| lease.id).collect();
                ids.sort_unstable();
                Answer::Text(format!("{ids:?}"))
            }
            Operation::Compact(place) => {
                let revision = self.at(*place);
                self.kv.compact(CompactionRequest { revision, physical: false }).await?;
                Answer::Text("compacted".to_owned())
            }
            Operation::Watch(create) => {
                let put = PutRequest { key: create.key.clone(), value: b"w".into(), ..Default::default() };
                let last = header(self.kv.put(put).await?.into_inner().header);
                let create = WatchCreateRequest { start_revision: self.at(create.start_revision), ..create.clone() };
                timeout(LONG, self.watched(create, last)).await.expect("in time")?
            }
        })
    }

    /// The events of a watch, up to this revision; or that it is compacted.
    async fn watched(&self, create: WatchCreateRequest, last: i64) -> Result<Answer, Status> {
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = stream::iter([request]).chain(stream::pending());
        // A connection of its own: etcd sends an empty frame for each watch that ends, and this client takes no more than 100 of them on
        // one.
        let mut client = WatchClient::connect(self.endpoint.clone()).await.expect("it listens");
        let mut answers = client.watch(requests).await?.into_inner();
        let mut events = Vec::<Event>::new();
        while events.last().and_then(|event| event.kv.as_ref()).is_none_or(|kv| kv.mod_revision < last) {
            let answer = answers.message().await?.expect("it goes on");
            if answer.canceled {
                return Ok(Answer::Text(format!("compacted {} {}", answer.compact_revision > 0, answer.cancel_reason)));
            }
            events.extend(answer.events);
        }
        Ok(Answer::Events(events))
    }

    fn events(&self, mut events: Vec<Event>) -> String {
        let kv = |event: &Event| event.kv.clone().expect("it has a key");
        events.sort_by_key(|event| (kv(event).mod_revision, kv(event).key));
        let shown = events.iter().map(|event| {
            let before = event.prev_kv.as_ref().map(|kv| self.kv(kv, None));
            format!("{:?} {} {before:?}", event.r#type(), self.kv(&kv(event), None))
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    fn show(&self, response: &ResponseOp, requests: &mut std::slice::Iter<'_, Request>, shown: &mut String) {
        match response.response.as_ref().expect("a response") {
            Response::ResponseRange(answer) => {
                let is_sorted = requests.clone().find_map(|request| match request {
                    Request::RequestRange(range) => {
                        Some(range.sort_target()).filter(|target| *target != SortTarget::Key)
                    }
                    Request::RequestPut(_) | Request::RequestDeleteRange(_) | Request::RequestTxn(_) => None,
                });
                let kvs: Vec<String> = answer.kvs.iter().map(|kv| self.kv(kv, is_sorted)).collect();
                *shown += &format!("range {kvs:?} of {} more {}; ", answer.count, answer.more);
            }
            Response::ResponsePut(answer) => {
                let before = answer.prev_kv.as_ref().map(|kv| self.kv(kv, None));
                *shown += &format!("put {before:?}; ");
            }
            Response::ResponseDeleteRange(answer) => {
                let before: Vec<String> = answer.prev_kvs.iter().map(|kv| self.kv(kv, None)).collect();
                *shown += &format!("deleted {} {before:?}; ", answer.deleted);
            }
            Response::ResponseTxn(answer) => {
                *shown += &format!("txn {} [", answer.succeeded);
                for response in &answer.responses {
                    self.show(response, requests, shown);
                }
                *shown += "] ";
            }
        }
    }

    /// A key and what it holds; of one that was sorted, the value that it was sorted by.
    fn kv(&self, kv: &KeyValue, sorted_by: Option<SortTarget>) -> String {
        let created = self.place(kv.create_revision);
        let modified = self.place(kv.mod_revision);
        match sorted_by {
            Some(SortTarget::Version) => kv.version.to_string(),
            Some(SortTarget::Create) => created.to_string(),
            Some(SortTarget::Mod) => modified.to_string(),
            Some(SortTarget::Value) => format!("{:?}", kv.value),
            Some(SortTarget::Key) | None => {
                format!("{:?} {created} {modified} v{} {:?} {}", kv.key, kv.version, kv.value, kv.lease)
            }
        }
    }
}

enum Answer {
    Operations(Option<ResponseHeader>, Vec<ResponseOp>),
    Text(String),
    Events(Vec<Event>),
}

fn header(header: Option<ResponseHeader>) -> i64 {
    header.expect("a header").revision
}

/// The reads of an operation: if one of them is sorted, all are compared by that.
fn flatten(operation: &Operation, requests: &mut Vec<Request>) {
    match operation {
        Operation::Range(range) => requests.push(Request::RequestRange(range.clone())),
        Operation::Txn(txn) => flatten_txn(txn, requests),
        Operation::Put(_) | Operation::Delete(_) | Operation::Grant(_) | Operation::Revoke(_) => {}
        Operation::TimeToLive(_) | Operation::KeepAlive(_) | Operation::Leases => {}
        Operation::Compact(_) | Operation::Watch(_) => {}
    }
}

fn flatten_txn(txn: &TxnRequest, requests: &mut Vec<Request>) {
    for operation in txn.success.iter().chain(&txn.failure) {
        match &operation.request {
            Some(Request::RequestTxn(txn)) => flatten_txn(txn, requests),
            Some(request) => requests.push(request.clone()),
            None => {}
        }
    }
}

/// Where operations come from.
struct Walk {
    random: StdRng,
    /// Revisions that were seen.
    seen: i64,
    leases: Vec<i64>,
    last_lease: i64,
    /// The place of the revision up to which the history was forgotten.
    compacted: i64,
}

impl Walk {
    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_ratio(1, one_in)
    }

    fn key(&mut self) -> Vec<u8> {
        // Seldom none.
        if self.chance(60) { Vec::new() } else { KEYS[self.random.random_range(0..KEYS.len())].into() }
    }

    fn end(&mut self) -> Vec<u8> {
        if self.chance(2) { Vec::new() } else { ENDS[self.random.random_range(0..ENDS.len())].to_vec() }
    }

    fn place(&mut self) -> i64 {
        self.random.random_range(0..=self.seen)
    }

    fn lease(&mut self) -> i64 {
        // Seldom one that is not there.
        match self.leases.len() {
            0 => 0,
            _ if self.chance(10) => 424_242,
            count => self.leases[self.random.random_range(0..count)],
        }
    }

    fn range(&mut self) -> RangeRequest {
        let target = if self.chance(2) { 0 } else { self.random.random_range(0..5) };
        let order = if target == 0 { self.random.random_range(0..3) } else { self.random.random_range(1..3) };
        // Where entries are equal in what they are sorted by, a limit shows any of them.
        let limit = if target == 0 && self.chance(2) { self.random.random_range(0..4) } else { 0 };
        RangeRequest {
            key: self.key(),
            range_end: self.end(),
            limit,
            sort_order: order,
            sort_target: target,
            // One that is ahead now and then.
            revision: if self.chance(6) { self.place() + i64::from(self.chance(10)) } else { 0 },
            keys_only: self.chance(5),
            count_only: self.chance(8),
            min_mod_revision: if self.chance(8) { self.place() } else { 0 },
            max_mod_revision: if self.chance(8) { self.place() } else { 0 },
            min_create_revision: if self.chance(8) { self.place() } else { 0 },
            max_create_revision: if self.chance(8) { self.place() } else { 0 },
            ..Default::default()
        }
    }

    fn put(&mut self) -> PutRequest {
        let ignore_value = self.chance(10);
        let ignore_lease = self.chance(10);
        let value = if ignore_value && !self.chance(5) { 0 } else { self.random.random_range(0..4) };
        // Of two mistakes in one put, each side names another one.
        let leased = self.chance(3) && !ignore_value && (!ignore_lease || self.chance(5));
        PutRequest {
            key: self.key(),
            value: vec![b'v'; value],
            lease: if leased { self.lease() } else { 0 },
            prev_kv: self.chance(2),
            ignore_value,
            ignore_lease,
        }
    }

    fn delete(&mut self) -> DeleteRangeRequest {
        DeleteRangeRequest { key: self.key(), range_end: self.end(), prev_kv: self.chance(2) }
    }

    fn compare(&mut self) -> Compare {
        let target = self.random.random_range(0..5);
        let union = match target {
            0 => TargetUnion::Version(self.random.random_range(-1..4)),
            1 => TargetUnion::CreateRevision(self.place()),
            2 => TargetUnion::ModRevision(self.place()),
            3 => TargetUnion::Value(vec![b'v'; self.random.random_range(0..4)]),
            _ => TargetUnion::Lease(self.lease()),
        };
        let range_end = if self.chance(4) { self.end() } else { Vec::new() };
        let result = self.random.random_range(0..4);
        Compare { result, target, key: self.key(), range_end, target_union: Some(union) }
    }

    fn txn(&mut self, depth: u32) -> TxnRequest {
        let count = self.random.random_range(0..3);
        let compare = (0..count).map(|_| self.compare()).collect();
        let branch = |walk: &mut Self| {
            let count = walk.random.random_range(0..4);
            (0..count).map(|_| walk.operation(depth)).collect()
        };
        let success = branch(self);
        TxnRequest { compare, success, failure: branch(self) }
    }

    fn operation(&mut self, depth: u32) -> RequestOp {
        let request = match self.random.random_range(0..8) {
            0..3 => Request::RequestRange(self.range()),
            3..6 => Request::RequestPut(self.put()),
            6 => {
                let delete = self.delete();
                // etcd does not see that such a range has keys that the transaction puts.
                let range_end = if delete.range_end == b"\0" { Vec::new() } else { delete.range_end };
                Request::RequestDeleteRange(DeleteRangeRequest { range_end, ..delete })
            }
            _ if depth < 2 => Request::RequestTxn(self.txn(depth + 1)),
            _ => Request::RequestPut(self.put()),
        };
        RequestOp { request: Some(request) }
    }

    fn watch(&mut self) -> WatchCreateRequest {
        let key = KEYS[self.random.random_range(0..KEYS.len())].as_bytes().to_vec();
        let is_range = |end: &&&[u8]| end.is_empty() || **end == b"\0" || **end > &key[..];
        let ends: Vec<&[u8]> = ENDS.iter().filter(is_range).copied().collect();
        let range_end = ends[self.random.random_range(0..ends.len())].to_vec();
        // Mostly what is known; now and then what is forgotten.
        let from = if self.chance(6) { 1 } else { self.compacted + 1 };
        let start = self.random.random_range(from..=self.seen.max(from));
        let start_revision = if start == self.compacted { start + 1 } else { start };
        let filters = if self.chance(4) { vec![FilterType::Nodelete.into()] } else { Vec::new() };
        WatchCreateRequest { key, range_end, start_revision, prev_kv: self.chance(2), filters, ..Default::default() }
    }

    /// A small part of what is known; now and then less or more than is.
    fn compact(&mut self) -> Operation {
        let least = self.compacted + 1;
        let place = match self.random.random_range(0..6) {
            0 => self.random.random_range(0..=self.compacted),
            1 => self.seen + 5,
            _ => self.random.random_range(least..=(least + self.seen) / 2),
        };
        if (least..=self.seen).contains(&place) {
            self.compacted = place;
        }
        Operation::Compact(place)
    }

    fn next(&mut self) -> Operation {
        if self.seen > 10 && self.chance(30) {
            return self.compact();
        }
        if self.seen > 0 && self.chance(12) {
            return Operation::Watch(self.watch());
        }
        match self.random.random_range(0..20) {
            0..4 => Operation::Range(self.range()),
            4..9 => Operation::Put(self.put()),
            9 => Operation::Delete(self.delete()),
            10..15 => Operation::Txn(self.txn(0)),
            15 if self.leases.len() < 4 => {
                self.last_lease += 1;
                self.leases.push(self.last_lease);
                Operation::Grant(self.last_lease)
            }
            15 => Operation::Grant(self.leases[0]),
            16 if self.leases.len() > 2 => {
                let place = self.random.random_range(0..self.leases.len());
                Operation::Revoke(self.leases.swap_remove(place))
            }
            16 => Operation::Revoke(424_242),
            17 => Operation::TimeToLive(self.lease()),
            18 => Operation::KeepAlive(self.lease()),
            _ => Operation::Leases,
        }
    }
}

/// An etcd of its own.
fn start_etcd(programs: &Path, data: &Path) -> (Child, String) {
    // Held together, so that they differ.
    let ports = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [clients, peers] = ports.map(|port| port.local_addr().expect("an address").to_string());
    let client_url = format!("http://{clients}");
    let peer_url = format!("http://{peers}");
    let mut command = Command::new(programs.join("etcd"));
    command.args(["--log-level", "error", "--data-dir", &data.display().to_string()]);
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.args(["--initial-cluster", &format!("default={peer_url}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    (command.spawn().expect("etcd starts"), clients)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn a_random_walk_gives_the_answers_of_etcd() {
    let programs = match debian::etcd().await {
        Ok(programs) => programs,
        Err(problem) => return crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    };
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse().ok());
    let operations = number(OPERATIONS).unwrap_or(OPERATIONS_DEFAULT);
    let seed = number(SEED).unwrap_or(1);
    let data = tempfile::tempdir().expect("a directory");
    let (mut etcd, endpoint) = start_etcd(&programs, data.path());
    let mut cluster = steady_cluster().await;
    let mut theirs = Side::connect(&endpoint).await;
    // Of a node that may or may not lead.
    let mut ours = Side::connect(&cluster.etcd_endpoints()[0]).await;
    let mut walk =
        Walk { random: StdRng::seed_from_u64(seed), seen: 0, leases: Vec::new(), last_lease: 1000, compacted: 0 };
    // From here on, both see the same writes.
    for side in [&mut theirs, &mut ours] {
        side.run(&Operation::Put(PutRequest { key: b"a".into(), ..Default::default() })).await;
    }
    let mut answers: BTreeMap<&str, usize> = BTreeMap::new();
    for number in 0..operations {
        walk.seen = theirs.revisions.len() as i64;
        let operation = walk.next();
        let expected = theirs.run(&operation).await;
        let found = ours.run(&operation).await;
        let is_error =
            |answer: &str| answer.starts_with(|first: char| first.is_ascii_digit()) && answer.contains("etcdserver");
        let is_mistake = |answer: &str| MISTAKES.iter().any(|mistake| answer.ends_with(mistake));
        let two_mistakes = matches!(operation, Operation::Txn(_)) && is_mistake(&expected) && is_mistake(&found);
        assert!(two_mistakes || found == expected, "seed {seed}, {number}: {operation:?}\n{found}\nnot {expected}");
        assert_eq!(ours.revisions.len(), theirs.revisions.len(), "seed {seed}, operation {number}: {operation:?}");
        let kind = if is_error(&expected) { "errors" } else { "answers" };
        *answers.entry(kind).or_default() += 1;
    }
    println!("seed {seed}: {answers:?}, {} revisions", ours.revisions.len());
    assert!(answers.len() == 2, "both kinds were compared: {answers:?}");
    cluster.stop().await;
    etcd.kill().await.expect("it ran");
}
