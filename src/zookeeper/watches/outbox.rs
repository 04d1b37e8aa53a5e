//! Events that wait for their connection.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use lockkeeper_accept::{ArrivingBytes, ArrivingRequest, origin};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::wire::JuteWriter;

/// Bytes of an event beside its path.
const EVENT_BYTES: usize = 64;

/// An event of a watch.
#[derive(Debug)]
struct QueuedEvent {
    revision: u64,
    kind: i32,
    path: Arc<str>,
}

#[derive(Debug)]
struct OutboxQueue {
    events: VecDeque<QueuedEvent>,
    bytes: usize,
    /// The share of the connection in the budget of the port.
    held: ArrivingRequest,
    is_over: bool,
}

/// An event has no room among those that wait for all clients of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoEventRoom;

/// The events of one connection, in the order of the changes.
#[derive(Debug)]
pub(crate) struct EventOutbox {
    queue: Mutex<OutboxQueue>,
    bytes_max: usize,
    /// The client.
    pub(crate) address: SocketAddr,
    /// Frames from the client.
    pub(crate) received: AtomicU64,
    /// Frames to the client.
    pub(crate) sent: AtomicU64,
    /// Wakes the connection.
    pub(crate) arrived: Notify,
    /// Ends the connection at once: its session is elsewhere, it reads too slowly, or this node cannot vouch for it any longer.
    pub(crate) kill: CancellationToken,
}

impl EventOutbox {
    /// An empty one, for at most this number of bytes, which are a share of the budget of the port.
    pub(crate) fn new(address: SocketAddr, bytes_max: usize, budget: &ArrivingBytes) -> Self {
        let held = budget.request(origin(address.ip()));
        let queue = OutboxQueue { events: VecDeque::new(), bytes: 0, held, is_over: false };
        Self {
            queue: Mutex::new(queue),
            bytes_max,
            address,

            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            arrived: Notify::new(),
            kill: CancellationToken::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, OutboxQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that the client counts for.
    pub(super) fn origin(&self) -> IpAddr {
        origin(self.address.ip())
    }

    /// Number of bytes of the events that wait.
    pub(super) fn bytes(&self) -> usize {
        self.queue().bytes
    }

    /// Adds an event. It is taken once its revision is told, so it wakes nobody yet. A client that does not read its events is cut off: it
    /// comes back, and sets its watches again. Fails if the budget of the port has no room for it.
    pub(super) fn push(&self, revision: u64, kind: i32, path: &Arc<str>) -> Result<(), NoEventRoom> {
        let mut queue = self.queue();
        // A connection that is about to end sends nothing more.
        if self.kill.is_cancelled() {
            return Ok(());
        }
        let bytes = queue.bytes + EVENT_BYTES + path.len();
        if bytes > self.bytes_max {
            self.discard(&mut queue);
            return Ok(());
        }
        if queue.held.hold(bytes).is_err() {
            return Err(NoEventRoom);
        }

        // The event of a change that was missed is told with the state that shows it. The changes before that state come first, also those
        // that are told later.
        queue.bytes = bytes;
        let at = queue.events.partition_point(|event| event.revision <= revision);
        queue.events.insert(at, QueuedEvent { revision, kind, path: Arc::clone(path) });
        Ok(())
    }

    /// Ends the connection, whose events take no more room.
    pub(super) fn cut_off(&self) {
        self.discard(&mut self.queue());
    }

    fn discard(&self, queue: &mut OutboxQueue) {
        queue.events = VecDeque::new();
        queue.bytes = 0;
        queue.held.release();
        self.kill.cancel();
    }

    /// Wakes the connection: it has events whose revision is told.
    pub(super) fn wake(&self) {
        self.arrived.notify_one();
    }

    /// The session is over: the connection ends after the events that are there.
    pub(super) fn end(&self) {
        self.queue().is_over = true;
        self.wake();
    }

    /// Whether the session is over.
    pub(crate) fn is_over(&self) -> bool {
        self.queue().is_over
    }

    /// Appends the events up to a revision to what is sent. Returns their number.
    pub(crate) fn take_until(&self, revision: u64, out: &mut Vec<u8>) -> u64 {
        let mut queue = self.queue();
        let mut taken = 0;
        while let Some(event) = queue.events.pop_front_if(|event| event.revision <= revision) {
            queue.bytes -= EVENT_BYTES + event.path.len();
            JuteWriter::put_event(out, event.kind, &event.path);
            taken += 1;
        }

        if taken > 0 {
            // Fewer bytes than before always fit.
            let bytes = queue.bytes;
            let _ = queue.held.hold(bytes);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_accept::FREE_BYTES;

    use super::*;

    fn outbox(budget: &ArrivingBytes) -> EventOutbox {
        EventOutbox::new("127.0.0.1:1".parse().expect("an address"), usize::MAX, budget)
    }

    #[test]
    fn what_is_taken_or_cut_off_is_free_again() {
        let event = FREE_BYTES;
        let budget = ArrivingBytes::new(4 * event);
        let [first, second] = [outbox(&budget), outbox(&budget)];
        let path: Arc<str> = Arc::from("x".repeat(event - EVENT_BYTES));
        // The first one is free, and one address has half of the rest.
        for _ in 0..3 {
            first.push(1, 1, &path).expect("there is room");
        }
        second.push(1, 1, &path).expect("the first one is free");
        assert_eq!(second.push(1, 1, &path), Err(NoEventRoom));

        assert_eq!(first.take_until(1, &mut Vec::new()), 3);
        second.push(1, 1, &path).expect("there is room");
        second.push(1, 1, &path).expect("there is room");
        second.cut_off();
        second.push(1, 1, &path).expect("it sends nothing more");
        assert_eq!((second.bytes(), second.kill.is_cancelled()), (0, true));
        for _ in 0..3 {
            first.push(1, 1, &path).expect("there is room");
        }
    }

    /// The state that shows what a client has missed may be further on than what is told.
    #[test]
    fn events_that_are_told_later_come_in_the_order_of_their_revisions() {
        let outbox = outbox(&ArrivingBytes::new(usize::MAX));
        let path: Arc<str> = Arc::from("/a");
        for (revision, kind) in [(7, 1), (7, 2), (5, 3), (6, 4), (6, 1), (8, 2)] {
            outbox.push(revision, kind, &path).expect("there is room");
        }

        let mut sent = Vec::new();
        assert_eq!([4, 5, 6, 8].map(|until| outbox.take_until(until, &mut sent)), [0, 1, 2, 3]);
        let mut expected = Vec::new();
        for kind in [3, 4, 1, 1, 2, 2] {
            JuteWriter::put_event(&mut expected, kind, &path);
        }
        assert_eq!(sent, expected);
    }
}
