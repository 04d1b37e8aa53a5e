//! The requests of a pipeline that are under way: how many, and how much memory they take.
//!
//! Requests that wait for a lock are refused beyond their limits: left unread, they would keep a release behind them unread that ends their
//! wait. All others are answered soon. Beyond their limits no further request is read, so the client waits (backpressure).
//!
//! The first [`SMALL`] bytes of a request do not count. So a usual request costs an addition or two, and the requests of one stream that
//! cannot get memory delay no small ones of others. A request is decoded before its size is known: one of each stream, that waits for the
//! node's memory, is beyond the limit.

use std::{
    collections::HashMap,
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

use crate::{
    api::Error,
    wire::{asks_to_wait, sizes::allocated_bytes},
};
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

/// The memory that the requests of all pipelines of a node may take: a permit is a byte.
#[derive(Clone, Debug)]
pub(crate) struct RequestMemory {
    short: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    most: usize,
}

impl Default for RequestMemory {
    fn default() -> Self {
        Self::new(NODE_BYTES)
    }
}

impl RequestMemory {
    /// Memory for this number of bytes of waiting requests, and as many of others.
    fn new(most: usize) -> Self {
        let [short, waiting] = [(); 2].map(|()| Arc::new(Semaphore::new(most)));
        Self { short, waiting, most }
    }

    /// A request that is larger than all of it takes all.
    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.most)).unwrap_or(u32::MAX)
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
    pub(super) fn new(memory: RequestMemory, start: S) -> Self {
        let running = FuturesUnordered::new();
        let handles = HashMap::new();
        Self { start, running, handles, waits: 0, waiting_bytes: 0, short_bytes: 0, memory, blocked: None }
    }

    /// Whether a further request may be read.
    pub(super) fn has_room(&self) -> bool {
        self.blocked.is_none() && self.handles.len() - self.waits < SHORT && self.short_bytes < SHORT_BYTES
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.blocked.is_none()
    }

    /// Begins a request, or has it wait for memory.
    pub(super) fn begin(&mut self, number: u64, asked: PipelineCall) -> Result<(), NotBegun> {
        let kind = RequestKind::from(&asked);
        let bytes = allocated_bytes(&asked).saturating_sub(SMALL);
        let may_wait = kind == RequestKind::Waits;
        if may_wait && (self.waits >= WAITS || self.waiting_bytes.saturating_add(bytes) > WAITING_BYTES) {
            return Err(NotBegun::Overloaded);
        }

        let memory = if may_wait { &self.memory.waiting } else { &self.memory.short };
        let permits = self.memory.permits(bytes);
        let permit = if bytes == 0 { None } else { Arc::clone(memory).try_acquire_many_owned(permits).ok() };
        let is_blocked = bytes > 0 && permit.is_none();
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

    type Started = BoxFuture<'static, PipelineResponse>;

    /// Requests that are answered when this semaphore has permits.
    fn stream(
        memory: &RequestMemory,
        answers: &Arc<Semaphore>,
    ) -> StreamRequests<impl Fn(u64, PipelineCall, MemoryPermit) -> Started, Started> {
        let answers = Arc::clone(answers);
        StreamRequests::new(memory.clone(), move |number, _asked, permit| {
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
        let memory = RequestMemory::default();
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
        let memory = RequestMemory::new(LARGE);
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

    #[tokio::test]
    async fn a_blocked_request_can_be_cancelled() {
        let memory = RequestMemory::new(LARGE);
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
        let memory = RequestMemory::default();
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
