//! Sensitivity of the simulation: each bug of [`lockkeeper::planted`] is enabled, and seeds run from 1 on, until the checker reports the
//! property that the bug violates.
//!
//! A run with a planted bug continues when two nodes have different tables, since clients cannot see that: the test requires that the
//! checker finds the violation in the history, as it would in that of real processes.
//!
//! Staged bugs ([`Planted::STAGED`]) are left out: they need a coincidence of two events that no seed is expected to produce.

use std::{
    env, fmt,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use lockkeeper::{chaos::checker::Property, planted::Planted};

use crate::child::{self, Asked, Report};

/// The most seeds that a bug may need.
const SEEDS_MAX: u64 = 200;
/// Name of the only bug to test.
const ONLY: &str = "LOCKKEEPER_SIMULATION_BUG";

/// The evidence against a bug.
#[derive(Clone, Copy)]
enum Evidence {
    /// The checker finds this property violated.
    Violated(Property),
    /// The run fails with an error that contains this.
    Error(&'static str),
}
use Evidence::{Error, Violated};

impl Evidence {
    fn is_in(self, report: &Report) -> bool {
        match self {
            Violated(property) => report.violated.contains(&property.to_string()),
            Error(part) => report.troubles.iter().any(|trouble| trouble.contains(part)),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violated(property) => f.pad(&property.to_string()),
            Error(part) => f.pad(part),
        }
    }
}

/// The bugs and their effects. By the rules of Raft, the vote of a removed node that is taken in elects nobody: each quorum of an older
/// membership contains a voter that has the later one. So the effect is that it does not end.
const CASES: [(Planted, Evidence); 13] = [
    (Planted::AckBeforeSync, Violated(Property::Durability)),
    (Planted::TokenNotInSnapshot, Violated(Property::NoTokenTwice)),
    (Planted::RepliesNotInSnapshot, Violated(Property::ExactlyOnce)),
    (Planted::QueueNotInSnapshot, Violated(Property::FirstComeFirstServed)),
    (Planted::ReadWithoutIndex, Violated(Property::Durability)),
    (Planted::RemovedTakenIn, Error("were removed and have not ended")),
    (Planted::WaitLostOnDisconnect, Violated(Property::NoLostWaiter)),
    (Planted::ReleaseIgnoresToken, Violated(Property::Durability)),
    (Planted::StampFromWallClock, Violated(Property::NoEarlyExpiry)),
    (Planted::EarlyExpiry, Violated(Property::NoEarlyExpiry)),
    (Planted::ReaderOvertakes, Violated(Property::FirstComeFirstServed)),
    (Planted::NoExpiry, Violated(Property::EventualExpiry)),
    (Planted::RevocationNotKept, Violated(Property::Told)),
];

/// The result for one bug.
struct Hunt {
    /// The first seed with any failure, and the failure.
    noticed: Option<(u64, String)>,
    /// The first seed with the expected evidence.
    convicted: Option<u64>,
}

fn hunt(bug: Planted, evidence: Evidence) -> Hunt {
    let mut hunt = Hunt { noticed: None, convicted: None };
    for seed in 1..=SEEDS_MAX {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let asked = Asked { bug: Some(bug), ..Asked::default() };
        let report = child::run(seed, directory.path(), asked).expect("this program can be run again");
        let trouble = report.troubles.first().and_then(|trouble| trouble.lines().next());
        hunt.noticed = hunt.noticed.or_else(|| Some((seed, trouble?.to_owned())));
        if evidence.is_in(&report) {
            hunt.convicted = Some(seed);
            break;
        }
    }
    hunt
}

/// Hunts a bug and prints the result. Returns whether it was convicted.
fn tell(bug: Planted, evidence: Evidence) -> bool {
    let began = Instant::now();
    let Hunt { noticed, convicted } = hunt(bug, evidence);
    let seed = convicted.map_or_else(|| format!("none of {SEEDS_MAX}"), |seed| format!("seed {seed}"));
    let first = noticed.map_or_else(String::new, |(seed, how)| format!("; first noticed by seed {seed}: {how}"));
    println!("{:<24} {:<24} {seed}, {} s{first}", bug.name(), evidence, began.elapsed().as_secs());
    convicted.is_some()
}

#[test]
#[ignore = "takes many minutes: for `scripts/simulate.sh --planted`"]
fn each_bug_is_convicted_of_what_it_breaks() {
    let only = env::var(ONLY).ok();
    let cases: Vec<_> =
        CASES.iter().filter(|(bug, _)| only.as_ref().is_none_or(|only| bug.name() == only)).copied().collect();
    assert!(!cases.is_empty(), "no bug is called {only:?}; there are {}", Planted::ALL.map(Planted::name).join(", "));
    let is_here = |bug: &Planted| CASES.iter().any(|(known, _)| known == bug);
    assert!(Planted::ALL.iter().all(|bug| bug.is_staged() || bug.is_found_by_suites() || is_here(bug)));
    let (next, escaped) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((bug, evidence)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !tell(*bug, *evidence) {
                escaped.lock().expect("nothing panics while it has them").push(bug.name());
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let escaped = escaped.into_inner().expect("nothing panics while it has them");
    assert!(escaped.is_empty(), "these bugs were not convicted within {SEEDS_MAX} seeds: {escaped:?}");
}
