//! Many requests at one moment: they reach the limits of a node for what is under way.

mod dynamodb;
mod redis;
mod unread;
mod zookeeper;

use std::time::Duration;

use futures::{StreamExt as _, future::join_all};
use lockkeeper::{
    machine::{Compare, Key, Operand, Relation, Revision, Select, SessionId, Shows, Txn, TxnOperation},
    proto::v1::{
        AcquireRequest, BusiestRequest, PipelineRequest, RequestId, Want, acquire_request, locks_client::LocksClient,
        pipeline_request::What as PipelineCall, pipeline_response::What as PipelineAnswer,
    },
    raft::messages::keyspace_client::KeyspaceClient,
    table::{
        codec::{keyspace::write_select, transactions::write_txn},
        messages::{self as pb, commit_outcome},
    },
};
use rand::{Rng as _, rngs::StdRng};
use tokio::time::timeout;
use tonic::{Code, Status};

use super::{Guest, LIMIT, MESSAGE_BYTES_MAX, put, refusals::CROWD_LOCKS, timed, txn, under_h};
use crate::keyspace::writer::{Outcome, classified};

/// Transactions at one moment.
const TXNS: usize = 90;
/// Transactions of one order, and how many orders are sent at one moment.
const TXNS_OF_ORDER: usize = 6;
const ORDERS: usize = 6;
/// Requests of one pipeline.
const PIPELINED: u64 = 120;
/// Acquires that wait, sent to each node.
const WAITS: u64 = 40;
/// Calls of one request.
const REPETITIONS: usize = 16;
/// For how long those wait.
const WAITED: Duration = Duration::from_millis(400);
const WAIT_MS: u64 = 1_000;
/// Reads of everything at one moment, and lists for people beside them.
const READS: usize = 24;
const LISTS: usize = 8;

/// What many requests at one moment are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Crowd {
    /// Transactions, small and large.
    Txns,
    /// Transactions in an order, which are large.
    Orders,
    /// The requests of one stream.
    Pipeline,
    /// Acquires that wait, through all nodes.
    Waits,
    /// One acquire that waits, by many calls.
    Repetitions,
    /// Reads of much.
    Reads,
    /// Answers that are not read.
    Unread,
    /// What connections of Redis' clients have their node keep.
    Redis,
    /// The same of ZooKeeper's clients.
    Zookeeper,
    /// The same of DynamoDB's clients.
    Dynamodb,
}

impl Crowd {
    pub(super) const ALL: [Self; 10] = [
        Self::Txns,
        Self::Orders,
        Self::Pipeline,
        Self::Waits,
        Self::Repetitions,
        Self::Reads,
        Self::Unread,
        Self::Redis,
        Self::Zookeeper,
        Self::Dynamodb,
    ];
}

impl Guest {
    /// Sends many requests at one moment.
    pub(super) async fn crowd(&mut self, crowd: Crowd, random: &mut StdRng) {
        let id = random.random();
        match crowd {
            Crowd::Txns => self.crowd_of_txns(id).await,
            Crowd::Orders => self.crowd_of_orders(id).await,
            Crowd::Pipeline => self.crowd_in_pipeline(id, random.random_range(0..8)).await,
            Crowd::Waits => self.crowd_of_waits(id).await,
            Crowd::Repetitions => self.crowd_of_repetitions(id).await,
            Crowd::Reads => self.crowd_of_reads().await,
            Crowd::Unread => self.crowd_of_unread(id, self.some_seat(random)).await,
            Crowd::Redis => redis::crowd(&self.refusals, id, self.some_seat(random)).await,
            Crowd::Dynamodb => dynamodb::crowd(&self.refusals, id, self.some_seat(random)).await,
            Crowd::Zookeeper => zookeeper::crowd(&self.contention, id, self.some_seat(random)).await,
        }
    }

    fn some_seat(&self, random: &mut StdRng) -> u64 {
        random.random_range(1..=self.clients.len() as u64)
    }

    /// A session of its own, which is given back with the others.
    async fn crowd_session(&mut self, place: u64) -> Option<(String, SessionId)> {
        let session = self.open(place).await.ok()?;
        self.sessions.push(session.clone());
        let id = u128::from_str_radix(&session, 16).ok()?;
        Some((session, SessionId(id)))
    }

