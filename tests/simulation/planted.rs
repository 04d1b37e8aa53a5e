//! Sensitivity of the simulation: each bug of [`lockkeeper::planted`] is enabled, and seeds run from 1 on, until the checker reports the
//! property that the bug violates. The first ones end early: most bugs show within seconds.
//!
//! `seeds.txt` has the run that convicted each bug last. A hunt begins with it, and goes on with seeds from 1 on. With
//! `LOCKKEEPER_SIMULATION_KEEP`, as `scripts/simulate.sh hunt` sets it, each seed is written there as soon as it is found: a change that
//! shifts all runs costs one hunt, and nobody's time.
//!
//! A run with a planted bug continues when two nodes have different tables, since clients cannot see that: the test requires that the
//! checker finds the violation in the history, as it would in that of real processes.
//!
//! Staged bugs ([`Planted::STAGED`]) are left out, but for what each run comes to: they need a coincidence of two events that no seed is
//! expected to produce.

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

use lockkeeper::{chaos::checker::Property, planted::Planted};

use crate::child::{self, Asked, Report};

/// The most seeds that a bug may need.
const SEEDS_MAX: u64 = 200;
/// How many seeds run for [`EARLY_SECONDS`] before others run as long as they take.
const EARLY_SEEDS: u64 = 20;
/// Simulated seconds with faults of a run that ends early.
const EARLY_SECONDS: u64 = 5;
/// The seeds that convicted the bugs last.
const KNOWN: &str = include_str!("seeds.txt");
const KNOWN_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation/seeds.txt");
/// The record of convictions by layer.
const RECORD_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calibration/convictions.tsv");
/// Whether to write down the seeds that were found.
const KEEP: &str = "LOCKKEEPER_SIMULATION_KEEP";
/// Names of the only bugs to test, with commas between.
const ONLY: &str = "LOCKKEEPER_SIMULATION_BUG";

/// The evidence against a bug.
#[derive(Clone, Copy)]
enum Evidence {
    /// The checker finds this property violated.
    Violated(Property),
    /// The checker finds this property violated for the holders of this protocol.
    ViolatedFor(&'static str, Property),
    /// The run fails with an error that contains this.
    Error(&'static str),
}
use Evidence::{Error, Violated, ViolatedFor};

impl Evidence {
    fn is_in(self, report: &Report) -> bool {
        match self {
            Violated(property) => report.violated.contains(&property.to_string()),
            ViolatedFor(protocol, property) => report.violated.contains(&format!("{property} ({protocol})")),
            Error(part) => report.troubles.iter().any(|trouble| trouble.contains(part)),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violated(property) => f.pad(&property.to_string()),
            ViolatedFor(protocol, property) => f.pad(&format!("{property} ({protocol})")),
            Error(part) => f.pad(part),
        }
    }
}

/// The bugs and their effects. By the rules of Raft, the vote of a removed node that is taken in elects nobody: each quorum of an older
/// membership contains a voter that has the later one. So the effect is that it does not end.
const CASES: [(Planted, Evidence); 56] = [
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
    // What the run itself judges: the answers and the watches of the keyspace.
    (Planted::SelectMissesOwnWrites, Violated(Property::Serializability)),
    (Planted::DeleteSparesOwnPuts, Error("a transaction of the keyspace")),
    (Planted::CreatedByEachPut, Error("the run broke off")),
    (Planted::CompareOfAbsentHolds, Error("a transaction of the keyspace")),
    (Planted::PastReadsPresent, Error("a read of the keyspace")),
    (Planted::OldestRunUnread, Error("a read of the keyspace")),
    (Planted::DeletionWithoutEvent, Error("the run broke off")),
    (Planted::RangeWatchNotWoken, Error("the watch of")),
    // The holders of each protocol.
    (Planted::QueueByKey, Error("of etcd at")),
    (Planted::EndedLeaseRenewed, Error("of etcd at")),
    (Planted::RedisValueUncompared, ViolatedFor("redis", Property::MutualExclusion)),
    (Planted::RedisReadNotInCommit, ViolatedFor("redis", Property::MutualExclusion)),
    (Planted::RedisHandOverKeepsToken, Error("went from")),
    // Whoever is connected is counted, and has the lock that its subscription is.
    (Planted::RedisLapsedSubscriberKept, Error("was answered as the only subscriber")),
    (Planted::PutHoldsNothing, Error("of dynamodb")),
    (Planted::VouchesForEver, Error("of zookeeper at")),
    (Planted::UnknownTriedAgain, Error("whose client was told that it has no such")),
    // What clients with identities may do.
    (Planted::ForwardedAsAnonymous, Error("no rule allows it")),
    (Planted::SessionOfAnybody, Error("no rule allows it")),
    (Planted::UnknownTokenIsAnonymous, Error("no rule allows it")),
    (Planted::RangeBeyondPrefix, Error("no rule allows it")),
    (Planted::PolicyReadOnce, Error("rule allows it")),
    (Planted::TokensReadOnce, Error("no rule allows it")),
    // What a cluster from a backup knows of the one that was lost.
    (Planted::RestoreForgetsTokenOffset, Violated(Property::NoTokenTwice)),
    (Planted::RestoredTwiceAlike, Violated(Property::NoTokenTwice)),
    (Planted::RestoredSessionsKeepIds, Violated(Property::MutualExclusion)),
    (Planted::RestoredOpensAtOnce, Violated(Property::NoEarlyExpiry)),
    (Planted::RestoredRenews, Error("has had since")),
    (Planted::RestoredUnnamed, Violated(Property::NoEarlyExpiry)),
    // What a cluster that was recovered knows of the one whose majority was lost.
    (Planted::RecoveryPassesEntry, Error("left show another table at index")),
    (Planted::RecoveryForgetsLog, Error("the cluster that was recovered has None in the place of")),
    (Planted::RestoredRevisionsAnew, Error("the cluster that was recovered has Some")),
    (Planted::FoundedBeyondReach, Error("did not become a voter of the cluster that was recovered")),
    // The audit trail.
    (Planted::SnapshotBeforeAuditSync, Error("for which it got no snapshot")),
    // What is documented of the edges of fields.
    (Planted::LongestPrefixRefused, Error("of 512, where 0 to 512 are allowed, was refused")),
    (Planted::NoPermitsAsOne, Error("permits of 0, where 1 to")),
    // What the limits of identities allow.
    (Planted::AskedForUncounted, Error("and the table has")),
    (Planted::OthersSessionsCounted, Error("identity_sessions refused what is within")),
    // What an entry of the log is, and what it costs.
    (Planted::EntryCutShort, Violated(Property::Applicable)),
    (Planted::EntriesUnderWayUncounted, Violated(Property::Bounded)),
    (Planted::RangesCostNothing, Violated(Property::Bounded)),
    // What is told of a command that was refused.
    (Planted::RefusedIsProposed, Error("was refused without effect, and took effect")),
    // At a limit, no node can apply the entry.
    (Planted::TxnJudgedAgain, Error("ended by itself")),
];

/// A run in which a bug may show.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct HuntingRun {
    seed: u64,
    /// Simulated seconds after which it ends, unless the seed says when.
    seconds: Option<u64>,
}

impl HuntingRun {
    /// The run that convicted a bug last.
    fn known(bug: Planted) -> Option<Self> {
        lines(KNOWN).find(|(name, _)| *name == bug.name()).map(|(_, run)| run)
    }

