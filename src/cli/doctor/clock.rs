//! The clocks of this machine, and how they stand to those of the nodes.
//!
//! Locks rest on the *rates* of clocks: those of a client and of the cluster differ by less than 1 %. The time of day matters to
//! certificates, and to people who compare logs.

use std::{fs, time::Duration};

use jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

use super::{super::show, Remark};
use crate::client::NodeStatus;

/// Two rates are compared over this time at least: a step of the wall clock is seen, and so is a rate that is 1 % off.
const COMPARED: Duration = Duration::from_secs(1);
/// Rates that differ by more break the leases of clients, parts in a million.
const RATES_DIFFER_MAX: u64 = 10_000;
/// Clocks that differ by more than this confuse the reader of two logs.
const READ_AS_ONE: Duration = Duration::from_secs(1);
/// Clocks that differ by more than this may refuse each other's certificates.
const VALID_AS_ONE: Duration = Duration::from_secs(60);

/// Maximum number of readings of both clocks until they are read within [`READ_TOGETHER`].
const READINGS_MAX: usize = 100;
/// A process that is not interrupted reads both clocks in less.
const READ_TOGETHER: Duration = Duration::from_micros(100);

/// The clocks of this machine at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wall {
    wall: Duration,
    monotonic: Duration,
    /// The two were read so far apart at most.
    uncertain: Duration,
}

impl Wall {
    /// A busy machine may let this process stand still between the two readings, for longer than a wrong rate would show in a second. So
    /// they are repeated, and the closest pair counts.
    pub(super) fn now() -> Self {
        let mut closest = Self::read_once();
        for _ in 1..READINGS_MAX {
            if closest.uncertain <= READ_TOGETHER {
                break;
            }
            let next = Self::read_once();
            if next.uncertain < closest.uncertain {
                closest = next;
            }
        }
        closest
    }

    fn read_once() -> Self {
        // The wall clock is read between two readings of the other one, whose distance bounds the error.
        let monotonic = read(ClockId::Monotonic);
        let wall = read(ClockId::Realtime);
        Self { wall, monotonic, uncertain: read(ClockId::Monotonic).saturating_sub(monotonic) }
    }

    pub(super) fn seconds(self) -> i64 {
        i64::try_from(self.wall.as_secs()).unwrap_or(i64::MAX)
    }

    pub(super) fn unix_ms(self) -> i64 {
        i64::try_from(self.wall.as_millis()).unwrap_or(i64::MAX)
    }
}

#[expect(clippy::disallowed_methods, reason = "the clocks themselves are examined, and nothing is decided by them")]
fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The wall clock of a node, beside that of this machine.
#[derive(Clone, Debug)]
pub(super) struct NodeClock {
    node_id: u64,
    /// The number of milliseconds by which the node's clock is ahead; negative if it is behind.
    ahead_ms: i64,
    /// The answer was on its way for this time, so the difference is known only up to it.
    uncertain: Duration,
}

impl NodeClock {
    /// Reads the clock from an answer that has just arrived, after the time `took`. Returns `None` if the node does not report its time.
    pub(super) fn read(status: &NodeStatus, took: Duration) -> Option<Self> {
        let node_ms = i64::try_from(status.wall_clock?.0).ok()?;
        // The node told its time in the middle, as far as anybody knows.
        let half = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        let own_ms = Wall::now().unix_ms().saturating_sub(half);
        Some(Self { node_id: status.node_id, ahead_ms: node_ms.saturating_sub(own_ms), uncertain: took })
    }

    fn judged(&self) -> Remark {
        let difference = Duration::from_millis(self.ahead_ms.unsigned_abs());
        let direction = if self.ahead_ms < 0 { "behind" } else { "ahead of" };
        let shown = show::duration(difference);
        let text = format!("the clock of node {} is {shown} {direction} that of this machine", self.node_id);

        let certain = difference.saturating_sub(self.uncertain);
        if certain > VALID_AS_ONE {
            Remark::problem(format!("{text}: certificates may be refused; set the clocks by NTP"))
        } else if certain > READ_AS_ONE {
            Remark::note(format!("{text}: set the clocks by NTP"))
        } else {
            Remark::ok(format!(
                "the clock of node {} agrees with that of this machine within {}",
                self.node_id,
                show::duration(difference.max(self.uncertain))
            ))
        }
    }
}

