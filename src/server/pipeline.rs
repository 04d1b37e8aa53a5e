//! Many requests on one stream.
//!
//! A unary call costs its headers, its trailers, a place in the connection's books and a task of its own, at both ends; that is several
//! times what its message costs. Here the stream pays for all of that once. Each request is still what it would be as a call, answered
//! by the same services: this module only numbers them.

use std::{collections::HashMap, pin::pin, sync::Arc};

use futures::{
    StreamExt,
    future::{AbortHandle, Abortable},
    stream::FuturesUnordered,
};
use tokio::{sync::mpsc, task::yield_now};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    deadline::Deadline,
    errors::{deadline_passed, invalid, no_reply},
    gateway::Gateway,
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

/// Requests of one stream under way: as many as calls on one connection.
const UNDER_WAY: usize = crate::transport::STREAMS_PER_CONNECTION_MAX as usize;
/// Requests that are taken in, or answered, before others have a turn: the log among them, which must not wait for a crowd to be refused.
/// Less than this, and a crowd is neither refused soon, for it is not read, nor served as fast, for batches are smaller.
const AT_ONCE: usize = 512;
/// Answers that wait for a client that does not read them. While it does not, nothing more is read from it.
const ANSWERS: usize = 256;

type Answers = mpsc::Sender<Result<PipelineResponse, Status>>;

/// Starts to serve a stream. All that is under way breaks off when it ends.
///
/// Once `stopping` is cancelled nothing more is read; what is under way is answered, and then the stream ends. At its `deadline` what is
/// under way is told so.
pub(super) fn start(
    gateway: Gateway,
    requests: Streaming<PipelineRequest>,
    deadline: Option<Deadline>,
    stopping: CancellationToken,
) -> ReceiverStream<Result<PipelineResponse, Status>> {
    let (answers, stream) = mpsc::channel(ANSWERS);
    let gateway = Arc::new(gateway);
    tokio::spawn(async move {
        if let Err(status) = serve(gateway, requests, &answers, deadline, &stopping).await {
            // An error says that the client is gone.
            let _ = answers.send(Err(status)).await;
        }
    });
    ReceiverStream::new(stream)
}

/// Ends with `Ok` when the client does.
async fn serve(
    gateway: Arc<Gateway>,
    mut requests: Streaming<PipelineRequest>,
    answers: &Answers,
    deadline: Option<Deadline>,
    stopping: &CancellationToken,
) -> Result<(), Status> {
    let mut under_way = FuturesUnordered::new();
    let mut handles: HashMap<u64, (AbortHandle, bool)> = HashMap::new();
    let mut passed = pin!(Deadline::pass(deadline));
    for turn in 1_usize.. {
        if stopping.is_cancelled() && under_way.is_empty() {
            break;
        }
        if turn.is_multiple_of(AT_ONCE) {
            yield_now().await;
        }
        tokio::select! {
            request = requests.message(), if !stopping.is_cancelled() => {
                let PipelineRequest { number, what } = match request {
                    Ok(Some(request)) => request,
                    Ok(None) => return Ok(()),
                    // It is gone, or what it sent cannot be read.
                    Err(status) => return explained(&status).map_or(Ok(()), Err),
                };
                match what {
                    Some(Asked::Cancel(_)) => {
                        // `None`: its answer is on its way.
                        if let Some((handle, _)) = handles.remove(&number) {
                            handle.abort();
                        }
                    }
                    Some(Asked::Acquire(_)) if gateway.is_overloaded() => refuse(answers, number).await?,
                    Some(_) if handles.len() >= UNDER_WAY => refuse(answers, number).await?,
                    Some(asked) => {
                        let (handle, registration) = AbortHandle::new_pair();
                        if handles.insert(number, (handle, reads(&asked))).is_some() {
                            return Err(invalid("number", format!("{number} names another request that is under way")));
                        }
                        let answered = ask(Arc::clone(&gateway), number, asked);
                        under_way.push(Abortable::new(answered, registration));
                    }
                    None => return Err(invalid("what", "is not set, or is what only a later version knows")),
                }
            }
            Some(answered) = under_way.next() => {
                // An error says that it was cancelled.
                if let Ok(answer) = answered {
                    handles.remove(&answer.number);
                    send(answers, answer).await?;
                }
            }
            () = answers.closed() => return Ok(()),
            () = &mut passed => {
                for (number, (_, reads)) in handles {
                    send(answers, answer(number, Err(deadline_passed(reads)), gateway.leader())).await?;
                }
                return Err(deadline_passed(true));
            }
            () = stopping.cancelled(), if !stopping.is_cancelled() => {}
        }
    }
    Ok(())
}

/// Whether a request changes nothing.
fn reads(asked: &Asked) -> bool {
    match asked {
        Asked::Check(_) | Asked::Get(_) => true,
        Asked::Acquire(_) | Asked::Release(_) | Asked::Cancel(_) => false,
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

async fn refuse(answers: &Answers, number: u64) -> Result<(), Status> {
    send(answers, answer(number, Err(no_reply(NoReply::Overloaded)), None)).await
}

async fn send(answers: &Answers, answer: PipelineResponse) -> Result<(), Status> {
    answers.send(Ok(answer)).await.map_err(|_| Status::cancelled("the client is gone"))
}
