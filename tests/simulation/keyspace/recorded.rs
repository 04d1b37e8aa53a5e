//! Transactions and watches that are written into the history, for the checker of histories: a judge that knows nothing of the table.
//!
//! They are of a plain form, on registers that nobody else writes, without leases. What has leases and options, the run judges itself
//! (see `judge`).

use std::{sync::Arc, time::Duration};

use lockkeeper::{
    chaos::{
        history::{
            Answer, Call, CompareRelation, CompareTarget, Fact, SeenRange, SeenRegister, StepResult, Transaction,
            TxnAnswer, TxnCompare, TxnPut, TxnRange, TxnStep, WatchedChange,
        },
        record::Recorder,
    },
    machine::{
        Compare, Entry, Key, KeyRange, Operand, Put, PutLease, Relation, Select, Txn, TxnOperation, TxnResult, Value,
    },
    raft::messages::keyspace_client::KeyspaceClient,
    table::{
        codec::{
            keyspace::{read_entry, read_key, write_key, write_range},
            transactions::write_txn,
        },
        messages as pb,
    },
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, transport::Channel};

use super::writer::{Outcome, classified, read_committed};
use crate::director::LIVENESS_BOUND;

const KEYS: u32 = 4;
const LIMIT: Duration = Duration::from_millis(900);
const PAUSE_MS: std::ops::Range<u64> = 20..200;
const WATCH_MS: std::ops::Range<u64> = 500..5_000;
/// By how much the last watch outlasts the time in which watches must report a change, and the changes that are made for it meanwhile.
const LAST_SLACK: Duration = Duration::from_secs(3);
const LAST_CHANGES: u32 = 8;
/// How often a last watch begins: its node may end one early.
const LAST_TRIES: u32 = 2;

/// The clients of one process.
pub(super) struct Registers {
    pub(super) channels: Vec<Channel>,
    pub(super) recorder: Recorder,
    pub(super) finish: CancellationToken,
    pub(super) name: String,
}

impl Registers {
    /// Commits transactions, one after the other.
    pub(super) async fn commit(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut number = 0;
        let mut place = 0;
        while !self.finish.is_cancelled() {
            let steps: Vec<_> = (0..random.random_range(1..4)).map(|_| self.step(&mut random, &mut number)).collect();
            let compares = if random.random_range(0..3) == 0 { vec![compare(&mut random)] } else { Vec::new() };
            let otherwise = if compares.is_empty() { Vec::new() } else { vec![Step::Get(key(&mut random))] };
            let written = Transaction {
                compares: compares.iter().map(written_compare).collect(),
                then: steps.iter().map(Step::written).collect(),
                otherwise: otherwise.iter().map(Step::written).collect(),
                ..Transaction::default()
            };
            let operations = |steps: &[Step]| steps.iter().map(Step::operation).collect();
            let txn = Txn::from_log(compares, operations(&steps), operations(&otherwise));
            if let Ok(txn) = txn {
                self.send(&txn, written, &mut place).await;
            }
            sleep(Duration::from_millis(random.random_range(PAUSE_MS))).await;
        }
    }

    fn step(&self, random: &mut StdRng, number: &mut u64) -> Step {
        match random.random_range(0..5) {
            0 => Step::Get(key(random)),
            1 => Step::Range,
            2 => Step::Delete(key(random)),
            _ => {
                *number += 1;
                Step::Put(key(random), format!("{}.{number}", self.name))
            }
        }
    }

    async fn send(&self, txn: &Txn, written: Transaction, place: &mut usize) {
        let begun = self.recorder.begin(&[], Call::Txn(written));
        for _ in 0..self.channels.len() {
            let mut client = KeyspaceClient::new(self.channels[*place].clone());
            let outcome = match timeout(LIMIT, client.commit(Request::new(write_txn(txn)))).await {
                Ok(Ok(answer)) => Outcome::Answered(answer.into_inner()),
                Ok(Err(status)) => classified(&status),
                Err(_) => Outcome::Unknown,
            };
            match outcome {
                Outcome::Answered(committed) => {
                    let committed = read_committed(committed).expect("the writer judges answers that cannot be read");
                    let results = committed.results.iter().map(seen_result).collect();
                    let revision = Some(committed.revision.0);
                    return begun.ok(Answer::Txn(TxnAnswer { revision, succeeded: committed.succeeded, results }));
                }
                Outcome::Refused(_) => return begun.failed("refused"),
                Outcome::Unserved => *place = (*place + 1) % self.channels.len(),
                Outcome::Unknown => {
                    *place = (*place + 1) % self.channels.len();
                    return begun.unknown("no answer");
                }
            }
        }
        begun.failed("unavailable");
    }

