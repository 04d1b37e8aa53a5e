//! Many requests on one stream: the second adapter of `lockkeeper.v1`.
//!
//! A unary call costs headers, trailers, an entry in the connection's tables and a task, at both ends: several times the cost of its
//! message. A pipeline pays that once for its stream. The same [`Service`] answers each request as it answers a unary call; this module
//! only numbers requests and answers, and limits the requests in flight (`in_flight`) and the answers that wait (`answers`).

mod answers;
mod in_flight;

use std::{
    future::poll_fn,
    net::{IpAddr, Ipv4Addr},
    pin::pin,
    sync::Arc,
};

use futures::TryFutureExt as _;
use tokio::task::yield_now;
use tonic::{Code, Status, Streaming};

pub use self::in_flight::PipelineLimits;
use self::{
    answers::AnswerQueue,
    in_flight::{MemoryPermit, NotBegun, RequestKind, StreamRequests},
};
pub(super) use self::{answers::Answers, in_flight::RequestMemory};
use super::unreadable::explained;
use crate::{
    api::{
        Caller, Deadline, Error,
        requests::{AcquireLocks, CheckToken, GetLock, ReleaseLocks},
    },
    service::{Serve, Service},
    wire::{Form, ReplyMessage},
};
use lockkeeper_proto::v1::{
    PipelineRequest, PipelineResponse,
    pipeline_request::What as PipelineCall,
    pipeline_response::{Failure, What as Answer},
};
use lockkeeper_raft::NoReply;

/// Number of requests that are read or answered before the task yields to others, such as the proposer. A smaller number makes batches
/// smaller, and leaves requests unread that would be refused at once.
const AT_ONCE: usize = 512;

/// Serves a stream. The requests in flight break off when it ends.
///
/// Once the service drains, no more requests are read; those in flight are answered, and then the stream ends. At the stream's deadline,
/// each request in flight is answered with an error that says so.
pub(super) fn start(
    service: Service,
    memory: RequestMemory,
    requests: Streaming<PipelineRequest>,
    caller: Caller,
) -> Answers {
    let (queue, answers) = AnswerQueue::new(memory.answers.request(address(&caller)));

    // The deadline is that of the stream, which answers for its requests.
    let deadline = caller.deadline;
    let pipeline = Arc::new(RequestPipeline { service, caller: Caller { deadline: None, ..caller } });
    tokio::spawn(async move {
        if let Err(status) = serve(pipeline, memory, requests, &queue, deadline).await {
            queue.send_last(status).await;
        }
    });
    answers
}

/// The address of a client. Only tests call without a connection.
fn address(caller: &Caller) -> IpAddr {
    caller.remote.map_or(Ipv4Addr::UNSPECIFIED.into(), |remote| remote.ip())
}

/// Returns `Ok` when the client ends the stream.
async fn serve(
    pipeline: Arc<RequestPipeline>,
    memory: RequestMemory,
    mut requests: Streaming<PipelineRequest>,
    queue: &AnswerQueue,
    deadline: Option<Deadline>,
) -> Result<(), Status> {
    let stopping = pipeline.service.stopping();
    let start = |number, asked, permit| Arc::clone(&pipeline).answer(number, asked, permit);
    let mut in_flight = StreamRequests::new(memory, address(&pipeline.caller), start);

    let mut passed = pin!(Deadline::pass(deadline));
    let mut withdrawn = pin!(Arc::clone(pipeline.service.access()).withdrawn(pipeline.caller.clone()));

    for turn in 1_usize.. {
        if stopping.is_cancelled() && in_flight.is_empty() {
            break;
        }
        // A stream that always has a request ready lets other tasks of its thread run now and then.
        if turn.is_multiple_of(AT_ONCE) {
            yield_now().await;
        }

        let reads_on = !stopping.is_cancelled() && in_flight.has_room();
        tokio::select! {
            request = requests.message(), if reads_on => {
                let PipelineRequest { number, what } = match request {
                    Ok(Some(request)) => request,
                    Ok(None) => return Ok(()),
                    // The client is gone, or it sent a message that cannot be decoded.
                    Err(status) => return explained(&status).map_or(Ok(()), |error| Err(error.into())),
                };
                match what {
                    Some(PipelineCall::Cancel(_)) => in_flight.cancel(number),
                    Some(PipelineCall::Acquire(_)) if pipeline.service.is_overloaded() => refuse(queue, number).await?,
                    Some(asked) => match in_flight.begin(number, asked) {
                        Ok(()) => {}
                        Err(NotBegun::Overloaded) => refuse(queue, number).await?,
                        Err(NotBegun::Invalid(error)) => return Err(error.into()),
                    },
                    None => return Err(Error::invalid("what", "is not set, or is of a kind that only a later version knows").into()),
                }
            }
            answer = poll_fn(|context| in_flight.poll_answer(context)) => queue.send(answer).await?,
            () = queue.closed() => return Ok(()),
            error = &mut withdrawn => return Err(error.into()),
            () = &mut passed => {
                let late: Vec<_> = in_flight.numbers().collect();
                for (number, kind) in late {
                    refuse_late(&pipeline, queue, number, kind).await?;
                }
                return Err(Error::deadline_passed(false).into());
            }
            () = stopping.cancelled(), if !stopping.is_cancelled() => {}
        }
    }
    Ok(())
}

