//! Small bugs, each where a promise hangs on one line, and for each a scenario that convicts it.
//!
//! The faults that `lockkeeper chaos run` makes would find them seldom or never: they show when two things meet that are milliseconds apart, or
//! when the power fails. A scenario brings just that about, in one process or a few, in seconds. It is an ordinary test, and holds. With
//! the bug, it fails, and says what it saw.

pub(crate) mod alone;
mod clients;
mod nodes;
mod replica;
mod snapshots;

use std::{env, process::Command, sync::Mutex, thread};

use lockkeeper::planted::{self, Planted};

/// What convicts a bug.
struct Case {
    bug: Planted,
    /// A test of this program, by its whole name.
    scenario: &'static str,
    /// A scenario that fails otherwise convicts nobody.
    says: &'static str,
}

const fn case(bug: Planted, scenario: &'static str, says: &'static str) -> Case {
    Case { bug, scenario, says }
}

const CASES: &[Case] = &[
    case(Planted::LateAnswersConfirm, "late_answers::a_late_answer_confirms_no_read", "a stale read"),
    case(
        Planted::LostDataTakenIn,
        "lost_data::a_founder_without_its_data_is_known_to_those_who_never_met_it",
        "node 1 knows its data by the log",
    ),
    case(
        Planted::OlderCopyTakenIn,
        "copies::a_copy_of_before_the_last_start_is_known_as_one",
        "an older copy was counted on",
    ),
    case(
        Planted::DeadlineFromReceipt,
        "mutants::clients::a_deadline_counts_from_the_sending",
        "trusted for longer than the cluster keeps it",
    ),
    case(Planted::SnapshotNotSynced, "mutants::snapshots::a_power_failure_takes_no_snapshot_away", "away: Err"),
    case(
        Planted::SnapshotUsedBeforePublished,
        "mutants::snapshots::a_snapshot_is_durable_before_it_is_used",
        "the table was there before",
    ),
    case(
        Planted::SnapshotOfLaterTable,
        "mutants::snapshots::a_snapshot_is_the_table_of_its_index",
        "holds more than that",
    ),
    case(
        Planted::RenewalAckedEarly,
        "mutants::replica::a_renewal_is_acknowledged_when_it_is_committed",
        "acknowledged before it was committed",
    ),
    case(Planted::ClockOfEarlierTerm, "mutants::replica::each_term_has_a_clock_of_its_own", "was ended after 300 ms"),
    case(
        Planted::StampFromCache,
        "mutants::replica::a_batch_is_stamped_after_what_is_in_it_was_sent",
        "which was before the sending",
    ),
    case(Planted::NameNotSynced, "mutants::snapshots::a_power_failure_takes_no_snapshot_away", "away: Ok"),
    case(
        Planted::OlderSnapshotDeletedFirst,
        "mutants::snapshots::a_power_failure_takes_no_snapshot_away",
        "away: Ok(0)",
    ),
    case(
        Planted::ReadWithoutApply,
        "mutants::replica::a_read_sees_all_that_was_answered_before",
        "from a table that had not come so far",
    ),
    case(
        Planted::BatchOfEarlierTerm,
        "mutants::replica::a_batch_belongs_to_the_term_of_its_stamp",
        "was ended at once",
    ),
    case(Planted::WatchAfterState, "mutants::nodes::a_watch_misses_nothing", "was not told of"),
    case(
        Planted::EndToldBeforeCall,
        "mutants::replica::a_wait_that_ends_in_its_own_batch_is_told_so",
        "the call was not told",
    ),
    case(
        Planted::TrustedWhileReleasing,
        "mutants::clients::who_lets_go_trusts_nothing_any_more",
        "trusts a lock that it has released",
    ),
    case(
        Planted::TrustedWhileClosing,
        "mutants::clients::who_lets_go_trusts_nothing_any_more",
        "trusts a session that it has closed",
    ),
    case(
        Planted::LostForwardedIsSafe,
        "mutants::nodes::a_call_that_broke_off_behind_a_follower_may_have_taken_effect",
        "said to have done nothing",
    ),
    case(
        Planted::NotedBeforeDurable,
        "mutants::replica::what_is_noted_of_the_log_is_on_the_disk",
        "is noted before it is on the disk",
    ),
    case(
        Planted::RevokedAfterRenewed,
        "mutants::nodes::what_is_revoked_is_told_before_the_renewal",
        "renewed before it knows",
    ),
];

const ATTEMPTS: usize = 3;
/// Scenarios wait most of the time.
const AT_ONCE: usize = 2;

#[test]
fn each_is_convicted_by_its_scenario() {
    assert!(Planted::STAGED.iter().all(|bug| CASES.iter().any(|case| case.bug == *bug)));
    let (cases, escaped) = (Mutex::new(CASES.iter()), Mutex::new(Vec::new()));
    let next = || cases.lock().expect("nothing panics while it has them").next();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = next() {
                    let wrong = escapes(case);
                    escaped.lock().expect("nothing panics while it has them").extend(wrong);
                }
            });
        }
    });
    let escaped = escaped.into_inner().expect("nothing panics while it has them");
    assert!(escaped.is_empty(), "{}", escaped.join("\n\n"));
}

/// Runs a test of this program alone, in a process of its own, with a bug in it. Whether it held, and what it said.
fn run(test: &str, bug: Option<Planted>) -> (bool, String) {
    let output = Command::new(env::current_exe().expect("a program knows its name"))
        .args([test, "--exact", "--nocapture"])
        .env("LOCKKEEPER_PLANTED_BUG", bug.map_or("", Planted::name))
        .output();
    let output = output.expect("this program can be run again");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("running 1 test"), "there is no test {test}:\n{said}");
    (output.status.success(), said)
}

/// What is wrong with it, if anything is.
fn escapes(case: &Case) -> Option<String> {
    let Case { bug, scenario, says } = case;
    let began = std::time::Instant::now();
    let (mut holds, mut said) = run(scenario, Some(*bug));
    // On a machine that is too busy, a scenario waits in vain before it comes to the point. That is no verdict.
    for _ in 1..ATTEMPTS {
        if holds || said.contains(says) {
            break;
        }
        (holds, said) = run(scenario, Some(*bug));
    }
    println!("{:<31} {scenario:<68} {:>3} s", bug.name(), began.elapsed().as_secs());
    (holds || !said.contains(says)).then(|| format!("{}: {scenario} did not say {says:?}:\n{said}", bug.name()))
}

/// In a process of its own: all others here would have the bug too.
const CHOOSES: &str = "LOCKKEEPER_CHOOSES";

#[test]
fn what_was_chosen_counts_and_not_the_environment() {
    let output = Command::new(env::current_exe().expect("a program knows its name"))
        .args(["mutants::chooses", "--exact", "--nocapture"])
        .envs([(CHOOSES, "1"), ("LOCKKEEPER_PLANTED_BUG", Planted::EarlyExpiry.name())])
        .output();
    let output = output.expect("this program can be run again");
    assert!(output.status.success(), "{output:?}");
}

/// Among the tests it does nothing.
#[test]
fn chooses() {
    if env::var_os(CHOOSES).is_none() {
        return;
    }
    assert!(Planted::EarlyExpiry.is_on());
    planted::choose(Some(Planted::NoExpiry));
    assert!(Planted::NoExpiry.is_on() && !Planted::EarlyExpiry.is_on());
    planted::choose(None);
    assert_eq!(planted::planted(), None);
}
