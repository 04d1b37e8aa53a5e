//! Calibration of `lockkeeper chaos run`: for each bug of [`lockkeeper::planted`], the checker must find the violated property.
//!
//! Runs are short, with known seeds and faults. Their nodes write no audit trail: a node whose table lacks something after a restart would
//! read in its own files that its table is wrong, and end before its answers show it. A run that reports too little evidence is repeated.
//! A run that does not find the bug is a failure, and so is a violation without a bug.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "real processes run in real time; figures are for people to read"
)]

use std::{
    fs::File,
    io::BufReader,
    path::Path,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use lockkeeper::{
    chaos::{
        checker::{Finding, Property, Verdict, check},
        history::History,
    },
    planted::Planted,
};
use tokio::{process::Command, time::timeout};

/// Longer than a run takes on a busy machine.
const LONG: Duration = Duration::from_secs(300);
/// Attempts at a run with enough evidence; then the test fails.
const ATTEMPTS: usize = 3;
/// Attempts at a run in which a bug shows. The one that shows least did in five of eight runs.
const BUG_ATTEMPTS: usize = 6;
/// Concurrent runs: each waits most of the time.
const AT_ONCE: usize = 2;

/// The fault under which a bug shows, and the property that it violates.
pub(super) struct Case {
    pub(super) bug: Planted,
    pub(super) faults: &'static str,
    duration: &'static str,
    violates: Property,
}

const fn case(bug: Planted, faults: &'static str, violates: Property) -> Case {
    Case { bug, faults, duration: ONE_FAULT, violates }
}

/// The control of all cases.
pub(super) const CONTROL: &str = "without_a_bug_all_holds_and_only_a_resource_that_ignores_tokens_is_corrupted";

const SEED: u64 = 1;
/// Long enough for one fault; the run goes on until the fault has healed.
const ONE_FAULT: &str = "1s";
/// Long enough for two faults, unless the first takes longer.
const TWO_FAULTS: &str = "12s";

pub(super) const CASES: [Case; 12] = [
    // Unsynced entries are lost.
    case(Planted::AckBeforeSync, "kill-all", Property::Durability),
    // Tokens go on from the highest that is held, or was taken and is remembered. It shows if a higher one had been released by then.
    Case { duration: TWO_FAULTS, ..case(Planted::TokenNotInSnapshot, "kill-all", Property::NoTokenTwice) },
    // An answered acquire is retried and granted a second time.
    case(Planted::RepliesNotInSnapshot, "kill-all", Property::ExactlyOnce),
    // Waiters retry their acquires and queue in another order.
    case(Planted::QueueNotInSnapshot, "kill-all", Property::FirstComeFirstServed),
    // A partitioned leader goes on answering reads.
    case(Planted::ReadWithoutIndex, "partition-leader", Property::Durability),
    // A waiter is granted the lock without an answer. A new leader cancels waits without a call, so only the second fault shows the bug.
    Case { duration: TWO_FAULTS, ..case(Planted::WaitLostOnDisconnect, "resets", Property::NoLostWaiter) },
    // A released grant is still held, and another grant is released instead.
    case(Planted::ReleaseIgnoresToken, "pause-follower", Property::Durability),
    // The next leader's clock is minutes ahead.
    case(Planted::StampFromWallClock, "kill-all", Property::NoEarlyExpiry),
    // A paused client loses its locks before its deadline.
    case(Planted::EarlyExpiry, "pause-client", Property::NoEarlyExpiry),
    // A shared acquire is granted before a waiting exclusive one.
    case(Planted::ReaderOvertakes, "pause-follower", Property::FirstComeFirstServed),
    // A killed client keeps its locks.
    case(Planted::NoExpiry, "pause-follower", Property::EventualExpiry),
    // The notice reaches no client, and the renewal does not repeat it.
    case(Planted::RevocationNotKept, "pause-follower", Property::Told),
];

/// The result of a run.
struct Judged {
    code: i32,
    findings: Vec<Finding>,
    text: String,
}

impl Judged {
    fn violates(&self, property: Property) -> bool {
        let violated = |finding: &Finding| matches!(finding.verdict, Verdict::Violated(_));
        self.findings.iter().any(|finding| finding.property == property && violated(finding))
    }

    /// A count of writes to the protected resources, by its name in the evidence.
    fn writes(&self, which: &str) -> u64 {
        let evidence = self.findings.iter().filter(|finding| finding.property == Property::Fencing);
        evidence.flat_map(|finding| &finding.evidence).find(|(what, _)| *what == which).map_or(0, |(_, count)| *count)
    }
}

/// Runs the program and checks its history file here again.
async fn run(bug: Option<Planted>, faults: &str, duration: &str) -> Judged {
    let folder = tempfile::tempdir().expect("a directory");
    let out = folder.path().join("run");
    let program = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args([
            "chaos",
            "run",
            "--no-audit",
            "--duration",
            duration,
            "--faults",
            faults,
            "--seed",
            &SEED.to_string(),
            "--out",
        ])
        .arg(&out)
        .env("LOCKKEEPER_PLANTED_BUG", bug.map_or("", Planted::name))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program starts");
    let output = timeout(LONG, program.wait_with_output()).await.expect("it ends");
    let Output { status, stdout, stderr } = output.expect("it can be waited for");
    let text = format!("{}{}", String::from_utf8_lossy(&stderr), String::from_utf8_lossy(&stdout));
    Judged { code: status.code().unwrap_or(-1), findings: findings(&out), text }
}

/// The findings in the run's history; empty if there is no history.
fn findings(out: &Path) -> Vec<Finding> {
    let Ok(file) = File::open(out.join("history.jsonl")) else { return Vec::new() };
    let history = History::read(BufReader::new(file)).expect("it is a history");
    check(&history).expect("it does not contradict itself")
}

/// Repeats the run until it has the expected verdict: the property is violated; without a property, all properties hold. A bug need not
/// show in each run: the dead client's lock may be one that an operator opens.
async fn verdict(bug: Option<Planted>, faults: &str, duration: &str, property: Option<Property>) -> Judged {
    let mut judged = run(bug, faults, duration).await;
    let attempts = if property.is_some() { BUG_ATTEMPTS } else { ATTEMPTS };
    for _ in 1..attempts {
        if property.map_or(judged.code == 0, |property| judged.violates(property)) {
            break;
        }
        judged = run(bug, faults, duration).await;
    }
    judged
}

/// An error message, if the bug was not found.
async fn convicted(case: &Case) -> Option<String> {
    let Case { bug, faults, duration, violates } = case;
    let began = Instant::now();
    let judged = verdict(Some(*bug), faults, duration, Some(*violates)).await;
    println!("{:<24} {faults:<17} {violates:<24} {:>3} s", bug.name(), began.elapsed().as_secs());
    if judged.violates(*violates) && judged.code == 30 {
        None
    } else {
        Some(format!("{}: {violates} was not found to be violated:\n{}", bug.name(), judged.text))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: twelve runs of chaos"]
async fn each_planted_bug_is_found_as_a_violation_of_its_property() {
    let is_here = |bug: &Planted| CASES.iter().any(|case| case.bug == *bug);
    assert!(Planted::FAULTS.iter().all(is_here));
    let escaped: Vec<_> =
        stream::iter(&CASES).map(convicted).buffer_unordered(AT_ONCE).filter_map(async |wrong| wrong).collect().await;
    assert!(escaped.is_empty(), "{}", escaped.join("\n\n"));
}

/// The control: clients are paused while they hold locks, others are granted these locks, and the paused clients then write. A resource
/// that checks tokens refuses the late writes; one that does not is corrupted. A paused client may have no write pending, so that several
/// runs may be necessary.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: up to three runs of chaos"]
async fn without_a_bug_all_holds_and_only_a_resource_that_ignores_tokens_is_corrupted() {
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..ATTEMPTS {
        let judged = verdict(None, "pause-client", TWO_FAULTS, None).await;
        assert_eq!(judged.code, 0, "{}", judged.text);
        assert!(!judged.violates(Property::Fencing));
        refused += judged.writes("writes refused");
        taken += judged.writes("unfenced writes out of order");
        if refused > 0 && taken > 0 {
            return;
        }
    }
    panic!("{refused} late writes were refused, and {taken} taken");
}

#[tokio::test]
async fn a_build_with_planted_bugs_shows_it_in_its_version() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_lockkeeper")).arg("--version").output().await.expect("the program runs");
    assert!(String::from_utf8_lossy(&output.stdout).trim().ends_with("+planted-bugs"), "{output:?}");
}
