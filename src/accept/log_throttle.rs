//! Rate limits for log lines about frequent events.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

/// The time between two lines about one kind of event.
const APART: Duration = Duration::from_secs(10);

/// Counts events, and limits how often they are logged.
#[derive(Debug, Default)]
pub struct LogThrottle {
    state: Mutex<(u64, Option<Instant>)>,
}

impl LogThrottle {
    /// Counts an event. If it is to be logged now, returns the number of events since the last line.
    pub fn count(&self) -> Option<u64> {
        let mut state = self.state.lock().expect("no code panics with the lock held");
        let (count, logged) = &mut *state;
        *count += 1;
        if logged.is_some_and(|logged| logged.elapsed() < APART) {
            return None;
        }
        *logged = Some(Instant::now());
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_is_logged_and_the_others_are_counted() {
        let throttle = LogThrottle::default();
        assert_eq!(throttle.count(), Some(1));
        assert!((0..9).all(|_| throttle.count().is_none()));
        advance(APART).await;
        assert_eq!(throttle.count(), Some(10));
    }
}
