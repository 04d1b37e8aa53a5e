//! Positions of scans, and the numbers that clients have for them.
//!
//! A cursor of SCAN is a number, and the position of a scan is a key. So the node that runs scans remembers the last positions. A cursor
//! that it does not know begins the scan again: another node gave it, or many scans were begun since. A scan may show a key twice, and must
//! not leave one out.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Number of positions that are remembered. Whoever scans gives one with each page: others must not make so many between two pages of a
/// client that its scan begins again and again.
const POSITIONS_MAX: usize = 64 << 10;
/// Their bytes. They are keys, and some are long.
const POSITION_BYTES_MAX: usize = 8 << 20;
/// Cursors are below 2^53, since some clients read them as doubles. Their lower bits tell nodes and runs apart.
const EPOCH_BITS: u32 = 14;

/// The positions of scans of this node.
#[derive(Debug)]
pub(crate) struct Cursors {
    /// What the cursors of this node and run have in common.
    epoch: u64,
    /// The positions.
    positions: Mutex<Positions>,
}

/// The positions that are remembered.
#[derive(Debug, Default)]
struct Positions {
    /// The position of each cursor.
    by_cursor: BTreeMap<u64, Arc<[u8]>>,
    /// The cursor of each position.
    by_key: BTreeMap<Arc<[u8]>, u64>,
    /// Bytes of all positions.
    bytes: usize,
    /// The cursors in the order in which they were given.
    order: VecDeque<u64>,
    /// The number of the last cursor.
    last: u64,
}

impl Cursors {
    /// Makes an empty memory. The seed tells it apart from those of other nodes and runs.
    pub(crate) fn new(seed: u64) -> Self {
        Self { epoch: seed & ((1 << EPOCH_BITS) - 1), positions: Mutex::default() }
    }

    /// The position of a cursor; none if it is not known.
    pub(crate) fn position(&self, cursor: u64) -> Option<Vec<u8>> {
        self.positions().by_cursor.get(&cursor).map(|position| position.to_vec())
    }

    /// The cursor of a position: the same as long as it is remembered.
    pub(crate) fn cursor(&self, position: &[u8]) -> u64 {
        let mut positions = self.positions();
        if let Some(cursor) = positions.by_key.get(position) {
            return *cursor;
        }

        positions.last += 1;
        let cursor = (positions.last << EPOCH_BITS) | self.epoch;
        let position: Arc<[u8]> = position.into();
        positions.bytes += position.len();
        positions.by_cursor.insert(cursor, Arc::clone(&position));
        positions.by_key.insert(position, cursor);
        positions.order.push_back(cursor);

        while positions.order.len() > POSITIONS_MAX || positions.bytes > POSITION_BYTES_MAX {
            positions.forget_oldest();
        }
        cursor
    }

    /// The positions. No code panics while it holds the lock.
    fn positions(&self) -> MutexGuard<'_, Positions> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Positions {
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.order.pop_front() else { return };
        if let Some(position) = self.by_cursor.remove(&oldest) {
            self.bytes -= position.len();
            self.by_key.remove(&position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_remembered_up_to_a_limit() {
        let cursors = Cursors::new(u64::MAX);
        let first = cursors.cursor(b"first");
        assert_eq!(cursors.cursor(b"first"), first);
        assert_eq!(cursors.position(first).as_deref(), Some(&b"first"[..]));
        for number in 0..POSITIONS_MAX {
            assert!(cursors.cursor(number.to_string().as_bytes()) < 1 << 53);
        }
        assert_eq!(cursors.position(first), None);
        assert_eq!(cursors.positions().by_key.len(), POSITIONS_MAX);
        let bytes = |cursors: &Cursors| cursors.positions().by_key.keys().map(|key| key.len()).sum::<usize>();
        let counted = bytes(&cursors);
        assert_eq!(cursors.positions().bytes, counted);

        // Long ones: fewer of them.
        let long = |number: usize| format!("{number:0>32768}").into_bytes();
        let first = cursors.cursor(&long(0));
        for number in 1..POSITION_BYTES_MAX / (32 << 10) {
            cursors.cursor(&long(number));
        }
        assert!(cursors.position(first).is_some());
        cursors.cursor(&long(usize::MAX));
        assert_eq!(cursors.position(first), None);
        assert_eq!(bytes(&cursors), POSITION_BYTES_MAX);
    }
}
