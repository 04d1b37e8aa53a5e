//! Turns for others on the same thread during long work.

use tokio::task::yield_now;

/// Steps that are taken together. A step takes about a nanosecond.
const STEPS_TOGETHER: usize = 64 << 10;

/// The steps that a task has taken since others had a turn.
#[derive(Debug, Default)]
pub(crate) struct WorkSteps(usize);

impl WorkSteps {
    /// Counts steps that are about to be taken. If they are too many with those before, others have a turn first.
    pub(crate) async fn count(&mut self, steps: usize) {
        self.0 = self.0.saturating_add(steps);
        if self.0 > STEPS_TOGETHER {
            self.0 = steps;
            yield_now().await;
        }
    }
}