    async fn crowd_of_txns(&mut self, id: u64) {
        let Some((_, lease)) = self.crowd_session(id).await else { return };
        let guest = &*self;
        let Some(channel) = guest.leader().await else { return };
        let sent = (0..TXNS).map(|number| {
            let (key, txn) = crowd_txn(id, number, lease);
            let mut client = KeyspaceClient::new(channel.clone()).max_encoding_message_size(MESSAGE_BYTES_MAX);
            async move {
                let answer = timed(client.commit(write_txn(&txn))).await;
                guest.hear_of_put(key, answer);
            }
        });
        join_all(sent).await;
    }

    fn hear_of_put(&self, key: Key, answer: Result<pb::Committed, Status>) {
        match answer {
            Ok(committed) if committed.succeeded => self.refusals.made(key, Revision(committed.revision)),
            // Its compares did not hold.
            Ok(_) => self.refusals.unmade(key),
            Err(status) => {
                if let Outcome::<()>::Refused(_) | Outcome::Unserved = classified(&status) {
                    self.refusals.unmade(key);
                }
            }
        }
    }

    async fn crowd_of_orders(&mut self, id: u64) {
        let Some((_, lease)) = self.crowd_session(id).await else { return };
        let guest = &*self;
        let Some(channel) = guest.leader().await else { return };
        let sent = (0..ORDERS).map(|order| {
            let numbers = order * TXNS_OF_ORDER..(order + 1) * TXNS_OF_ORDER;
            let (keys, txns): (Vec<_>, Vec<_>) = numbers.map(|number| crowd_txn(id, number, lease)).unzip();
            let message = pb::Txns { txns: txns.iter().map(write_txn).collect() };
            let mut client = KeyspaceClient::new(channel.clone()).max_encoding_message_size(MESSAGE_BYTES_MAX);
            async move { guest.hear_of_order(keys, timed(client.commit_each(message)).await) }
        });
        join_all(sent).await;
    }

    fn hear_of_order(&self, keys: Vec<Key>, answer: Result<pb::EachCommitted, Status>) {
        let outcomes = match answer {
            Ok(answer) => answer.outcomes,
            Err(status) => {
                if let Outcome::<()>::Refused(_) | Outcome::Unserved = classified(&status) {
                    keys.into_iter().for_each(|key| self.refusals.unmade(key));
                }
                return;
            }
        };

        let mut outcomes = outcomes.into_iter();
        for key in keys {
            match outcomes.next().map(|outcome| outcome.kind) {
                Some(Some(commit_outcome::Kind::Committed(committed))) => self.hear_of_put(key, Ok(committed)),
                Some(Some(commit_outcome::Kind::Failure(pb::CommitFailure { code, message, details }))) => {
                    self.hear_of_put(key, Err(Status::with_details(Code::from(code), message, details)));
                }
                // It was not begun.
                None => self.refusals.unmade(key),
                Some(None) => {}
            }
        }
    }

    /// Asks for locks of the same session on one stream: some small, some with much data, and half of them may wait.
    async fn crowd_in_pipeline(&mut self, id: u64, place: u64) {
        let Some((session, lease)) = self.crowd_session(id).await else { return };
        let requests = (0..PIPELINED).map(|number| {
            let bytes = if number % 3 == 2 { 5_000 } else { 0 };
            let wait = number.is_multiple_of(2);
            let acquire = acquire_of_crowd(&session, number, &crowd_lock(id, number), bytes, wait);
            PipelineRequest { number, what: Some(PipelineCall::Acquire(acquire)) }
        });
        // The stream of requests stays open: its end would break off those under way.
        let requests = futures::stream::iter(requests.collect::<Vec<_>>()).chain(futures::stream::pending());

        let mut client = LocksClient::new(self.channel(place));
        let Ok(answers) = timed(client.pipeline(requests)).await else { return };
        let hear = async {
            let mut answers = answers.take(PIPELINED as usize);
            while let Some(Ok(answer)) = answers.next().await {
                let Some(PipelineAnswer::Failure(failure)) = answer.what else { continue };
                let status = Status::with_details(Code::from(failure.code), failure.message, failure.details.into());
                self.hear_of_lock(crowd_lock(id, answer.number), lease, &status);
            }
        };
        let _ = timeout(LIMIT, hear).await;
    }

    fn hear_of_lock(&self, name: String, session: SessionId, status: &Status) {
        if let Outcome::<()>::Refused(_) | Outcome::Unserved = classified(status) {
            self.refusals.ungranted(name, session);
        }
    }

