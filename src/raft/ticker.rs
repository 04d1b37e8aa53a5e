//! Lets time pass in the log while this node leads.
//!
//! A tick is proposed when something falls due, and about once a second while anything can: a failover then loses no more than that.
//! An idle table writes nothing.

use std::{sync::Arc, time::Duration};

use super::{clock::BEAT, leadership::Led, proposer::Proposer, table::Table};
use crate::machine::Command;

/// How often time passes in the log at the least, while anything can fall due: a failover loses no more than this.
const TICK_AT_LEAST: Duration = Duration::from_secs(1);

/// How long a tick may take to be applied before another one is proposed.
const TICK_DEADLINE: Duration = Duration::from_secs(2);

/// Ends with [`super::leadership`].
pub(super) async fn tick(mut led: Led, table: Arc<Table>, proposer: Proposer) {
    let mut deadline = table.next_deadline();
    loop {
        let Some(leadership) = led.borrow_and_update().clone() else {
            if led.changed().await.is_err() {
                return;
            }
            continue;
        };
        // Looking at the clock is what keeps a stall from being counted: see `LeaderClock`.
        let stamp = leadership.stamp();
        let (now, next) = table.read(|applied| (applied.machine.now(), applied.machine.next_deadline()));
        deadline.mark_unchanged();
        let pause = match next {
            None => BEAT,
            Some(due) if due <= stamp || stamp.0 - now.0.min(stamp.0) >= TICK_AT_LEAST.as_millis() as u64 => {
                // Whether it came through is seen in the table, at the next turn.
                let _ = proposer.propose(Command::Tick, TICK_DEADLINE).await;
                // A proposer that refuses at once (no leader, overload) must not make this a busy loop.
                Duration::from_millis(1)
            }
            Some(due) => leadership.until(due).clamp(Duration::from_millis(1), BEAT),
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = deadline.changed() => {}
            changed = led.changed() => if changed.is_err() { return },
        }
    }
}