    /// Watches the registers, at one node after the other, each time from where the last watch ended.
    pub(super) async fn watch(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut after = 0;
        let mut number = 0;
        while !self.finish.is_cancelled() {
            number += 1;
            let channel = self.channels[random.random_range(0..self.channels.len())].clone();
            let lasts = Duration::from_millis(random.random_range(WATCH_MS));
            let watch = format!("{}.{number}", self.name);
            self.watch_once(channel, watch, &mut after, Instant::now() + lasts).await;
            sleep(Duration::from_millis(random.random_range(PAUSE_MS))).await;
        }
    }

    /// Changes registers, and watches them for longer than a watch may take to report it: one that goes silent is late. The other watches
    /// end before that.
    ///
    /// Call it with new connections when all faults are over: a simulated connection that lost a message stays silent for ever.
    pub(super) async fn watch_beyond_the_bound(&self, seed: u64) {
        let mut random = StdRng::seed_from_u64(seed);
        for attempt in 1..=LAST_TRIES {
            let channel = self.channels[random.random_range(0..self.channels.len())].clone();
            let Some(mut after) = self.present().await else { continue };
            let watch = format!("{}.{attempt}", self.name);
            let until = Instant::now() + LIVENESS_BOUND + LAST_SLACK;
            let watching = self.watch_once(channel, watch, &mut after, until);
            let (why, ()) = tokio::join!(watching, self.change(&mut random, attempt));
            if why == "closed" {
                return;
            }
        }
    }

    /// Puts values, one after the other.
    async fn change(&self, random: &mut StdRng, attempt: u32) {
        let mut place = 0;
        for number in 1..=LAST_CHANGES {
            sleep(Duration::from_millis(random.random_range(PAUSE_MS))).await;
            let step = Step::Put(key(random), format!("{}.{attempt}.{number}", self.name));
            let written = Transaction { then: vec![step.written()], ..Transaction::default() };
            if let Ok(txn) = Txn::from_log(Vec::new(), vec![step.operation()], Vec::new()) {
                self.send(&txn, written, &mut place).await;
            }
        }
    }

    /// One watch of this name. The next one goes on after `after`. Returns why it ended.
    async fn watch_once(&self, channel: Channel, watch: String, after: &mut u64, until: Instant) -> &'static str {
        let range = TxnRange { from: Some("r/".to_owned()), to: Some("r0".to_owned()) };
        self.recorder.fact(Fact::Watching { watch: watch.clone(), range, after: *after });
        let why = self.receive(channel, &watch, after, until).await;
        // What is forgotten cannot be watched: the next watch begins with what comes.
        if why == "compacted" {
            *after = self.present().await.unwrap_or(*after);
        }
        self.recorder.fact(Fact::WatchEnded { watch, why: why.to_owned() });
        why
    }

    /// A revision that the keyspace has reached.
    async fn present(&self) -> Option<u64> {
        for channel in &self.channels {
            let mut client = KeyspaceClient::new(channel.clone());
            let request = pb::GetEntries { keys: vec![write_key(&stored_key("r/0"))], ..Default::default() };
            if let Ok(Ok(found)) = timeout(LIMIT, client.get(request)).await {
                return Some(found.into_inner().revision);
            }
        }
        None
    }

    /// Receives until then. `after` is the last revision that is complete. Returns why it ended.
    async fn receive(&self, channel: Channel, watch: &str, after: &mut u64, until: Instant) -> &'static str {
        let request = pb::WatchEntries {
            range: Some(write_range(&all())),
            from_revision: Some(*after + 1),
            with_previous: false,
        };
        let mut client = KeyspaceClient::new(channel);
        let Ok(Ok(stream)) = timeout(LIMIT, client.watch(request)).await else { return "unavailable" };
        let mut stream = stream.into_inner();
        while Instant::now() < until && !self.finish.is_cancelled() {
            let message = match timeout(until - Instant::now(), stream.message()).await {
                Ok(Ok(Some(message))) => message,
                Ok(Err(status)) if status.code() == tonic::Code::OutOfRange => return "compacted",
                Ok(Ok(None) | Err(_)) => return "ended",
                Err(_) => return "closed",
            };
            let mut changes: Vec<(u64, Vec<WatchedChange>)> = Vec::new();
            for event in &message.events {
                let change = WatchedChange {
                    key: shown_key(&read_key(&event.key).expect("a key is not empty")),
                    now: event.after.as_ref().map(|now| seen(&read_entry(now).expect("an entry can be read"))),
                };
                match changes.last_mut() {
                    Some((revision, changes)) if *revision == event.revision => changes.push(change),
                    _ => changes.push((event.revision, vec![change])),
                }
            }
            for (revision, changes) in changes {
                self.recorder.fact(Fact::Watched { watch: watch.to_owned(), revision, changes });
            }
            *after = (*after).max(message.complete);
            self.recorder.fact(Fact::WatchProgress { watch: watch.to_owned(), revision: *after });
        }
        "closed"
    }
}

