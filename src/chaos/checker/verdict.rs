//! What is found out about a property.

use std::fmt;

use serde::Serialize;

/// What a history is judged by. The order is that of reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    /// No two hold what only one may.
    MutualExclusion,
    /// Tokens rise with the order in which grants were made.
    TokenOrder,
    /// A token has one owner, for ever.
    NoTokenTwice,
    /// A resource that checks tokens is never written by an older grant after a newer one.
    Fencing,
    /// No session ends before its holder stops trusting it.
    NoEarlyExpiry,
    /// A dead holder's lock passes on.
    EventualExpiry,
    /// Every wait ends, and no lock is free while somebody waits for it.
    NoLostWaiter,
    /// First come, first served.
    FirstComeFirstServed,
    /// The same request has the same answer.
    ExactlyOnce,
    /// What was acknowledged is there.
    Durability,
    /// Who lost a grant by force hears of it with the next renewal.
    Told,
    /// Nodes have the same table at the same index, and terms one leader.
    Agreement,
    /// After the faults, the cluster serves again.
    Liveness,
    /// There is an order of single steps that explains all answers: a search, as a cross-check of the others.
    Linearizability,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 14] = [
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
        Self::Agreement,
        Self::Liveness,
        Self::Linearizability,
    ];

    /// In words, as reports say it.
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
            Self::Agreement => "agreement",
            Self::Liveness => "liveness",
            Self::Linearizability => "linearizability",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The judgement of one property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Which.
    pub property: Property,
    /// What was found out.
    pub verdict: Verdict,
    /// How much there was to look at: what, and how many of it.
    pub evidence: Vec<(&'static str, u64)>,
}

/// What was found out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything that was looked at is as it should be.
    Holds,
    /// It is broken: here, and here.
    Violated(Violations),
    /// Not found out, and why.
    Undecided(String),
    /// There was nothing to look at. A run that was to show something has not.
    Vacuous,
}

/// Where a property is broken.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Violations {
    /// The first of them, in the order in which they were found.
    pub shown: Vec<Violation>,
    /// How many there are in all.
    pub count: u64,
}

/// One place where a property is broken.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Violation {
    /// Which property.
    pub property: Property,
    /// What is wrong, in a sentence.
    pub says: String,
    /// The shortest piece of the history that shows it: numbers of lines, rising.
    pub lines: Vec<usize>,
}

/// A violation, as the file of its property knows it: displayed, it is the sentence.
pub(super) trait Conviction: fmt::Display {
    /// The lines that show it, in any order.
    fn lines(&self) -> Vec<usize>;
}

/// More than this are counted, not shown.
const SHOWN_MAX: usize = 10;

/// Collects what is found out about one property.
#[derive(Debug)]
pub(super) struct Inquiry {
    property: Property,
    evidence: Vec<(&'static str, u64)>,
    violations: Violations,
    undecided: Option<String>,
}

impl Inquiry {
    pub(super) fn into(property: Property) -> Self {
        Self { property, evidence: Vec::new(), violations: Violations::default(), undecided: None }
    }

    /// So much more of this was looked at.
    pub(super) fn saw(&mut self, what: &'static str, count: u64) {
        match self.evidence.iter_mut().find(|(known, _)| *known == what) {
            Some((_, number)) => *number += count,
            None => self.evidence.push((what, count)),
        }
    }

    pub(super) fn convict(&mut self, conviction: &impl Conviction) {
        self.violations.count += 1;
        if self.violations.shown.len() < SHOWN_MAX {
            let mut lines = conviction.lines();
            lines.sort_unstable();
            lines.dedup();
            let violation = Violation { property: self.property, says: conviction.to_string(), lines };
            self.violations.shown.push(violation);
        }
    }

    /// Something could not be found out. A violation weighs more.
    pub(super) fn undecided(&mut self, why: impl Into<String>) {
        self.undecided.get_or_insert(why.into());
    }

    /// The first thing that was looked at counts: without it, there was nothing to see.
    pub(super) fn close(self) -> Finding {
        let verdict = match (self.violations.count, self.undecided, self.evidence.first()) {
            (1.., _, _) => Verdict::Violated(self.violations),
            (0, Some(why), _) => Verdict::Undecided(why),
            (0, None, None | Some((_, 0))) => Verdict::Vacuous,
            (0, None, Some(_)) => Verdict::Holds,
        };
        Finding { property: self.property, verdict, evidence: self.evidence }
    }
}
