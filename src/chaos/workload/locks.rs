//! Which locks a run uses: a new set every few seconds, so that each lock's story stays short enough to be searched.

use std::{collections::HashMap, ops::Range, sync::Mutex, time::Duration};

use crate::chaos::{history::Mode, record::Timeline};

/// How long one set of locks is in use.
const ROUND: Duration = Duration::from_secs(3);
/// Operations on one lock, in all processes together: the search for an order of steps grows with them.
const OPERATIONS_MAX: u32 = 160;
/// How the locks of a set are held. Those that come first are also acquired together.
const MODES: [Mode; 7] =
    [Mode::Exclusive, Mode::Exclusive, Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Permits(2)];

/// A lock of the present set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// How it is held; where that is shared, now and then also exclusively.
    pub mode: Mode,
}

/// The places of locks that are only held exclusively.
pub(super) const EXCLUSIVE: Range<usize> = 0..4;
/// How many locks there are in a set.
pub(in crate::chaos) const COUNT: usize = MODES.len();

/// The number of the present set. All processes go on to the next one at the same moment.
pub(in crate::chaos) fn round(timeline: Timeline) -> u64 {
    timeline.now_ns() / u64::try_from(ROUND.as_nanos()).expect("a few seconds")
}

/// A lock of a set, by its place in it.
pub(in crate::chaos) fn of(round: u64, place: usize) -> Lock {
    let mode = MODES[place % COUNT];
    let kind = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    };
    Lock { name: format!("{round}/{kind}/{place}"), mode }
}

/// The operations that this process may still do on each lock of the present set.
#[derive(Debug)]
pub(super) struct Budget {
    per_lock: u32,
    spent: Mutex<(u64, HashMap<usize, u32>)>,
}

impl Budget {
    /// One of so many processes.
    pub(super) fn new(processes: u32) -> Self {
        Self { per_lock: (OPERATIONS_MAX / processes.max(1)).max(1), spent: Mutex::default() }
    }

    /// Spends this many operations on each of these locks of a round. False: that is too many.
    pub(super) fn spend(&self, round: u64, places: &[usize], operations: u32) -> bool {
        let mut spent = self.spent.lock().expect("nothing panics while it has the budget");
        if spent.0 != round {
            *spent = (round, HashMap::new());
        }
        let of = |places: &HashMap<usize, u32>, place| places.get(place).copied().unwrap_or(0) + operations;
        if places.iter().any(|place| of(&spent.1, place) > self.per_lock) {
            return false;
        }
        places.iter().for_each(|place| *spent.1.entry(*place).or_default() += operations);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_by_lock_and_new_in_each_round() {
        let budget = Budget::new(16);
        assert!(budget.spend(1, &[0, 1], 6));
        assert!(!budget.spend(1, &[1], 6));
        assert!(budget.spend(1, &[1], 4));
        assert!(budget.spend(1, &[2], 10));
        assert!(budget.spend(2, &[1], 10));
    }

    #[test]
    fn the_first_locks_of_a_set_are_exclusive_and_no_name_comes_twice() {
        assert!(EXCLUSIVE.map(|place| of(1, place)).all(|lock| lock.mode == Mode::Exclusive));
        let mut names: Vec<_> = (0..3).flat_map(|round| (0..COUNT).map(move |place| of(round, place).name)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3 * COUNT);
    }
}
