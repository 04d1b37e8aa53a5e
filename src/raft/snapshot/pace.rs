//! How often snapshots are taken, and by whom when.
//!
//! A snapshot writes the whole table, so its cost grows with the table, and what it saves, with the log that it replaces. It is worth
//! it once enough entries came since the last one, and their bytes amount to some part of it: so all snapshots together write no more
//! than a small multiple of what the log did, however large the table is and however small the entries are, and a restart reads no
//! more log than a part of what it reads of the snapshot.
//!
//! All nodes apply the same entries at about the same time. If they counted alike, all would write at once, and the disks and the
//! processors of most of them, which commits wait for, would be busy with it together. So each node has places in the log of its own.

use std::sync::Arc;

use tokio::sync::Notify;

/// The log since a snapshot is to be at least one such part of it.
const PART: u64 = 2;

/// Counts what is applied, and says when a snapshot is due.
#[derive(Debug)]
pub(crate) struct Pace {
    /// So many entries are between two places at which one may be due.
    every: u64,
    /// The first of these places.
    first: u64,
    /// Of the entries since the last snapshot.
    bytes: u64,
    due: Arc<Notify>,
}

impl Pace {
    pub(crate) fn new(node_id: u64, entries_min: u64) -> Self {
        let every = entries_min.max(1);
        Self { every, first: share_of(every, node_id), bytes: 0, due: Arc::default() }
    }

    /// Told whenever one is due. Who is told may find that one is being written: it is told again, some entries later.
    pub(crate) fn due(&self) -> Arc<Notify> {
        Arc::clone(&self.due)
    }

    /// The entry at `index`, of so many bytes, was applied. `snapshot_bytes` looks how large the last snapshot is; 0: there is none.
    pub(crate) fn applied(&mut self, index: u64, bytes: usize, snapshot_bytes: impl FnOnce() -> u64) {
        self.bytes += bytes as u64;
        if index % self.every == self.first && self.bytes >= snapshot_bytes() / PART {
            self.due.notify_one();
        }
    }

    /// A snapshot holds all up to here.
    pub(crate) fn begin_again(&mut self) {
        self.bytes = 0;
    }
}

/// A place in 0..`whole`, such that those of neighbouring ids, however many, are well apart: steps of the golden ratio (Knuth, The Art
/// of Computer Programming, volume 3, section 6.4, on Fibonacci hashing).
fn share_of(whole: u64, node_id: u64) -> u64 {
    const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
    ((u128::from(node_id.wrapping_mul(GOLDEN)) * u128::from(whole)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// The entries out of `indices`, of so many bytes each, at which one is due. It is taken at once, and so large.
    fn due_at(pace: &mut Pace, indices: std::ops::Range<u64>, bytes: usize, snapshot_bytes: u64) -> Vec<u64> {
        let due = pace.due();
        let is_due = |index: &u64| {
            pace.applied(*index, bytes, || snapshot_bytes);
            let is_due = due.notified().now_or_never().is_some();
            if is_due {
                pace.begin_again();
            }
            is_due
        };
        indices.filter(is_due).collect()
    }

    #[test]
    fn a_small_table_is_written_after_so_many_entries() {
        assert_eq!(due_at(&mut Pace::new(1, 1), 1..5, 10, 0), [1, 2, 3, 4]);
        for node_id in 0..100 {
            let due = due_at(&mut Pace::new(node_id, 100), 1..1_001, 10, 0);
            assert_eq!(due.len(), 10, "node {node_id}");
            assert!(due.is_sorted_by(|a, b| b - a == 100), "node {node_id}: {due:?}");
        }
    }

    #[test]
    fn a_large_table_waits_for_a_log_that_is_worth_it() {
        // The log is worth it after 55 entries; from then on it is due at the next place.
        let due = due_at(&mut Pace::new(1, 10), 1..1_000, 100, 11_000);
        assert!((55..65).contains(&due[0]), "{due:?}");
        assert!(due.is_sorted_by(|a, b| b - a == 60), "{due:?}");
    }

    #[test]
    fn nodes_take_theirs_at_different_times() {
        for (nodes, apart) in [(3, 236), (5, 146), (7, 90)] {
            let mut places: Vec<u64> = (1..=nodes).map(|node_id| share_of(1_000, node_id)).collect();
            places.sort_unstable();
            places.push(places[0] + 1_000);
            let nearest = places.windows(2).map(|pair| pair[1] - pair[0]).min();
            assert_eq!(nearest, Some(apart), "{places:?}");
        }
    }
}
