//! Limits of unread answers: how many bytes may wait for a client, and how long.
//!
//! HTTP/2's flow control lets a client leave answers unread for as long as it likes; the memory that they take is this process's. So each
//! answer passes through here on its way to the transport, in chunks of [`CHUNK`]. The transport takes the next chunk only when the client
//! has room for the one before, so the rest of an answer is still here and can be dropped.
//!
//! * Waiting bytes count against three budgets: the connection's, the client address's and the node's ([`UnreadAnswerLimits`]).
//!   An answer that exceeds one is replaced by RESOURCE_EXHAUSTED, which names the limit.
//! * A request that may change something is refused before it is begun if its answer may be large and a budget is used up. Its answer has
//!   as much room again, and always a kilobyte. One that exceeds even that is replaced, and its client told that the request may have taken
//!   effect. So many requests at a time take no more memory than twice the budgets, and none is called undone that was not.
//! * A stream that is not read for [`UnreadAnswerLimits::patience`] ends. The waiting bytes are dropped, and so is their source
//!   with all that it holds, such as a clone of the table. The client gets RESOURCE_EXHAUSTED where it stopped reading.
//! * A connection of which nothing is read for [`UnreadAnswerLimits::connection_patience`] is closed, with the chunks that the transport
//!   still holds for it. Otherwise, a client that never opens its windows would use up the budgets of others for as long as it likes.
//!
//! An answer by HTTP/1 has no place for a status at its end, so its connection is closed in the middle of the answer.
//!
//! The transport may hold some chunks of each stream: at most the client's flow-control window, 64 KiB of it, and two chunks. They count
//! until they have left or their stream is reset, also after the rest of the answer was dropped.

mod accounts;
mod budgets;
mod chunks;
mod limited;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, sleep};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Body as HttpBody, http::HeaderMap},
};

pub use self::budgets::UnreadAnswerLimits;
use self::{
    accounts::Accounts,
    budgets::{Account, ByteBudget},
    chunks::counted,
    limited::AnsweredCall,
};
use super::api::Error;
use lockkeeper_transport::{LogThrottle, Remote};

/// Maximum number of bytes of an answer that the transport takes at a time.
const CHUNK: usize = 16 * 1024;
/// Bytes of an answer to a change that are always sent.
const ALWAYS: usize = 1024;
/// Interval at which slow streams are checked.
const LOOK: Duration = Duration::from_secs(1);

/// A layer that puts the limits around all services.
#[derive(Clone)]
pub(super) struct UnreadLayer {
    limiter: Arc<Limiter>,
}

struct Limiter {
    limits: UnreadAnswerLimits,
    node: Arc<ByteBudget>,
    accounts: Mutex<Accounts>,
    /// Answers that may not be read in time, by their number.
    slow: Mutex<BTreeMap<u64, Weak<Mutex<HeldAnswer>>>>,
    last: AtomicU64,
    closed: LogThrottle,
}

impl UnreadLayer {
    /// Makes the limits. Streams that are not read end only while [`watch_over`](Self::watch_over) runs.
    pub(super) fn new(limits: UnreadAnswerLimits) -> Self {
        let node = ByteBudget::new("of all clients", limits.node);
        let limiter = Limiter {
            limits,
            node,
            accounts: Mutex::default(),
            slow: Mutex::default(),
            last: AtomicU64::new(0),
            closed: LogThrottle::default(),
        };
        Self { limiter: Arc::new(limiter) }
    }

    /// Keeps the body of an answer by HTTP/1 to this client within the limits.
    pub(super) fn limit(&self, client: SocketAddr, body: Body, has_changed: bool) -> Body {
        let answers = if has_changed { AnsweredCall::Change } else { AnsweredCall::Read };
        self.hold(self.limiter.account(client, None), body, answers, false)
    }

    fn hold(&self, account: Arc<Account>, body: Body, answers: AnsweredCall, has_trailers: bool) -> Body {
        let held = Arc::new(Mutex::new(HeldAnswer::new(body, account, answers)));
        Body::new(Metered { held, limiter: Arc::clone(&self.limiter), has_begun: false, has_trailers })
    }