    /// All runs that are tried.
    fn all() -> impl Iterator<Item = Self> {
        let early = (1..=EARLY_SEEDS).map(|seed| Self { seed, seconds: Some(EARLY_SECONDS) });
        early.chain((1..=SEEDS_MAX).map(|seed| Self { seed, seconds: None }))
    }

    fn report(self, bug: Option<Planted>) -> Report {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let asked = Asked { bug, seconds: self.seconds, ..Asked::default() };
        child::run(self.seed, directory.path(), asked).expect("this program can be run again")
    }
}

impl fmt::Display for HuntingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, seconds } = self;
        match seconds {
            Some(seconds) => write!(f, "seed {seed}, {seconds} s"),
            None => write!(f, "seed {seed}"),
        }
    }
}

/// The result for one bug.
struct Hunt {
    /// The first run with any failure, and the failure.
    noticed: Option<(HuntingRun, String)>,
    /// The first run with the expected evidence.
    convicted: Option<HuntingRun>,
}

/// The reports of runs without a bug. Most bugs are convicted by the same few runs, so each of these is made once for all bugs.
#[derive(Default)]
struct Controls(Mutex<BTreeMap<HuntingRun, Arc<OnceLock<Report>>>>);

impl Controls {
    fn have(&self, evidence: Evidence, run: HuntingRun) -> bool {
        let report = Arc::clone(self.0.lock().expect("nothing panics while it has them").entry(run).or_default());
        evidence.is_in(report.get_or_init(|| run.report(None)))
    }
}

fn hunt(bug: Planted, evidence: Evidence, controls: &Controls) -> Hunt {
    let mut hunt = Hunt { noticed: None, convicted: None };
    for run in HuntingRun::known(bug).into_iter().chain(HuntingRun::all()) {
        let report = run.report(Some(bug));
        let trouble = report.troubles.first().and_then(|trouble| trouble.lines().next());
        hunt.noticed = hunt.noticed.or_else(|| Some((run, trouble?.to_owned())));
        // Without the bug, the same run must not have the evidence.
        if evidence.is_in(&report) && !controls.have(evidence, run) {
            hunt.convicted = Some(run);
            break;
        }
    }
    hunt
}

