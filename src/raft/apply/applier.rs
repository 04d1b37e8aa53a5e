//! Applies committed entries: small groups in place, large ones on a thread of its own.
//!
//! A group of entries may take many milliseconds: a batch of thousands of commands, or the sessions that expire in each of many batches. A
//! thread of its own applies the group, so that it delays no heartbeat, vote or acknowledgement, which share the runtime of Raft. Most
//! groups are small, and the hand-over to another thread and back would cost more than they do: a third of the CPU time of a pair at one
//! worker (`lockkeeper bench uncontended --workers 1`). Those are applied in place.
//!
//! Small means: at most [`IN_PLACE_BYTES`] of commands, which cost at most [`IN_PLACE_UNITS`]; no work left over from earlier batches, and
//! room for audit lines. One such group
//! may still end the sessions whose deadlines have passed, within the budget of a batch ([`lockkeeper_machine::Limits`]); if more of them
//! are due, the rest is left over, and so the next group goes to the thread.
//!
//! Entries are applied in log order, one group after the other. The applier also answers their proposers. A simulation has one thread, and
//! applies on it; after an entry of a large group it waits for as long as a thread would have applied it.

use std::{io, sync::Arc, thread, time::Duration};

use openraft::storage::{ApplyResponder, EntryResponder};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};

use crate::types::{EntryPayload, LogEntry, StoredMembership, TypeConfig, entry_id, to_applied};
use lockkeeper_audit::Sink;
use lockkeeper_environment::Blocking;
use lockkeeper_metrics::CommandStage;
use lockkeeper_table::{EntryContent, EntryId, Table};
use lockkeeper_transport::LogThrottle;

/// The commands of a group that is applied in place, in bytes: 300 to 600 acquires or releases, which take about a millisecond.
const IN_PLACE_BYTES: usize = 32 * 1024;
/// The commands of a group that is applied in place, in units of work: a few bytes may visit thousands of entries of the keyspace.
const IN_PLACE_UNITS: usize = 2 * 1024;
/// A group that takes this long to apply is logged: renewals behind it are late by as much.
const SLOW_APPLY: Duration = Duration::from_millis(250);

/// Entries that are to be applied, each with the responder of its proposer.
pub(crate) type Entries = Vec<EntryResponder<TypeConfig>>;

/// Applies entries to a table, in order.
#[derive(Debug)]
pub(crate) struct Applier {
    target: Arc<ApplyTarget>,
    /// The thread that applies large groups. Without it, all groups are applied in place.
    thread: Option<mpsc::Sender<ApplyJob>>,
}

/// The table, and the receivers of its changes.
#[derive(Debug)]
struct ApplyTarget {
    table: Arc<Table>,
    /// Limits the lines about groups that took long.
    slow_applies: LogThrottle,
}

struct ApplyJob {
    group: ApplyGroup,
    done: oneshot::Sender<io::Result<()>>,
}

/// Entries that are to be applied.
enum ApplyGroup {
    /// The entries as they are in the log.
    Encoded(Entries),
    /// The entries decoded, to compute how much work they are.
    Read(Vec<ReadEntry>),
}

/// An entry, and the responder of its proposer.
struct ReadEntry {
    entry: EntryId,
    /// An entry that cannot be read fails when it is its turn: those before it are applied.
    content: io::Result<EntryContent>,
    responder: Option<ApplyResponder<TypeConfig>>,
}

impl Applier {
    /// Starts the thread, unless `blocking` says that there is only one thread.
    pub(crate) fn start(table: Arc<Table>, blocking: Blocking) -> io::Result<Self> {
        let target = Arc::new(ApplyTarget { table, slow_applies: LogThrottle::default() });
        let thread = match blocking {
            Blocking::Here => None,
            Blocking::OnThreads => {
                // A capacity of 1 suffices: openraft waits for each call.
                let (sender, mut jobs) = mpsc::channel::<ApplyJob>(1);
                let of_thread = Arc::clone(&target);
                let run = move || {
                    while let Some(ApplyJob { group, done }) = jobs.blocking_recv() {
                        // The receiver is gone when the node shuts down.
                        let _ = done.send(apply_all(&of_thread, group));
                    }
                };
                thread::Builder::new().name("apply".to_owned()).spawn(run)?;
                Some(sender)
            }
        };

        Ok(Self { target, thread })
    }