    /// One session holds locks, and another one waits for each of them, through all nodes.
    async fn crowd_of_waits(&mut self, id: u64) {
        let Some((holder, _)) = self.crowd_session(id).await else { return };
        let Some((waiter, lease)) = self.crowd_session(id).await else { return };
        let guest = &*self;
        let held = (0..WAITS).map(async |number| {
            let acquire = acquire_of_crowd(&holder, number, &crowd_lock(id, number), 0, false);
            timed(LocksClient::new(guest.channel(number)).acquire(acquire)).await
        });
        join_all(held).await;

        let nodes = guest.clients.len() as u64;
        let waits = (0..nodes * WAITS).map(async |number| {
            // Each lock is asked for once: a refused acquire and one that waits must not be mistaken for each other.
            let name = if number < WAITS { crowd_lock(id, number) } else { format!("{}/free", crowd_lock(id, number)) };
            let acquire = acquire_of_crowd(&waiter, number, &name, 0, true);
            let mut client = LocksClient::new(guest.channel(number));
            if let Ok(Err(status)) = timeout(WAITED, client.acquire(acquire)).await {
                guest.hear_of_lock(name, lease, &status);
            }
        });
        join_all(waits).await;
    }

    /// The same request many times, as of a client that lost its connections.
    async fn crowd_of_repetitions(&mut self, id: u64) {
        let Some((holder, _)) = self.crowd_session(id).await else { return };
        let Some((waiter, _)) = self.crowd_session(id).await else { return };
        let guest = &*self;
        let name = crowd_lock(id, 0);
        let held = acquire_of_crowd(&holder, 0, &name, 0, false);
        if timed(LocksClient::new(guest.channel(id)).acquire(held)).await.is_err() {
            return;
        }

        let acquire = acquire_of_crowd(&waiter, 0, &name, 0, true);
        let calls = (0..REPETITIONS).map(async |number| {
            let mut client = LocksClient::new(guest.channel(number as u64));
            let _ = timeout(WAITED, client.acquire(acquire.clone())).await;
        });
        join_all(calls).await;
    }

    /// Reads all entries many times, and lists the locks for people.
    async fn crowd_of_reads(&mut self) {
        let Some((_, lease)) = self.crowd_session(0).await else { return };
        let guest = &*self;
        // If it is refused, there are others.
        let _ = guest.put_some(16, 0, lease).await;
        let Some(channel) = guest.leader().await else { return };
        let reads = (0..READS).map(async |_| {
            let select = Select { shows: Shows::Count, ..Select::default() };
            let message = pb::SelectEntries { select: Some(write_select(&select)), at_revision: None, on_time: false };
            timed(KeyspaceClient::new(channel.clone()).select(message)).await.map(drop)
        });
        let lists = (0..LISTS).map(async |number| {
            let message = BusiestRequest { prefix: String::new(), size: 10, after_index: 0 };
            timed(LocksClient::new(guest.channel(number as u64)).busiest(message)).await.map(drop)
        });
        futures::future::join(join_all(reads), join_all(lists)).await;
    }
}

/// A transaction that puts a key which no other one puts. Of each four, one has many bytes and one much work.
fn crowd_txn(id: u64, number: usize, lease: SessionId) -> (Key, Txn) {
    let name = format!("h/crowd/{id}/{number}");
    let key = Key::new(name.as_bytes()).expect("it is short");
    let bytes = if number % 4 == 1 { 6_000 } else { 8 };
    let puts = vec![TxnOperation::Put(put(&name, bytes, lease))];
    if number % 4 != 3 {
        return (key, txn(puts));
    }

    let range = under_h();
    let compares = (0..8).map(|version| Compare {
        key: range.from.clone().expect("it has a begin"),
        up_to: range.to.clone(),
        relation: Relation::NotEqual,
        operand: Operand::Version(1_000_000 + version),
    });
    (key, Txn::from_log(compares.collect(), puts, Vec::new()).expect("it puts one key"))
}

fn crowd_lock(id: u64, number: u64) -> String {
    format!("{CROWD_LOCKS}{id}/{number}")
}

fn acquire_of_crowd(session: &str, number: u64, name: &str, bytes: usize, may_wait: bool) -> AcquireRequest {
    let data = (bytes > 0).then(|| vec![5; bytes]);
    AcquireRequest {
        session_id: session.to_owned(),
        request: Some(RequestId { id: number + 1, lowest: 1, kept: Vec::new() }),
        locks: vec![Want { name: name.to_owned(), data, ..Want::default() }],
        wait: may_wait.then_some(acquire_request::Wait::WaitMs(WAIT_MS)),
        lock_delay_ms: 0,
    }
}
