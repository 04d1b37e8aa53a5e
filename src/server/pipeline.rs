//! Many requests on one stream.
//!
//! A unary call costs its headers, its trailers, a place in the connection's books and a task of its own, at both ends; that is several
//! times what its message costs. Here the stream pays for all of that once. Each request is still what it would be as a call, answered
//! by the same services: this module only numbers them.

use std::{collections::HashMap, pin::pin, sync::Arc};

use futures::{
    StreamExt,
    future::{AbortHandle, Abortable},
    stream::{FuturesUnordered, Map},
};
use prost::Message as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::yield_now,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    deadline::Deadline,
    errors::{deadline_passed, invalid, no_reply},
    gateway::{Gateway, may_wait},
    unreadable::explained,
};
use crate::{
    proto::v1::{
        PipelineRequest, PipelineResponse,
        pipeline_request::What as Asked,
        pipeline_response::{Failure, What as Answer},
    },
    raft::NoReply,
};

/// Acquires of one stream that may wait, under way. Further ones are refused.
const WAITS: usize = 16_384;
/// Other requests of one stream under way. They are answered soon, so further ones are left unread until then: whoever lets go of what it has
/// is never refused.
const SHORT: usize = 8192;
/// Requests that are taken in, or answered, before others have a turn: the log among them, which must not wait for a crowd to be refused.
/// Less than this, and a crowd is neither refused soon, for it is not read, nor served as fast, for batches are smaller.
const AT_ONCE: usize = 512;
/// Answers that wait for a client that does not read them. While it does not, nothing more is read from it.
const ANSWERS: usize = 256;
/// Bytes of those among them that are larger than [`SMALL`].
const ANSWER_BYTES: usize = 512 * 1024;
const SMALL: usize = 1024;

/// An answer, and its place among the large ones.
type Queued = (Result<PipelineResponse, Status>, Option<OwnedSemaphorePermit>);
/// The answers of a stream.
pub(super) type Answers = Map<ReceiverStream<Queued>, fn(Queued) -> Result<PipelineResponse, Status>>;

/// Where answers wait for the client.
struct Queue {
    answers: mpsc::Sender<Queued>,
    bytes: Arc<Semaphore>,
}

impl Queue {
    fn new() -> (Self, Answers) {
        let (answers, queued) = mpsc::channel(ANSWERS);
        let bytes = Arc::new(Semaphore::new(ANSWER_BYTES));
        (Self { answers, bytes }, ReceiverStream::new(queued).map(|(answer, _)| answer))
    }

    /// Waits until there is room. Fails when the client is gone.
    async fn send(&self, answer: PipelineResponse) -> Result<(), Status> {
        let bytes = answer.encoded_len();
        let place = match bytes > SMALL {
            true => {
                let bytes = u32::try_from(bytes.min(ANSWER_BYTES)).expect("there are not so many");
                let place = Arc::clone(&self.bytes).acquire_many_owned(bytes);
                tokio::select! {
                    place = place => Some(place.expect("the semaphore is never closed")),
                    () = self.answers.closed() => None,
                }
            }
            false => None,
        };
        self.answers.send((Ok(answer), place)).await.map_err(|_| Status::cancelled("the client is gone"))
    }
}

/// Starts to serve a stream. All that is under way breaks off when it ends.
///
/// Once `stopping` is cancelled nothing more is read; what is under way is answered, and then the stream ends. At its `deadline` what is
/// under way is told so.
pub(super) fn start(
    gateway: Gateway,
    requests: Streaming<PipelineRequest>,
    deadline: Option<Deadline>,
    stopping: CancellationToken,
) -> Answers {
    let (queue, answers) = Queue::new();
    let gateway = Arc::new(gateway);
    tokio::spawn(async move {
        if let Err(status) = serve(gateway, requests, &queue, deadline, &stopping).await {
            // An error says that the client is gone.
            let _ = queue.answers.send((Err(status), None)).await;
        }
    });
    answers
}

