//! The findings about a property.

use std::fmt;

use serde::Serialize;

/// The checked properties, in the order of reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    /// No conflicting grants at the same time.
    MutualExclusion,
    /// Tokens rise in the order of grants.
    TokenOrder,
    /// A token has one owner, for ever.
    NoTokenTwice,
    /// A fenced resource accepts no write of an older grant after one of a newer grant.
    Fencing,
    /// No session ends before its holder stops trusting it.
    NoEarlyExpiry,
    /// A dead holder's lock is granted to the next waiter.
    EventualExpiry,
    /// Each wait ends, and no lock is free while it has waiters.
    NoLostWaiter,
    /// First come, first served.
    FirstComeFirstServed,
    /// A retried request has the same answer.
    ExactlyOnce,
    /// Acknowledged changes are not lost.
    Durability,
    /// A client that lost a grant by force is told by the next renewal.
    Told,
    /// No request of one client ends another client's session.
    Bystander,
    /// All nodes have the same table at the same index, and a term has one leader.
    Agreement,
    /// After the faults, the cluster serves again.
    Liveness,
    /// An entry that a leader proposed is applied by every node.
    Applicable,
    /// No turn and no apply is longer than its bound.
    Bounded,
    /// Transactions take effect in one order, which agrees with real time.
    Serializability,
    /// Watches report each change once, in order, to the end of the run.
    Watches,
    /// A sequential order explains all answers. A search cross-checks the other properties by this.
    Linearizability,
}

impl Property {
    /// All properties.
    pub const ALL: [Self; 19] = [
        Self::MutualExclusion,
        Self::TokenOrder,
        Self::NoTokenTwice,
        Self::Fencing,
        Self::NoEarlyExpiry,
        Self::EventualExpiry,
        Self::NoLostWaiter,
        Self::FirstComeFirstServed,
        Self::ExactlyOnce,
        Self::Durability,
        Self::Told,
        Self::Bystander,
        Self::Agreement,
        Self::Liveness,
        Self::Applicable,
        Self::Bounded,
        Self::Serializability,
        Self::Watches,
        Self::Linearizability,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::MutualExclusion => "mutual exclusion",
            Self::TokenOrder => "token order",
            Self::NoTokenTwice => "no token twice",
            Self::Fencing => "fencing",
            Self::NoEarlyExpiry => "no early expiry",
            Self::EventualExpiry => "eventual expiry",
            Self::NoLostWaiter => "no lost waiter",
            Self::FirstComeFirstServed => "first come, first served",
            Self::ExactlyOnce => "exactly once",
            Self::Durability => "durability",
            Self::Told => "told",
            Self::Bystander => "bystander",
            Self::Agreement => "agreement",
            Self::Liveness => "liveness",
            Self::Applicable => "applicable",
            Self::Bounded => "bounded",
            Self::Serializability => "serializability",
            Self::Watches => "watches",
            Self::Linearizability => "linearizability",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The finding about one property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The property.
    pub property: Property,
    /// The protocol whose holders alone it is about. None if it is about the whole history.
    pub protocol: Option<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The amount of evidence, as labels with counts.
    pub evidence: Vec<(&'static str, u64)>,
}

impl Finding {
    /// The name of the property, with the protocol if there is one: `told (etcd)`.
    pub fn name(&self) -> String {
        match &self.protocol {
            Some(protocol) => format!("{} ({protocol})", self.property),
            None => self.property.to_string(),
        }
    }
}

/// The verdict about a property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The evidence shows no violation.
    Holds,
    /// The property is violated, by these violations.
    Violated(Violations),
    /// The check could not decide, for this reason.
    Undecided(String),
    /// There was no evidence: the run has not tested the property.
    Vacuous,
}

/// The violations of a property.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Violations {
    /// The first ones, in the order in which they were found.
    pub shown: Vec<Violation>,
    /// Number of all violations.
    pub count: u64,
}

/// One violation of a property.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Violation {
    /// The property.
    pub property: Property,
    /// The violation in one sentence.
    pub says: String,
    /// The numbers of the fewest lines of the history that show it, sorted.
    pub lines: Vec<usize>,
}

/// The evidence of one violation, by property. Its text is the sentence.
pub(crate) trait Evidence: fmt::Display {
    /// The lines of the evidence, in any order.
    fn lines(&self) -> Vec<usize>;
}

/// Maximum number of violations that are shown. Further ones are only counted.
const SHOWN_MAX: usize = 10;

/// Collects the findings about one property.
#[derive(Debug)]
pub(crate) struct Investigation {
    property: Property,
    evidence: Vec<(&'static str, u64)>,
    violations: Violations,
    undecided: Option<String>,
}

impl Investigation {
    pub(super) fn new(property: Property) -> Self {
        Self { property, evidence: Vec::new(), violations: Violations::default(), undecided: None }
    }

    /// Adds to the count of this evidence.
    pub(super) fn count(&mut self, what: &'static str, count: u64) {
        match self.evidence.iter_mut().find(|(known, _)| *known == what) {
            Some((_, number)) => *number += count,
            None => self.evidence.push((what, count)),
        }
    }

    pub(super) fn report(&mut self, evidence: &impl Evidence) {
        self.violations.count += 1;
        if self.violations.shown.len() < SHOWN_MAX {
            let mut lines = evidence.lines();
            lines.sort_unstable();
            lines.dedup();
            let violation = Violation { property: self.property, says: evidence.to_string(), lines };
            self.violations.shown.push(violation);
        }
    }

    /// Notes that a part could not be decided. A violation takes precedence.
    pub(super) fn undecided(&mut self, why: impl Into<String>) {
        self.undecided.get_or_insert(why.into());
    }

    /// Makes the finding. If the first count of evidence is zero, the property is vacuous.
    pub(super) fn close(self) -> Finding {
        let verdict = match (self.violations.count, self.undecided, self.evidence.first()) {
            (1.., _, _) => Verdict::Violated(self.violations),
            (0, Some(why), _) => Verdict::Undecided(why),
            (0, None, None | Some((_, 0))) => Verdict::Vacuous,
            (0, None, Some(_)) => Verdict::Holds,
        };
        Finding { property: self.property, protocol: None, verdict, evidence: self.evidence }
    }
}
