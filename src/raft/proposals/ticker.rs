//! Advances time in the log while this node leads.
//!
//! A tick is proposed when a deadline passes, and about once a second while there is any deadline: a failover then loses at most that. An
//! idle table writes nothing. While the table has work in its backlog, ticks follow each other, one at a time.
//!
//! The leader's clock is read every [`BEAT`], also while a tick is being committed: a slow commit does not count as a stall, and cluster
//! time passes during it. While the leader is cut off from its quorum the clock is not read, so time stands still, as it does without a
//! leader: the renewals that would have kept sessions alive are refused then.

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::time::sleep;

use crate::proposals::{
    clock::BEAT,
    leadership::{Led, TermLeadership},
    proposer::Proposer,
};
use lockkeeper_machine::Command;
use lockkeeper_table::Table;

/// Maximum time between two ticks while there is any deadline: a failover loses at most this.
const TICK_AT_LEAST: Duration = Duration::from_secs(1);

/// Time limit for applying a tick before another one is proposed.
const TICK_DEADLINE: Duration = Duration::from_secs(2);

/// Proposes ticks. Returns with [`crate::proposals::leadership`]. `cut_off` says whether this node leads without a quorum.
pub(crate) async fn tick(mut led: Led, table: Arc<Table>, proposer: Proposer, cut_off: impl Fn() -> bool) {
    let mut deadline = table.next_deadline();
    loop {
        let Some(leadership) = led.borrow_and_update().clone() else {
            if led.changed().await.is_err() {
                return;
            }
            continue;
        };

        let pause = if cut_off() {
            BEAT
        } else {
            deadline.mark_unchanged();
            tick_if_due(&mut led, &leadership, &table, &proposer, &cut_off).await
        };

        tokio::select! {
            () = sleep(pause) => {}
            _ = deadline.changed() => {}
            changed = led.changed() => if changed.is_err() { return },
        }
    }
}

/// Proposes a tick if one is due. Returns the time until the next check.
async fn tick_if_due(
    led: &mut Led,
    leadership: &TermLeadership,
    table: &Table,
    proposer: &Proposer,
    cut_off: impl Fn() -> bool,
) -> Duration {
    // Reading the clock also keeps the time since the last reading from counting as a stall: see `LeaderClock`.
    let stamp = leadership.stamp();
    let (now, next) = table.time_and_deadline();

    match next {
        None => BEAT,
        Some(due) if due <= stamp || stamp.0 - now.0.min(stamp.0) >= TICK_AT_LEAST.as_millis() as u64 => {
            propose(led, leadership, proposer, cut_off).await;
            // A refusal at once (no leader, overload) must not cause a busy loop.
            Duration::from_millis(1)
        }
        Some(due) => leadership.until(due).clamp(Duration::from_millis(1), BEAT),
    }
}

/// Proposes a tick, and reads the clock until it is applied. The next turn sees in the table whether it was.
async fn propose(led: &mut Led, leadership: &TermLeadership, proposer: &Proposer, cut_off: impl Fn() -> bool) {
    let mut proposal = pin!(proposer.propose(Command::Tick, TICK_DEADLINE));
    loop {
        tokio::select! {
            _ = &mut proposal => return,
            // Another term has another clock.
            _ = led.changed() => return,
            () = sleep(BEAT) => {
                if !cut_off() {
                    leadership.stamp();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::{
        sync::watch,
        time::{Instant, sleep_until},
    };

    use super::*;
    use crate::proposals::proposer::{ProposalLimits, ProposalQueue};
    use lockkeeper_environment::Environment;
    use lockkeeper_machine::{Label, Limits, SessionId, Stamp, Time, Ttl, WallTime};
    use lockkeeper_table::{Batch, Delivery, EntryId};

    /// Longer than a beat and [`STEP_MAX`](crate::proposals::clock::STEP_MAX); shorter than [`TICK_DEADLINE`].
    const COMMIT: Duration = Duration::from_millis(1_900);
    /// Allowed difference between the clocks: the last reading was up to a beat ago, and the first one up to a beat late.
    const SLACK: Duration = Duration::from_millis(250);

    /// A leader whose commits take [`COMMIT`], with a session in its table, so that something can fall due.
    struct SlowLeader {
        leadership: Arc<TermLeadership>,
        is_cut_off: Arc<AtomicBool>,
        _led: watch::Sender<Option<Arc<TermLeadership>>>,
    }

    impl SlowLeader {
        fn start() -> Self {
            let leadership = Arc::new(TermLeadership::new(1, Stamp(0), Environment::system()));
            let (sender, led) = watch::channel(Some(Arc::clone(&leadership)));
            let (proposer, intake) = Proposer::new(led.clone(), Arc::default(), ProposalLimits::REAL);
            let table = Arc::new(Table::default());
            let (label, ttl) = (Label::new("").expect("short"), Ttl::from_millis(3_600_000).expect("in bounds"));
            apply(&table, 1, Stamp(0), Command::Open { session: SessionId(1), ttl, label, address: None, owner: None });
            let is_cut_off = Arc::new(AtomicBool::new(false));
            let cut_off = Arc::clone(&is_cut_off);
            tokio::spawn(tick(led, Arc::clone(&table), proposer, move || cut_off.load(Ordering::Relaxed)));
            tokio::spawn(commit_slowly(intake, Arc::clone(&leadership), table));
            Self { leadership, is_cut_off, _led: sender }
        }
    }

    fn apply(table: &Table, index: u64, stamp: Stamp, command: Command) -> Delivery {
        let entry = EntryId { term: 1, index };
        let batch =
            Batch { time: Time { stamp, wall: WallTime(0) }, limits: Limits::default(), commands: vec![command] };
        table.apply(entry, batch, true).replies.pop().expect("one command has one answer")
    }

    async fn commit_slowly(mut intake: ProposalQueue, leadership: Arc<TermLeadership>, table: Arc<Table>) {
        let mut index = 1;
        while let Some((command, answer)) = intake.next().await {
            let stamp = leadership.stamp();
            sleep(COMMIT).await;
            index += 1;
            // An error means that the ticker no longer waits for it.
            let _ = answer.send(Ok(apply(&table, index, stamp, command)));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_passes_while_commits_are_slow() {
        let (leader, began) = (SlowLeader::start(), Instant::now());
        for minute in 1..=3 {
            sleep_until(began + minute * Duration::from_secs(60)).await;
            let (stamp, passed) = (Duration::from_millis(leader.leadership.stamp().0), began.elapsed());
            assert!(stamp <= passed, "{stamp:?} in {passed:?}: it never runs fast");
            assert!(passed - stamp <= SLACK, "{stamp:?} in {passed:?}: a slow commit is no stall");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_stands_still_while_the_leader_is_cut_off() {
        let leader = SlowLeader::start();
        sleep(Duration::from_secs(5)).await;
        leader.is_cut_off.store(true, Ordering::Relaxed);
        let before = leader.leadership.stamp();
        sleep(Duration::from_secs(60)).await;
        leader.is_cut_off.store(false, Ordering::Relaxed);
        sleep(BEAT).await;
        let passed = Duration::from_millis(leader.leadership.stamp().0 - before.0);
        // The tick that was under way may still cause one reading, and the first reading after it counts as a step.
        assert!(
            passed <= 3 * crate::proposals::clock::STEP_MAX,
            "{passed:?} of a minute in which no renewal was taken"
        );
    }
}
