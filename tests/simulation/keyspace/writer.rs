//! A client process of the keyspace: it sends what the grammar says, watches, and tells the judge what it saw.
//!
//! It speaks to the nodes' own service, as their adapters do when they forward a request. So it can say everything, and nothing of another
//! protocol comes between.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::{
    machine::{
        Attached, Committed, Entry, Key, Revision, Selected, SessionId, Stamp, Ttl, Txn, TxnOperation, TxnResult,
    },
    raft::messages::keyspace_client::KeyspaceClient,
    server::DOMAIN,
    table::{
        Malformed,
        codec::{
            keyspace::{read_entry, read_failure, read_key, write_key, write_range, write_select, write_session},
            transactions::write_txn,
        },
        messages::{self as pb, txn_result},
    },
};
use rand::Rng as _;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt as _;

use super::{
    grammar::Grammar,
    judge::{Judge, Read},
    recorded::Registers,
    watches::Watch,
};
use crate::{
    clients::{self, Book},
    network,
};

/// The time of one request.
const LIMIT: Duration = Duration::from_millis(900);
/// Between two requests of a task, milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 5..160;
/// How long a watch lasts, milliseconds.
const WATCH_MS: std::ops::Range<u64> = 200..6_000;
/// Tasks of each kind.
const SPEAKERS: u64 = 3;
const WATCHERS: u64 = 2;
/// Answers of nodes that are not read.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The client process of a run, and its successors.
pub(crate) struct KeyspaceClientProcess {
    pub(crate) seats: u64,
    pub(crate) seed: u64,
    pub(crate) judge: Arc<Judge>,
    pub(crate) finish: CancellationToken,
    /// Whether a last watch lasts for longer than it may take to report a change.
    is_watched_for_long: bool,
    book: Book,
    generation: AtomicU32,
}

/// What became of a request.
pub(crate) enum Outcome<T> {
    Answered(T),
    /// It had no effect.
    Refused(String),
    /// No node took it.
    Unserved,
    Unknown,
}

impl KeyspaceClientProcess {
    /// The name of its host.
    pub(crate) const HOST: &'static str = "writer";

    pub(crate) fn new(
        seats: u64,
        seed: u64,
        judge: Arc<Judge>,
        finish: CancellationToken,
        is_watched_for_long: bool,
        book: Book,
    ) -> Self {
        Self { seats, seed, judge, finish, is_watched_for_long, book, generation: AtomicU32::new(0) }
    }

    /// Speaks and watches until the run is over.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed ^ (u64::from(generation) << 20);
        let speakers = (0..SPEAKERS).map(|task| self.speak(seed.wrapping_add(task)));
        let watchers = (0..WATCHERS).map(|task| self.watch(seed.wrapping_add(100 + task)));
        let name = if generation == 0 { "registers".to_owned() } else { format!("registers.{generation}") };
        let registers = Registers {
            channels: self.channels().into_iter().map(|(_, channel)| channel).collect(),
            recorder: self.book.recorder(&name),
            finish: self.finish.clone(),
            name,
        };
        tokio::join!(
            join_all(speakers),
            join_all(watchers),
            registers.commit(seed ^ 0x7e61),
            registers.watch(seed ^ 0x3a7c)
        );

