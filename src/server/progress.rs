//! Whether something that has work to do goes on with it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How far something was when it last moved, and when that was.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<Option<(u64, Instant)>>);

impl Progress {
    /// For how long it has stood where it is. `at`: how far it is now; `None`: there is nothing to do, so it may stand.
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
    async fn only_what_has_work_and_does_not_move_stands() {
        let (progress, second) = (Progress::default(), Duration::from_secs(1));
        assert_eq!(progress.stands_for(Some(3)), Duration::ZERO);
        tokio::time::advance(second).await;
        assert_eq!(progress.stands_for(Some(3)), second);
        assert_eq!(progress.stands_for(Some(4)), Duration::ZERO, "it moved");
        tokio::time::advance(second).await;
        assert_eq!(progress.stands_for(None), Duration::ZERO, "it is done");
        assert_eq!(progress.stands_for(Some(4)), Duration::ZERO, "there is something new to do");
    }
}