/// Answers the requests of a stream.
struct RequestPipeline {
    service: Service,
    caller: Caller,
}

impl RequestPipeline {
    /// Answers a request, whose memory has this permit.
    #[expect(clippy::manual_async_fn, reason = "the future of an async function has what it takes twice")]
    fn answer(
        self: Arc<Self>,
        number: u64,
        asked: PipelineCall,
        memory: MemoryPermit,
    ) -> impl Future<Output = PipelineResponse> + Send {
        async move {
            let answered = match asked {
                PipelineCall::Acquire(message) => self.call::<AcquireLocks>(message).await.map(Answer::Acquire),
                PipelineCall::Release(message) => self.call::<ReleaseLocks>(message).await.map(Answer::Release),
                PipelineCall::Check(message) => self.call::<CheckToken>(message).await.map(Answer::Check),
                PipelineCall::Get(message) => self.call::<GetLock>(message).await.map(Answer::Get),
                PipelineCall::Cancel(_) => Err(Error::internal("a cancellation was taken for a request")),
            };
            drop(memory);
            answer(number, answered, self.service.leader())
        }
    }

    fn call<C: Serve>(&self, message: C::Message) -> impl Future<Output = Result<ReplyMessage<C>, Error>> + Send {
        self.service.call::<C>(&self.caller, Form::Message(message)).map_ok(Form::message)
    }
}

fn answer(number: u64, answered: Result<Answer, Error>, leader: Option<String>) -> PipelineResponse {
    let what = answered.unwrap_or_else(|error| {
        let status = Status::from(error);
        Answer::Failure(Failure {
            code: Code::into(status.code()),
            message: status.message().to_owned(),
            details: status.details().to_vec(),
        })
    });
    PipelineResponse { number, what: Some(what), leader: leader.unwrap_or_default() }
}

/// Answers a request whose deadline has passed. One that only reads is safe to send again.
async fn refuse_late(
    pipeline: &RequestPipeline,
    queue: &AnswerQueue,
    number: u64,
    kind: RequestKind,
) -> Result<(), Status> {
    let passed = Err(Error::deadline_passed(kind != RequestKind::Reads));
    queue.send(answer(number, passed, pipeline.service.leader())).await
}

async fn refuse(queue: &AnswerQueue, number: u64) -> Result<(), Status> {
    queue.send(answer(number, Err(Error::no_reply(NoReply::Overloaded)), None)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_proto::v1::AcquireRequest;

    fn size_of_future<F>(_: impl FnOnce(Arc<RequestPipeline>) -> F) -> usize {
        size_of::<F>()
    }

    fn size_of_call<F>(_: impl FnOnce(&'static Service, &'static Caller, Form<AcquireLocks>) -> F) -> usize {
        size_of::<F>()
    }

    /// A hundred thousand acquires may wait at a node. A layer that keeps the request, or carries the space for what comes before the wait,
    /// shows here.
    #[test]
    fn an_acquire_that_waits_takes_few_bytes() {
        let asked = PipelineCall::Acquire(AcquireRequest::default());
        let of_pipeline = size_of_future(|pipeline| pipeline.answer(1, asked, None));
        let of_call = size_of_call(|service, caller, request| service.call_while_known(caller, request));
        assert!(of_pipeline <= 850, "{of_pipeline} bytes");
        assert!(of_call <= 950, "{of_call} bytes");
    }
}