        if self.is_watched_for_long {
            let name = "registers.last".to_owned();
            let channels = self.channels().into_iter().map(|(_, channel)| channel).collect();
            let recorder = self.book.recorder(&name);
            let last = Registers { channels, recorder, finish: CancellationToken::new(), name };
            last.watch_beyond_the_bound(seed ^ 0x1a57).await;
        }
        self.judge.conclude();
        Ok(())
    }

    fn channels(&self) -> Vec<(String, Channel)> {
        let seats = (1..=self.seats).map(network::peer_seat_address);
        seats.map(|address| (address.clone(), clients::channel(&address))).collect()
    }

    async fn speak(&self, seed: u64) {
        let mut speaker = Speaker {
            writer: self,
            grammar: Grammar::new(seed),
            channels: self.channels(),
            leader: 0,
            attached: BTreeMap::new(),
        };
        while !self.finish.is_cancelled() {
            speaker.ask().await;
            let pause = speaker.grammar.random().random_range(PAUSE_MS);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Watches ranges, each for a while, at some node. Most watches go on where the last one ended, at another node.
    async fn watch(&self, seed: u64) {
        let mut grammar = Grammar::new(seed);
        let channels = self.channels();
        let mut next: Option<Watch> = None;
        while !self.finish.is_cancelled() {
            let (node, channel) = &channels[grammar.random().random_range(0..channels.len())];
            let follows = next.take().filter(|_| grammar.percent(70));
            let mut watch = match follows.as_ref().and_then(|last| Some((last, last.next()?))) {
                Some((last, from)) => Watch::new(node.clone(), last.range.clone(), Some(from), last.with_previous),
                None => {
                    grammar.hear_revision(self.judge.acknowledged());
                    let from = if grammar.percent(60) { Some(grammar.revision()) } else { None };
                    Watch::new(node.clone(), grammar.range(), from, grammar.percent(50))
                }
            };
            let lasts = Duration::from_millis(grammar.random().random_range(WATCH_MS));
            let until = Instant::now() + lasts;
            if let Err(wrong) = self.receive(channel, &mut watch, until).await {
                self.judge.complain(format!("the watch of {:?} at {node}: {wrong}", watch.range));
            }
            self.judge.watched(watch.clone());
            next = Some(watch);
            let pause = grammar.random().random_range(PAUSE_MS);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn receive(&self, channel: &Channel, watch: &mut Watch, until: Instant) -> Result<(), String> {
        let message = pb::WatchEntries {
            range: Some(write_range(&watch.range)),
            from_revision: watch.from.map(|from| from.0),
            with_previous: watch.with_previous,
        };
        let mut client = KeyspaceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let Ok(Ok(stream)) = timeout(LIMIT, client.watch(Request::new(message))).await else { return Ok(()) };
        let mut stream = stream.into_inner();
        while Instant::now() < until && !self.finish.is_cancelled() {
            match timeout(until - Instant::now(), stream.message()).await {
                Ok(Ok(Some(message))) => watch.receive(&message)?,
                Ok(Err(status)) if reason(&status) == "REVISION_COMPACTED" => {
                    self.judge.count("watches too old");
                    return Ok(());
                }
                // Its node, or the network, has ended it.
                Ok(Ok(None) | Err(_)) | Err(_) => return Ok(()),
            }
        }
        Ok(())
    }
}

/// One task of a writer.
struct Speaker<'a> {
    writer: &'a KeyspaceClientProcess,
    grammar: Grammar,
    channels: Vec<(String, Channel)>,
    /// The place of the node that answered last.
    leader: usize,
    /// The last attachment of each session that it was told of.
    attached: BTreeMap<SessionId, u64>,
}

/// Sends a message by this method, to one node after the other, until one takes it.
macro_rules! send {
    ($speaker:expr, $method:ident, $message:expr) => {{
        let message = $message;
        let mut outcome = Outcome::Unserved;
        for _ in 0..$speaker.channels.len() {
            let (_, channel) = &$speaker.channels[$speaker.leader];
            let client = KeyspaceClient::new(channel.clone());
            let mut client =
                client.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX);
            let mut request = Request::new(message.clone());
            request.set_timeout(LIMIT);
            outcome = match timeout(LIMIT, client.$method(request)).await {
                Ok(Ok(answer)) => Outcome::Answered(answer.into_inner()),
                Ok(Err(status)) => classified(&status),
                Err(_) => Outcome::Unknown,
            };
            match outcome {
                Outcome::Answered(_) | Outcome::Refused(_) => break,
                Outcome::Unserved | Outcome::Unknown => {
                    $speaker.leader = ($speaker.leader + 1) % $speaker.channels.len();
                    if matches!(outcome, Outcome::Unknown) {
                        break;
                    }
                }
            }
        }
        outcome
    }};
}

impl Speaker<'_> {
    /// Sends one request.
    async fn ask(&mut self) {
        let asked = match self.grammar.random().random_range(0..100) {
            0..70 => self.commit().await,
            70..80 => self.get().await,
            80..89 => self.list().await,
            89..95 => self.select().await,
            95..98 => self.attach().await,
            _ => self.compact().await,
        };
        if let Err(Malformed(why)) = asked {
            self.writer.judge.complain(format!("an answer cannot be read: {why}"));
        }
    }

    fn note<T>(&self, outcome: &Outcome<T>) {
        let judge = &self.writer.judge;
        match outcome {
            Outcome::Answered(_) => judge.count("keyspace answers"),
            Outcome::Refused(reason) => judge.count(&format!("refused {reason}")),
            Outcome::Unserved => judge.count("keyspace requests that no node took"),
            Outcome::Unknown => judge.count("keyspace requests without an answer"),
        }
    }

    async fn commit(&mut self) -> Result<(), Malformed> {
        let before = self.writer.judge.acknowledged();
        self.grammar.hear_revision(before);
        let txn = self.grammar.txn();
        self.writer.judge.say(|words| words.note_txn(&txn));
        for new in txn.opens().into_iter().flatten() {
            self.grammar.hear_session(new.session);
        }
        let outcome = send!(self, commit, write_txn(&txn));
        self.note(&outcome);
        let Outcome::Answered(committed) = outcome else { return Ok(()) };
        let committed = read_committed(committed)?;
        self.judge_attached(&txn);
        self.hear(&txn, &committed);
        self.writer.judge.committed(before, txn, committed);
        Ok(())
    }

    /// Takes a session over, from whoever has it: what others then send by it is refused.
    async fn attach(&mut self) -> Result<(), Malformed> {
        let session = self.grammar.session();
        let outcome = send!(self, attach, pb::AttachSession { session: write_session(session) });
        self.note(&outcome);
        if let Outcome::Answered(pb::SessionAttached { number, ttl_ms: _ }) = outcome {
            self.writer.judge.count("sessions that were attached");
            let last = self.attached.insert(session, number).unwrap_or(0);
            if number <= last {
                self.writer.judge.complain(format!("the session {session} was attached as {number} after {last}"));
            }
            self.grammar.hear_attachment(Attached { session, number });
        }
        Ok(())
    }

    /// Complains of a write by an attachment that was replaced before the write was sent.
    fn judge_attached(&self, txn: &Txn) {
        let Some(Attached { session, number }) = txn.attached() else { return };
        self.writer.judge.count("transactions by an attachment");
        if self.attached.get(&session).is_some_and(|last| number < *last) {
            let why = format!("a transaction by the attachment {number} of the session {session} took effect after");
            self.writer.judge.complain(format!("{why} {:?}", self.attached[&session]));
        }
    }

    fn hear(&mut self, txn: &Txn, committed: &Committed) {
        self.grammar.hear_revision(committed.revision);
        self.grammar.hear_now(committed.now);
        let branch = if committed.succeeded { txn.then() } else { txn.otherwise() };
        for (operation, result) in branch.iter().zip(&committed.results) {
            match (operation, result) {
                (TxnOperation::Get(key), TxnResult::Got(entry)) => {
                    self.grammar.hear_entry(key, entry.as_ref().map(|entry| entry.modified));
                }
                (TxnOperation::Put(put), _) => self.grammar.hear_entry(&put.key, Some(committed.revision)),
                (TxnOperation::Delete(key), _) => self.grammar.hear_entry(key, None),
                (_, TxnResult::Selected(selected)) => self.hear_entries(&selected.entries),
                _ => {}
            }
        }
    }

    fn hear_entries(&mut self, entries: &[(Key, Arc<Entry>)]) {
        for (key, entry) in entries {
            self.grammar.hear_entry(key, Some(entry.modified));
        }
    }

    fn at(&mut self) -> Option<Revision> {
        let acknowledged = self.writer.judge.acknowledged();
        self.grammar.hear_revision(acknowledged);
        if self.grammar.percent(50) { Some(self.grammar.revision()) } else { None }
    }

    async fn get(&mut self) -> Result<(), Malformed> {
        let before = self.writer.judge.acknowledged();
        let at = self.at();
        let count = if self.grammar.percent(80) { 3 } else { 40 };
        let keys: Vec<_> = (0..count).map(|_| self.grammar.key()).collect();
        let message = pb::GetEntries {
            keys: keys.iter().map(write_key).collect(),
            at_revision: at.map(|revision| revision.0),
            on_time: self.grammar.percent(30),
        };
        let outcome = send!(self, get, message);
        self.note(&outcome);
        let Outcome::Answered(pb::EntriesFound { entries, revision, now_ms: _ }) = outcome else { return Ok(()) };
        let found = entries.iter().map(|found| found.entry.as_ref().map(read_entry).transpose());
        let found: Vec<_> = found.collect::<Result<_, _>>()?;
        self.writer.judge.read(before, at, Revision(revision), Read::Keys { keys, found });
        Ok(())
    }

    async fn list(&mut self) -> Result<(), Malformed> {
        let before = self.writer.judge.acknowledged();
        let leased_by = if self.grammar.percent(25) { Some(self.grammar.session()) } else { None };
        let at = if leased_by.is_none() || self.grammar.percent(5) { self.at() } else { None };
        let range = self.grammar.range();
        let backwards = self.grammar.percent(50);
        let page_size = self.grammar.random().random_range(0..6);
        let message = pb::ListEntries {
            range: Some(write_range(&range)),
            backwards,
            page_size,
            at_revision: at.map(|revision| revision.0),
            leased_by: leased_by.map(write_session).unwrap_or_default(),
            on_time: self.grammar.percent(30),
        };
        let outcome = send!(self, list, message);
        self.note(&outcome);
        let Outcome::Answered(pb::EntryPage { entries, more, revision, now_ms: _ }) = outcome else { return Ok(()) };
        let entries = read_entries(&entries)?;
        self.hear_entries(&entries);
        let read = Read::Page { range, backwards, leased_by, entries, more };
        self.writer.judge.read(before, at, Revision(revision), read);
        Ok(())
    }

    async fn select(&mut self) -> Result<(), Malformed> {
        let before = self.writer.judge.acknowledged();
        let at = self.at();
        let select = self.grammar.select();
        self.writer.judge.say(|words| words.note_select(&select));
        let at_revision = at.map(|revision| revision.0);
        let message =
            pb::SelectEntries { select: Some(write_select(&select)), at_revision, on_time: self.grammar.percent(30) };
        let outcome = send!(self, select, message);
        self.note(&outcome);
        let Outcome::Answered(pb::EntriesSelected { selected, revision }) = outcome else { return Ok(()) };
        let selected = read_selected(&selected.unwrap_or_default())?;
        self.writer.judge.read(before, at, Revision(revision), Read::Selected { select, selected });
        Ok(())
    }

    async fn compact(&mut self) -> Result<(), Malformed> {
        let acknowledged = self.writer.judge.acknowledged();
        self.grammar.hear_revision(acknowledged);
        let revision = self.grammar.revision();
        let outcome = send!(self, compact, pb::Compaction { revision: revision.0 });
        self.note(&outcome);
        Ok(())
    }
}

