//! Bounded: no task keeps the others of its runtime waiting for long, and no apply takes long.
//!
//! Long turns cost heartbeats and renewals, whoever caused them. Nodes measure their longest turn and their longest apply, and the run
//! notes them. They are compared with `turn_bound_us` and `apply_bound_us` of the meta, where it promises such bounds.
//!
//! A turn that a fault made long counts too: a run that stops processes promises no bound.

use std::fmt;

use super::{
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::Fact;

struct TooLong<'r> {
    node: u64,
    /// What took so long.
    what: &'r str,
    us: u64,
    bound_us: u64,
    line: usize,
}

impl fmt::Display for TooLong<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, what, us, bound_us, .. } = self;
        write!(f, "node {node}: {what} took {us} us, and the bound is {bound_us} us")
    }
}

impl Evidence for TooLong<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.line]
    }
}

/// The finding, if the run promises a bound and has measured.
pub(super) fn check(run: &Run<'_>) -> Option<Finding> {
    let mut investigation = Investigation::new(Property::Bounded);
    investigation.count("measurements", 0);
    let mut longest_us = [0, 0];
    let mut is_measured = false;

    for told in &run.facts {
        let (node, what, us, bound_us, place) = if let Fact::LongestTurn { node, runtime, us } = told.fact {
            (node, format!("a turn of the runtime {runtime:?}"), us, run.meta.turn_bound_us, 0)
        } else if let Fact::LongestApply { node, us } = told.fact {
            (node, "an apply".to_owned(), us, run.meta.apply_bound_us, 1)
        } else {
            continue;
        };
        longest_us[place] = longest_us[place].max(*us);

        let Some(bound_us) = bound_us else { continue };
        is_measured = true;
        investigation.count("measurements", 1);
        if *us > bound_us {
            let what = &*what;
            investigation.report(&TooLong { node: *node, what, us: *us, bound_us, line: told.line });
        }
    }

    let [turn_us, apply_us] = longest_us;
    investigation.count("us in the longest turn", turn_us);
    investigation.count("us in the longest apply", apply_us);
    is_measured.then(|| investigation.close())
}
