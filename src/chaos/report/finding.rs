//! What a checker found out, as a report shows it.

use serde::Serialize;

use crate::chaos::checker;

/// The judgement of one property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Which, in words: `mutual exclusion`.
    pub property: String,
    /// What was found out.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How much there was to look at: what, and how many of it.
    pub evidence: Vec<(String, u64)>,
}

/// What was found out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Everything that was looked at is as it should be.
    Holds,
    /// It is broken.
    Violated {
        /// How often.
        count: u64,
        /// Some of the places, at most `count`.
        shown: Vec<Violation>,
    },
    /// Not found out.
    Undecided {
        /// Why, in a sentence.
        why: String,
    },
    /// There was nothing to look at.
    Vacuous,
}

/// One place where a property is broken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Violation {
    /// What is wrong, in a sentence.
    pub says: String,
    /// The lines of the history that show it, rising.
    pub lines: Vec<usize>,
}

impl From<checker::Finding> for Finding {
    fn from(finding: checker::Finding) -> Self {
        let verdict = match finding.verdict {
            checker::Verdict::Holds => Verdict::Holds,
            checker::Verdict::Undecided(why) => Verdict::Undecided { why },
            checker::Verdict::Vacuous => Verdict::Vacuous,
            checker::Verdict::Violated(checker::Violations { count, shown }) => {
                let shown = shown.into_iter().map(|checker::Violation { says, lines, .. }| Violation { says, lines });
                Verdict::Violated { count, shown: shown.collect() }
            }
        };
        let evidence = finding.evidence.into_iter().map(|(what, count)| (what.to_owned(), count)).collect();
        Self { property: finding.property.name().to_owned(), verdict, evidence }
    }
}

impl Verdict {
    /// In one word, for a table.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Violated { .. } => "VIOLATED",
            Self::Undecided { .. } => "undecided",
            Self::Vacuous => "not tested",
        }
    }
}
