//! The order of the writers of one item at this node.
//!
//! Without it, writers of one item would read the same revision, and all but one of them would have to start again; so a writer has its
//! turn across its read and its commit. Correctness does not depend on it: a commit expects the revision that was read, and writers at
//! other nodes have turns of their own.
//!
//! Each item has a queue for as long as somebody writes it, so nobody waits for the writer of another item. Nor does a writer wait for long
//! behind those of its own item: after [`WAIT_MAX`] it goes on without a turn. A heartbeat must get through beside slow writers.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Mutex as Queue, OwnedMutexGuard},
    time::timeout,
};

/// Maximum time that a writer waits for its turn. Some commits take less, and a heartbeat has seconds.
const WAIT_MAX: Duration = Duration::from_millis(250);

/// The queues of all items that somebody writes, by their keys.
#[derive(Debug, Default)]
pub(crate) struct WriterTurns(Mutex<HashMap<Vec<u8>, Arc<Queue<()>>>>);

/// The turn of a writer. It ends when this is dropped.
pub(crate) struct WriterTurn<'a> {
    /// Dropped first, so that the next writer does not find the place taken.
    _turn: OwnedMutexGuard<()>,
    _place: WriterPlace<'a>,
}

/// A writer of one item, at its attempts.
pub(crate) struct ItemWriter<'a> {
    turns: &'a WriterTurns,
    turn: Option<WriterTurn<'a>>,
    /// It goes on without a turn, for one attempt.
    has_waited: bool,
}

/// A writer that uses the queue of an item: one that has its turn, or waits for it.
struct WriterPlace<'a> {
    turns: &'a WriterTurns,
    key: Vec<u8>,
    /// There until it is dropped.
    queue: Option<Arc<Queue<()>>>,
}

impl<'a> ItemWriter<'a> {
    pub(crate) fn new(turns: &'a WriterTurns) -> Self {
        Self { turns, turn: None, has_waited: false }
    }

    /// Takes the turn, and keeps it. Returns whether the item has had another writer meanwhile, and is to be read again. A writer that has
    /// waited in vain makes an attempt without a turn, and waits again if that one fails: so the writers of an item do not all begin at
    /// once again and again, and each is through in time.
    pub(crate) async fn has_waited_for(&mut self, key: &[u8]) -> bool {
        if self.turn.is_some() || mem::take(&mut self.has_waited) {
            return false;
        }

        self.turn = self.turns.take_if_free(key);
        if self.turn.is_some() {
            return false;
        }
        self.turn = self.turns.wait(key).await;
        self.has_waited = true;
        true
    }
}

impl WriterTurns {
    /// Takes the turn of an item's only writer. `None` if the item has another writer now.
    pub(crate) fn take_if_free(&self, key: &[u8]) -> Option<WriterTurn<'_>> {
        let place = self.place(key);
        let turn = Arc::clone(place.queue.as_ref()?).try_lock_owned().ok()?;
        Some(WriterTurn { _turn: turn, _place: place })
    }

    /// Waits for the turn of a writer of this item. `None` if the wait was too long: then the writer goes on without one.
    async fn wait(&self, key: &[u8]) -> Option<WriterTurn<'_>> {
        let place = self.place(key);
        let turn = timeout(WAIT_MAX, Arc::clone(place.queue.as_ref()?).lock_owned()).await.ok()?;
        Some(WriterTurn { _turn: turn, _place: place })
    }

    fn place(&self, key: &[u8]) -> WriterPlace<'_> {
        let mut queues = self.queues();
        let queue = match queues.get(key) {
            Some(queue) => Arc::clone(queue),
            None => Arc::clone(queues.entry(key.to_owned()).or_default()),
        };
        WriterPlace { turns: self, key: key.to_owned(), queue: Some(queue) }
    }

    /// Locks. No code panics while it holds the lock.
    fn queues(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Arc<Queue<()>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WriterPlace<'_> {
    /// Removes the queue with its last user. Users come only while the map is locked, so none comes in between.
    fn drop(&mut self) {
        let mut queues = self.turns.queues();
        self.queue = None;
        if queues.get(&self.key).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            queues.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        task::{Context, Poll, Waker},
    };

    use tokio::time::Instant;

    use super::*;

    /// Polls once.
    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn turn<'a>(waiting: &mut Pin<Box<impl Future<Output = Option<WriterTurn<'a>>>>>) -> WriterTurn<'a> {
        let Poll::Ready(Some(turn)) = poll(waiting) else { panic!("it is its turn") };
        turn
    }

    fn queues(turns: &WriterTurns) -> usize {
        turns.queues().len()
    }

    /// With one queue for many keys, some of these would wait for the first.
    #[test]
    fn a_writer_keeps_no_writer_of_another_item_waiting() {
        let turns = WriterTurns::default();
        let slow = turns.take_if_free(b"slow").expect("nobody writes it");
        let others: Vec<_> = (0..10_000_u32).map(|number| turns.take_if_free(&number.to_be_bytes())).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(turns.take_if_free(b"slow").is_none());

        drop((slow, others));
        assert_eq!(queues(&turns), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn writers_of_an_item_have_their_turns_in_the_order_in_which_they_came() {
        let turns = WriterTurns::default();
        let first = turns.take_if_free(b"item").expect("nobody writes it");
        let mut second = Box::pin(turns.wait(b"item"));
        let mut third = Box::pin(turns.wait(b"item"));
        assert!(poll(&mut second).is_pending() && poll(&mut third).is_pending());

        drop(first);
        assert!(poll(&mut third).is_pending());
        let its_turn = turn(&mut second);
        assert!(turns.take_if_free(b"item").is_none());
        drop((its_turn, second));
        let its_turn = turn(&mut third);
        drop((its_turn, third));
        assert_eq!(queues(&turns), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_goes_on_without_a_turn_that_does_not_come() {
        let turns = WriterTurns::default();
        let slow = turns.take_if_free(b"item").expect("nobody writes it");
        let began = Instant::now();
        let mut writer = ItemWriter::new(&turns);
        assert!(writer.has_waited_for(b"item").await, "it reads again");
        assert_eq!(began.elapsed(), WAIT_MAX);
        assert!(!writer.has_waited_for(b"item").await, "and commits");
        assert_eq!(began.elapsed(), WAIT_MAX);
        assert!(writer.has_waited_for(b"item").await, "in vain: it waits again");
        assert_eq!(began.elapsed(), 2 * WAIT_MAX);

        // One that gives up while it waits leaves nothing either.
        let mut gone = Box::pin(turns.wait(b"item"));
        assert!(poll(&mut gone).is_pending());
        drop(gone);
        assert_eq!(queues(&turns), 1);
        drop(slow);
        assert_eq!(queues(&turns), 0);
    }
}
