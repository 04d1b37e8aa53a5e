//! What a checker found out, as a report shows it.

use serde::Serialize;

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
