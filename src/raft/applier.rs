//! Applies committed entries: small groups in place, large ones on a thread of its own.
//!
//! A group of entries may take many milliseconds: a batch of thousands of commands, or the sessions that expire in each of many batches. A
//! thread of its own applies such a group, so that it delays no heartbeat, vote or acknowledgement, which share the runtime of Raft. Most
//! groups are small, and the hand-over to another thread and back would cost more than they do: a third of the CPU time of a pair at one
//! worker (`lockkeeper bench uncontended --workers 1`). Those are applied in place.
//!
//! Small means: at most [`IN_PLACE_BYTES`] of commands, which cost at most [`IN_PLACE_UNITS`]; no work left over from earlier batches, and
//! room for audit lines. One such group
//! may still end the sessions whose deadlines have passed, within the budget of a batch ([`lockkeeper_machine::Limits`]); if more of them
//! are due, the rest is left over, and so the next group goes to the thread.
//!
//! Entries are applied in log order, one group after the other. The applier also answers their proposers. A simulation has one thread, and
//! applies on it.

use std::{io, sync::Arc, thread, time::Duration};

use openraft::storage::{ApplyResponder, EntryResponder};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    commands,
    table::{Batch, Table},
    types::{Deliveries, Entry, EntryPayload, LogId, Membership, TypeConfig},
    unapplied,
};
use lockkeeper_audit::Sink;
use lockkeeper_environment::Blocking;
use lockkeeper_metrics::Stage;

/// The commands of a group that is applied in place, in bytes: 300 to 600 acquires or releases, which take about a millisecond.
const IN_PLACE_BYTES: usize = 32 * 1024;
/// The commands of a group that is applied in place, in units of work: a few bytes may visit thousands of entries of the keyspace.
const IN_PLACE_UNITS: usize = 2 * 1024;
/// A group that takes this long to apply is logged: renewals behind it are late by as much.
const SLOW_APPLY: Duration = Duration::from_millis(250);

/// Entries that are to be applied, each with the responder of its proposer.
pub(super) type Entries = Vec<EntryResponder<TypeConfig>>;

/// Applies entries to a table, in order.
#[derive(Debug)]
pub(super) struct Applier {
    table: Arc<Table>,
    /// `None`: all groups are applied in place.
    thread: Option<mpsc::Sender<Job>>,
}

struct Job {
    group: Group,
    done: oneshot::Sender<io::Result<()>>,
}

/// Entries that are to be applied.
enum Group {
    /// As they are in the log.
    Encoded(Entries),
    /// As they were read to see how much work they are.
    Read(Vec<ReadEntry>),
}

/// An entry, and the responder of its proposer.
struct ReadEntry {
    log_id: LogId,
    /// An entry that cannot be read fails when it is its turn: those before it are applied.
    content: io::Result<Content>,
    responder: Option<ApplyResponder<TypeConfig>>,
}

/// What an entry holds.
enum Content {
    Blank,
    Membership(Membership),
    Batch(Batch),
}

impl Applier {
    /// Starts the thread, unless `blocking` says that there is only one thread.
    pub(super) fn start(table: Arc<Table>, blocking: Blocking) -> io::Result<Self> {
        let thread = match blocking {
            Blocking::Here => None,
            Blocking::OnThreads => {
                // A capacity of 1 suffices: openraft waits for each call.
                let (sender, mut jobs) = mpsc::channel::<Job>(1);
                let of_thread = Arc::clone(&table);
                let run = move || {
                    while let Some(Job { group, done }) = jobs.blocking_recv() {
                        // The receiver is gone when the node shuts down.
                        let _ = done.send(apply_all(&of_thread, group));
                    }
                };
                thread::Builder::new().name("apply".to_owned()).spawn(run)?;
                Some(sender)
            }
        };
        Ok(Self { table, thread })
    }