/// What an error says of its request.
pub(crate) fn classified<T>(status: &Status) -> Outcome<T> {
    let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
    match info.as_ref().map(|info| info.metadata.get("retry").map_or("no", String::as_str)) {
        Some("no") => Outcome::Refused(reason(status)),
        Some("safe") => Outcome::Unserved,
        _ if status.code() == Code::InvalidArgument => Outcome::Refused("INVALID_ARGUMENT".to_owned()),
        _ => Outcome::Unknown,
    }
}

/// The reason of an error; empty: it is one of the network.
fn reason(status: &Status) -> String {
    let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
    info.map(|info| info.reason).unwrap_or_default()
}

pub(super) fn read_committed(message: pb::Committed) -> Result<Committed, Malformed> {
    let result = |result: pb::TxnResult| {
        Ok(match result.kind.ok_or(Malformed("a result without its kind"))? {
            txn_result::Kind::Got(found) => TxnResult::Got(found.entry.as_ref().map(read_entry).transpose()?),
            txn_result::Kind::Put(_) => TxnResult::Put,
            txn_result::Kind::PutChild(key) => TxnResult::PutChild(read_key(&key)?),
            txn_result::Kind::Expires(is_there) => TxnResult::Expires(is_there),
            txn_result::Kind::Deleted(count) => TxnResult::Deleted(count),
            txn_result::Kind::Selected(selected) => TxnResult::Selected(read_selected(&selected)?),
            txn_result::Kind::OpenedTtlMs(ms) => {
                TxnResult::Opened(Ttl::from_millis(ms).map_err(|_| Malformed("a TTL beyond its limits"))?)
            }
        })
    };
    let results = message.results.into_iter().map(result).collect::<Result<_, Malformed>>()?;
    Ok(Committed {
        succeeded: message.succeeded,
        failed: message.failed.map(read_failure).transpose()?,
        revision: Revision(message.revision),
        now: Stamp(message.now_ms),
        results,
    })
}

fn read_selected(message: &pb::Selected) -> Result<Selected, Malformed> {
    Ok(Selected { entries: read_entries(&message.entries)?, count: message.count, more: message.more })
}

fn read_entries(messages: &[pb::KeyEntry]) -> Result<Vec<(Key, Arc<Entry>)>, Malformed> {
    let read = |message: &pb::KeyEntry| {
        let entry = message.entry.as_ref().ok_or(Malformed("a key without its entry"))?;
        Ok((read_key(&message.key)?, read_entry(entry)?))
    };
    messages.iter().map(read).collect()
}
