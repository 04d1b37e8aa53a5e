//! Calls per second of each identity, by a token bucket for each.

use std::collections::BTreeMap;

use tokio::time::Instant;

use lockkeeper_machine::Identity;
use lockkeeper_planted::Planted;

/// Maximum number of identities whose calls are counted. Beyond it, those that paused are forgotten: a full bucket is like none.
const IDENTITIES: usize = 4096;
/// After a pause, an identity may make the calls of this many seconds at once.
const BURST_SECONDS: f64 = 2.0;

/// The buckets of the identities.
#[derive(Debug, Default)]
pub(super) struct Calls(BTreeMap<Identity, Bucket>);

#[derive(Debug)]
struct Bucket {
    left: f64,
    filled: Instant,
    most: f64,
}

impl Bucket {
    fn fill(&mut self, per_second: f64, now: Instant) {
        self.most = per_second * BURST_SECONDS;
        let since = now.saturating_duration_since(self.filled).as_secs_f64();
        let given_back = if Planted::CallsGivenBackSlowly.is_on() { per_second / 2.0 } else { per_second };
        let most = if Planted::SavedCallsUnbounded.is_on() { f64::INFINITY } else { self.most };
        self.left = (self.left + since * given_back).min(most);
        self.filled = now;
    }
}

impl Calls {
    /// Returns whether one more call is within the limit. If it is, it is counted.
    pub(super) fn take(&mut self, who: &Identity, per_second: u32, now: Instant) -> bool {
        let per_second = f64::from(per_second);
        if !self.0.contains_key(who) {
            if self.0.len() >= IDENTITIES {
                // A bucket that was left alone for so long is full again, as a new one is.
                self.0.retain(|_, bucket| now.saturating_duration_since(bucket.filled).as_secs_f64() < BURST_SECONDS);
            }
            let most = per_second * BURST_SECONDS;
            self.0.insert(who.clone(), Bucket { left: most, filled: now, most });
        }

        let Some(bucket) = self.0.get_mut(who) else { return true };
        bucket.fill(per_second, now);

        let within = bucket.left >= 1.0;
        if within {
            bucket.left -= 1.0;
        }
        within
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_then_the_rate_and_others_are_not_concerned() {
        let mut calls = Calls::default();
        let start = Instant::now();
        let ann = Identity::new("ann").expect("valid");
        let bob = Identity::new("bob").expect("valid");
        let taken = |calls: &mut Calls, who: &Identity, at: Duration| {
            (0..100).filter(|_| calls.take(who, 10, start + at)).count()
        };
        assert_eq!(taken(&mut calls, &ann, Duration::ZERO), 20);
        assert_eq!(taken(&mut calls, &bob, Duration::ZERO), 20);
        assert_eq!(taken(&mut calls, &ann, Duration::from_secs(1)), 10);
        assert_eq!(taken(&mut calls, &ann, Duration::from_secs(60)), 20, "a pause earns no more than the burst");
        assert_eq!(taken(&mut calls, &ann, Duration::from_secs(60)), 0);
    }
}
