//! Each planted bug: where it is convicted, and where the same is seen to hold without it. `--nocapture` prints the list.

use lockkeeper::planted::Planted;

use super::{convictions, scenarios};

/// The convictions of a bug, each with its control.
fn convictions(bug: Planted) -> Vec<String> {
    let mut found = Vec::new();
    for case in scenarios::CASES.iter().filter(|case| case.bug == bug) {
        let control = if scenarios::ALONE.contains(&case.scenario) { "run alone without it" } else { "in its suite" };
        found.push(format!("check: {} (control: the same test, {control})", case.scenario));
    }
    for case in convictions::CASES.iter().filter(|case| case.bug == bug) {
        found.push(format!("nightly: chaos, {} (control: {})", case.faults, convictions::CONTROL));
    }
    if !bug.is_staged() {
        found.push(
            "nightly: scripts/simulate.sh --planted (control: the same seeds without it, in the check)".to_owned(),
        );
    }
    found
}

#[test]
fn each_planted_bug_has_a_conviction_and_a_control() {
    for bug in Planted::ALL.into_iter().filter(|bug| !bug.is_found_by_suites()) {
        let found = convictions(bug);
        assert!(!found.is_empty(), "nothing convicts {}", bug.name());
        found.iter().for_each(|place| println!("{:<30} {place}", bug.name()));
    }
}