/// Ends with `Ok` when the client does.
async fn serve(
    gateway: Arc<Gateway>,
    mut requests: Streaming<PipelineRequest>,
    queue: &Queue,
    deadline: Option<Deadline>,
    stopping: &CancellationToken,
) -> Result<(), Status> {
    let mut under_way = FuturesUnordered::new();
    let mut handles: HashMap<u64, (AbortHandle, Kind)> = HashMap::new();
    let mut waits = 0;
    let mut passed = pin!(Deadline::pass(deadline));
    for turn in 1_usize.. {
        if stopping.is_cancelled() && under_way.is_empty() {
            break;
        }
        if turn.is_multiple_of(AT_ONCE) {
            yield_now().await;
        }
        tokio::select! {
            request = requests.message(), if !stopping.is_cancelled() && handles.len() - waits < SHORT => {
                let PipelineRequest { number, what } = match request {
                    Ok(Some(request)) => request,
                    Ok(None) => return Ok(()),
                    // It is gone, or what it sent cannot be read.
                    Err(status) => return explained(&status).map_or(Ok(()), Err),
                };
                match what {
                    Some(Asked::Cancel(_)) => {
                        // `None`: its answer is on its way.
                        if let Some((handle, kind)) = handles.remove(&number) {
                            handle.abort();
                            waits -= usize::from(kind == Kind::Waits);
                        }
                    }
                    Some(Asked::Acquire(_)) if gateway.is_overloaded() => refuse(queue, number).await?,
                    Some(asked) => {
                        let kind = Kind::of(&asked);
                        if kind == Kind::Waits && waits >= WAITS {
                            refuse(queue, number).await?;
                            continue;
                        }
                        let (handle, registration) = AbortHandle::new_pair();
                        if handles.insert(number, (handle, kind)).is_some() {
                            return Err(invalid("number", format!("{number} names another request that is under way")));
                        }
                        waits += usize::from(kind == Kind::Waits);
                        let answered = ask(Arc::clone(&gateway), number, asked);
                        under_way.push(Abortable::new(answered, registration));
                    }
                    None => return Err(invalid("what", "is not set, or is what only a later version knows")),
                }
            }
            Some(answered) = under_way.next() => {
                // An error says that it was cancelled.
                if let Ok(answer) = answered {
                    if let Some((_, kind)) = handles.remove(&answer.number) {
                        waits -= usize::from(kind == Kind::Waits);
                    }
                    queue.send(answer).await?;
                }
            }
            () = queue.answers.closed() => return Ok(()),
            () = &mut passed => {
                for (number, (_, kind)) in handles {
                    let passed = Err(deadline_passed(kind == Kind::Reads));
                    queue.send(answer(number, passed, gateway.leader())).await?;
                }
                return Err(deadline_passed(true));
            }
            () = stopping.cancelled(), if !stopping.is_cancelled() => {}
        }
    }
    Ok(())
}

/// What is to be known of a request that is under way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It changes nothing.
    Reads,
    Changes,
    /// It changes something, and may be answered late.
    Waits,
}

impl Kind {
    fn of(asked: &Asked) -> Self {
        match asked {
            Asked::Check(_) | Asked::Get(_) => Self::Reads,
            Asked::Acquire(acquire) if may_wait(acquire) => Self::Waits,
            Asked::Acquire(_) | Asked::Release(_) | Asked::Cancel(_) => Self::Changes,
        }
    }
}

async fn ask(gateway: Arc<Gateway>, number: u64, asked: Asked) -> PipelineResponse {
    let answered = gateway.answer(asked).await;
    answer(number, answered, gateway.leader())
}

fn answer(number: u64, answered: Result<Answer, Status>, leader: Option<String>) -> PipelineResponse {
    let what = answered.unwrap_or_else(|status| {
        Answer::Failure(Failure {
            code: Code::into(status.code()),
            message: status.message().to_owned(),
            details: status.details().to_vec(),
        })
    });
    PipelineResponse { number, what: Some(what), leader: leader.unwrap_or_default() }
}

async fn refuse(queue: &Queue, number: u64) -> Result<(), Status> {
    queue.send(answer(number, Err(no_reply(NoReply::Overloaded)), None)).await
}
