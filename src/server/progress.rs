//! For how long something that has work to do has made no progress.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// The last position, and when it was reached.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<(u64, Instant)>>);

impl Progress {
    /// Returns how long the position has not changed. `at` is the position now, or `None` while there is no work and so no progress is
    /// expected.
    pub(super) fn stands_for(&self, at: Option<u64>) -> Duration {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);

        let Some(at) = at else {
            *known = None;
            return Duration::ZERO;
        };

        match *known {
            Some((before, since)) if before == at => since.elapsed(),
            Some(_) | None => {
                *known = Some((at, Instant::now()));
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_without_progress_counts_only_while_there_is_work() {
        let progress = Progress::default();
        let second = Duration::from_secs(1);
        assert_eq!(progress.stands_for(Some(3)), Duration::ZERO);
        tokio::time::advance(second).await;
        assert_eq!(progress.stands_for(Some(3)), second);
        assert_eq!(progress.stands_for(Some(4)), Duration::ZERO, "it moved");
        tokio::time::advance(second).await;
        assert_eq!(progress.stands_for(None), Duration::ZERO, "it is done");
        assert_eq!(progress.stands_for(Some(4)), Duration::ZERO, "there is new work");
    }
}
