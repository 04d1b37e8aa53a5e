//! The order of faults, drawn from a seed.

use std::{collections::VecDeque, time::Duration};

use rand::{
    Rng as _, SeedableRng as _,
    rngs::StdRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};

use super::{Fault, Group};

/// Approximate duration of a fault with the calm before and the recovery after it.
const CYCLE: Duration = Duration::from_secs(8);

/// The order of faults: each occurs once before any is repeated.
#[derive(Clone, Debug)]
pub struct Schedule {
    deck: Vec<Fault>,
    left: VecDeque<Fault>,
    random: StdRng,
}

impl Schedule {
    /// Draws an order of these faults.
    pub fn new(faults: &[Fault], seed: u64) -> Self {
        let mut schedule = Self { deck: faults.to_vec(), left: VecDeque::new(), random: StdRng::seed_from_u64(seed) };
        schedule.shuffle();
        schedule
    }

    /// Returns the faults that fit into this duration at the usual pace: at least one.
    pub fn within(&self, duration: Duration) -> Vec<Fault> {
        let count = (duration.as_secs_f64() / CYCLE.as_secs_f64()).floor().max(1.0);
        // The count is far below the limit at which floats are exact.
        self.left.iter().copied().take(count as usize).collect()
    }

    /// Returns the fault that strikes while this one is in flight: every second time one of the others, if this one allows it.
    pub fn companion(&mut self, fault: Fault) -> Option<Fault> {
        let companions: Vec<_> = self.deck.iter().copied().filter(|other| other.is_companion()).collect();
        if !fault.is_request() || self.random.random() {
            return None;
        }
        companions.choose(&mut self.random).copied()
    }

    /// Shuffles, and then alternates between the groups, so that a short run covers all groups.
    fn shuffle(&mut self) {
        self.deck.shuffle(&mut self.random);

        let mut groups: Vec<(Group, VecDeque<Fault>)> = Vec::new();
        for fault in &self.deck {
            match groups.iter_mut().find(|(group, _)| *group == fault.group()) {
                Some((_, faults)) => faults.push_back(*fault),
                None => groups.push((fault.group(), VecDeque::from([*fault]))),
            }
        }

        while groups.iter().any(|(_, faults)| !faults.is_empty()) {
            self.left.extend(groups.iter_mut().filter_map(|(_, faults)| faults.pop_front()));
        }
    }
}

impl Iterator for Schedule {
    type Item = Fault;

    /// Endless, unless no faults were chosen.
    fn next(&mut self) -> Option<Fault> {
        if self.left.is_empty() {
            self.shuffle();
        }
        self.left.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_come_before_any_comes_again_and_a_seed_gives_one_order() {
        let all: Vec<_> = Fault::all().collect();
        let order: Vec<_> = Schedule::new(&all, 7).take(2 * all.len()).collect();
        let mut first = order[..all.len()].to_vec();
        first.sort_unstable();
        assert_eq!(first, all);
        assert_eq!(order, Schedule::new(&all, 7).take(2 * all.len()).collect::<Vec<_>>());
        assert_ne!(order, Schedule::new(&all, 8).take(2 * all.len()).collect::<Vec<_>>());
        assert_eq!(Schedule::new(&[], 7).next(), None);
    }

    #[test]
    fn half_of_the_requests_have_a_companion_of_those_that_were_chosen() {
        let chosen =
            [Fault::Transfer, Fault::Add, Fault::KillLeader, Fault::Delay, Fault::DataGone, Fault::RollingRestart];
        let mut schedule = Schedule::new(&chosen, 5);
        let found: Vec<_> = (0..200).map(|_| schedule.companion(Fault::Add)).collect();
        let count = |wanted: Option<Fault>| found.iter().filter(|found| **found == wanted).count();
        assert!((70..=130).contains(&count(None)), "{found:?}");
        assert_eq!(count(None) + count(Some(Fault::KillLeader)) + count(Some(Fault::Delay)), found.len());
        assert!(count(Some(Fault::KillLeader)) > 20 && count(Some(Fault::Delay)) > 20, "{found:?}");
        assert!((0..50).all(|_| schedule.companion(Fault::KillLeader).is_none()), "it is no request");
        let mut alone = Schedule::new(&[Fault::Add, Fault::Replace], 5);
        assert!((0..50).all(|_| alone.companion(Fault::Add).is_none()));
    }

    #[test]
    fn a_short_run_sees_something_of_each_group() {
        let all: Vec<_> = Fault::all().collect();
        let mut groups: Vec<_> = Schedule::new(&all, 3).within(CYCLE * 8).iter().map(|fault| fault.group()).collect();
        groups.sort_unstable();
        groups.dedup();
        assert_eq!(groups.len(), 8);
        assert_eq!(Schedule::new(&all, 3).within(Duration::ZERO).len(), 1);
    }
}
