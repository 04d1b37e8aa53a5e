//! The leader's clock: it makes the stamps that decide what expires.
//!
//! It starts at the last stamp in the log and counts this process's monotonic time from there. It is never read from a wall clock and
//! never compared between machines: only its rate matters, and it never runs faster than true time. While there is no leader, cluster
//! time stands still.
//!
//! A leader that was stalled (a paused process, a starved CPU) does not count the stall: the renewals that would have kept its sessions
//! alive may be waiting in its sockets. The clock is read at least every [`BEAT`]; the time between two readings beyond [`STEP_MAX`] is a
//! stall. A leader that is cut off from its quorum refuses renewals, and its clock is not read: that counts as a stall too.

use std::time::Duration;

use tokio::time::Instant;

use lockkeeper_machine::Stamp;
use lockkeeper_planted::Planted;

/// The longest time between two readings of a leader's clock, unless it stalls.
pub const BEAT: Duration = Duration::from_millis(100);

/// The most that counts between two readings: [`BEAT`], plus the delay of a busy machine.
pub const STEP_MAX: Duration = Duration::from_millis(400);

/// Counts cluster time from the moment at which a node became leader.
#[derive(Debug)]
pub struct LeaderClock {
    base: Stamp,
    counted: Duration,
    read_at: Instant,
    stalls: u64,
}

impl LeaderClock {
    /// `base` is the last stamp in the log, all of which this node has applied.
    pub fn start(base: Stamp, now: Instant) -> Self {
        let base = if Planted::StampFromWallClock.is_on() { wrong_clock() } else { base };
        Self { base, counted: Duration::ZERO, read_at: now, stalls: 0 }
    }

    /// Reads the clock: the stamp for a proposal made now.
    pub fn read(&mut self, now: Instant) -> Stamp {
        let passed = now.saturating_duration_since(self.read_at);
        if passed > STEP_MAX {
            self.stalls += 1;
            tracing::warn!(
                stalled_ms = passed.as_millis() as u64,
                "this leader was stalled or cut off from its quorum; cluster time does not count that time"
            );
        }

        let before = self.stamp();
        self.counted += passed.min(STEP_MAX);
        self.read_at = self.read_at.max(now);

        let stamp = self.stamp();
        assert!(stamp >= before, "a leader's clock does not run back: {stamp:?} is before {before:?}");
        stamp
    }

    /// Time until this stamp, without stalls. Zero: it has been reached.
    pub fn until(&self, stamp: Stamp) -> Duration {
        Duration::from_millis(stamp.0.saturating_sub(self.stamp().0))
    }

    /// Stalls since the start.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp(self.base.0 + self.counted.as_millis() as u64)
    }
}

/// For [`Planted::StampFromWallClock`]: a host's wall clock that is off by minutes. Of successive processes and successive leaders, the
/// later one is a minute ahead for each second that passed.
fn wrong_clock() -> Stamp {
    #[expect(clippy::disallowed_methods, reason = "a planted bug: the wall clock is the mistake")]
    let since_1970 = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    Stamp(61 * since_1970.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn counts_from_the_last_stamp() {
        let start = Instant::now();
        let mut clock = LeaderClock::start(Stamp(5000), start);
        assert_eq!(clock.read(start), Stamp(5000));
        assert_eq!(clock.read(start + 100 * MS), Stamp(5100));
        assert_eq!(clock.until(Stamp(5150)), 50 * MS);
        assert_eq!(clock.until(Stamp(5000)), Duration::ZERO);
    }

    #[test]
    fn fractions_of_a_millisecond_add_up() {
        let start = Instant::now();
        let mut clock = LeaderClock::start(Stamp(0), start);
        let stamps: Vec<u64> = (1..=4).map(|i| clock.read(start + i * Duration::from_micros(500)).0).collect();
        assert_eq!(stamps, [0, 1, 1, 2]);
    }

    #[test]
    fn a_stall_does_not_count() {
        let start = Instant::now();
        let mut clock = LeaderClock::start(Stamp(0), start);
        assert_eq!(clock.read(start + 400 * MS), Stamp(400), "late, but not stalled");
        assert_eq!(clock.read(start + 10_400 * MS), Stamp(800), "ten seconds count as one step");
        assert_eq!(clock.read(start + 10_500 * MS), Stamp(900));
        assert_eq!(clock.stalls(), 1);
    }

    #[test]
    fn never_runs_back() {
        let start = Instant::now();
        let mut clock = LeaderClock::start(Stamp(0), start + 200 * MS);
        assert_eq!(clock.read(start + 300 * MS), Stamp(100));
        assert_eq!(clock.read(start + 250 * MS), Stamp(100));
        assert_eq!(clock.read(start + 300 * MS), Stamp(100), "what was counted is not counted again");
    }
}
