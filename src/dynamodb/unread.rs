//! Limits of answers that their clients do not read: how many of their bytes may wait, and how long.
//!
//! A connection has one answer at a time. HTTP takes it in chunks of [`CHUNK`], the next one when the client has room for the one before.
//! The rest waits here, and can be dropped.
//!
//! * The bytes of an answer count against three limits: that of its connection, of the client's address and of the node. An answer that
//!   exceeds one is replaced by an error that names the limit. Answers of [`SMALL_BYTES`] or less, such as those of lock clients, are not
//!   counted and never replaced: HTTP holds as much for each connection anyway.
//! * An answer of which nothing is read for [`UnreadLimits::patience`] is dropped, and so is its connection when HTTP asks for more of it.

use std::{
    collections::BTreeMap,
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, sleep};

use crate::{budget::origin, options::UnreadLimits};

/// Number of bytes that HTTP takes at a time.
const CHUNK: usize = 16 << 10;
/// Number of bytes of an answer that is always sent.
pub(crate) const SMALL_BYTES: usize = 2 * CHUNK;
/// Interval at which answers that nobody reads are searched.
const LOOK: Duration = Duration::from_secs(1);

/// The answers of all connections.
#[derive(Debug)]
pub(crate) struct Unread {
    limits: UnreadLimits,
    waiting: Mutex<WaitingAnswer>,
}

#[derive(Debug, Default)]
struct WaitingAnswer {
    all: usize,
    addresses: BTreeMap<IpAddr, usize>,
    /// The answers that HTTP has not taken completely, by their number.
    answers: BTreeMap<u64, Weak<Mutex<AnswerRest>>>,
    last: u64,
}

/// An answer on its way to the client.
pub(crate) enum OutgoingAnswer {
    Small(Bytes),
    Large(Arc<Mutex<AnswerRest>>),
}

/// The rest of a large answer.
#[derive(Debug)]
pub(crate) struct AnswerRest {
    unread: Arc<Unread>,
    origin: IpAddr,
    rest: Bytes,
    /// Number of bytes that count as waiting: the rest, and the chunk that HTTP took last.
    counted: usize,
    /// The time at which HTTP took the last chunk.
    since: Instant,
    is_given_up: bool,
}

/// The reason why an answer may not wait.
#[derive(Debug)]
pub(crate) struct WaitRefused {
    /// The limit that it exceeds, as a text for people.
    pub(crate) problem: String,
    /// Whether there is room for it later.
    pub(crate) is_passing: bool,
}

/// The client did not read the answer in time.
#[derive(Debug, thiserror::Error)]
#[error("nothing of this answer was read in time")]
pub(crate) struct GivenUp;

impl Unread {
    /// Makes the limits. Answers that are not read end only while [`watch_over`](Self::watch_over) runs.
    pub(crate) fn new(limits: UnreadLimits) -> Arc<Self> {
        Arc::new(Self { limits, waiting: Mutex::default() })
    }

    /// Makes an answer for a client.
    pub(crate) fn answer(self: &Arc<Self>, client: IpAddr, body: Bytes) -> Result<OutgoingAnswer, WaitRefused> {
        if body.len() <= SMALL_BYTES {
            return Ok(OutgoingAnswer::Small(body));
        }
        let bytes = body.len();
        let origin = origin(client);
        let mut waiting = self.waiting();
        let by_address = waiting.addresses.get(&origin).copied().unwrap_or(0);

        let limits = [
            ("of one connection", 0, self.limits.connection),
            ("to this address", by_address, self.limits.address),
            ("of all clients", waiting.all, self.limits.node),
        ];
        if let Some((whose, used, limit)) = limits.into_iter().find(|(_, used, limit)| used + bytes > *limit) {
            let problem = format!(
                "the answer has {bytes} bytes; {used} bytes of answers {whose} wait to be read, and the limit is {limit}: read answers as \
                 they arrive, or ask for less"
            );
            return Err(WaitRefused { problem, is_passing: bytes <= limit && bytes <= self.limits.connection });
        }

        waiting.all += bytes;
        waiting.addresses.insert(origin, by_address + bytes);
        let held = AnswerRest {
            unread: Arc::clone(self),
            origin,
            rest: body,
            counted: bytes,
            since: Instant::now(),
            is_given_up: false,
        };

        let held = Arc::new(Mutex::new(held));

        waiting.last += 1;
        let number = waiting.last;
        waiting.answers.insert(number, Arc::downgrade(&held));
        Ok(OutgoingAnswer::Large(held))
    }

    /// Drops answers that nobody reads. Does not return.
    pub(crate) async fn watch_over(self: Arc<Self>) {
        loop {
            sleep(LOOK).await;
            self.give_up_stalled_answers();
        }
    }

