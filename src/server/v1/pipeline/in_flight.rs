//! The requests of a pipeline that are under way: how many, and how much memory they take.
//!
//! Requests that wait for a lock are refused beyond their limits: left unread, they would keep a release behind them unread that ends their
//! wait. All others are answered soon. Beyond their limits no further request is read, so the client waits (backpressure).
//!
//! The first [`SMALL`] bytes of a request do not count. So a usual request costs an addition or two, and the requests of one stream that
//! cannot get memory delay no small ones of others. A request is decoded before its size is known: one of each stream, that waits for the
//! node's memory, is beyond the limit.
//!
//! While a request is under way, its task takes many kilobytes, however small the request is. A client that sends requests and reads no
//! answers has all of them under way, on as many streams as it likes. So the tasks have a limit for the node, too, of which one address
//! may have half of what others leave. A stream takes it for [`PLACES_AT_ONCE`] requests at a time. One request of each stream needs none:
//! who reads answers goes on, whatever others do.

use std::{
    collections::HashMap,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, AbortRegistration, Abortable},
    stream::FuturesUnordered,
};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use lockkeeper_accept::{ArrivingBytes, ArrivingRequest};

use crate::{
    api::Error,
    wire::{asks_to_wait, sizes::allocated_bytes},
};
use lockkeeper_planted::NodeLimit;
use lockkeeper_proto::v1::{PipelineResponse, pipeline_request::What as PipelineCall};

/// Maximum number of acquires of one stream in flight that may wait. Further ones are refused.
const WAITS: usize = 16_384;
/// Maximum number of other requests of one stream in flight. They are answered soon, so further ones stay unread until then (backpressure):
/// a release is never refused.
const SHORT: usize = 8192;
/// Bytes of a request that do not count.
const SMALL: usize = 1024;
/// Bytes of the waiting requests of one stream, and of its others.
const WAITING_BYTES: usize = 16 << 20;
const SHORT_BYTES: usize = 4 << 20;
/// The same for all streams of a node.
const NODE_BYTES: usize = 64 << 20;
/// Bytes of the answers that wait to be read, of all streams of a node.
const NODE_ANSWERS_BYTES: usize = 32 << 20;

/// Bytes of the tasks of requests that do not wait, of all streams of a node. One address has half of it, which is more than [`SHORT`]
/// requests.
const NODE_TASKS_BYTES: usize = 256 << 20;
/// Number of requests for which a stream takes memory for tasks at a time.
const PLACES_AT_ONCE: usize = 16;
/// Bytes that a request under way takes beside its task and what it has allocated, about: its places in tables, and what is boxed.
const BESIDE_TASK_BYTES: usize = 2 << 10;

/// The limits of pipelines for their requests. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PipelineLimits {
    /// Acquires of one stream that may wait.
    pub waits: usize,
    /// Other requests of one stream.
    pub requests: usize,
    /// Bytes of a request that do not count.
    pub small_bytes: usize,
    /// Bytes of the acquires of one stream that may wait.
    pub waiting_bytes: usize,
    /// Bytes of the other requests of one stream.
    pub request_bytes: usize,
    /// Bytes of the acquires of all streams that may wait, and as many of all other requests.
    pub node_bytes: usize,
}

impl PipelineLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self {
        waits: WAITS,
        requests: SHORT,
        small_bytes: SMALL,
        waiting_bytes: WAITING_BYTES,
        request_bytes: SHORT_BYTES,
        node_bytes: NODE_BYTES,
    };
}

impl Default for PipelineLimits {
    fn default() -> Self {
        Self::REAL
    }
}

/// The memory that the requests of all pipelines of a node may take: a permit is a byte.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory {
    short: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    limits: PipelineLimits,
    tasks: ArrivingBytes,
    /// For answers that wait to be read.
    pub(super) answers: ArrivingBytes,
}

impl RequestMemory {
    pub(crate) fn new(limits: PipelineLimits) -> Self {
        let [short, waiting] = [(); 2].map(|()| Arc::new(Semaphore::new(limits.node_bytes)));
        let tasks = ArrivingBytes::new(NODE_TASKS_BYTES);
        let answers = ArrivingBytes::new(NODE_ANSWERS_BYTES);
        Self { short, waiting, limits, tasks, answers }
    }

