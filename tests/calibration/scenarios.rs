//! Small bugs, each in a line on which a promise depends, and for each a scenario that finds it.
//!
//! The faults of `lockkeeper chaos run` find these bugs seldom or never: they show when two events coincide within milliseconds, or after
//! a power failure. A scenario forces that coincidence, in one process or a few, in seconds. It is an ordinary test that passes. With the
//! bug, it fails with a known message.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "real processes run in real time; figures are for people to read"
)]

use std::{env, sync::Mutex, thread};

use lockkeeper::planted::{self, Planted};

use crate::children;

/// The scenario that finds a bug.
pub(super) struct Case {
    pub(super) bug: Planted,
    /// The full name of a test of this program.
    pub(super) scenario: &'static str,
    /// A part of the message with which the scenario must fail; another failure does not count.
    says: &'static str,
}

const fn case(bug: Planted, scenario: &'static str, says: &'static str) -> Case {
    Case { bug, scenario, says }
}

pub(super) const CASES: &[Case] = &[
    case(Planted::LateAnswersConfirm, "network::late_answers::a_late_answer_confirms_no_read", "a stale read"),
    case(
        Planted::LearnerCounts,
        "network::late_answers::a_learners_answers_confirm_no_read",
        "a stale read, confirmed by a learner",
    ),
    case(
        Planted::LostDataTakenIn,
        "network::lost_data::a_founder_without_its_data_is_known_to_those_who_never_met_it",
        "node 1 knows its data by the log",
    ),
    case(
        Planted::OlderCopyTakenIn,
        "network::copies::a_copy_from_before_the_last_start_is_detected_as_outdated",
        "an older copy was counted on",
    ),
    case(
        Planted::DeadlineFromReceipt,
        "calibration::clients::a_deadline_counts_from_the_sending",
        "trusted for longer than the cluster keeps it",
    ),
    case(Planted::SnapshotNotSynced, "calibration::snapshots::a_power_failure_takes_no_snapshot_away", "away: Err"),
    case(
        Planted::SnapshotUsedBeforePublished,
        "calibration::snapshots::a_snapshot_is_durable_before_it_is_used",
        "the table was there before",
    ),
    case(
        Planted::SnapshotOfLaterTable,
        "calibration::snapshots::a_snapshot_is_the_table_at_its_index",
        "holds more than that",
    ),
    case(
        Planted::RenewalAckedEarly,
        "calibration::replica::a_renewal_is_acknowledged_when_it_is_committed",
        "acknowledged before it was committed",
    ),
    case(Planted::ClockOfEarlierTerm, "calibration::replica::each_term_has_its_own_clock", "was ended after 300 ms"),
    case(
        Planted::StampFromCache,
        "calibration::replica::a_batch_is_stamped_after_its_commands_were_sent",
        "which was before the sending",
    ),
    case(Planted::NameNotSynced, "calibration::snapshots::a_power_failure_takes_no_snapshot_away", "away: Ok"),
    case(
        Planted::OlderSnapshotDeletedFirst,
        "calibration::snapshots::a_power_failure_takes_no_snapshot_away",
        "away: Ok(0)",
    ),
    case(
        Planted::ReadWithoutApply,
        "calibration::replica::a_read_sees_all_acknowledged_commands",
        "from a table that had not come so far",
    ),
    case(
        Planted::BatchOfEarlierTerm,
        "calibration::replica::a_batch_belongs_to_the_term_of_its_stamp",
        "was ended at once",
    ),
    case(Planted::WatchAfterState, "calibration::nodes::a_watch_misses_nothing", "was not told of"),
    case(
        Planted::EndToldBeforeCall,
        "calibration::replica::a_wait_that_ends_in_its_own_batch_is_answered",
        "the call was not told",
    ),
    case(
        Planted::TrustedWhileReleasing,
        "calibration::clients::a_released_or_closed_grant_is_not_trusted",
        "trusts a lock that it has released",
    ),
    case(
        Planted::TrustedWhileClosing,
        "calibration::clients::a_released_or_closed_grant_is_not_trusted",
        "trusts a session that it has closed",
    ),
    case(
        Planted::LostForwardedIsSafe,
        "calibration::nodes::a_forwarded_call_whose_leader_dies_has_an_unknown_outcome",
        "said to have done nothing",
    ),
    case(
        Planted::NotedBeforeDurable,
        "calibration::replica::a_node_notes_only_durable_entries_of_its_log",
        "is noted before it is on the disk",
    ),
    case(
        Planted::RevokedAfterRenewed,
        "calibration::nodes::a_revocation_is_sent_before_the_renewal",
        "renewed before it knows",
    ),
    case(
        Planted::RestoreForgetsTokenOffset,
        "cluster::backups::after_a_restore_old_holders_are_fenced_out_and_fences_go_on",
        "is not above the tokens that late has seen",
    ),
];

/// Scenarios that the other suites leave out, since they seldom come to their order of events beside other tests. Here they run alone, and
/// once without their bug.
pub(super) const ALONE: &[&str] = &["network::late_answers::a_learners_answers_confirm_no_read"];

const ATTEMPTS: usize = 3;
/// Concurrent scenarios: each waits most of the time.
const AT_ONCE: usize = 2;

#[test]
fn each_staged_bug_is_found_by_its_scenario() {
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

/// Runs one test of this program in its own process, with this bug. Returns whether it passed, and its output.
fn run(test: &str, bug: Option<Planted>) -> (bool, String) {
    let output = children::command(test).env("LOCKKEEPER_PLANTED_BUG", bug.map_or("", Planted::name)).output();
    let output = output.expect("this program can be run again");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("running 1 test"), "there is no test {test}:\n{said}");
    (output.status.success(), said)
}

/// An error message, if the scenario did not find the bug.
fn escapes(case: &Case) -> Option<String> {
    let Case { bug, scenario, says } = case;
    let began = std::time::Instant::now();
    let (mut holds, mut said) = run(scenario, Some(*bug));
    // On a busy machine, a scenario may time out before it reaches the bug, and one of those that need their order of events may lose it
    // and hold. Such a run is repeated.
    for _ in 1..ATTEMPTS {
        if said.contains(says) || (holds && !ALONE.contains(scenario)) {
            break;
        }
        (holds, said) = run(scenario, Some(*bug));
    }
    println!("{:<31} {scenario:<68} {:>3} s", bug.name(), began.elapsed().as_secs());
    (holds || !said.contains(says)).then(|| format!("{}: {scenario} did not say {says:?}:\n{said}", bug.name()))
}

#[test]
fn a_scenario_that_runs_alone_holds_without_its_bug() {
    for scenario in ALONE {
        let (holds, said) = run(scenario, None);
        assert!(holds, "{scenario} fails without a bug:\n{said}");
    }
}

/// Marks the child process of the next test. A child, since a chosen bug affects all tests of its process.
const CHOOSES: &str = "LOCKKEEPER_CHOOSES";

#[test]
fn a_chosen_bug_overrides_the_environment() {
    let output = children::command(&children::full_name(module_path!(), "chooses"))
        .envs([(CHOOSES, "1"), ("LOCKKEEPER_PLANTED_BUG", Planted::EarlyExpiry.name())])
        .output();
    let output = output.expect("this program can be run again");
    assert!(output.status.success(), "{output:?}");
}

/// The child of [`a_chosen_bug_overrides_the_environment`].
#[test]
#[ignore = "the entry point of a child process"]
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
