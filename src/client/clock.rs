//! The clock of all deadlines.
//!
//! It must run while the machine is suspended, since the cluster's clock does. On Linux that is `CLOCK_BOOTTIME`.
//! Elsewhere it is `CLOCK_MONOTONIC`, which counts suspension on macOS and may not on other systems: there, a holder
//! that was suspended can trust a lock that it has lost, and only the token protects the resource.
//!
//! Tokio's timers stop during suspension. So no code here waits for a deadline with one long timer: see `Lease::lost`.

use std::{fmt, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// A moment on a [`Clock`], as the time since the start of that clock. Moments of different clocks cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// The moment `duration` later.
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// The time from `now` to this moment; zero if it has passed.
    pub fn since(self, now: Self) -> Duration {
        self.0.saturating_sub(now.0)
    }
}

/// The client's source of time. It never runs backwards, counts suspension, and its rate is off by less than one
/// percent. A parameter, so that a simulation can replace it.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time since a fixed start.
    fn now(&self) -> Moment;
}

/// The time since the machine was booted, suspension included.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[expect(clippy::disallowed_methods, reason = "the real clock behind the trait `Clock`")]
        let time = clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        Moment(Duration::new(seconds, nanos))
    }
}
