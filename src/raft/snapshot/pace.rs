//! How often snapshots are taken.
//!
//! A snapshot writes the whole table, so its cost grows with the table, and what it saves, with the log that it replaces. It is worth
//! it once enough entries came since the last one, and their bytes amount to some part of it: so all snapshots together write no more
//! than a small multiple of what the log did, however large the table is and however small the entries are, and a restart reads no
//! more log than a part of what it reads of the snapshot.

use std::sync::Arc;

use tokio::sync::Notify;

/// The log since a snapshot is to be at least one such part of it.
const PART: u64 = 2;

/// Counts what is applied, and says when a snapshot is due.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Not more often than after so many entries.
    entries_min: u64,
    entries: u64,
    bytes: u64,
    due: Arc<Notify>,
}

impl Pace {
    pub(crate) fn new(entries_min: u64) -> Self {
        Self { entries_min: entries_min.max(1), entries: 0, bytes: 0, due: Arc::default() }
    }

    /// Told whenever one is due. Who is told may find that one is being written: it is told again, some entries later.
    pub(crate) fn due(&self) -> Arc<Notify> {
        Arc::clone(&self.due)
    }

    /// An entry of so many bytes was applied. `snapshot_bytes` looks how large the last snapshot is; 0: there is none.
    pub(crate) fn applied(&mut self, bytes: usize, snapshot_bytes: impl FnOnce() -> u64) {
        self.entries += 1;
        self.bytes += bytes as u64;
        if self.entries.is_multiple_of(self.entries_min) && self.bytes >= snapshot_bytes() / PART {
            self.due.notify_one();
        }
    }

    /// A snapshot holds all up to here.
    pub(crate) fn begin_again(&mut self) {
        (self.entries, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn is_due(pace: &Pace) -> bool {
        pace.due().notified().now_or_never().is_some()
    }

    #[test]
    fn a_small_table_is_written_after_so_many_entries() {
        let mut pace = Pace::new(3);
        let due: Vec<bool> = (0..7)
            .map(|_| {
                pace.applied(10, || 0);
                is_due(&pace)
            })
            .collect();
        assert_eq!(due, [false, false, true, false, false, true, false]);
        pace.begin_again();
        pace.applied(10, || 0);
        pace.applied(10, || 0);
        assert!(!is_due(&pace));
    }

    #[test]
    fn a_large_table_waits_for_a_log_that_is_worth_it() {
        let mut pace = Pace::new(2);
        let due_after = (1..).find(|_| {
            pace.applied(100, || 2_000);
            is_due(&pace)
        });
        assert_eq!(due_after, Some(10));
    }
}
