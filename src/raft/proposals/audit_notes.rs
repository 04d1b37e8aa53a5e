//! Notes for the audit trail: acts that do not change the table, such as a refused permission.
//!
//! Each costs a command, and a client can cause any number of refusals. So a node proposes a few a second, and the next note says how many
//! were left out. The trail is the log, so only the leader can write a note; elsewhere it counts as left out.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{task::JoinHandle, time::Instant};

use crate::proposals::proposer::Proposer;
use lockkeeper_machine::{Command, Note};

/// Notes that may follow each other at once.
const BURST: u32 = 8;
/// After a burst, one note may follow in this time.
const INTERVAL: Duration = Duration::from_millis(250);
/// Time limit of a note.
const PATIENCE: Duration = Duration::from_secs(5);

/// Proposes notes. Clones share the limit.
#[derive(Clone, Debug)]
pub(crate) struct AuditNotes {
    limit: Arc<Mutex<NoteLimit>>,
}

#[derive(Debug)]
struct NoteLimit {
    /// Notes that may be proposed now.
    left: u32,
    counted_at: Instant,
    omitted: u64,
}

impl Default for AuditNotes {
    fn default() -> Self {
        let limit = NoteLimit { left: BURST, counted_at: Instant::now(), omitted: 0 };
        Self { limit: Arc::new(Mutex::new(limit)) }
    }
}

impl AuditNotes {
    /// Proposes a note in the background, or counts it as left out: `None`.
    pub(crate) fn write(&self, note: Note, leads: bool, proposer: Proposer) -> Option<JoinHandle<()>> {
        let omitted = self.admit(leads, Instant::now())?;
        let notes = self.clone();
        let note = Note { omitted, ..note }.cut();
        Some(tokio::spawn(async move {
            if let Err(no_reply) = proposer.propose(Command::Note(note), PATIENCE).await {
                tracing::debug!(%no_reply, "a note for the audit trail is left out");
                notes.with(|limit| limit.omitted += omitted + 1);
            }
        }))
    }

    /// The number of notes that were left out before this one, or `None` if this one is too.
    fn admit(&self, leads: bool, now: Instant) -> Option<u64> {
        self.with(|limit| {
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

    fn with<T>(&self, change: impl FnOnce(&mut NoteLimit) -> T) -> T {
        change(&mut self.limit.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_is_counted_in_the_next_note() {
        let (notes, start) = (AuditNotes::default(), Instant::now());
        for _ in 0..BURST {
            assert_eq!(notes.admit(true, start), Some(0));
        }
        assert_eq!([notes.admit(true, start), notes.admit(true, start)], [None, None]);
        assert_eq!(notes.admit(false, start + INTERVAL), None, "a follower has no log to write to");
        assert_eq!(notes.admit(true, start + INTERVAL), Some(3));
        assert_eq!(notes.admit(true, start + INTERVAL), None);
        // However long nothing happened, no more than BURST follow at once.
        let later = start + 1000 * INTERVAL;
        assert_eq!((0..=BURST).filter_map(|_| notes.admit(true, later)).collect::<Vec<_>>(), {
            let mut admitted = vec![0; BURST as usize];
            admitted[0] = 1;
            admitted
        });
    }
}
