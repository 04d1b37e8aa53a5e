//! Applies committed entries: small groups in place, large ones on a thread of its own.
//!
//! A group of entries may take many milliseconds: a batch of thousands of commands, or the sessions that expire in each of many batches. A
//! thread of its own applies such a group, so that it delays no heartbeat, vote or acknowledgement, which share the runtime of Raft. Most
//! groups are small, and the hand-over to another thread and back would cost more than they do: a third of the CPU time of a pair at one
//! worker (`lockkeeper bench uncontended --workers 1`). Those are applied in place.
//!
//! Small means: at most [`IN_PLACE_BYTES`] of commands, no work left over from earlier batches, and room for audit lines. One such group
//! may still end the sessions whose deadlines have passed, within the budget of a batch ([`lockkeeper_machine::Limits`]); if more of them
//! are due, the rest is left over, and so the next group goes to the thread.
//!
//! Entries are applied in log order, one group after the other. The applier also answers their proposers. A simulation has one thread, and
//! applies on it.

use std::{io, sync::Arc, thread, time::Duration};

use openraft::storage::EntryResponder;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    commands,
    table::{Batch, Table},
    types::{Deliveries, Entry, EntryPayload, LogId, TypeConfig},
};
use lockkeeper_audit::Sink;
use lockkeeper_environment::Blocking;
use lockkeeper_metrics::Stage;

/// The commands of a group that is applied in place, in bytes: 300 to 600 acquires or releases, which take about a millisecond.
const IN_PLACE_BYTES: usize = 32 * 1024;
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
    entries: Entries,
    done: oneshot::Sender<io::Result<()>>,
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
                    while let Some(Job { entries, done }) = jobs.blocking_recv() {
                        // The receiver is gone when the node shuts down.
                        let _ = done.send(apply_all(&of_thread, entries));
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
        let Some(thread) = self.thread.as_ref().filter(|_| self.is_large(bytes)) else {
            return apply_all(&self.table, entries);
        };
        let (done, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that applies entries has panicked");
        thread.send(Job { entries, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    fn is_large(&self, bytes: usize) -> bool {
        let waits_for_audit = self.table.audit().sink().is_some_and(Sink::is_behind);
        bytes > IN_PLACE_BYTES || waits_for_audit || self.table.has_work()
    }
}

fn apply_all(table: &Table, entries: Entries) -> io::Result<()> {
    let (began, count) = (Instant::now(), entries.len());
    let mut from = began;
    for (entry, responder) in entries {
        let mut applied = apply(table, entry, responder.is_some())?;
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
    match entry.payload {
        EntryPayload::Blank => table.pass(log_id, None),
        EntryPayload::Membership(membership) => table.pass(log_id, Some(membership)),
        EntryPayload::Normal(payload) => {
            let (time, limits, commands) =
                commands::decode(&payload.0).map_err(|malformed| damaged(&log_id, &malformed.to_string()))?;
            // Before any of them is applied: a command that is skipped would make this table differ from the others.
            table.versions().check_commands(&commands).map_err(|error| {
                io::Error::new(error.kind(), format!("log entry {log_id} cannot be applied: {error}"))
            })?;
            return Ok(table.apply(log_id, Batch { time, limits, commands }, answer));
        }
    }
    Ok(Deliveries::default())
}

fn damaged(log_id: &LogId, why: &str) -> io::Error {
    let message = format!(
        "log entry {log_id} cannot be decoded ({why}): it is damaged or was written by a newer version; install that \
         version; if this node runs it already, replace the node with `lockkeeper member replace`"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::CommittedLeaderId;
    use lockkeeper_machine::{Command, Label, Limits, SessionId, Stamp, Time, Ttl, WallTime};

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
}