    /// A request that is larger than all of it takes all.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.limits.node_bytes)).unwrap_or(u32::MAX)
    }
}

/// The permit of a request for its memory, unless it is small.
pub(super) type MemoryPermit = Option<OwnedSemaphorePermit>;

/// The kind of a request in flight. It decides which limits it counts towards, and the error at its deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    /// The request changes nothing.
    Reads,
    /// The request changes something.
    Changes,
    /// The request changes something, and its answer may take long.
    Waits,
}

impl From<&PipelineCall> for RequestKind {
    fn from(asked: &PipelineCall) -> Self {
        match asked {
            PipelineCall::Check(_) | PipelineCall::Get(_) => Self::Reads,
            PipelineCall::Acquire(acquire) if asks_to_wait(acquire) => Self::Waits,
            PipelineCall::Acquire(_) | PipelineCall::Release(_) | PipelineCall::Cancel(_) => Self::Changes,
        }
    }
}

/// The requests of a stream that are under way. `S` begins one, and keeps its permit until it is answered.
pub(super) struct StreamRequests<S, F> {
    start: S,
    running: FuturesUnordered<Abortable<F>>,
    handles: HashMap<u64, RequestHandle>,
    waits: usize,
    waiting_bytes: usize,
    short_bytes: usize,
    memory: RequestMemory,
    /// Number of requests other than waits for whose tasks there is memory, and the share of the stream in that of the node.
    places: usize,
    tasks: ArrivingRequest,
    blocked: Option<BlockedRequest>,
}

struct RequestHandle {
    abort: AbortHandle,
    kind: RequestKind,
    bytes: usize,
}

/// A request that has not begun, because the node has no memory for it.
struct BlockedRequest {
    number: u64,
    asked: PipelineCall,
    registration: AbortRegistration,
    permit: Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>,
}

/// A request was not begun.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NotBegun {
    /// The request is refused: too much waits.
    Overloaded,
    /// The stream ends, as its client has made a mistake.
    Invalid(Error),
}