    /// Applies these entries, `bytes` of them in all, and answers their proposers; returns when that is done. Fails at the first entry that
    /// cannot be read, and applies none after it.
    pub(super) async fn apply(&self, entries: Entries, bytes: usize) -> io::Result<()> {
        let group = if self.is_large(bytes) {
            Group::Encoded(entries)
        } else {
            Group::Read(entries.into_iter().map(ReadEntry::from).collect())
        };
        let is_large = match &group {
            Group::Encoded(_) => true,
            Group::Read(entries) => self.is_much_work(entries),
        };
        let Some(thread) = self.thread.as_ref().filter(|_| is_large) else {
            return apply_all(&self.table, group);
        };
        let (done, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that applies entries has panicked");
        thread.send(Job { group, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    fn is_large(&self, bytes: usize) -> bool {
        let waits_for_audit = self.table.audit().sink().is_some_and(Sink::is_behind);
        bytes > IN_PLACE_BYTES || waits_for_audit || self.table.has_work()
    }

    /// Looks at no more entries of the keyspace than a group may visit in place.
    fn is_much_work(&self, entries: &[ReadEntry]) -> bool {
        let batches = entries.iter().filter_map(|entry| match &entry.content {
            Ok(Content::Batch(batch)) => Some(batch),
            Ok(Content::Blank | Content::Membership(_)) | Err(_) => None,
        });
        let mut left = IN_PLACE_UNITS;
        self.table.read(|applied| {
            batches.flat_map(|batch| &batch.commands).any(|command| {
                let units = applied.machine.cost(command, left + 1);
                let is_over = units > left;
                left = left.saturating_sub(units);
                is_over
            })
        })
    }
}

impl From<EntryResponder<TypeConfig>> for ReadEntry {
    fn from((entry, responder): EntryResponder<TypeConfig>) -> Self {
        Self { log_id: entry.log_id, content: read(entry), responder }
    }
}

fn apply_all(table: &Table, group: Group) -> io::Result<()> {
    match group {
        Group::Encoded(entries) => apply_each(table, entries.into_iter().map(ReadEntry::from)),
        Group::Read(entries) => apply_each(table, entries.into_iter()),
    }
}

fn apply_each(table: &Table, entries: impl ExactSizeIterator<Item = ReadEntry>) -> io::Result<()> {
    let (began, count) = (Instant::now(), entries.len());
    let mut from = began;
    for ReadEntry { log_id, content, responder } in entries {
        let mut applied = apply_content(table, log_id, content, responder.is_some())?;
        if let Some(responder) = responder {
            let to = Instant::now();
            applied.applied = Some((std::mem::replace(&mut from, to), to));
            responder.send(applied);
        }
    }
    let took = began.elapsed();
    table.metrics().took(Stage::Apply, took);
    if took >= SLOW_APPLY
        && let Some(times) = table.slow_applies().count()
    {
        tracing::warn!(times, entries = count, took_ms = took.as_millis() as u64, "entries were applied slowly");
    }
    Ok(())
}

/// Applies one entry. With `answer`, its proposer waits for the deliveries.
pub(super) fn apply(table: &Table, entry: Entry, answer: bool) -> io::Result<Deliveries> {
    let log_id = entry.log_id;
    apply_content(table, log_id, read(entry), answer)
}

fn read(entry: Entry) -> io::Result<Content> {
    let log_id = entry.log_id;
    match entry.payload {
        EntryPayload::Blank => Ok(Content::Blank),
        EntryPayload::Membership(membership) => Ok(Content::Membership(membership)),
        EntryPayload::Normal(payload) => {
            let (time, limits, commands) =
                commands::decode(&payload.0).map_err(|malformed| damaged(&log_id, &malformed.to_string()))?;
            Ok(Content::Batch(Batch { time, limits, commands }))
        }
    }
}

/// Fails on a batch of which this program cannot apply all commands.
fn ensure_supported(table: &Table, log_id: LogId, content: Content) -> io::Result<Content> {
    let Content::Batch(batch) = &content else { return Ok(content) };
    table.versions().check_commands(&batch.commands).map_err(|error| {
        let advice = unapplied::advice(log_id.index);
        io::Error::new(error.kind(), format!("log entry {log_id} cannot be applied: {error}; {advice}"))
    })?;
    Ok(content)
}

fn apply_content(table: &Table, log_id: LogId, content: io::Result<Content>, answer: bool) -> io::Result<Deliveries> {
    // Before any of its commands is applied: a command that is skipped would make this table differ from the others.
    let content = content.and_then(|content| ensure_supported(table, log_id, content));
    match content.inspect_err(|error| table.note_unapplied(error))? {
        Content::Blank => table.pass(log_id, None),
        Content::Membership(membership) => table.pass(log_id, Some(membership)),
        Content::Batch(batch) => {
            unapplied::begin(log_id, batch.commands.len());
            let deliveries = table.apply(log_id, batch, answer);
            unapplied::end();
            return Ok(deliveries);
        }
    }
    Ok(Deliveries::default())
}

fn damaged(log_id: &LogId, why: &str) -> io::Error {
    let advice = unapplied::advice(log_id.index);
    let message = format!(
        "log entry {log_id} cannot be decoded ({why}): it is damaged or was written by a newer version; install that version; {advice}"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use std::panic::{self, AssertUnwindSafe};

    use super::*;
    use crate::{
        table::{Applied, Inspect},
        types::{CommittedLeaderId, Payload},
    };
    use bytes::Bytes;
    use lockkeeper_machine::{
        Command, Key, KeyRange, Label, Limits, Put, PutLease, Revision, Select, SessionId, Stamp, Time, Ttl, Txn,
        TxnOperation, Value, WallTime,
    };

    #[test]
    fn an_entry_that_cannot_be_applied_names_itself_and_changes_nothing() {
        let table = Table::new(None);
        let log_id = |index| LogId { leader_id: CommittedLeaderId::new(1), index };
        let entry = |index, payload| Entry { log_id: log_id(index), payload: EntryPayload::Normal(Payload(payload)) };
        let batch = |commands: &[Command]| commands::encode(Time::default(), Limits::default(), commands);
        apply(&table, entry(1, batch(&[Command::Tick])), false).expect("applied");
        assert_eq!(table.unapplied(), None);

        let open = |session| {
            let (ttl, label) = (Ttl::from_millis(1000).expect("in bounds"), Label::default());
            Command::Open { session: SessionId(session), ttl, label, address: None, owner: None }
        };
        for payload in [batch(&[open(1), Command::Probe]), Bytes::from_static(b"this is no batch")] {
            let error = apply(&table, entry(2, payload), false).expect_err("no node can apply it");
            let text = error.to_string();
            assert!(text.contains(&format!("log entry {}", log_id(2))) && text.contains("--through 1"), "{text}");
            assert_eq!(table.read(|applied| (applied.index(), applied.machine.counts().sessions)), (1, 0));
        }
        let first = table.unapplied().expect("it is noted");
        assert!(first.contains("needs cluster version"), "the first one counts: {first}");
    }

    /// A table that is broken after each entry.
    #[derive(Debug)]
    struct Broken;

    impl Inspect for Broken {
        fn look(&self, _: &Applied) {
            panic!("the table contradicts itself");
        }
    }

    /// The panic hook of the program asks for it, on the thread that panics.
    #[test]
    fn a_panic_while_an_entry_is_applied_can_name_the_entry() {
        let table = Table::new(Some(Arc::new(Broken)));
        let log_id = LogId { leader_id: CommittedLeaderId::new(1), index: 7 };
        let commands = [Command::Tick, Command::Compact { revision: Revision(0) }];
        let payload = commands::encode(Time::default(), Limits::default(), &commands);
        let entry = Entry { log_id, payload: EntryPayload::Normal(Payload(payload)) };
        let applied = panic::catch_unwind(AssertUnwindSafe(|| apply(&table, entry, false)));
        assert!(applied.is_err());
        let (text, advice) = unapplied::being_applied().expect("it was being applied");
        assert!(text.contains(&log_id.to_string()) && text.contains("its command 2 of 2, compact"), "{text}");
        assert!(advice.contains("recover --through 6"), "{advice}");
        unapplied::end();
    }

    #[test]
    fn work_that_is_left_over_makes_a_group_large() {
        let table = Arc::new(Table::new(None));
        let applier = Applier { table: Arc::clone(&table), thread: None };
        let apply = |index, stamp, commands| {
            let (time, limits) =
                (Time { stamp: Stamp(stamp), wall: WallTime(0) }, Limits { work: 1, ..Limits::default() });
            table.apply(LogId { leader_id: CommittedLeaderId::new(1), index }, Batch { time, limits, commands }, false);
        };
        let open = |session| {
            let (ttl, label) = (Ttl::from_millis(1000).expect("in bounds"), Label::new("").expect("short"));
            Command::Open { session: SessionId(session), ttl, label, address: None, owner: None }
        };
        apply(1, 0, (1..=3).map(open).collect());
        assert!(!applier.is_large(IN_PLACE_BYTES) && applier.is_large(IN_PLACE_BYTES + 1));
        // All three are due, and a batch may end one.
        apply(2, 5000, vec![Command::Tick]);
        assert!(applier.is_large(0));
        (3..10).for_each(|index| apply(index, 5000, vec![Command::Tick]));
        assert!(!applier.is_large(IN_PLACE_BYTES));
    }

    /// A transaction of some bytes that visits a large range is no work for the thread of heartbeats.
    #[test]
    fn ranges_with_many_entries_make_a_group_large() {
        let table = Arc::new(Table::new(None));
        let applier = Applier { table: Arc::clone(&table), thread: None };
        let key = |number: usize| Key::new(format!("e{number:05}").as_bytes()).expect("short");
        let range = KeyRange { from: Some(key(0)), to: Some(key(99_999)) };
        let select = || TxnOperation::Select(Select { range: range.clone(), limit: 1, ..Select::default() });
        let txn = |then| Command::Txn(Txn::new(vec![], then, vec![]).expect("in bounds"));
        let batch =
            |commands| Batch { time: Time { stamp: Stamp(0), wall: WallTime(0) }, limits: Limits::default(), commands };
        let read = |commands| {
            let (log_id, responder) = (LogId { leader_id: CommittedLeaderId::new(1), index: 1 }, None);
            vec![ReadEntry { log_id, content: Ok(Content::Batch(batch(commands))), responder }]
        };
        assert!(!applier.is_much_work(&read(vec![txn(vec![select()])])));
        assert!(applier.is_much_work(&read((0..IN_PLACE_UNITS).map(|_| txn(vec![select()])).collect())));

        for index in 1..=(IN_PLACE_UNITS / 256 + 1) as u64 {
            let first = index as usize * 256;
            let put = |number| Put { key: key(number), value: Value::default(), lease: PutLease::None, claims: None };
            let puts = (first..first + 256).map(|number| TxnOperation::Put(put(number))).collect();
            let log_id = LogId { leader_id: CommittedLeaderId::new(1), index };
            table.apply(log_id, batch(vec![txn(puts)]), false);
        }
        assert!(applier.is_much_work(&read(vec![txn(vec![select()])])));
        let other = TxnOperation::Get(key(0));
        assert!(!applier.is_much_work(&read((0..256).map(|_| txn(vec![other.clone()])).collect())));
    }
}