    /// Applies these entries, `bytes` of them in all, and answers their proposers; returns when that is done. Fails at the first entry that
    /// cannot be read, and applies none after it.
    pub(crate) async fn apply(&self, entries: Entries, bytes: usize) -> io::Result<()> {
        let group = if self.is_large(bytes) {
            ApplyGroup::Encoded(entries)
        } else {
            ApplyGroup::Read(entries.into_iter().map(ReadEntry::from).collect())
        };

        // A few bytes may be much work, so what is short is read here, where its cost can be seen.
        let is_large = match &group {
            ApplyGroup::Encoded(_) => true,
            ApplyGroup::Read(entries) => self.is_much_work(entries),
        };
        let Some(thread) = self.thread.as_ref() else {
            return apply_without_thread(&self.target, group, is_large).await;
        };
        if !is_large {
            return apply_all(&self.target, group);
        }

        let (done, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that applies entries has panicked");
        thread.send(ApplyJob { group, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    fn is_large(&self, bytes: usize) -> bool {
        let waits_for_audit = self.target.table.audit().sink().is_some_and(Sink::is_behind);
        bytes > IN_PLACE_BYTES || waits_for_audit || self.target.table.has_work()
    }

    /// Looks at no more entries of the keyspace than a group may visit in place. The table does not have those yet that the group itself
    /// puts, and the ranges of later commands will visit them: at a restart, a group may fill an empty table and read all of it.
    fn is_much_work(&self, entries: &[ReadEntry]) -> bool {
        let batches = entries.iter().filter_map(|entry| match &entry.content {
            Ok(EntryContent::Batch(batch)) => Some(batch),
            Ok(EntryContent::Blank | EntryContent::Membership(_)) | Err(_) => None,
        });

        let mut left = IN_PLACE_UNITS;
        let mut growth = 0_usize;
        self.target.table.read(|applied| {
            batches.flat_map(|batch| &batch.commands).any(|command| {
                let visits_later = command.ranges().saturating_mul(growth);
                let units = applied.machine.cost(command, left + 1).saturating_add(visits_later);
                growth = growth.saturating_add(command.growth());

                let is_over = units > left;
                left = left.saturating_sub(units);
                is_over
            })
        })
    }
}

impl From<EntryResponder<TypeConfig>> for ReadEntry {
    fn from((entry, responder): EntryResponder<TypeConfig>) -> Self {
        Self { entry: entry_id(entry.log_id), content: read(entry), responder }
    }
}

fn apply_all(target: &ApplyTarget, group: ApplyGroup) -> io::Result<()> {
    match group {
        ApplyGroup::Encoded(entries) => apply_each(target, entries.into_iter().map(ReadEntry::from)),
        ApplyGroup::Read(entries) => apply_each(target, entries.into_iter()),
    }
}

/// Applies as the thread would, in a simulation without threads: a large group takes time, in which other tasks run.
async fn apply_without_thread(target: &ApplyTarget, group: ApplyGroup, is_large: bool) -> io::Result<()> {
    let entries = match group {
        ApplyGroup::Encoded(entries) => entries.into_iter().map(ReadEntry::from).collect(),
        ApplyGroup::Read(entries) => entries,
    };
    for entry in entries {
        apply_each(target, [entry].into_iter())?;
        let lasted = target.table.lasted(!is_large);
        if !lasted.is_zero() {
            sleep(lasted).await;
        }
    }
    Ok(())
}

fn apply_each(target: &ApplyTarget, entries: impl ExactSizeIterator<Item = ReadEntry>) -> io::Result<()> {
    let ApplyTarget { table, slow_applies } = target;
    let began = Instant::now();
    let count = entries.len();

    let mut from = began;
    for ReadEntry { entry, content, responder } in entries {
        let mut applied = table.apply_entry(entry, content, responder.is_some())?;
        if let Some(responder) = responder {
            let to = Instant::now();
            applied.applied = Some((std::mem::replace(&mut from, to), to));
            responder.send(applied);
        }
    }

    let took = began.elapsed();
    table.metrics().took(CommandStage::Apply, took);
    if took >= SLOW_APPLY
        && let Some(times) = slow_applies.count()
    {
        tracing::warn!(times, entries = count, took_ms = took.as_millis() as u64, "entries were applied slowly");
    }
    Ok(())
}

/// What an entry holds, as the table takes it.
pub(crate) fn read(entry: LogEntry) -> io::Result<EntryContent> {
    match entry.payload {
        EntryPayload::Blank => Ok(EntryContent::Blank),
        EntryPayload::Membership(membership) => {
            let membership = StoredMembership::new(Some(entry.log_id), membership);
            Ok(EntryContent::Membership(to_applied(&membership)))
        }
        EntryPayload::Normal(payload) => EntryContent::decode(entry_id(entry.log_id), &payload.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{
        Command, Key, KeyRange, Label, Limits, Put, PutLease, Select, SessionId, Stamp, Time, Ttl, Txn, TxnOperation,
        Value, WallTime,
    };
    use lockkeeper_table::Batch;

    fn applier(table: &Arc<Table>) -> Applier {
        Applier::start(Arc::clone(table), Blocking::Here).expect("it needs no thread")
    }

    #[test]
    fn work_that_is_left_over_makes_a_group_large() {
        let table = Arc::new(Table::new(None));
        let applier = applier(&table);
        let apply = |index, stamp, commands| {
            let time = Time { stamp: Stamp(stamp), wall: WallTime(0) };
            let limits = Limits { work: 1, ..Limits::default() };
            table.apply(EntryId { term: 1, index }, Batch { time, limits, commands }, false);
        };
        let open = |session| {
            let ttl = Ttl::from_millis(1000).expect("in bounds");
            let label = Label::new("").expect("short");
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

    /// A small transaction that visits a large range must not run on the thread that sends heartbeats.
    #[test]
    fn ranges_with_many_entries_make_a_group_large() {
        let table = Arc::new(Table::new(None));
        let applier = applier(&table);
        let key = |number: usize| Key::new(format!("e{number:05}").as_bytes()).expect("short");
        let range = KeyRange { from: Some(key(0)), to: Some(key(99_999)) };
        let select = || TxnOperation::Select(Select { range: range.clone(), limit: 1, ..Select::default() });
        let txn = |then| Command::Txn(Txn::new(vec![], then, vec![]).expect("in bounds"));
        let batch =
            |commands| Batch { time: Time { stamp: Stamp(0), wall: WallTime(0) }, limits: Limits::default(), commands };
        let read = |commands| {
            let entry = EntryId { term: 1, index: 1 };
            let content = Ok(EntryContent::Batch(batch(commands)));
            vec![ReadEntry { entry, content, responder: None }]
        };
        let put = |number| Put { key: key(number), value: Value::default(), lease: PutLease::None, claims: None };
        assert!(!applier.is_much_work(&read(vec![txn(vec![select()])])));
        assert!(applier.is_much_work(&read((0..IN_PLACE_UNITS).map(|_| txn(vec![select()])).collect())));

        for index in 1..=(IN_PLACE_UNITS / 256 + 1) as u64 {
            let first = index as usize * 256;
            let puts = (first..first + 256).map(|number| TxnOperation::Put(put(number))).collect();
            let log_id = EntryId { term: 1, index };
            table.apply(log_id, batch(vec![txn(puts)]), false);
        }
        assert!(applier.is_much_work(&read(vec![txn(vec![select()])])));

        // What a group puts counts for the ranges behind it.
        let empty = Arc::new(Table::new(None));
        let applier = self::applier(&empty);
        let puts = || txn((0..256).map(|number| TxnOperation::Put(put(number))).collect());
        let selects = (0..IN_PLACE_UNITS / 256).map(|_| txn(vec![select()]));
        assert!(!applier.is_much_work(&read(selects.clone().chain([puts()]).collect())));
        assert!(applier.is_much_work(&read([puts()].into_iter().chain(selects).collect())));

        let other = TxnOperation::Get(key(0));
        assert!(!applier.is_much_work(&read((0..256).map(|_| txn(vec![other.clone()])).collect())));
    }
}
