//! The clock that deadlines are read from.
//!
//! It must not stand still while the machine is suspended: the cluster's clock does not. On Linux that is `CLOCK_BOOTTIME`. Elsewhere
//! it is `CLOCK_MONOTONIC`, which counts suspension on macOS and may not on other systems: there, a holder that slept can trust a lock
//! that it has lost, and only the token protects it.
//!
//! Timers are another matter: tokio's stand still during suspension. Nobody here waits for a deadline with one long timer: see
//! `Lease::lost`.

use std::{fmt, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// A moment on a [`Clock`]: the time since its start. Means nothing on any other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// This much later.
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// How long it is from `now` to this; zero if it is past.
    pub(crate) fn since(self, now: Self) -> Duration {
        self.0.saturating_sub(now.0)
    }
}

/// Where the client reads the time. It never runs backwards, counts suspension, and is off by less than one percent. A parameter, so
/// that a simulation can bring its own.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The time since some fixed start.
    fn now(&self) -> Moment;
}

/// The time since the machine was started, suspension included.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        let time = clock_gettime(CLOCK);
        let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
        Moment(Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default()))
    }
}
