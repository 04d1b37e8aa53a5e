//! The locks of a run. A new set is used every few seconds, so that the history of each lock stays short enough for the linearizability
//! search.

use std::{collections::HashMap, ops::Range, sync::Mutex, time::Duration};

use crate::{history::Mode, record::HistoryClock};

/// How long one set of locks is in use.
const ROUND: Duration = Duration::from_secs(3);
/// Maximum number of operations on one lock by all processes together. It determines the cost of the linearizability search.
const OPERATIONS_MAX: u32 = 160;
/// The modes of the locks of a set. The first ones are also acquired together.
const MODES: [Mode; 7] =
    [Mode::Exclusive, Mode::Exclusive, Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Shared, Mode::Permits(2)];

/// A lock of a set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Its name.
    pub name: String,
    /// Its mode. A shared lock is sometimes acquired exclusively too.
    pub mode: Mode,
}

/// The places of locks with exclusive mode.
pub(super) const EXCLUSIVE: Range<usize> = 0..4;
/// Number of locks in a set.
pub(crate) const COUNT: usize = MODES.len();

/// The number of the current set. All processes change to the next one at the same time.
pub(crate) fn round(timeline: HistoryClock) -> u64 {
    timeline.now_ns() / u64::try_from(ROUND.as_nanos()).expect("a few seconds")
}

/// Returns the lock at this place of a set.
pub(crate) fn lock_at(round: u64, place: usize) -> Lock {
    let mode = MODES[place % COUNT];
    let kind = match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    };
    Lock { name: format!("{round}/{kind}/{place}"), mode }
}

/// The remaining operations of this process on each lock of the current set.
#[derive(Debug)]
pub(super) struct Budget {
    per_lock: u32,
    spent: Mutex<(u64, HashMap<usize, u32>)>,
}

impl Budget {
    /// The budget of one of `processes` processes.
    pub(super) fn new(processes: u32) -> Self {
        Self { per_lock: (OPERATIONS_MAX / processes.max(1)).max(1), spent: Mutex::default() }
    }

    /// Spends this number of operations on each of these locks of a round. Returns `false` if the budget does not allow it.
    pub(super) fn spend(&self, round: u64, places: &[usize], operations: u32) -> bool {
        let mut spent = self.spent.lock().expect("no code panics while it holds this lock");
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
        assert!(EXCLUSIVE.map(|place| lock_at(1, place)).all(|lock| lock.mode == Mode::Exclusive));
        let mut names: Vec<_> =
            (0..3).flat_map(|round| (0..COUNT).map(move |place| lock_at(round, place).name)).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 3 * COUNT);
    }
}
