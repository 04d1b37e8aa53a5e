//! The changes of the latest entries, for watchers that resume.
//!
//! A watcher whose connection broke, or whose node no longer leads, names the last entry that it knows completely. Each node keeps the
//! changes of the entries that it applied last, so the present leader can continue there. The history is bounded in entries and in bytes;
//! a watcher that was away for longer is told so, and sent the whole state.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockkeeper_machine::{Change, ChangeKind};
use lockkeeper_planted::Planted;

/// Log entries that a watcher may lag behind before it is sent the whole state again.
pub(super) const CHANGES_KEPT: usize = 1024;

/// The changes of one log entry.
#[derive(Debug)]
pub struct EntryChanges {
    /// The entry.
    pub index: u64,
    /// In the order in which they happened.
    pub changes: Vec<Change>,
}

/// Approximate maximum bytes of all kept changes.
const BYTES_MAX: usize = 8 << 20;

/// Approximate bytes of a change without its data: a name and a label or a reason.
const CHANGE_BYTES: usize = 512;

/// The changes of the latest entries.
#[derive(Debug, Default)]
pub(super) struct ChangeHistory(Mutex<KeptChanges>);

#[derive(Debug, Default)]
struct KeptChanges {
    entries: VecDeque<Arc<EntryChanges>>,
    bytes: usize,
    /// The last entry whose changes are not kept. The changes of all later ones are.
    floor: u64,
}

impl ChangeHistory {
    /// Adds the changes of an applied entry.
    pub(super) fn push(&self, changes: Arc<EntryChanges>) {
        let mut kept = self.kept();
        kept.bytes += bytes(&changes);
        kept.entries.push_back(changes);
        while kept.entries.len() > CHANGES_KEPT || kept.bytes > BYTES_MAX {
            let Some(oldest) = kept.entries.pop_front() else { break };
            kept.bytes -= bytes(&oldest);
            kept.floor = oldest.index;
        }
    }

    /// A snapshot replaced the entries up to this one.
    pub(super) fn forget(&self, index: u64) {
        *self.kept() = KeptChanges { floor: index, ..KeptChanges::default() };
    }

    /// The changes after this entry as far as they are kept, and the entry after which all are.
    pub(super) fn latest(&self, index: u64) -> (u64, Vec<Arc<EntryChanges>>) {
        let kept = self.kept();
        let from = index.max(kept.floor);
        let first = kept.entries.partition_point(|entry| entry.index <= from);
        (from, kept.entries.range(first..).cloned().collect())
    }

    /// The changes of the next entries after this one, of at most `most` entries, or `None` if they are no longer kept.
    pub(super) fn after(&self, index: u64, most: usize) -> Option<Vec<Arc<EntryChanges>>> {
        let kept = self.kept();
        let first = kept.entries.partition_point(|entry| entry.index <= index);
        (index >= kept.floor || Planted::ChangesWithGap.is_on())
            .then(|| kept.entries.range(first..).take(most).cloned().collect())
    }

    fn kept(&self) -> MutexGuard<'_, KeptChanges> {
        // No code panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(changes: &EntryChanges) -> usize {
    changes.changes.iter().map(change_bytes).sum()
}

fn change_bytes(change: &Change) -> usize {
    let data = if let ChangeKind::Data(Some(data)) = &change.kind { data.as_bytes().len() } else { 0 };
    CHANGE_BYTES + data
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{DATA_BYTES_MAX, Data, LockKind, LockName};

    fn entry(index: u64, bytes: usize) -> Arc<EntryChanges> {
        let name = LockName::new("a").unwrap();
        let kind = ChangeKind::Data(Some(Data::new(&vec![0; bytes]).unwrap()));
        Arc::new(EntryChanges { index, changes: vec![Change { name, of: LockKind::Lock, kind }] })
    }

    fn after(history: &ChangeHistory, index: u64) -> Option<Vec<u64>> {
        history.after(index, usize::MAX).map(|entries| entries.iter().map(|entry| entry.index).collect())
    }

    #[test]
    fn changes_after_an_entry_are_known_or_reported_as_unknown() {
        let history = ChangeHistory::default();
        for index in [3, 5, 9] {
            history.push(entry(index, 1));
        }
        assert_eq!(after(&history, 0), Some(vec![3, 5, 9]));
        assert_eq!(after(&history, 3), Some(vec![5, 9]));
        assert_eq!(after(&history, 4), Some(vec![5, 9]));
        assert_eq!(after(&history, 12), Some(vec![]));
        let latest = |index| history.latest(index).1.iter().map(|entry| entry.index).collect::<Vec<_>>();
        assert_eq!((latest(4), latest(12)), (vec![5, 9], vec![]));
        history.forget(20);
        assert_eq!(history.latest(19).0, 20);
        assert_eq!((after(&history, 19), after(&history, 20)), (None, Some(vec![])));
    }

    #[test]
    fn the_history_is_bounded_in_entries_and_in_bytes() {
        let history = ChangeHistory::default();
        let last = CHANGES_KEPT as u64 + 10;
        (1..=last).for_each(|index| history.push(entry(index, 1)));
        assert_eq!(after(&history, 9), None);
        assert_eq!(after(&history, 10).unwrap().len(), CHANGES_KEPT);
        for index in last + 1..=2 * last {
            history.push(entry(index, DATA_BYTES_MAX));
        }
        assert!(history.kept().bytes <= BYTES_MAX);
        let floor = history.kept().floor;
        assert!(floor > last && after(&history, floor).is_some() && after(&history, floor - 1).is_none());
    }
}
