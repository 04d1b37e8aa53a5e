//! Notes for the audit trail: acts that do not change the table, such as a refused permission.
//!
//! Each costs a command, and a client can cause any number of refusals. So a node proposes a few a second of each kind, and the next note
//! of a kind says how many of it were left out: whoever is refused a thousand times a second does not hide what an operator does meanwhile.
//! The trail is the log, so only the leader can write a note. What an operator does at a follower, that node tells the leader
//! ([`crate::members::passed_notes`]); a refusal there counts as left out.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use crate::proposals::proposer::Proposer;
use lockkeeper_machine::{Command, Note};

/// Notes of a kind that may follow each other at once.
const BURST: u32 = 8;
/// After a burst, one note of the kind may follow in this time.
const INTERVAL: Duration = Duration::from_millis(250);
/// Notes for the leader that wait at a follower.
const PASSED_ON_MAX: usize = 16;
/// Time limit of a note.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whose deed a note tells. Each kind has a limit of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoteKind {
    /// An operator has done something, and had the right to it.
    OperatorAct,
    /// Somebody was refused. Anybody can cause any number of these.
    Refusal,
}

/// Proposes notes. Clones share the limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditNotes {
    limits: Arc<NoteLimits>,
    for_leader: Arc<NotesForLeader>,
}

/// The notes that a follower has for the leader.
#[derive(Debug)]
struct NotesForLeader {
    sender: mpsc::Sender<Note>,
    receiver: Mutex<Option<mpsc::Receiver<Note>>>,
}

impl Default for NotesForLeader {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(PASSED_ON_MAX);
        Self { sender, receiver: Mutex::new(Some(receiver)) }
    }
}

#[derive(Debug, Default)]
struct NoteLimits {
    acts: Mutex<NoteLimit>,
    refusals: Mutex<NoteLimit>,
}

#[derive(Debug)]
struct NoteLimit {
    /// Notes that may be proposed now.
    left: u32,
    counted_at: Instant,
    omitted: u64,
}

impl Default for NoteLimit {
    fn default() -> Self {
        Self { left: BURST, counted_at: Instant::now(), omitted: 0 }
    }
}

impl AuditNotes {
    /// Proposes a note in the background, or counts it as left out: `None`.
    pub(crate) fn write(&self, kind: NoteKind, note: Note, leads: bool, proposer: Proposer) -> Option<JoinHandle<()>> {
        let omitted = self.admit(kind, leads, Instant::now())?;
        let notes = self.clone();
        // Another node's note has its own.
        let omitted = omitted.saturating_add(note.omitted);
        let note = Note { omitted, ..note }.cut();
        Some(tokio::spawn(async move {
            if let Err(no_reply) = proposer.propose(Command::Note(note), PATIENCE).await {
                tracing::debug!(%no_reply, "a note for the audit trail is left out");
                notes.leave_out(kind, omitted);
            }
        }))
    }

    /// Has a follower's note of an operator's act told to the leader, or counts it as left out.
    pub(crate) fn pass_on(&self, note: Note) {
        let Some(omitted) = self.admit(NoteKind::OperatorAct, true, Instant::now()) else { return };
        let note = Note { omitted, ..note }.cut();
        if self.for_leader.sender.try_send(note).is_err() {
            self.leave_out(NoteKind::OperatorAct, omitted);
        }
    }

    /// The notes that are to be told to the leader. For one listener: later calls return `None`.
    pub(crate) fn passed_on(&self) -> Option<mpsc::Receiver<Note>> {
        self.for_leader.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Counts a note as left out, with those that were left out before it.
    pub(crate) fn leave_out(&self, kind: NoteKind, omitted: u64) {
        self.with(kind, |limit| limit.omitted = limit.omitted.saturating_add(omitted).saturating_add(1));
    }

    /// The number of notes of this kind that were left out before this one, or `None` if this one is too.
    fn admit(&self, kind: NoteKind, leads: bool, now: Instant) -> Option<u64> {
        self.with(kind, |limit| {
            let passed = now.saturating_duration_since(limit.counted_at).as_millis() / INTERVAL.as_millis();
            let passed = u32::try_from(passed).unwrap_or(u32::MAX);
            if passed > 0 {
                (limit.left, limit.counted_at) = (limit.left.saturating_add(passed).min(BURST), now);
            }

            if !leads || limit.left == 0 {
                limit.omitted += 1;
                return None;
            }

            limit.left -= 1;
            Some(std::mem::take(&mut limit.omitted))
        })
    }

    fn with<T>(&self, kind: NoteKind, change: impl FnOnce(&mut NoteLimit) -> T) -> T {
        let limit = match kind {
            NoteKind::OperatorAct => &self.limits.acts,
            NoteKind::Refusal => &self.limits.refusals,
        };
        change(&mut limit.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_is_counted_in_the_next_note() {
        let start = Instant::now();
        let notes = AuditNotes::default();
        let admit = |leads, now| notes.admit(NoteKind::Refusal, leads, now);
        for _ in 0..BURST {
            assert_eq!(admit(true, start), Some(0));
        }
        assert_eq!([admit(true, start), admit(true, start)], [None, None]);
        assert_eq!(admit(false, start + INTERVAL), None, "a follower has no log to write to");
        assert_eq!(admit(true, start + INTERVAL), Some(3));
        assert_eq!(admit(true, start + INTERVAL), None);
        // However long nothing happened, no more than BURST follow at once.
        let later = start + 1000 * INTERVAL;
        assert_eq!((0..=BURST).filter_map(|_| admit(true, later)).collect::<Vec<_>>(), {
            let mut admitted = vec![0; BURST as usize];
            admitted[0] = 1;
            admitted
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_passes_acts_on_and_counts_those_that_it_cannot() {
        let notes = AuditNotes::default();
        let backup =
            |number: u32| Note { act: "save-snapshot".to_owned(), target: number.to_string(), ..Note::default() };
        (0..BURST + 2).for_each(|number| notes.pass_on(backup(number)));

        let mut passed_on = notes.passed_on().expect("the only listener");
        assert!(notes.passed_on().is_none());
        let told: Vec<_> = std::iter::from_fn(|| passed_on.try_recv().ok()).collect();
        assert_eq!(told, (0..BURST).map(backup).collect::<Vec<_>>(), "in their order, and no more than that");

        // One does not reach the leader.
        notes.leave_out(NoteKind::OperatorAct, 0);
        tokio::time::advance(INTERVAL).await;
        notes.pass_on(backup(99));
        assert_eq!(passed_on.try_recv(), Ok(Note { omitted: 3, ..backup(99) }));

        // Nobody takes them any more.
        drop(passed_on);
        tokio::time::advance(INTERVAL).await;
        notes.pass_on(backup(100));
        assert_eq!(notes.admit(NoteKind::OperatorAct, true, Instant::now() + INTERVAL), Some(1));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_however_many_leave_the_notes_of_operators_alone() {
        let start = Instant::now();
        let notes = AuditNotes::default();
        let refused = (0..1_000).filter_map(|_| notes.admit(NoteKind::Refusal, true, start)).count();
        assert_eq!(refused, BURST as usize);

        let acts = || notes.admit(NoteKind::OperatorAct, true, start);
        assert_eq!((0..BURST).filter_map(|_| acts()).collect::<Vec<_>>(), vec![0; BURST as usize]);
        assert_eq!(acts(), None, "they have a limit, too");
        assert_eq!(notes.admit(NoteKind::OperatorAct, true, start + INTERVAL), Some(1));
        assert_eq!(notes.admit(NoteKind::Refusal, true, start + INTERVAL), Some(1_000 - u64::from(BURST)));
    }
}
