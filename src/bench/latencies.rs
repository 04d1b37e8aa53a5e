//! Latencies in a histogram of fixed size, with three significant digits (Gil Tene's HdrHistogram).

use std::{fmt, time::Duration};

use hdrhistogram::Histogram;

const SHORTEST: Duration = Duration::from_micros(1);
const LONGEST: Duration = Duration::from_secs(600);

/// A histogram of latencies. Values below 1 µs count as 1 µs, values above 10 minutes as 10 minutes.
#[derive(Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let bounds = (nanoseconds(SHORTEST), nanoseconds(LONGEST));
        Self(
            Histogram::new_with_bounds(bounds.0, bounds.1, 3)
                .expect("the bounds are in order, three digits are allowed"),
        )
    }
}

impl Latencies {
    /// Adds a latency.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(nanoseconds(latency.clamp(SHORTEST, LONGEST)));
    }

    pub(super) fn add(&mut self, others: &Self) {
        self.0.add(&others.0).expect("all have the same bounds");
    }

    /// The number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that this fraction (0 to 1) of the operations does not exceed.
    pub fn quantile(&self, fraction: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(fraction))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Debug for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Latencies({} of up to {:?})", self.count(), self.quantile(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_to_three_digits_and_what_is_out_of_bounds_counts_as_the_bound() {
        let mut latencies = Latencies::default();
        (1..=1_000).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        for (fraction, ms) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = latencies.quantile(fraction).as_secs_f64() * 1e3;
            assert!((found / ms - 1.0).abs() < 0.002, "{fraction}: {found}");
        }
        latencies.record(Duration::ZERO);
        latencies.record(Duration::from_secs(100_000));
        assert_eq!(latencies.count(), 1_002);
        assert!(latencies.quantile(1.0) >= LONGEST);
        assert!(latencies.quantile(0.0) < SHORTEST * 2);
    }
}
