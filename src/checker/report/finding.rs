//! The findings of a checker, in the form of a report.

use serde::Serialize;

/// The finding about one property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReportedFinding {
    /// The name of the property, like `mutual exclusion`, with the protocol if it is about one.
    pub property: String,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: ReportedVerdict,
    /// The amount of evidence, as labels with counts.
    pub evidence: Vec<(String, u64)>,
}

/// The verdict about a property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum ReportedVerdict {
    /// The evidence shows no violation.
    Holds,
    /// The property is violated.
    Violated {
        /// Number of violations.
        count: u64,
        /// Some of the violations, at most `count`.
        shown: Vec<ReportedViolation>,
    },
    /// The check could not decide.
    Undecided {
        /// The reason, in a sentence.
        why: String,
    },
    /// There was no evidence.
    Vacuous,
}

/// One violation of a property.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReportedViolation {
    /// The violation in one sentence.
    pub says: String,
    /// The lines of the history that show it, sorted.
    pub lines: Vec<usize>,
}

impl From<crate::Finding> for ReportedFinding {
    fn from(finding: crate::Finding) -> Self {
        let property = finding.name();
        let verdict = match finding.verdict {
            crate::Verdict::Holds => ReportedVerdict::Holds,
            crate::Verdict::Undecided(why) => ReportedVerdict::Undecided { why },
            crate::Verdict::Vacuous => ReportedVerdict::Vacuous,
            crate::Verdict::Violated(crate::Violations { count, shown }) => {
                let shown =
                    shown.into_iter().map(|crate::Violation { says, lines, .. }| ReportedViolation { says, lines });
                ReportedVerdict::Violated { count, shown: shown.collect() }
            }
        };

        let evidence = finding.evidence.into_iter().map(|(what, count)| (what.to_owned(), count)).collect();
        Self { property, verdict, evidence }
    }
}

impl ReportedVerdict {
    /// The verdict as a word in a table.
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Violated { .. } => "VIOLATED",
            Self::Undecided { .. } => "undecided",
            Self::Vacuous => "not tested",
        }
    }
}
