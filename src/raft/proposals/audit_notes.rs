//! Notes for the audit trail: acts that do not change the table, such as a refused permission.
//!
//! Each costs a command, and a client can cause any number of refusals. So a node proposes a few a second of each kind, and the next note
//! of a kind says how many of it were left out: whoever is refused a thousand times a second does not hide what an operator does meanwhile.
//! The trail is the log, so only the leader can write a note; elsewhere it counts as left out.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};

use crate::proposals::proposer::Proposer;
use lockkeeper_machine::{Command, Note};

/// Notes of a kind that may follow each other at once.
const BURST: u32 = 8;
/// After a burst, one note of the kind may follow in this time.
const INTERVAL: Duration = Duration::from_millis(250);
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
        let note = Note { omitted, ..note }.cut();
        Some(tokio::spawn(async move {
            if let Err(no_reply) = proposer.propose(Command::Note(note), PATIENCE).await {
                tracing::debug!(%no_reply, "a note for the audit trail is left out");
                notes.with(kind, |limit| limit.omitted += omitted + 1);
            }
        }))
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