/// Compares the clocks since `begin`, and with those of the nodes.
pub(super) async fn examine(begin: Wall, nodes: Vec<NodeClock>) -> Vec<Remark> {
    let passed = read(ClockId::Monotonic).saturating_sub(begin.monotonic);
    sleep(COMPARED.saturating_sub(passed)).await;
    let end = Wall::now();

    let mut remarks = vec![rates(begin, end)];
    if let Ok(source) = fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        remarks.push(Remark::ok(format!("the kernel's clock source is {}", show::text(source.trim()))));
    }
    if let Ok(time) = Timestamp::from_millisecond(end.unix_ms()) {
        remarks.push(Remark::ok(format!("it is {} here", time.strftime("%Y-%m-%d %H:%M:%S UTC"))));
    }
    remarks.extend(nodes.iter().map(NodeClock::judged));
    remarks
}

/// How the wall clock went beside the monotonic one.
fn rates(begin: Wall, end: Wall) -> Remark {
    let wall = i128::try_from(end.wall.as_micros()).unwrap_or(0) - i128::try_from(begin.wall.as_micros()).unwrap_or(0);
    let monotonic = end.monotonic.saturating_sub(begin.monotonic);
    let elapsed = i128::try_from(monotonic.as_micros()).unwrap_or(0).max(1);

    let uncertain = (begin.uncertain + end.uncertain).as_micros();
    let certain = (wall - elapsed).unsigned_abs().saturating_sub(uncertain);
    let differ = certain * 1_000_000 / elapsed.unsigned_abs();
    let over = show::duration(monotonic);

    if differ > u128::from(RATES_DIFFER_MAX) {
        let by = Duration::from_micros(u64::try_from((wall - elapsed).unsigned_abs()).unwrap_or(u64::MAX));
        Remark::problem(format!(
            "the wall clock and the monotonic clock of this machine went apart by {by:?} in {over}: the wall clock was set, or one of them \
             runs at a wrong rate"
        ))
    } else {
        Remark::ok(format!("the wall clock and the monotonic clock of this machine went alike for {over}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Urgency, *};

    fn at(wall_ms: u64, monotonic_ms: u64) -> Wall {
        let uncertain = Duration::ZERO;
        Wall { wall: Duration::from_millis(wall_ms), monotonic: Duration::from_millis(monotonic_ms), uncertain }
    }

    #[test]
    fn a_clock_that_was_set_is_a_problem_and_one_that_is_slewed_is_not() {
        assert_eq!(rates(at(5_000, 100), at(6_000, 1_100)).urgency, Urgency::Ok);
        assert_eq!(rates(at(5_000, 100), at(6_001, 1_100)).urgency, Urgency::Ok);
        let set = rates(at(5_000, 100), at(4_000, 1_100));
        assert!(set.urgency == Urgency::Problem && set.text.contains("went apart by 2s in 1.0 s"), "{set:?}");
    }

    #[test]
    fn what_lies_between_two_readings_is_no_difference_of_rates() {
        let interrupted = |ms| Wall { uncertain: Duration::from_millis(ms), ..at(6_020, 1_100) };
        assert_eq!(rates(at(5_000, 100), interrupted(0)).urgency, Urgency::Problem, "20 ms in a second");
        assert_eq!(rates(at(5_000, 100), interrupted(15)).urgency, Urgency::Ok);
    }

    #[test]
    fn the_clock_of_a_node_is_judged_by_what_is_certain() {
        let judged =
            |ahead_ms, took_ms| NodeClock { node_id: 2, ahead_ms, uncertain: Duration::from_millis(took_ms) }.judged();
        assert_eq!(judged(-300, 2).urgency, Urgency::Ok);
        assert_eq!(judged(-1_800, 1_000).urgency, Urgency::Ok, "the answer took a second");
        let behind = judged(-5_000, 2);
        assert!(behind.urgency == Urgency::Note && behind.text.contains("node 2 is 5.0 s behind that"), "{behind:?}");
        let ahead = judged(3_600_000, 2);
        assert!(ahead.urgency == Urgency::Problem && ahead.text.contains("1 h 0 min ahead of"), "{ahead:?}");
    }
}