    /// Ends the streams and the connections that are not read for too long. Does not return.
    pub(super) async fn watch_over(self) {
        loop {
            sleep(LOOK).await;
            self.limiter.end_stalled_streams();
            self.limiter.end_stalled_connections();
        }
    }
}

impl Limiter {
    fn account(&self, address: SocketAddr, remote: Option<&Remote>) -> Arc<Account> {
        lock(&self.accounts).account(address, remote, &self.limits, &self.node)
    }

    fn watch(&self, held: &Arc<Mutex<HeldAnswer>>) {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        lock(&self.slow).insert(number, Arc::downgrade(held));
    }

    fn end_stalled_connections(&self) {
        let patience = self.limits.connection_patience;
        let still = {
            let mut accounts = lock(&self.accounts);
            accounts.forget();
            accounts.standing_still(Instant::now(), patience)
        };

        for (remote, connection) in still {
            // The port for HTTP/1 ends such connections by itself.
            let Some(connection) = connection else { continue };
            connection.close();

            // A client can cause as many of these as it likes.
            if let Some(count) = self.closed.count() {
                let seconds = patience.as_secs();
                tracing::warn!(count, %remote, seconds, "connections were closed: nothing of the answers that wait for them was read");
            }
        }
    }

    fn end_stalled_streams(&self) {
        // Collect them first: dropping the content of a body may take long, and new answers need the lock.
        let slow: Vec<_> = {
            let mut slow = lock(&self.slow);
            slow.retain(|_, held| held.strong_count() > 0);
            slow.values().filter_map(Weak::upgrade).collect()
        };

        let now = Instant::now();
        for held in slow {
            let mut held = lock(&held);
            let stands_still = held.since.is_some_and(|since| now.duration_since(since) >= self.limits.patience);
            if stands_still {
                let limit = self.limits.patience.as_secs();
                let found = format!("nothing of this answer was read for {limit} s, the limit");
                held.give_up(&found);
            }
        }
    }
}

/// The rest of an answer, which the transport has not taken.
struct HeldAnswer {
    account: Arc<Account>,
    answers: AnsweredCall,
    source: AnswerSource,
    /// Data taken from the source, and the data that follow it.
    rest: Bytes,
    ahead: Bytes,
    /// Number of bytes counted as waiting: of both, each as a whole until its last byte is copied. Copies count for themselves.
    counted: usize,
    /// When the transport took the last chunk, if it has not asked for more since.
    since: Option<Instant>,
}

/// The source of the rest of an answer.
enum AnswerSource {
    Body(Body),
    Trailers(HeaderMap),
    Over,
}

/// What a source yields.
enum Yielded {
    Data(Bytes),
    Trailers(HeaderMap),
    Over,
}

impl AnswerSource {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Yielded, Status>> {
        let yielded = match std::mem::replace(self, Self::Over) {
            Self::Body(mut body) => {
                let frame = Pin::new(&mut body).poll_frame(context);
                if matches!(&frame, Poll::Pending | Poll::Ready(Some(Ok(_)))) {
                    *self = Self::Body(body);
                }

                match ready!(frame) {
                    Some(frame) => match frame?.into_data() {
                        Ok(data) => Yielded::Data(data),
                        Err(last) => {
                            *self = Self::Over;
                            last.into_trailers().map_or(Yielded::Over, Yielded::Trailers)
                        }
                    },
                    None => Yielded::Over,
                }
            }
            Self::Trailers(trailers) => Yielded::Trailers(trailers),
            Self::Over => Yielded::Over,
        };
        Poll::Ready(Ok(yielded))
    }
}

impl HeldAnswer {
    fn new(body: Body, account: Arc<Account>, answers: AnsweredCall) -> Self {
        let source = AnswerSource::Body(body);
        let rest = Bytes::new();
        let ahead = Bytes::new();
        Self { account, answers, source, rest, ahead, counted: 0, since: None }
    }