    fn give_up_stalled_answers(&self) {
        let answers: Vec<_> = {
            let mut waiting = self.waiting();
            waiting.answers.retain(|_, held| held.strong_count() > 0);
            waiting.answers.values().filter_map(Weak::upgrade).collect()
        };

        let now = Instant::now();
        for held in answers {
            let mut held = lock(&held);
            if now.duration_since(held.since) >= self.limits.patience {
                held.is_given_up = true;
                held.rest = Bytes::new();
                held.count(0);
            }
        }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingAnswer> {
        lock(&self.waiting)
    }
}

impl AnswerRest {
    /// Sets the number of bytes that wait from now on. It is never more than before.
    fn count(&mut self, bytes: usize) {
        let less = self.counted - bytes;
        self.counted = bytes;
        let mut waiting = self.unread.waiting();
        waiting.all -= less;
        let left = waiting.addresses.get(&self.origin).map_or(0, |used| used - less);
        if left == 0 {
            waiting.addresses.remove(&self.origin);
        } else {
            waiting.addresses.insert(self.origin, left);
        }
    }

    fn next(&mut self) -> Option<Result<Frame<Bytes>, GivenUp>> {
        if self.is_given_up {
            return Some(Err(GivenUp));
        }
        // HTTP has room again, so the client has taken the chunk before.
        self.count(self.rest.len());
        self.since = Instant::now();
        if self.rest.is_empty() {
            return None;
        }
        Some(Ok(Frame::data(self.rest.split_to(self.rest.len().min(CHUNK)))))
    }
}

impl Drop for AnswerRest {
    fn drop(&mut self) {
        self.count(0);
    }
}

impl Body for OutgoingAnswer {
    type Data = Bytes;
    type Error = GivenUp;

    fn poll_frame(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, GivenUp>>> {
        Poll::Ready(match self.get_mut() {
            Self::Small(body) if body.is_empty() => None,
            Self::Small(body) => Some(Ok(Frame::data(std::mem::take(body)))),
            Self::Large(held) => lock(held).next(),
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Small(body) => body.is_empty(),
            // HTTP asks once more, and that call counts the last chunk as taken.
            Self::Large(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let bytes = match self {
            Self::Small(body) => body.len(),
            Self::Large(held) => lock(held).rest.len(),
        };
        SizeHint::with_exact(bytes as u64)
    }
}

impl fmt::Debug for OutgoingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({} bytes)", self.size_hint().lower())
    }
}

/// Locks. No code panics while it holds one of these locks, except on broken state.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn limits() -> UnreadLimits {
        UnreadLimits { connection: 100 << 10, address: 150 << 10, node: 200 << 10, patience: Duration::from_secs(10) }
    }

    fn bytes(kib: usize) -> Bytes {
        vec![b'x'; kib << 10].into()
    }

    fn client(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[tokio::test]
    async fn bytes_count_until_they_are_read() {
        let unread = Unread::new(limits());
        let error = unread.answer(client(1), bytes(101)).expect_err("too large for a connection");
        assert!(error.problem.contains("of one connection wait") && !error.is_passing, "{error:?}");
        let mut first = unread.answer(client(1), bytes(100)).expect("it fits");
        let error = unread.answer(client(1), bytes(60)).expect_err("too much for an address");
        assert!(error.problem.contains("to this address wait to be read, and the limit is 153600"), "{error:?}");
        assert!(error.is_passing);
        let second = unread.answer(client(2), bytes(90)).expect("another address");
        let error = unread.answer(client(3), bytes(33)).expect_err("too much for the node");
        assert!(error.problem.contains("of all clients wait") && error.is_passing, "{error:?}");
        let small = unread.answer(client(3), bytes(32)).expect("a small one is always sent");
        assert_eq!(small.collect().await.expect("read").to_bytes(), bytes(32));

        let frame = first.frame().await.expect("there is more").expect("it is read");
        assert_eq!(frame.into_data().expect("data").len(), CHUNK);
        assert_eq!(unread.waiting().all, 190 << 10, "the chunk may still wait in HTTP");
        let rest = first.collect().await.expect("read").to_bytes();
        assert_eq!(rest.len(), (100 << 10) - CHUNK);
        drop(second);
        let waiting = unread.waiting();
        assert_eq!((waiting.all, waiting.addresses.len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_dropped() {
        let unread = Unread::new(limits());
        let watching = tokio::spawn(Arc::clone(&unread).watch_over());
        let mut answer = unread.answer(client(1), bytes(100)).expect("it fits");
        sleep(Duration::from_secs(9)).await;
        answer.frame().await.expect("there is more").expect("it is read");
        sleep(Duration::from_secs(9)).await;
        assert!(unread.waiting().all > 0, "something was read in between");
        sleep(Duration::from_secs(3)).await;
        assert_eq!(unread.waiting().all, 0);
        assert!(answer.frame().await.expect("an error").is_err());
        watching.abort();
    }
}
