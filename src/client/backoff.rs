//! Exponential backoff with jitter.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// The delay doubles with each consecutive failure. Jitter keeps clients that failed together from retrying together.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// `random`, in 0 to 1, picks from the upper half of the current delay.
    pub(crate) fn next(&mut self, random: f64) -> Duration {
        // The shift is bounded, since one of too many bits overflows; by then the longest delay is reached.
        let span = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        span.mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_a_second_and_stays_there() {
        let mut backoff = Backoff::default();
        let spans: Vec<u128> = (0..9).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(spans, [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        let mut backoff = Backoff { failures: u32::MAX };
        assert_eq!(backoff.next(1.0), LONGEST);
    }

    #[test]
    fn jitter_takes_off_up_to_half() {
        assert_eq!(Backoff::default().next(0.0), FIRST / 2);
        assert_eq!(Backoff::default().next(0.5), FIRST.mul_f64(0.75));
    }
}
