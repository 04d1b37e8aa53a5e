//! Turns for large work: few requests decode large bodies and items at one time, and others have a turn before each of them.
//!
//! The ports of all protocols beside the node's own share few threads. A page of a scan, or a body of a megabyte, takes one of them for
//! many milliseconds. Without turns, a small request would wait behind as many of these as there are connections, at each of its steps: a
//! heartbeat of a lock client, or of a client of another protocol, would come too late. With them it waits for one.

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    task::yield_now,
};

/// Number of bytes, of a body or of the entries of items, from which on it is large work to decode them.
pub(crate) const LARGE_BYTES: usize = 16 << 10;

/// The turns of an endpoint.
#[derive(Debug)]
pub(crate) struct LargeWork(Semaphore);

/// The turn of a request, if it needs one. It is over when this is dropped, which must not wait for anything.
pub(crate) type LargeTurn<'a> = Option<SemaphorePermit<'a>>;

impl LargeWork {
    /// This many requests have their turn at one time.
    pub(crate) fn new(at_once: usize) -> Self {
        Self(Semaphore::new(at_once))
    }

    /// Waits for the turn to decode this number of bytes. Few of them need none.
    pub(crate) async fn turn(&self, bytes: usize) -> LargeTurn<'_> {
        if bytes < LARGE_BYTES {
            return None;
        }

        // An error would mean that the semaphore is closed, which it never is.
        let turn = self.0.acquire().await.ok();
        // What has become ready since the turn before comes first.
        yield_now().await;
        turn
    }

    /// Waits for the turn to decode this number of bytes behind those that the request has decoded since its last turn.
    pub(crate) async fn next_turn(&self, since: &mut usize, bytes: usize) -> LargeTurn<'_> {
        *since += bytes;
        let turn = self.turn(*since).await;
        if turn.is_some() {
            *since = 0;
        }
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::{Context, Waker},
    };

    use tokio::task::JoinSet;

    use super::*;

    #[tokio::test]
    async fn large_work_is_done_in_turns_and_small_work_at_once() {
        let large = LargeWork::new(1);
        let first = large.turn(LARGE_BYTES).await;
        assert!(first.is_some());
        assert!(large.turn(LARGE_BYTES - 1).await.is_none());

        let mut second = pin!(large.turn(LARGE_BYTES));
        let mut context = Context::from_waker(Waker::noop());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(second.await.is_some());
    }

    #[tokio::test]
    async fn a_small_request_has_a_step_before_each_turn() {
        const REQUESTS: usize = 100;
        let large = Arc::new(LargeWork::new(1));
        let turns = Arc::new(AtomicUsize::new(0));

        let mut requests = JoinSet::new();
        for _ in 0..REQUESTS {
            let large = Arc::clone(&large);
            let turns = Arc::clone(&turns);
            requests.spawn(async move {
                let _turn = large.turn(LARGE_BYTES).await;
                turns.fetch_add(1, Ordering::Relaxed);
            });
        }

        let mut steps = 0;
        while turns.load(Ordering::Relaxed) < REQUESTS {
            assert!(turns.load(Ordering::Relaxed) <= steps, "more turns than steps of others");
            yield_now().await;
            steps += 1;
        }
    }
}
