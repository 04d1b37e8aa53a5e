//! Time without faults.
//!
//! The bounds that a run promises count only time without faults: a cluster without a quorum cannot grant. A fault
//! window lasts from a `fault` to the `heal` that ends the last active fault. Safety properties must hold always and do
//! not use this.

use std::collections::BTreeSet;

use crate::history::Fact;

/// The fault windows, disjoint and in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Calm {
    /// The start and the end of each window, and the total time of faults before its start.
    windows: Vec<(u64, u64, u64)>,
}

impl Calm {
    pub(super) fn from_facts<'a>(facts: impl Iterator<Item = (u64, &'a Fact)>) -> Self {
        let mut calm = Self::default();
        let mut open: BTreeSet<&str> = BTreeSet::new();
        let mut begun_ns = 0;

        for (time_ns, fact) in facts {
            let was_calm = open.is_empty();
            if let Fact::Fault { name, .. } = fact {
                open.insert(name);
                if was_calm {
                    begun_ns = time_ns;
                }
            } else if let Fact::Heal { name } = fact {
                open.retain(|known| name.as_ref().is_some_and(|name| *known != name.as_str()));
                if !was_calm && open.is_empty() {
                    calm.push(begun_ns, time_ns);
                }
            }
        }

        if !open.is_empty() {
            calm.push(begun_ns, u64::MAX);
        }
        calm
    }

    fn push(&mut self, begin: u64, end: u64) {
        let before = self.windows.last().map_or(0, |(begin, end, before)| before + (end - begin));
        self.windows.push((begin, end, before));
    }

    /// The ends of fault windows, each with the start of the next one, or with `u64::MAX` if it is the last.
    pub(super) fn heals(&self) -> impl Iterator<Item = (u64, u64)> {
        let next = self.windows.iter().skip(1).map(|(begin, _, _)| *begin).chain([u64::MAX]);
        self.windows.iter().zip(next).map(|((_, end, _), next)| (*end, next)).filter(|(end, _)| *end != u64::MAX)
    }

    /// The time without faults between two moments.
    pub(super) fn between(&self, from: u64, to: u64) -> u64 {
        to.saturating_sub(from).saturating_sub(self.faulty_until(to).saturating_sub(self.faulty_until(from)))
    }

    /// The moment at which this much time without faults has passed.
    pub(super) fn after(&self, from: u64, calm: u64) -> u64 {
        let mut at = from.saturating_add(calm);
        let first = self.windows.partition_point(|(_, end, _)| *end <= from);
        for (begin, end, _) in &self.windows[first..] {
            if *begin > at {
                break;
            }
            at = at.saturating_add(end - (*begin).max(from));
        }
        at
    }

    /// The total time of faults before this moment.
    fn faulty_until(&self, at: u64) -> u64 {
        match self.windows.partition_point(|(begin, _, _)| *begin < at).checked_sub(1) {
            None => 0,
            Some(place) => {
                let (begin, end, before) = self.windows[place];
                before + at.min(end) - begin
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: &str) -> Fact {
        Fact::Fault { name: name.to_owned(), nodes: Vec::new(), silent: Vec::new() }
    }

    #[test]
    fn time_under_faults_does_not_count() {
        let facts = [
            (10, fault("a")),
            (15, fault("b")),
            (20, Fact::Heal { name: Some("a".to_owned()) }),
            (30, Fact::Heal { name: None }),
            (50, fault("a")),
        ];
        let calm = Calm::from_facts(facts.iter().map(|(at, fact)| (*at, fact)));
        assert_eq!(calm.between(0, 10), 10);
        assert_eq!(calm.between(0, 40), 20);
        assert_eq!(calm.between(25, 40), 10);
        assert_eq!(calm.between(60, 90), 0);
        assert_eq!(calm.after(0, 5), 5);
        assert_eq!(calm.after(5, 10), 35);
        assert_eq!(calm.after(12, 3), 33);
        assert_eq!(calm.after(40, 11), u64::MAX);
        assert_eq!(calm.heals().collect::<Vec<_>>(), [(30, 50)]);
    }
}
