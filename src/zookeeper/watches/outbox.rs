//! Events that wait for their connection.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

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

#[derive(Debug, Default)]
struct OutboxQueue {
    events: VecDeque<QueuedEvent>,
    bytes: usize,
    is_over: bool,
}

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
    /// An empty one, for at most this number of bytes.
    pub(crate) fn new(address: SocketAddr, bytes_max: usize) -> Self {
        Self {
            queue: Mutex::default(),
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

    /// Adds an event. It is taken once its revision is told, so it wakes nobody yet. A client that does not read its events is cut off: it
    /// comes back, and sets its watches again.
    pub(super) fn push(&self, revision: u64, kind: i32, path: &Arc<str>) {
        let mut queue = self.queue();
        queue.bytes += EVENT_BYTES + path.len();
        if queue.bytes > self.bytes_max {
            queue.events.clear();
            self.kill.cancel();
            return;
        }
        queue.events.push_back(QueuedEvent { revision, kind, path: Arc::clone(path) });
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
        taken
    }
}
