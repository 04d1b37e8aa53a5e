//! The answers of a pipeline that wait for its client to read them: how many, and how much memory they take.
//!
//! The transport takes an answer when the client has room for it. So the answers of a client that reads nothing wait here, on each of its
//! streams: they count towards a limit of the node, of which one address may have half of what others leave. Without room, an answer waits
//! until those before it are read; a single one always has room. So who reads goes on, whatever others do.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{StreamExt as _, stream::Map};
use lockkeeper_accept::{ArrivingRequest, FREE_BYTES, TooManyBytes};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use lockkeeper_proto::v1::PipelineResponse;

/// Maximum number of answers that wait for a client that does not read them. Beyond it, no more requests are read from the client.
const ANSWERS: usize = 256;
/// Maximum total bytes of those answers that are larger than [`SMALL`].
const ANSWER_BYTES: usize = 512 * 1024;
const SMALL: usize = 1024;
/// Number of bytes in whose multiples the answers of a stream count for the node, so that most answers touch no other stream's count.
const COUNTED_BYTES: usize = 16 << 10;

/// An answer that waits.
pub(crate) struct QueuedAnswer {
    answer: Result<PipelineResponse, Status>,
    /// The permit for its bytes if it is large.
    _place: Option<OwnedSemaphorePermit>,
    /// Its part in the limit of the node. The last answer, which is an error, has none.
    _waiting: Option<AnswerPlace>,
}

/// The answers of a stream.
pub(crate) type Answers = Map<ReceiverStream<QueuedAnswer>, fn(QueuedAnswer) -> Result<PipelineResponse, Status>>;

/// The answers that wait for the client.
pub(super) struct AnswerQueue {
    answers: mpsc::Sender<QueuedAnswer>,
    bytes: Arc<Semaphore>,
    waiting: Arc<Mutex<QueuedBytes>>,
}

/// The bytes of the answers of one stream that wait, and its share in the limit of the node.
#[derive(Debug)]
struct QueuedBytes {
    bytes: usize,
    held: ArrivingRequest,
}

/// The bytes of one answer. They are given back when this is dropped.
#[derive(Debug)]
struct AnswerPlace {
    waiting: Arc<Mutex<QueuedBytes>>,
    bytes: usize,
}

impl AnswerQueue {
    /// An empty queue, which counts in this share, and its other end.
    pub(super) fn new(held: ArrivingRequest) -> (Self, Answers) {
        let (answers, queued) = mpsc::channel(ANSWERS);
        let bytes = Arc::new(Semaphore::new(ANSWER_BYTES));
        let waiting = Arc::new(Mutex::new(QueuedBytes { bytes: 0, held }));
        (Self { answers, bytes, waiting }, ReceiverStream::new(queued).map(|queued| queued.answer))
    }

    /// Waits until the queue has room. Fails when the client is gone.
    pub(super) async fn send(&self, answer: PipelineResponse) -> Result<(), Status> {
        let bytes = answer.encoded_len();
        let place = if bytes > SMALL {
            // An answer that is larger than all of them takes all.
            let bytes = u32::try_from(bytes.min(ANSWER_BYTES)).expect("there are not so many");
            let place = Arc::clone(&self.bytes).acquire_many_owned(bytes);
            tokio::select! {
                place = place => Some(place.expect("the semaphore is never closed")),
                () = self.answers.closed() => None,
            }
        } else {
            None
        };

        let waiting = self.count(bytes + size_of::<QueuedAnswer>()).await?;
        let queued = QueuedAnswer { answer: Ok(answer), _place: place, _waiting: Some(waiting) };
        self.answers.send(queued).await.map_err(gone)
    }

    /// Sends the error with which the stream ends. Waits until the queue has a place. If it fails, the client is gone.
    pub(super) async fn send_last(&self, error: Status) {
        let queued = QueuedAnswer { answer: Err(error), _place: None, _waiting: None };
        let _ = self.answers.send(queued).await;
    }

    /// Returns once the client is gone.
    pub(super) async fn closed(&self) {
        self.answers.closed().await;
    }

    /// Counts an answer. Waits until all others are read if the node has no room for it.
    async fn count(&self, bytes: usize) -> Result<AnswerPlace, Status> {
        if lock(&self.waiting).add(bytes).is_err() {
            drop(self.answers.reserve_many(ANSWERS).await.map_err(gone)?);
            lock(&self.waiting).add_anyway(bytes);
        }
        Ok(AnswerPlace { waiting: Arc::clone(&self.waiting), bytes })
    }
}

