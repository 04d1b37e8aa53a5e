//! Applicable: an entry of the log that a leader proposed is applied by every node, of every version in the run.
//!
//! A node that cannot apply an entry stops, and every other node meets the same entry. Which node did so is noted by the run, from its exit
//! code or its log: a history of clients does not show it.

use std::fmt;

use super::{
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::Fact;

struct RefusedByNode<'r> {
    node: u64,
    index: u64,
    why: &'r str,
    line: usize,
}

impl fmt::Display for RefusedByNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} could not apply entry {}: {}", self.node, self.index, self.why)
    }
}

impl Evidence for RefusedByNode<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.line]
    }
}

/// The finding, if the history tells of tables or of entries that were refused.
pub(super) fn check(run: &Run<'_>) -> Option<Finding> {
    let mut investigation = Investigation::new(Property::Applicable);
    investigation.count("tables after their entries", 0);
    let mut is_told = false;
    let mut furthest = 0;

    for told in &run.facts {
        if let Fact::Table { index, .. } = told.fact {
            is_told = true;
            furthest = furthest.max(*index);
            investigation.count("tables after their entries", 1);
        } else if let Fact::RefusedEntry { node, index, why } = told.fact {
            is_told = true;
            investigation.report(&RefusedByNode { node: *node, index: *index, why, line: told.line });
        }
    }

    investigation.count("entries", furthest);
    is_told.then(|| investigation.close())
}
