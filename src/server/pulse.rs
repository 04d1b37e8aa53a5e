//! The scheduling delay of a runtime: how long a task that is ready waits until it runs.
//!
//! Computation on Raft's runtime, or another process that takes the processor, delays a leader's heartbeats and a follower's votes by as
//! much. The delay shows here long before it reaches the election timeout and costs an election.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockkeeper_transport::LogThrottle;
use tokio::time::{Instant, sleep_until};

/// How often the delay is measured.
const BEAT: Duration = Duration::from_millis(20);
/// The largest delay is kept for each span of this length, for the last [`SPANS`] of them.
const SPAN: Duration = Duration::from_secs(10);
const SPANS: usize = 6;
/// A delay of this length is logged. It is the default of the shortest election timeout.
const STOOD_STILL: Duration = Duration::from_millis(300);

/// The largest delay of a runtime in the last minute. Clones share the measurement.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulse {
    spans: Arc<Mutex<VecDeque<Duration>>>,
}

impl Pulse {
    /// Measures the delay of the runtime on which it is polled; the log calls that runtime by this name. Does not end.
    pub(super) async fn beat(self, runtime: &'static str) {
        let mut span_ends = Instant::now() + SPAN;
        let stood_still = LogThrottle::default();
        loop {
            let due = Instant::now() + BEAT;
            sleep_until(due).await;

            let now = Instant::now();
            let delay = now - due;
            self.note(delay, now >= span_ends);

            if delay >= STOOD_STILL
                && let Some(count) = stood_still.count()
            {
                tracing::warn!(
                    count,
                    stalled_ms = delay.as_millis() as u64,
                    "this node stood still: no task of {runtime} ran"
                );
            }

            if now >= span_ends {
                span_ends = now + SPAN;
            }
        }
    }

    fn note(&self, delay: Duration, begins_span: bool) {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if begins_span || spans.is_empty() {
            spans.push_back(Duration::ZERO);
        }

        if spans.len() > SPANS {
            spans.pop_front();
        }

        if let Some(latest) = spans.back_mut() {
            *latest = delay.max(*latest);
        }
    }

    /// The largest delay in the last minute. Timers have a resolution of 1 ms, so a delay of up to 2 ms means nothing.
    pub(super) fn delay_max(&self) -> Duration {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).iter().max().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_millis(120);

    #[tokio::test]
    async fn a_task_that_computes_shows_as_a_delay() {
        let pulse = Pulse::default();
        tokio::spawn(pulse.clone().beat("Raft"));
        // The first stall may come before the task has begun to wait, the second before it has run.
        for _ in 0..10 {
            #[expect(clippy::disallowed_methods, reason = "a test stalls a thread on purpose")]
            std::thread::sleep(STALL);
            tokio::task::yield_now().await;
        }
        assert!(pulse.delay_max() >= STALL - BEAT, "{:?}", pulse.delay_max());
    }

    #[test]
    fn a_delay_is_forgotten_after_a_minute() {
        let pulse = Pulse::default();
        pulse.note(STALL, false);
        for span in 1..=SPANS {
            assert_eq!(pulse.delay_max(), STALL, "after {} spans", span - 1);
            pulse.note(BEAT, true);
        }
        assert_eq!(pulse.delay_max(), BEAT);
    }
}