fn gone<E>(_: E) -> Status {
    Status::cancelled("the client closed the pipeline")
}

impl QueuedBytes {
    fn add(&mut self, more: usize) -> Result<(), TooManyBytes> {
        self.held.grow(counted(self.bytes + more))?;
        self.bytes += more;
        Ok(())
    }

    /// Counts as much of them as there is room for.
    fn add_anyway(&mut self, more: usize) {
        self.bytes += more;
        let _ = self.held.grow(counted(self.bytes));
    }

    fn take(&mut self, less: usize) {
        self.bytes -= less;
        // If there was no room for them, fewer were counted.
        let _ = self.held.grow(counted(self.bytes));
    }
}

impl Drop for AnswerPlace {
    fn drop(&mut self) {
        lock(&self.waiting).take(self.bytes);
    }
}

/// The number that counts for the node. A few small answers count for nothing.
fn counted(bytes: usize) -> usize {
    if bytes <= FREE_BYTES { 0 } else { bytes.next_multiple_of(COUNTED_BYTES) }
}

/// Locks. No code panics while it holds the lock.
fn lock(waiting: &Mutex<QueuedBytes>) -> MutexGuard<'_, QueuedBytes> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use lockkeeper_accept::ArrivingBytes;
    use lockkeeper_proto::v1::pipeline_response::{Failure, What};

    use super::*;

    /// An answer of about so many bytes.
    fn answer(number: u64, bytes: usize) -> PipelineResponse {
        let failure = Failure { details: vec![7; bytes], ..Failure::default() };
        PipelineResponse { number, what: Some(What::Failure(failure)), ..PipelineResponse::default() }
    }

    /// Sends answers until there is no room, and returns their number.
    fn fill(queue: &AnswerQueue, bytes: usize) -> usize {
        (0..).take_while(|number| matches!(queue.send(answer(*number, bytes)).now_or_never(), Some(Ok(())))).count()
    }

    /// Takes an answer that is there.
    fn read(answers: &mut Answers) -> Result<PipelineResponse, Status> {
        answers.next().now_or_never().flatten().expect("an answer")
    }

    /// Outside of a runtime, whose budget for one task would end these sends early.
    #[test]
    fn answers_that_nobody_reads_are_limited_for_the_node_and_who_reads_goes_on() {
        const LIMIT: usize = 4 << 20;
        const LARGE: usize = 16 << 10;
        let node = ArrivingBytes::new(LIMIT);
        let stream = || AnswerQueue::new(node.request([127, 0, 0, 1].into()));

        let unread: Vec<_> = (0..100).map(|_| stream()).collect();
        let sent: usize = unread.iter().map(|(queue, _)| fill(queue, LARGE)).sum();
        assert!(sent >= LIMIT / 2 / (2 * LARGE), "{sent} answers");
        assert!(sent <= LIMIT / 2 / LARGE + unread.len(), "{sent} answers");
        let small: usize = unread.iter().map(|(queue, _)| fill(queue, 0)).sum();
        assert!(small <= unread.len() * FREE_BYTES / size_of::<QueuedAnswer>(), "{small} small answers");

        // One that reads gets all of its answers, one at a time.
        let (reading, mut answers) = stream();
        for number in 0..10 {
            assert_eq!(fill(&reading, LARGE), 1);
            assert!(reading.send(answer(number, LARGE)).now_or_never().is_none());
            assert!(read(&mut answers).is_ok());
        }

        drop(unread);
        assert!(fill(&reading, LARGE) > 10, "there is room again");
    }

    #[test]
    fn what_is_read_counts_no_more() {
        let node = ArrivingBytes::new(4 << 20);
        let (queue, mut answers) = AnswerQueue::new(node.request([127, 0, 0, 1].into()));
        let sent = fill(&queue, 16 << 10);
        for _ in 0..sent {
            read(&mut answers).expect("no error");
        }
        assert_eq!(lock(&queue.waiting).bytes, 0);
        node.request([127, 0, 0, 1].into()).hold((2 << 20) + FREE_BYTES).expect("nothing else is counted");
    }
}
