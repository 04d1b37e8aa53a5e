//! Whether `lockkeeper chaos run` finds what is there: each bug of [`lockkeeper::planted`] is put in, and must be convicted of what it breaks.
//!
//! Runs are short, their seeds and faults are known. A run that says of itself that it has shown too little is no verdict, and is made
//! again; one that acquits a bug is a failure. So is one that convicts a cluster without any.

#[path = "network/cluster.rs"]
#[allow(dead_code, reason = "the tests of the network use all of it")]
mod cluster;
#[path = "network/copies.rs"]
mod copies;
#[path = "power/disk.rs"]
#[allow(dead_code, reason = "the tests of the log use all of it")]
mod disk;
#[path = "client/fake.rs"]
#[allow(dead_code, reason = "the tests of the client use all of it")]
mod fake;
#[path = "network/late_answers.rs"]
mod late_answers;
#[path = "network/log.rs"]
#[allow(dead_code, reason = "the tests of the network use all of it")]
mod log;
#[path = "network/lost_data.rs"]
mod lost_data;
#[path = "calibration/mutants.rs"]
mod mutants;
#[path = "cluster/support.rs"]
mod support;
#[path = "network/table.rs"]
#[allow(dead_code, reason = "the tests of the network use all of it")]
mod table;
#[path = "power/trace.rs"]
#[allow(dead_code, reason = "the tests of the log use all of it")]
mod trace;
#[path = "network/wires.rs"]
#[allow(dead_code, reason = "the tests of the network use all of it")]
mod wires;

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
/// A machine on which more runs in a row show nothing is no place for this.
const ATTEMPTS: usize = 3;
/// Runs wait most of the time.
const AT_ONCE: usize = 2;

/// Under which fault a bug shows, and what it breaks.
struct Case {
    bug: Planted,
    faults: &'static str,
    duration: &'static str,
    violates: Property,
}

const fn case(bug: Planted, faults: &'static str, violates: Property) -> Case {
    Case { bug, faults, duration: ONE_FAULT, violates }
}

const SEED: u64 = 1;
/// However long it takes.
const ONE_FAULT: &str = "1s";
/// Or one, if that was enough.
const TWO_FAULTS: &str = "12s";

const CASES: [Case; 12] = [
    // Whatever was not synced is gone.
    case(Planted::AckBeforeSync, "kill-all", Property::Durability),
    // Seen after the restart at rest: nothing is held then, and tokens begin anew.
    case(Planted::TokenNotInSnapshot, "kill-all", Property::NoTokenTwice),
    // An acquire that was answered before is sent again, and granted again.
    case(Planted::RepliesNotInSnapshot, "kill-all", Property::ExactlyOnce),
    // Those who waited ask again, and wait in another order.
    case(Planted::QueueNotInSnapshot, "kill-all", Property::FirstComeFirstServed),
    // A leader that is cut off goes on to answer.
    case(Planted::ReadWithoutIndex, "partition-leader", Property::Durability),
    // Who waits is granted the lock, and not told. A young leader cancels waits that nobody listens for: the second fault finds an old one.
    Case { duration: TWO_FAULTS, ..case(Planted::WaitLostOnDisconnect, "resets", Property::NoLostWaiter) },
    // What was given back is still held, and another thing is not.
    case(Planted::ReleaseIgnoresToken, "pause-follower", Property::Durability),
    // Whoever leads next is minutes ahead.
    case(Planted::StampFromWallClock, "kill-all", Property::NoEarlyExpiry),
    // Who stands still loses its locks before its time.
    case(Planted::EarlyExpiry, "pause-client", Property::NoEarlyExpiry),
    // A writer waits, a reader comes, and is let in.
    case(Planted::ReaderOvertakes, "pause-follower", Property::FirstComeFirstServed),
    // A client is killed, and keeps its locks.
    case(Planted::NoExpiry, "pause-follower", Property::EventualExpiry),
    // The notice found nobody, and the renewal says nothing of it.
    case(Planted::RevocationNotKept, "pause-follower", Property::Told),
];

/// What came of a run.
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

    /// Of the writes to what locks protect.
    fn writes(&self, which: &str) -> u64 {
        let evidence = self.findings.iter().filter(|finding| finding.property == Property::Fencing);
        evidence.flat_map(|finding| &finding.evidence).find(|(what, _)| *what == which).map_or(0, |(_, count)| *count)
    }
}

/// Judged again here, from the file: whoever has it can.
async fn run(bug: Option<Planted>, faults: &str, duration: &str) -> Judged {
    let folder = tempfile::tempdir().expect("a directory");
    let out = folder.path().join("run");
    let program = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(["chaos", "run", "--duration", duration, "--faults", faults, "--seed", &SEED.to_string(), "--out"])
        .arg(&out)
        .env("LOCKKEEPER_PLANTED_BUG", bug.map_or("", Planted::name))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let output = timeout(LONG, program.wait_with_output()).await.expect("it ends");
    let Output { status, stdout, stderr } = output.expect("it can be waited for");
    let text = format!("{}{}", String::from_utf8_lossy(&stderr), String::from_utf8_lossy(&stdout));
    Judged { code: status.code().unwrap_or(-1), findings: findings(&out), text }
}

/// None, where there was no run.
fn findings(out: &Path) -> Vec<Finding> {
    let Ok(file) = File::open(out.join("history.jsonl")) else { return Vec::new() };
    let history = History::read(BufReader::new(file)).expect("it is a history");
    check(&history).expect("it does not contradict itself")
}

/// Until a run has a verdict: the property is violated, or all holds.
async fn verdict(bug: Option<Planted>, faults: &str, duration: &str, property: Option<Property>) -> Judged {
    let mut judged = run(bug, faults, duration).await;
    for _ in 1..ATTEMPTS {
        if judged.code == 0 || property.is_some_and(|property| judged.violates(property)) {
            break;
        }
        judged = run(bug, faults, duration).await;
    }
    judged
}

/// What is wrong with it, if anything is.
async fn convicted(case: &Case) -> Option<String> {
    let Case { bug, faults, duration, violates } = case;
    let began = Instant::now();
    let judged = verdict(Some(*bug), faults, duration, Some(*violates)).await;
    println!("{:<24} {faults:<17} {violates:<24} {:>3} s", bug.name(), began.elapsed().as_secs());
    match judged.violates(*violates) && judged.code == 30 {
        true => None,
        false => Some(format!("{}: {violates} was not found to be violated:\n{}", bug.name(), judged.text)),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_planted_bug_is_convicted_of_what_it_breaks() {
    let is_here = |bug: &Planted| CASES.iter().any(|case| case.bug == *bug);
    assert!(Planted::ALL.iter().all(|bug| bug.is_staged() || is_here(bug)));
    let escaped: Vec<_> =
        stream::iter(&CASES).map(convicted).buffer_unordered(AT_ONCE).filter_map(async |wrong| wrong).collect().await;
    assert!(escaped.is_empty(), "{}", escaped.join("\n\n"));
}

/// The control, and why tokens matter: clients stand still with locks in their hands, others get those, and the first go on writing. Who
/// checks tokens refuses them. Who does not takes them. Not each that stands still is about to write: it may take several.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_bug_all_holds_and_only_who_ignores_tokens_is_corrupted() {
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
async fn a_build_that_can_have_bugs_says_so() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_lockkeeper")).arg("--version").output().await.expect("the program runs");
    assert!(String::from_utf8_lossy(&output.stdout).trim().ends_with("+planted-bugs"), "{output:?}");
}
