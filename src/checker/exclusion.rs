//! Mutual exclusion: no conflicting grants of a lock at the same time.
//!
//! Exclusive conflicts with all, shared with exclusive, permits beyond their number: the number that the acquires name,
//! since no run resizes a semaphore (the model of `tests/machine_model` does). Two tenures that certainly overlap
//! are two grants of one lock if there is evidence of the earlier one after the later: it was renewed, used or
//! released. Otherwise its session was ended too early, which [`super::early`] reports and which makes this property
//! undecided.

use std::fmt;

use super::{
    grants::Grants,
    show::Ms,
    tenures::Overlap,
    verdict::{Evidence, Finding, Investigation, Property},
};

struct HeldTwice<'g>(&'g Overlap<'g>);

impl fmt::Display for HeldTwice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overlap { lock, held, next } = self.0;
        let first = held.first().copied().unwrap_or(next);
        match held.len() {
            0 | 1 => write!(f, "lock {lock:?}: {first} held it until {}", Ms(first.until_ns))?,
            n => write!(f, "lock {lock:?}: all {n} permits were held, the first by {first}")?,
        }
        write!(f, ", and {next} held it too, from {}", Ms(self.0.begin_ns()))
    }
}

impl Evidence for HeldTwice<'_> {
    fn lines(&self) -> Vec<usize> {
        let held = self.0.held.iter().flat_map(|grant| [grant.answered_line, grant.until_line]);
        held.chain([self.0.next.answered_line]).collect()
    }
}

pub(super) fn check(grants: &Grants<'_>, overlaps: &[Overlap<'_>]) -> Finding {
    let mut investigation = Investigation::of(Property::MutualExclusion);
    let certain = grants.by_token.iter().filter(|grant| grant.is_certain()).count();
    investigation.count("tenures", certain as u64);
    for overlap in overlaps {
        match overlap.silent() {
            None => investigation.report(&HeldTwice(overlap)),
            Some(_) => investigation.undecided("two held a lock at a time after an early expiry: see no early expiry"),
        }
    }
    investigation.close()
}
