//! The pace of snapshots: when each node writes one.
//!
//! A snapshot writes the whole table, so its cost grows with the table, and its benefit with the log that it replaces. It is due once
//! enough entries came since the last one, and their bytes reach a part of its size. So all snapshots together write no more than a small
//! multiple of the log, however large the table and however small the entries are.
//!
//! Entries may also be large: a client that rewrites one key grows the log and not the table, and no limit of the table stops it. So
//! enough *bytes* count as enough entries. The log since the last snapshot then has at most [`BYTES_BETWEEN`] more than that part of its
//! size, and what comes while the next one is written: so much of a disk it takes, and so much a restart reads.
//!
//! All nodes apply the same entries at about the same time. If they counted alike, all would write their snapshots at once, and load most
//! of the disks and processors that commits wait for. So each node has its own places in the log, by entries and by bytes.

use std::sync::Arc;

use tokio::sync::Notify;

/// A snapshot is due once the log since the last one reaches this part of the snapshot's size: 1 / `PART`.
const PART: u64 = 2;
/// Bytes of entries between two places at which a snapshot may be due, however few the entries are. Entries of a usual size, below 10 KiB,
/// come to the next place by their number first.
const BYTES_BETWEEN: u64 = 128 << 20;

/// Whether the log since the last snapshot, of so many bytes, is worth another one. 0 `snapshot_bytes`: there is none.
pub(crate) fn is_worth(log_bytes: u64, snapshot_bytes: u64) -> bool {
    log_bytes >= snapshot_bytes / PART
}

/// Counts applied entries, and notifies when a snapshot is due.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Number of entries between two places at which a snapshot may be due.
    every: u64,
    /// The first of these places.
    first: u64,
    /// Bytes of the entries since the last snapshot.
    bytes: u64,
    /// Bytes of the entries since the last place by bytes. A snapshot does not change it: the nodes would come together at one that all
    /// of them take at the same entry.
    bytes_since_place: u64,
    due: Arc<Notify>,
}

impl Pace {
    pub(crate) fn new(node_id: u64, entries_min: u64) -> Self {
        let every = entries_min.max(1);
        let first = place_of(every, node_id);
        let bytes_since_place = place_of(BYTES_BETWEEN, node_id);
        Self { every, first, bytes: 0, bytes_since_place, due: Arc::default() }
    }

    /// Notified whenever a snapshot is due. If one is being written then, the next notification follows some entries later.
    pub(crate) fn due(&self) -> Arc<Notify> {
        Arc::clone(&self.due)
    }

    /// Counts the applied entry at `index` with `bytes` bytes. `snapshot_bytes` returns the size of the last snapshot; 0: there is none.
    pub(crate) fn applied(&mut self, index: u64, bytes: usize, snapshot_bytes: impl FnOnce() -> u64) {
        let bytes = bytes as u64;
        self.bytes += bytes;
        self.bytes_since_place += bytes;

        let mut is_place = index % self.every == self.first;
        if self.bytes_since_place >= BYTES_BETWEEN {
            self.bytes_since_place %= BYTES_BETWEEN;
            is_place = true;
        }
        if is_place && is_worth(self.bytes, snapshot_bytes()) {
            self.due.notify_one();
        }
    }

    /// Starts counting again: a snapshot covers all entries so far.
    pub(crate) fn reset(&mut self) {
        self.bytes = 0;
    }
}

/// A place in 0..`whole` such that those of consecutive ids, however many, are well apart: steps of the golden ratio (Knuth, The Art of
/// Computer Programming, volume 3, section 6.4, on Fibonacci hashing).
fn place_of(whole: u64, node_id: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    ((u128::from(node_id.wrapping_mul(GOLDEN)) * u128::from(whole)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// The indices at which a snapshot is due, with entries of `bytes` bytes each. Each snapshot is taken at once, with `snapshot_bytes`
    /// bytes.
    fn due_at(pace: &mut Pace, indices: std::ops::Range<u64>, bytes: usize, snapshot_bytes: u64) -> Vec<u64> {
        let due = pace.due();
        let is_due = |index: &u64| {
            pace.applied(*index, bytes, || snapshot_bytes);
            let is_due = due.notified().now_or_never().is_some();
            if is_due {
                pace.reset();
            }
            is_due
        };
        indices.filter(is_due).collect()
    }

    #[test]
    fn a_small_table_is_written_after_a_number_of_entries() {
        assert_eq!(due_at(&mut Pace::new(1, 1), 1..5, 10, 0), [1, 2, 3, 4]);
        for node_id in 0..100 {
            let due = due_at(&mut Pace::new(node_id, 100), 1..1_001, 10, 0);
            assert_eq!(due.len(), 10, "node {node_id}");
            assert!(due.is_sorted_by(|a, b| b - a == 100), "node {node_id}: {due:?}");
        }
    }

    #[test]
    fn a_large_table_waits_for_enough_log() {
        // Enough log after 55 entries; the snapshot is due at the next place.
        let due = due_at(&mut Pace::new(1, 10), 1..1_000, 100, 11_000);
        assert!((55..65).contains(&due[0]), "{due:?}");
        assert!(due.is_sorted_by(|a, b| b - a == 60), "{due:?}");
    }

    /// The log that a node keeps has a limit in bytes: a client that rewrites one key with large values leaves the table small.
    #[test]
    fn few_large_entries_are_as_many_small_ones() {
        const ENTRY: u64 = 1 << 20;
        for node_id in 1..=7 {
            let due = due_at(&mut Pace::new(node_id, 10_000), 1..1_000, ENTRY as usize, 0);
            let between = BYTES_BETWEEN / ENTRY;
            assert!(due[0] <= between, "node {node_id}: {due:?}");
            let by_bytes = due.iter().zip(&due[1..]).filter(|(a, b)| *b - *a == between).count();
            assert!(by_bytes >= 1_000 / between as usize - 3, "node {node_id}: {due:?}");
            assert!(due.iter().zip(&due[1..]).all(|(a, b)| b - a <= between), "node {node_id}: {due:?}");
        }

        // Also by bytes, no snapshot of a large table is written for a small part of its size.
        let due = due_at(&mut Pace::new(1, 10_000), 1..4_000, ENTRY as usize, 1_000 * ENTRY);
        assert!((500..=628).contains(&due[0]), "{due:?}");
        assert!(due.iter().zip(&due[1..]).all(|(a, b)| (500..=628).contains(&(b - a))), "{due:?}");
    }

    #[test]
    fn nodes_with_large_entries_take_snapshots_at_different_times_too() {
        const ENTRY: u64 = 1 << 20;
        let first = |node_id| due_at(&mut Pace::new(node_id, 10_000), 1..1_000, ENTRY as usize, 0)[0];
        let mut places = [1, 2, 3].map(first);
        places.sort_unstable();
        assert!(places.is_sorted_by(|a, b| b - a >= 25), "{places:?}");
    }

    #[test]
    fn nodes_take_snapshots_at_different_times() {
        for (nodes, apart) in [(3, 236), (5, 146), (7, 90)] {
            let mut places: Vec<u64> = (1..=nodes).map(|node_id| place_of(1_000, node_id)).collect();
            places.sort_unstable();
            places.push(places[0] + 1_000);
            let nearest = places.windows(2).map(|pair| pair[1] - pair[0]).min();
            assert_eq!(nearest, Some(apart), "{places:?}");
        }
    }
}