/// A step of a transaction.
enum Step {
    Get(String),
    Range,
    Put(String, String),
    Delete(String),
}

impl Step {
    fn operation(&self) -> TxnOperation {
        match self {
            Self::Get(key) => TxnOperation::Get(stored_key(key)),
            Self::Range => TxnOperation::Select(Select { range: all(), ..Select::default() }),
            Self::Put(key, value) => TxnOperation::Put(Put {
                key: stored_key(key),
                value: Value::from_log(value.as_bytes()),
                lease: PutLease::None,
                claims: None,
            }),
            Self::Delete(key) => TxnOperation::Delete(stored_key(key)),
        }
    }

    fn written(&self) -> TxnStep {
        match self {
            Self::Get(key) => TxnStep::Get { key: key.clone() },
            Self::Range => TxnStep::Range(TxnRange { from: Some("r/".to_owned()), to: Some("r0".to_owned()) }),
            Self::Put(key, value) => {
                TxnStep::Put(TxnPut { key: key.clone(), value: value.clone(), ..TxnPut::default() })
            }
            Self::Delete(key) => TxnStep::Delete { key: key.clone() },
        }
    }
}

fn key(random: &mut StdRng) -> String {
    format!("r/{}", random.random_range(0..KEYS))
}

fn stored_key(key: &str) -> Key {
    Key::new(key.as_bytes()).expect("it is short")
}

fn shown_key(key: &Key) -> String {
    String::from_utf8_lossy(key.as_bytes()).into_owned()
}

/// The range of the registers.
fn all() -> KeyRange {
    KeyRange { from: Some(stored_key("r/")), to: Some(stored_key("r0")) }
}

/// A condition on the version of a register, which is a small number.
fn compare(random: &mut StdRng) -> Compare {
    let relation = if random.random_range(0..2) == 0 { Relation::Equal } else { Relation::Greater };
    let operand = Operand::Version(random.random_range(0..3));
    Compare { key: stored_key(&key(random)), up_to: None, relation, operand }
}

fn written_compare(compare: &Compare) -> TxnCompare {
    let Operand::Version(version) = compare.operand else { unreachable!("versions are compared") };
    let is = if compare.relation == Relation::Equal { CompareRelation::Equal } else { CompareRelation::Greater };
    TxnCompare {
        key: shown_key(&compare.key),
        up_to: None,
        target: CompareTarget::Version,
        is,
        number: Some(version),
        text: None,
    }
}

fn seen(entry: &Arc<Entry>) -> SeenRegister {
    SeenRegister {
        value: Some(String::from_utf8_lossy(entry.value.as_bytes()).into_owned()),
        created: Some(entry.created.0),
        modified: Some(entry.modified.0),
        version: Some(entry.version),
        lease: None,
    }
}

fn seen_result(result: &TxnResult) -> StepResult {
    match result {
        TxnResult::Got(entry) => StepResult::Got(entry.as_ref().map(seen)),
        TxnResult::Selected(selected) => StepResult::Ranged(SeenRange {
            registers: selected.entries.iter().map(|(key, entry)| (shown_key(key), seen(entry))).collect(),
            count: Some(selected.count),
            ..SeenRange::default()
        }),
        TxnResult::Put => StepResult::Put {},
        TxnResult::Deleted(count) => StepResult::Deleted { count: Some(*count) },
        TxnResult::Opened(_) | TxnResult::Expires(_) | TxnResult::PutChild(_) => {
            unreachable!("nothing is opened, no deadline is set, and no child is made")
        }
    }
}