    /// Returns the next data, at most a chunk, or the end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Yielded, Status>> {
        self.since = None;
        if self.rest.is_empty() {
            self.rest = std::mem::take(&mut self.ahead);
        }
        if self.rest.is_empty() {
            match ready!(self.source.poll(context))? {
                Yielded::Data(data) => match self.take_in(counted(data.len())) {
                    Ok(()) => self.rest = data,
                    Err(why) => {
                        self.source = AnswerSource::Over;
                        return Poll::Ready(Ok(Yielded::Trailers(trailers(&why))));
                    }
                },
                end @ (Yielded::Trailers(_) | Yielded::Over) => return Poll::Ready(Ok(end)),
            }
        }

        self.since = Some(Instant::now());
        Poll::Ready(Ok(Yielded::Data(self.next_chunk())))
    }

    /// Copies the next chunk of the data in memory, which are freed after their last one.
    fn next_chunk(&mut self) -> Bytes {
        let next = self.rest.split_to(self.rest.len().min(CHUNK));
        if self.rest.is_empty() {
            let left = counted(self.ahead.len());
            let freed = std::mem::replace(&mut self.counted, left) - left;
            self.account.give_back(freed - counted(next.len()));
        } else {
            self.account.take_anyway(counted(next.len()));
        }
        chunks::taken(&next, &self.account)
    }

    /// Whether only the end follows the data in memory. The source is dropped then.
    fn is_complete(&mut self, context: &mut Context<'_>) -> bool {
        match self.source.poll(context) {
            Poll::Pending => false,
            Poll::Ready(Ok(Yielded::Data(data))) => {
                // These data exist already. They are refused, if at all, when the transport asks for them.
                let bytes = counted(data.len());
                self.account.take_anyway(bytes);
                self.counted += bytes;
                self.ahead = data;
                false
            }
            Poll::Ready(Ok(Yielded::Trailers(trailers))) => {
                self.source = AnswerSource::Trailers(trailers);
                self.rest.is_empty()
            }
            Poll::Ready(Ok(Yielded::Over)) => self.rest.is_empty(),
            Poll::Ready(Err(status)) => {
                self.source = AnswerSource::Trailers(trailers(&status));
                self.rest.is_empty()
            }
        }
    }

    fn take_in(&mut self, bytes: usize) -> Result<(), Status> {
        if self.answers != AnsweredCall::Read && bytes <= ALWAYS {
            self.account.take_anyway(bytes);
        } else {
            self.account.take(bytes, self.answers.share()).map_err(|budget| self.refusal(&budget.exceeded(bytes)))?;
        }

        self.counted += bytes;
        Ok(())
    }

    fn refusal(&self, found: &str) -> Status {
        match self.answers {
            AnsweredCall::Read => Error::unread(found).into(),
            AnsweredCall::Change => Error::unread_after_change(found).into(),
        }
    }

    fn give_up(&mut self, found: &str) {
        self.source = AnswerSource::Trailers(trailers(&self.refusal(found)));
        self.rest = Bytes::new();
        self.ahead = Bytes::new();
        self.since = None;
        self.account.give_back(std::mem::take(&mut self.counted));
    }
}

impl Drop for HeldAnswer {
    fn drop(&mut self) {
        self.account.give_back(self.counted);
    }
}

/// An answer on its way to the transport.
struct Metered {
    held: Arc<Mutex<HeldAnswer>>,
    limiter: Arc<Limiter>,
    has_begun: bool,
    /// Whether its end says if it is whole: by gRPC's status, or by that of an HTTP/2 stream. Otherwise, a refusal is an error of the body.
    has_trailers: bool,
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut held = lock(&self.held);
        let data = match ready!(held.poll(context)) {
            Ok(Yielded::Data(data)) => data,
            Ok(Yielded::Trailers(trailers)) if self.has_trailers => {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            Ok(Yielded::Trailers(trailers)) => {
                let refusal = Status::from_header_map(&trailers).filter(|status| status.code() != Code::Ok);
                return Poll::Ready(refusal.map(Err));
            }
            Ok(Yielded::Over) => return Poll::Ready(None),
            Err(status) => return Poll::Ready(Some(Err(status))),
        };

        // Most answers are one small message: the transport then has all of it, and nothing of it can go unread.
        let is_watched = !self.has_begun && !held.is_complete(context);
        drop(held);
        if is_watched {
            self.limiter.watch(&self.held);
        }

        self.has_begun = true;
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        let held = lock(&self.held);
        let is_over = match &held.source {
            AnswerSource::Body(body) => body.is_end_stream(),
            AnswerSource::Trailers(_) => false,
            AnswerSource::Over => true,
        };
        is_over && held.rest.is_empty() && held.ahead.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let held = lock(&self.held);
        match &held.source {
            // An answer by HTTP/1 begins with its length, by which a client notices that an answer is not whole.
            AnswerSource::Body(body) if !self.has_trailers && !self.has_begun => body.size_hint(),
            AnswerSource::Body(_) | AnswerSource::Trailers(_) | AnswerSource::Over => SizeHint::default(),
        }
    }
}

fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    // This fails if a header cannot hold the message, which is one of ours. The stream then ends without a status, which is an error too.
    let _ = status.add_header(&mut trailers);
    trailers
}

impl fmt::Debug for UnreadLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unread").field("limits", &self.limiter.limits).finish_non_exhaustive()
    }
}

/// Locks. No code panics while it holds one of these locks, except on broken state, which ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::poll_fn};

    use futures::FutureExt;
    use tonic_types::StatusExt as _;

    use super::*;

    const LIMITS: UnreadAnswerLimits = UnreadAnswerLimits {
        connection: 8 * CHUNK,
        address: 16 * CHUNK,
        node: 20 * CHUNK,
        patience: Duration::from_secs(10),
        connection_patience: Duration::from_secs(60),
    };

    /// Frames that are ready; after them it is pending for ever.
    struct Frames {
        frames: VecDeque<Frame<Bytes>>,
        _alive: Arc<()>,
    }

    impl HttpBody for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _context: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            self.frames.pop_front().map_or(Poll::Pending, |frame| Poll::Ready(Some(Ok(frame))))
        }
    }

    /// A buffer whose end can be seen.
    struct Buffer(Arc<[u8; 3 * CHUNK]>);

    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.0[..]
        }
    }

    fn data(bytes: usize) -> Frame<Bytes> {
        Frame::data((0..bytes).map(|at| at as u8).collect())
    }

    fn end() -> Frame<Bytes> {
        Frame::trailers(trailers(&Status::ok("")))
    }

    /// An answer to the client at this port, and a reference that lives as long as its source.
    fn answer(unread: &UnreadLayer, port: u16, frames: impl Into<VecDeque<Frame<Bytes>>>) -> (Metered, Weak<()>) {
        answer_to(AnsweredCall::Read, unread, port, frames)
    }

    fn answer_to(
        answers: AnsweredCall,
        unread: &UnreadLayer,
        port: u16,
        frames: impl Into<VecDeque<Frame<Bytes>>>,
    ) -> (Metered, Weak<()>) {
        let source = Frames { frames: frames.into(), _alive: Arc::default() };
        let there = Arc::downgrade(&source._alive);
        let account = unread.limiter.account(([127, 0, 0, 1], port).into(), None);
        let held = Arc::new(Mutex::new(HeldAnswer::new(Body::new(source), account, answers)));
        (Metered { held, limiter: Arc::clone(&unread.limiter), has_begun: false, has_trailers: true }, there)
    }

    /// The next frame, if there is one now.
    fn next(answer: &mut Metered) -> Option<Frame<Bytes>> {
        let frame = poll_fn(|context| Pin::new(&mut *answer).poll_frame(context)).now_or_never()?;
        Some(frame.expect("it goes on").expect("it does not fail"))
    }

    fn refusal(answer: &mut Metered) -> Status {
        let frame = next(answer).expect("there is something").into_trailers().expect("it ends");
        Status::from_header_map(&frame).expect("a status")
    }

    fn waiting(unread: &UnreadLayer) -> usize {
        unread.limiter.node.used()
    }

    #[test]
    fn an_answer_comes_whole_in_chunks() {
        let unread = UnreadLayer::new(LIMITS);
        let frames = [data(10), data(3 * CHUNK + 1), data(CHUNK), end()];
        let all: Vec<u8> = frames.iter().filter_map(Frame::data_ref).flatten().copied().collect();
        let (mut answer, source) = answer(&unread, 1, frames);
        let mut seen = Vec::new();
        let last = loop {
            match next(&mut answer).expect("it is all there").into_data() {
                Ok(data) => {
                    assert!(data.len() <= CHUNK);
                    seen.extend(data);
                }
                Err(last) => break last,
            }
        };
        assert_eq!(seen, all);
        assert_eq!(waiting(&unread), 0);
        assert!(last.is_trailers() && source.upgrade().is_none());
    }

    #[test]
    fn a_chunk_counts_until_the_transport_lets_go_of_it_and_keeps_nothing_else() {
        let unread = UnreadLayer::new(LIMITS);
        let all = Arc::new([7; 3 * CHUNK]);
        let buffer = Bytes::from_owner(Buffer(Arc::clone(&all)));
        let in_memory = Arc::downgrade(&all);
        drop(all);
        let (mut answer, _) = answer(&unread, 1, [Frame::data(buffer), end()]);
        let first = next(&mut answer).and_then(|frame| frame.into_data().ok()).expect("the first chunk");
        assert_eq!(waiting(&unread), 4 * CHUNK, "the whole buffer, and the copy of a part");

        let others = [(); 2].map(|()| next(&mut answer).and_then(|frame| frame.into_data().ok()).expect("a chunk"));
        assert!(in_memory.upgrade().is_none(), "its last byte was copied");
        assert!(next(&mut answer).is_some_and(|frame| frame.is_trailers()));
        drop(answer);
        assert_eq!(waiting(&unread), 3 * CHUNK, "the transport holds three chunks");
        drop(others);
        assert_eq!((waiting(&unread), &first[..]), (CHUNK, &[7; CHUNK][..]));
        drop(first);
        assert_eq!(waiting(&unread), 0);
    }

    #[test]
    fn a_small_chunk_counts_as_what_the_transport_needs_for_it() {
        let unread = UnreadLayer::new(LIMITS);
        let (mut answer, _) = answer(&unread, 1, [data(3), data(CHUNK + 1), data(0), end()]);
        let chunks = [(); 4].map(|()| next(&mut answer).and_then(|frame| frame.into_data().ok()).expect("a chunk"));
        assert_eq!(chunks.each_ref().map(Bytes::len), [3, CHUNK, 1, 0]);
        assert_eq!(waiting(&unread), chunks::LEAST + CHUNK + chunks::LEAST);
        drop((answer, chunks));
        assert_eq!(waiting(&unread), 0);
    }

    #[test]
    fn what_waits_on_a_connection_is_limited() {
        let unread = UnreadLayer::new(LIMITS);
        let (mut first, _) = answer(&unread, 1, [data(5 * CHUNK)]);
        assert!(next(&mut first).is_some());
        let (mut second, source) = answer(&unread, 1, [data(5 * CHUNK)]);
        let status = refusal(&mut second);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("of its connection") && source.upgrade().is_none(), "{status}");

        let (mut other, _) = answer(&unread, 2, [data(5 * CHUNK)]);
        assert!(next(&mut other).is_some_and(|frame| frame.is_data()), "it is another connection");
        while next(&mut first).is_some() {}
        let (mut third, _) = answer(&unread, 1, [data(5 * CHUNK)]);
        assert!(next(&mut third).is_some_and(|frame| frame.is_data()), "the first was read");
        drop((first, second, third, other));
        assert_eq!(waiting(&unread), 0);
    }

    #[test]
    fn a_client_that_reads_is_answered_beside_those_that_do_not() {
        let unread = UnreadLayer::new(LIMITS);
        let [mut first, mut second, mut third] = [1, 2, 3].map(|port| answer(&unread, port, [data(7 * CHUNK)]).0);
        assert!(next(&mut first).and_then(|frame| frame.into_data().ok()).is_some());
        assert!(next(&mut second).and_then(|frame| frame.into_data().ok()).is_some());
        assert!(
            refusal(&mut third).message().contains("from its address"),
            "the budget of the address has room for two"
        );
        let (mut little, _) = answer(&unread, 9, [data(CHUNK), end()]);
        assert!(next(&mut little).is_some_and(|frame| frame.is_data()));
    }

    #[test]
    fn the_answer_to_a_change_has_more_room_and_never_says_that_nothing_happened() {
        let unread = UnreadLayer::new(LIMITS);
        let change = |bytes| answer_to(AnsweredCall::Change, &unread, 1, [data(bytes)]).0;
        let [mut first, mut second, mut third] = [7, 8, 3].map(|chunks| change(chunks * CHUNK));
        assert!(next(&mut first).is_some_and(|frame| frame.is_data()));
        assert!(next(&mut second).is_some_and(|frame| frame.is_data()), "it has as much room again");
        let status = refusal(&mut third);
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.get_details_error_info().expect("a reason").metadata["retry"], "same-id", "{status}");

        let mut small = change(ALWAYS);
        assert!(next(&mut small).is_some_and(|frame| frame.is_data()));
        lock(&second.held).give_up("it is not read");
        assert_eq!(refusal(&mut second).get_details_error_info().expect("a reason").metadata["retry"], "same-id");
        let (mut read, _) = answer(&unread, 1, [data(3 * CHUNK)]);
        assert_eq!(refusal(&mut read).get_details_error_info().expect("a reason").metadata["retry"], "safe");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_nobody_reads_ends() {
        let unread = UnreadLayer::new(LIMITS);
        tokio::spawn(unread.clone().watch_over());
        let (mut stalled, source) = answer(&unread, 1, [data(10), data(3 * CHUNK)]);
        let (mut kept, _) = answer(&unread, 2, [data(3 * CHUNK)]);
        let in_transport = next(&mut kept).and_then(|frame| frame.into_data().ok()).expect("the first chunk");
        let (mut quiet, of_quiet) = answer(&unread, 1, [data(10), data(20)]);
        assert!(next(&mut stalled).is_some());
        while next(&mut quiet).is_some() {}
        sleep(LIMITS.patience + 2 * LOOK).await;
        assert!(source.upgrade().is_none() && of_quiet.upgrade().is_some());
        assert_eq!(waiting(&unread), CHUNK, "the transport still holds one chunk");
        drop(in_transport);
        assert_eq!(waiting(&unread), 0);
        let status = refusal(&mut stalled);
        assert!(status.message().contains("10 s, the limit"), "{status}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_which_nothing_is_read_stands_still() {
        let unread = UnreadLayer::new(LIMITS);
        let ports = || {
            let still = lock(&unread.limiter.accounts).standing_still(Instant::now(), LIMITS.connection_patience);
            still.into_iter().map(|(address, _)| address.port()).collect::<Vec<_>>()
        };
        let [mut stuck, mut slow, mut idle] = [1, 2, 3].map(|port| answer(&unread, port, [data(3 * CHUNK)]).0);
        let in_transport = next(&mut stuck).expect("the first chunk");
        let chunks = [(); 2].map(|()| next(&mut slow).expect("a chunk"));
        while next(&mut idle).is_some() {}
        assert!(ports().is_empty());

        sleep(LIMITS.connection_patience / 2).await;
        assert!(ports().is_empty());
        drop(chunks);
        sleep(LIMITS.connection_patience / 2).await;
        assert_eq!(ports(), [1], "one reads, and nothing waits for the other");
        drop(stuck);
        sleep(LIMITS.connection_patience).await;
        assert_eq!(ports(), [1, 2], "a chunk of an answer that is over waits too");
        drop((in_transport, slow));
        sleep(LIMITS.connection_patience).await;
        assert!(ports().is_empty());
    }

    #[tokio::test]
    async fn an_answer_by_http1_is_whole_or_breaks_off() {
        let unread = UnreadLayer::new(LIMITS);
        let client = ([127, 0, 0, 1], 1).into();
        let text = || Body::new("x".repeat(7 * CHUNK));
        let mut first = unread.limit(client, text(), false);
        assert_eq!(first.size_hint().exact(), Some(7 * CHUNK as u64));
        let mut second = unread.limit(client, text(), false);
        assert!(poll_fn(|context| Pin::new(&mut first).poll_frame(context)).await.expect("it goes on").is_ok());
        let refused = poll_fn(|context| Pin::new(&mut second).poll_frame(context)).await.expect("it is refused");
        let status = refused.expect_err("the budget of the connection is used up");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    }
}