fn lines(known: &str) -> impl Iterator<Item = (&str, HuntingRun)> {
    let lines = known.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| {
        let mut words = line.split(' ');
        let bug = words.next().expect("a line is not empty");
        let mut numbers = words.map(|number| number.parse().expect("a seed and seconds are numbers"));
        let seed = numbers.next().expect("a line has a bug and a seed");
        (bug, HuntingRun { seed, seconds: numbers.next() })
    })
}

/// Writes the runs that were found among those in the file, where another hunt may have written too.
fn keep(found: &BTreeMap<&'static str, HuntingRun>) {
    let known = fs::read_to_string(KNOWN_FILE).expect("the file is there");
    let comments: Vec<_> = known.lines().filter(|line| line.starts_with('#')).collect();
    let mut runs: BTreeMap<_, _> = lines(&known).collect();
    runs.extend(found);
    let runs = runs.into_iter().map(|(bug, HuntingRun { seed, seconds })| {
        let seconds = seconds.map(|seconds| format!(" {seconds}")).unwrap_or_default();
        format!("{bug} {seed}{seconds}\n")
    });
    fs::write(KNOWN_FILE, format!("{}\n{}", comments.join("\n"), runs.collect::<String>()))
        .expect("the file of the seeds can be written");
}

/// Writes into the record of convictions which bugs of the suites the seeds convict: see `scripts/convict.py`.
fn note(found: &BTreeMap<&'static str, HuntingRun>) {
    let record = fs::read_to_string(RECORD_FILE).expect("the record is there");
    let mut lines: Vec<_> = record.lines().map(str::to_owned).collect();
    let is_in_record = |bug: &str| Planted::named(bug).is_some_and(Planted::is_found_by_suites);
    for (bug, run) in found.iter().filter(|(bug, _)| is_in_record(bug)) {
        let of_simulation = format!("{bug}\tsimulation\t");
        lines.retain(|line| !line.starts_with(&of_simulation));
        let last = lines.iter().rposition(|line| line.starts_with(&format!("{bug}\t")));
        lines.insert(last.map_or(lines.len(), |place| place + 1), format!("{of_simulation}simulation {run}"));
    }
    fs::write(RECORD_FILE, lines.join("\n") + "\n").expect("the record can be written");
}

/// Hunts a bug and prints the result. Returns the run that convicted it.
fn tell(bug: Planted, evidence: Evidence, controls: &Controls) -> Option<HuntingRun> {
    let began = Instant::now();
    let Hunt { noticed, convicted } = hunt(bug, evidence, controls);
    let by = convicted.map_or_else(|| format!("none of {SEEDS_MAX} seeds"), |run| format!("by {run}"));
    let first = noticed.map_or_else(String::new, |(run, how)| format!("; first noticed by {run}: {how}"));
    println!("{:<24} {:<24} {by}; took {} s{first}", bug.name(), evidence, began.elapsed().as_secs());
    convicted
}

#[test]
#[ignore = "takes many minutes: for `scripts/simulate.sh --planted`"]
fn each_bug_is_convicted_of_what_it_breaks() {
    let only = env::var(ONLY).ok();
    let only: Option<Vec<&str>> = only.as_ref().map(|only| only.split(',').collect());
    let hunted = CASES.map(|(bug, _)| bug.name());
    for bug in only.iter().flatten() {
        assert!(hunted.contains(bug), "no bug that is hunted here is called {bug:?}; there are {}", hunted.join(", "));
    }
    let is_asked = |bug: &str| only.as_ref().is_none_or(|only| only.contains(&bug));
    let cases: Vec<_> = CASES.iter().filter(|(bug, _)| is_asked(bug.name())).copied().collect();
    let is_here = |bug: &Planted| CASES.iter().any(|(known, _)| known == bug);
    assert!(Planted::ALL.iter().all(|bug| bug.is_staged() || bug.is_found_by_suites() || is_here(bug)));
    let (next, escaped) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let found = Mutex::new(BTreeMap::new());
    let controls = Controls::default();
    let keeps = env::var_os(KEEP).is_some();
    let work = || {
        while let Some((bug, evidence)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            match tell(*bug, *evidence, &controls) {
                Some(run) => {
                    let mut found = found.lock().expect("nothing panics while it has them");
                    found.insert(bug.name(), run);
                    if keeps {
                        keep(&found);
                        note(&found);
                    }
                }
                None => escaped.lock().expect("nothing panics while it has them").push(bug.name()),
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