impl<S, F> StreamRequests<S, F>
where
    S: Fn(u64, PipelineCall, MemoryPermit) -> F,
    F: Future<Output = PipelineResponse>,
{
    /// Bytes of a request under way beside those that it has allocated.
    const TASK_BYTES: usize = size_of::<F>() + BESIDE_TASK_BYTES;

    /// None yet, of a client at this address.
    pub(super) fn new(memory: RequestMemory, client: IpAddr, start: S) -> Self {
        let tasks = memory.tasks.request(client);
        Self {
            start,
            running: FuturesUnordered::new(),
            handles: HashMap::new(),
            waits: 0,
            waiting_bytes: 0,
            short_bytes: 0,

            memory,
            places: 1,
            tasks,
            blocked: None,
        }
    }

    /// Whether a further request may be read. Takes memory for its task, if the stream has none left.
    pub(super) fn has_room(&mut self) -> bool {
        let has_bytes = self.short_bytes < self.memory.limits.request_bytes;
        if !has_bytes {
            NodeLimit::PipelineBytes.note();
        }
        self.blocked.is_none() && has_bytes && self.has_place()
    }

    /// Whether there is memory for the task of a further request. Without, one of those under way is answered first, so there is no need to
    /// wait for the requests of others.
    fn has_place(&mut self) -> bool {
        if self.short() < self.places {
            return true;
        }

        let most = self.memory.limits.requests;
        if self.places >= most {
            NodeLimit::PipelineRequests.note();
        }

        let places = most.min(self.places + PLACES_AT_ONCE);
        let has_more = places > self.places && self.tasks.grow(places * Self::TASK_BYTES).is_ok();
        if has_more {
            self.places = places;
        }
        has_more
    }

    /// Gives back the memory for tasks of which there have been fewer for a while, or which are not there any more.
    fn give_places_back(&mut self) {
        let short = self.short();
        if short == 0 {
            self.places = 1;
            self.tasks.release();
        } else if short + 2 * PLACES_AT_ONCE <= self.places {
            self.places -= PLACES_AT_ONCE;
            // Fewer bytes than before are never refused.
            let _ = self.tasks.grow(self.places * Self::TASK_BYTES);
        }
    }

    /// Number of requests under way that do not wait.
    fn short(&self) -> usize {
        self.handles.len() - self.waits
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.blocked.is_none()
    }

    /// Begins a request, or has it wait for memory.
    pub(super) fn begin(&mut self, number: u64, asked: PipelineCall) -> Result<(), NotBegun> {
        let kind = RequestKind::from(&asked);
        let PipelineLimits { small_bytes, waits, waiting_bytes, .. } = self.memory.limits;
        let bytes = allocated_bytes(&asked).saturating_sub(small_bytes);
        let may_wait = kind == RequestKind::Waits;
        if may_wait && self.waits >= waits {
            NodeLimit::PipelineWaits.note();
            return Err(NotBegun::Overloaded);
        }
        if may_wait && self.waiting_bytes.saturating_add(bytes) > waiting_bytes {
            NodeLimit::PipelineWaitingBytes.note();
            return Err(NotBegun::Overloaded);
        }

        let memory = if may_wait { &self.memory.waiting } else { &self.memory.short };
        let permits = self.memory.permits(bytes);
        let permit = if bytes == 0 { None } else { Arc::clone(memory).try_acquire_many_owned(permits).ok() };
        let is_blocked = bytes > 0 && permit.is_none();
        if is_blocked {
            NodeLimit::PipelineNodeBytes.note();
        }
        if is_blocked && may_wait {
            return Err(NotBegun::Overloaded);
        }

        let (abort, registration) = AbortHandle::new_pair();
        if self.handles.insert(number, RequestHandle { abort, kind, bytes }).is_some() {
            let why = format!("{number} names another request that is under way");
            return Err(NotBegun::Invalid(Error::invalid("number", why)));
        }
        self.waits += usize::from(may_wait);
        *self.bytes(kind) += bytes;

        if is_blocked {
            let permit = Box::pin(Arc::clone(&self.memory.short).acquire_many_owned(permits));
            self.blocked = Some(BlockedRequest { number, asked, registration, permit });
        } else {
            self.running.push(Abortable::new((self.start)(number, asked, permit), registration));
        }
        Ok(())
    }

    /// Breaks off a request, which has no answer then. Without a handle, the answer is already queued.
    pub(super) fn cancel(&mut self, number: u64) {
        if let Some(abort) = self.forget(number) {
            abort.abort();
        }
        self.blocked.take_if(|blocked| blocked.number == number);
    }

    /// The next answer. It is pending while nothing is under way. No answer is lost if its future is dropped.
    pub(super) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<PipelineResponse> {
        if let Some(blocked) = &mut self.blocked
            && let Poll::Ready(permit) = blocked.permit.poll_unpin(context)
            && let Some(BlockedRequest { number, asked, registration, .. }) = self.blocked.take()
        {
            // An error would mean that the semaphore is closed, which it never is.
            self.running.push(Abortable::new((self.start)(number, asked, permit.ok()), registration));
        }

        loop {
            match ready!(self.running.poll_next_unpin(context)) {
                Some(Ok(answer)) => {
                    self.forget(answer.number);
                    return Poll::Ready(answer);
                }
                // It was cancelled.
                Some(Err(_)) => {}
                None => return Poll::Pending,
            }
        }
    }

    /// The numbers and kinds of all requests under way.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (u64, RequestKind)> {
        self.handles.iter().map(|(number, handle)| (*number, handle.kind))
    }

    fn forget(&mut self, number: u64) -> Option<AbortHandle> {
        let RequestHandle { abort, kind, bytes } = self.handles.remove(&number)?;
        self.waits -= usize::from(kind == RequestKind::Waits);
        *self.bytes(kind) -= bytes;
        self.give_places_back();
        Some(abort)
    }

    /// The bytes that requests of this kind count towards.
    fn bytes(&mut self, kind: RequestKind) -> &mut usize {
        match kind {
            RequestKind::Waits => &mut self.waiting_bytes,
            RequestKind::Reads | RequestKind::Changes => &mut self.short_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures::future::BoxFuture;

    use super::*;
    use lockkeeper_proto::v1::{AcquireRequest, CheckRequest, Want, acquire_request::Wait};

    /// A megabyte counts.
    const LARGE: usize = (1 << 20) + SMALL;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    type Started = BoxFuture<'static, PipelineResponse>;

    /// Requests that are answered when this semaphore has permits.
    fn stream(
        memory: &RequestMemory,
        answers: &Arc<Semaphore>,
    ) -> StreamRequests<impl Fn(u64, PipelineCall, MemoryPermit) -> Started, Started> {
        stream_of(CLIENT, memory, answers)
    }

    /// The same for a client at this address.
    fn stream_of(
        client: IpAddr,
        memory: &RequestMemory,
        answers: &Arc<Semaphore>,
    ) -> StreamRequests<impl Fn(u64, PipelineCall, MemoryPermit) -> Started, Started> {
        let answers = Arc::clone(answers);
        StreamRequests::new(memory.clone(), client, move |number, _asked, permit| {
            let answers = Arc::clone(&answers);
            async move {
                let _permit = permit;
                answers.acquire().await.expect("it is open").forget();
                PipelineResponse { number, ..PipelineResponse::default() }
            }
            .boxed()
        })
    }

    fn acquire(bytes: usize, wait: Option<Wait>) -> PipelineCall {
        let want = Want { data: Some(vec![7; bytes]), ..Want::default() };
        PipelineCall::Acquire(AcquireRequest { locks: vec![want], wait, ..AcquireRequest::default() })
    }

    fn small() -> PipelineCall {
        PipelineCall::Check(CheckRequest { name: "x".repeat(512), ..CheckRequest::default() })
    }

    async fn answered<S, F>(stream: &mut StreamRequests<S, F>) -> u64
    where
        S: Fn(u64, PipelineCall, MemoryPermit) -> F,
        F: Future<Output = PipelineResponse>,
    {
        poll_fn(|context| stream.poll_answer(context)).await.number
    }

    #[tokio::test]
    async fn a_stream_is_not_read_on_while_its_large_requests_take_too_much_memory() {
        let memory = RequestMemory::new(PipelineLimits::REAL);
        let answers = Arc::new(Semaphore::new(0));
        let mut stream = stream(&memory, &answers);
        for number in 0..4 {
            assert!(stream.has_room(), "{number}");
            assert_eq!(stream.begin(number, acquire(LARGE, None)), Ok(()));
        }
        assert!(!stream.has_room());

        answers.add_permits(1);
        let first = answered(&mut stream).await;
        assert!(stream.has_room());
        assert_eq!(stream.begin(first, acquire(2 * LARGE, None)), Ok(()));
        assert!(!stream.has_room());
        stream.cancel(first);
        assert!(stream.has_room() && !stream.is_empty());
    }

    #[tokio::test]
    async fn the_node_s_memory_blocks_large_requests_alone_and_one_after_the_other() {
        let memory = RequestMemory::new(PipelineLimits { node_bytes: LARGE, ..PipelineLimits::REAL });
        let answers = Arc::new(Semaphore::new(0));
        let [mut first, mut second, mut third] = [(); 3].map(|()| stream(&memory, &answers));
        assert_eq!(first.begin(1, acquire(LARGE, None)), Ok(()));
        assert_eq!(second.begin(1, acquire(LARGE, None)), Ok(()));
        assert!(first.has_room() && !second.has_room());
        assert!(poll_fn(|context| second.poll_answer(context)).now_or_never().is_none());
        assert_eq!(third.begin(1, small()), Ok(()));
        assert!(third.has_room());

        answers.add_permits(1);
        assert_eq!(answered(&mut third).await, 1, "a small one needs no memory");
        answers.add_permits(2);
        assert_eq!(answered(&mut first).await, 1);
        assert_eq!(answered(&mut second).await, 1);
        assert!(second.has_room() && second.is_empty());
        assert_eq!(memory.short.available_permits(), LARGE);
    }

    /// Begins as many small requests as there is room for, and returns their number.
    fn fill<S: Fn(u64, PipelineCall, MemoryPermit) -> Started>(stream: &mut StreamRequests<S, Started>) -> usize {
        let mut begun = 0;
        while stream.has_room() {
            assert_eq!(stream.begin(begun, small()), Ok(()));
            begun += 1;
        }
        usize::try_from(begun).expect("few")
    }

    #[tokio::test]
    async fn the_tasks_of_small_requests_that_are_not_answered_are_limited_for_the_node() {
        let memory = RequestMemory::new(PipelineLimits::REAL);
        let answers = Arc::new(Semaphore::new(0));
        let task = size_of::<Started>() + BESIDE_TASK_BYTES;
        let mut streams: Vec<_> = (0..100).map(|_| stream(&memory, &answers)).collect();
        let begun: usize = streams.iter_mut().map(fill).sum();
        // The first bytes of each stream do not count, nor does its first request.
        assert!(begun * task <= NODE_TASKS_BYTES / 2 + streams.len() * 4 * task, "{begun} requests of one address");
        assert!(begun >= 4 * SHORT, "{begun} requests");

        // Each further stream has one request under way, and goes on with each answer.
        let read = Arc::new(Semaphore::new(0));
        let mut late = stream(&memory, &read);
        for _ in 0..3 {
            assert_eq!(fill(&mut late), 1);
            read.add_permits(1);
            answered(&mut late).await;
        }
        // Another address has its share.
        let mut other = stream_of(IpAddr::from([10, 0, 0, 1]), &memory, &read);
        assert_eq!(fill(&mut other), SHORT);

        drop(streams);
        assert_eq!(fill(&mut late), SHORT);
    }

    #[tokio::test]
    async fn a_stream_without_requests_holds_no_memory_for_tasks() {
        let memory = RequestMemory::new(PipelineLimits::REAL);
        let answers = Arc::new(Semaphore::new(0));
        let mut idle = stream(&memory, &answers);
        assert_eq!(fill(&mut idle), SHORT);
        answers.add_permits(SHORT);
        for left in (0..SHORT).rev() {
            answered(&mut idle).await;
            assert!(idle.places <= left.max(1) + 2 * PLACES_AT_ONCE, "{} places for {left} requests", idle.places);
        }
        assert_eq!(idle.places, 1);
    }

    #[tokio::test]
    async fn a_blocked_request_can_be_cancelled() {
        let memory = RequestMemory::new(PipelineLimits { node_bytes: LARGE, ..PipelineLimits::REAL });
        let answers = Arc::new(Semaphore::new(0));
        let [mut first, mut second] = [(); 2].map(|()| stream(&memory, &answers));
        assert_eq!(first.begin(1, acquire(LARGE, None)), Ok(()));
        assert_eq!(second.begin(7, acquire(LARGE, None)), Ok(()));
        assert_eq!(second.numbers().collect::<Vec<_>>(), [(7, RequestKind::Changes)]);
        second.cancel(7);
        assert!(second.has_room() && second.is_empty());
        drop(first);
        assert_eq!(memory.short.available_permits(), LARGE);
    }

    #[tokio::test]
    async fn waiting_requests_beyond_their_memory_are_refused_and_delay_no_release() {
        let memory = RequestMemory::new(PipelineLimits::REAL);
        let answers = Arc::new(Semaphore::new(0));
        let mut stream = stream(&memory, &answers);
        let wait = || acquire(LARGE, Some(Wait::WaitForever(true)));
        let most = (WAITING_BYTES / LARGE) as u64;
        for number in 0..most {
            assert_eq!(stream.begin(number, wait()), Ok(()));
        }
        assert_eq!(stream.begin(most, wait()), Err(NotBegun::Overloaded));
        assert!(stream.has_room(), "what follows is read");
        assert_eq!(stream.begin(most, acquire(0, Some(Wait::WaitForever(true)))), Ok(()), "a small one has its place");
        stream.cancel(0);
        assert_eq!(stream.begin(0, wait()), Ok(()));
        assert!(matches!(stream.begin(0, small()), Err(NotBegun::Invalid(_))), "the number is in use");
    }
}
