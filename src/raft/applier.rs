//! Where committed entries are applied.
//!
//! An entry may take milliseconds: many sessions expire at once, or a release grants a lock to thousands. On a thread of its own that delays
//! no heartbeat, no vote and no acknowledgement, which share the runtime of Raft. Entries are applied in the order in which they come, and whoever
//! proposed one is answered from here.
//!
//! A simulation has one thread, and applies on it.

use std::{io, sync::Arc, thread};

use openraft::storage::EntryResponder;
use tokio::sync::{mpsc, oneshot};

use super::{
    commands,
    table::{Batch, Table},
    types::{Applied, Entry, EntryPayload, LogId, TypeConfig},
};
use crate::environment::Blocking;

/// Entries that are to be applied, and who is answered.
pub(super) type Entries = Vec<EntryResponder<TypeConfig>>;

/// Applies entries to a table, in order.
#[derive(Debug)]
pub(super) struct Applier {
    table: Arc<Table>,
    /// `None`: on the thread of who asks.
    thread: Option<mpsc::Sender<Job>>,
}

struct Job {
    entries: Entries,
    done: oneshot::Sender<io::Result<()>>,
}

impl Applier {
    /// Starts the thread, unless `blocking` says that there is only one.
    pub(super) fn start(table: Arc<Table>, blocking: Blocking) -> io::Result<Self> {
        let thread = match blocking {
            Blocking::Here => None,
            Blocking::OnThreads => {
                // One at a time: openraft waits for what it asked for.
                let (sender, mut jobs) = mpsc::channel::<Job>(1);
                let of_thread = Arc::clone(&table);
                let run = move || {
                    while let Some(Job { entries, done }) = jobs.blocking_recv() {
                        // Nobody waits any more when all is being closed.
                        let _ = done.send(apply_all(&of_thread, entries));
                    }
                };
                thread::Builder::new().name("apply".to_owned()).spawn(run)?;
                Some(sender)
            }
        };
        Ok(Self { table, thread })
    }

    /// Applies these entries and answers who proposed them; returns when that is done. Fails at the first that cannot be read, and what
    /// comes after it is not applied.
    pub(super) async fn apply(&self, entries: Entries) -> io::Result<()> {
        let Some(thread) = &self.thread else { return apply_all(&self.table, entries) };
        let (done, answer) = oneshot::channel();
        let gone = || io::Error::other("the thread that applies entries has panicked");
        thread.send(Job { entries, done }).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

fn apply_all(table: &Table, entries: Entries) -> io::Result<()> {
    for (entry, responder) in entries {
        let applied = apply(table, entry, responder.is_some())?;
        if let Some(responder) = responder {
            responder.send(applied);
        }
    }
    Ok(())
}

fn apply(table: &Table, entry: Entry, answer: bool) -> io::Result<Applied> {
    let log_id = entry.log_id;
    match entry.payload {
        EntryPayload::Blank => table.pass(log_id, None),
        EntryPayload::Membership(membership) => table.pass(log_id, Some(membership)),
        EntryPayload::Normal(payload) => {
            let (time, limits, commands) =
                commands::decode(&payload.0).map_err(|malformed| damaged(&log_id, &malformed.to_string()))?;
            return Ok(table.apply(log_id, Batch { time, limits, commands }, answer));
        }
    }
    Ok(Applied::default())
}

fn damaged(log_id: &LogId, why: &str) -> io::Error {
    let message = format!(
        "log entry {log_id} cannot be read ({why}): it is damaged or was written by a newer version; \
         remove this member from the cluster and add a new one, or install that version"
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}
