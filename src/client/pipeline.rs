//! Short, frequent requests to one node, multiplexed on one stream.
//!
//! To its caller each request is a call: a future that ends with the answer and cancels the request when it is dropped.
//! The stream is opened with the first request and reopened after each break. Requests that were pending at a break
//! fail with an unknown outcome, as when a connection breaks under a call, whatever the status that ended the stream:
//! it is about the stream, and a node may have executed a request whose answer did not get out any more.
//!
//! If a node does not implement the stream (an older version, or a proxy that does not pass it), requests are sent as
//! single calls. So are those that belong to a trace: its context is metadata of a call, and the stream has no place for it.

use std::{
    collections::{HashMap, VecDeque},
    error::Error as _,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{Stream, stream};
use tokio::sync::{Notify, oneshot};
use tonic::{Code, Response, Status};

use super::credentials::{Authorized, Credentials};
use lockkeeper_proto::{
    LEADER_KEY,
    v1::{
        AcquireRequest, AcquireResponse, CheckRequest, CheckResponse, GetRequest, GetResponse, PipelineRequest,
        PipelineResponse, ReleaseRequest, ReleaseResponse,
        locks_client::LocksClient,
        pipeline_request::{Cancel, What as PipelineCall},
        pipeline_response::{Failure, What as Answer},
    },
};

/// The pipeline of one node. Clones share it.
#[derive(Clone)]
pub(crate) struct Pipeline {
    shared: Arc<SharedPipeline>,
}

struct SharedPipeline {
    channel: Authorized,
    /// The credentials of `channel`.
    credentials: Credentials,
    open: Mutex<Option<Arc<OpenStream>>>,
    is_unknown_there: AtomicBool,
}

/// An open stream.
#[derive(Default)]
struct OpenStream {
    state: Mutex<PipelineState>,
    /// Wakes the sender: there is a request to send, or the stream is over.
    changed: Notify,
}

#[derive(Default)]
struct PipelineState {
    last: u64,
    /// At most two entries for each of `answers`: the request and its cancellation.
    to_send: VecDeque<PipelineRequest>,
    answers: HashMap<u64, oneshot::Sender<Result<PipelineResponse, Status>>>,
    is_over: bool,
}

/// A pending request. On drop it is cancelled.
struct Pending {
    number: u64,
    open: Arc<OpenStream>,
    answer: oneshot::Receiver<Result<PipelineResponse, Status>>,
    is_answered: bool,
}

/// Makes the method for one kind of request: on the stream, or as a single call if the node does not implement the
/// stream.
macro_rules! method {
    ($method:ident, $kind:ident, $request:ty, $response:ty) => {
        pub(crate) fn $method(
            &self,
            request: $request,
        ) -> impl Future<Output = Result<Response<$response>, Status>> + Send + use<> {
            let shared = Arc::clone(&self.shared);

            async move {
                if !shared.is_unknown_there.load(Ordering::Relaxed) && shared.credentials.traceparent().is_none() {
                    match shared.ask(PipelineCall::$kind(request.clone())).await {
                        Err(status) if status.code() == Code::Unimplemented => {
                            shared.is_unknown_there.store(true, Ordering::Relaxed);
                        }
                        Err(status) => return Err(status),
                        Ok((Answer::$kind(answer), leader)) => return Ok(named(answer, &leader)),
                        Ok(_) => return Err(Status::internal("the answer is to another request")),
                    }
                }
                LocksClient::new(shared.channel.clone()).$method(request).await
            }
        }
    };
}

impl Pipeline {
    /// A pipeline on this channel, which adds these credentials.
    pub(crate) fn on(channel: Authorized, credentials: Credentials) -> Self {
        let is_unknown_there = AtomicBool::new(false);
        Self { shared: Arc::new(SharedPipeline { channel, credentials, open: Mutex::default(), is_unknown_there }) }
    }

    method!(acquire, Acquire, AcquireRequest, AcquireResponse);
    method!(release, Release, ReleaseRequest, ReleaseResponse);
    method!(check, Check, CheckRequest, CheckResponse);
    method!(get, Get, GetRequest, GetResponse);
}

impl SharedPipeline {
    async fn ask(&self, asked: PipelineCall) -> Result<(Answer, String), Status> {
        let mut pending = self.send(asked);
        let answer = (&mut pending.answer).await;
        pending.is_answered = true;

        let PipelineResponse { what, leader, .. } = answer.unwrap_or_else(|_| Err(broken()))?;
        match what {
            Some(Answer::Failure(Failure { code, message, details })) => {
                let mut status = Status::with_details(Code::from_i32(code), message, details.into());
                if let Ok(leader) = leader.parse() {
                    status.metadata_mut().insert(LEADER_KEY, leader);
                }
                Err(status)
            }
            Some(answer) => Ok((answer, leader)),
            None => Err(Status::unknown("the answer is empty: it may be one that only a later version knows")),
        }
    }

    /// Sends the request on the open stream, or opens one.
    fn send(&self, asked: PipelineCall) -> Pending {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = Some(asked);
        if let Some(pending) = open.as_ref().and_then(|open| open.send(&mut asked)) {
            return pending;
        }
        let new = open.insert(Arc::default());
        let pending = new.send(&mut asked).expect("a new stream is not over");
        tokio::spawn(serve(self.channel.clone(), Arc::clone(new)));
        pending
    }
}

impl Drop for SharedPipeline {
    fn drop(&mut self) {
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(open) = open {
            open.end(&broken());
        }
    }
}

impl OpenStream {
    /// Takes the request and sends it; leaves it if the stream is over.
    fn send(self: &Arc<Self>, asked: &mut Option<PipelineCall>) -> Option<Pending> {
        let mut state = self.state();
        if state.is_over {
            return None;
        }

        let (answer, receiver) = oneshot::channel();
        state.last += 1;
        let number = state.last;
        state.answers.insert(number, answer);
        state.to_send.push_back(PipelineRequest { number, what: asked.take() });

        drop(state);
        self.changed.notify_one();
        Some(Pending { number, open: Arc::clone(self), answer: receiver, is_answered: false })
    }

    fn answered(&self, answer: PipelineResponse) {
        let waiting = self.state().answers.remove(&answer.number);
        if let Some(waiting) = waiting {
            // An error here means that the caller is gone.
            let _ = waiting.send(Ok(answer));
        }
    }

    /// Fails all pending requests with this status.
    fn end(&self, why: &Status) {
        let mut state = self.state();
        state.is_over = true;
        state.to_send.clear();
        let waiting = mem::take(&mut state.answers);
        drop(state);
        self.changed.notify_one();
        for waiting in waiting.into_values() {
            let _ = waiting.send(Err(why.clone()));
        }
    }

    /// A poisoned mutex is used all the same: no code panics while it holds the lock.
    fn state(&self) -> MutexGuard<'_, PipelineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let mut state = self.open.state();
        if state.answers.remove(&self.number).is_none() {
            return;
        }

        let unsent = state.to_send.iter().rposition(|request| request.number == self.number);
        if let Some(place) = unsent {
            state.to_send.remove(place);
            return;
        }
        let cancel = PipelineRequest { number: self.number, what: Some(PipelineCall::Cancel(Cancel {})) };
        state.to_send.push_back(cancel);
        drop(state);
        self.open.changed.notify_one();
    }
}

/// The requests, in the order in which they are made. Ends with the stream.
fn requests(open: Arc<OpenStream>) -> impl Stream<Item = PipelineRequest> + Send {
    stream::unfold(open, async |open| {
        loop {
            {
                let mut state = open.state();
                if let Some(request) = state.to_send.pop_front() {
                    drop(state);
                    return Some((request, open));
                }
                if state.is_over {
                    return None;
                }
            }

            // A notification that comes before this line is kept for it.
            open.changed.notified().await;
        }
    })
}

/// Opens a stream and distributes its answers until it ends.
async fn serve(channel: Authorized, open: Arc<OpenStream>) {
    let why = match LocksClient::new(channel).pipeline(requests(Arc::clone(&open))).await {
        Ok(answers) => {
            let mut answers = answers.into_inner();
            loop {
                match answers.message().await {
                    Ok(Some(answer)) => open.answered(answer),
                    Ok(None) => break broken(),
                    Err(why) => break interruption(why),
                }
            }
        }
        Err(why) => why,
    };

    open.end(&why);
}

/// The status for the requests that were pending when this one ended an open stream. A refusal, such as that of a token which was withdrawn
/// meanwhile, refuses none of them: taken for their answer, it would say that nothing happened, while an acquire may have been granted.
fn interruption(why: Status) -> Status {
    // An error that this side made when the connection broke is known as one already, by its cause. What is not known there is sent again
    // as single calls, under the same ids.
    if why.source().is_some() || why.code() == Code::Unimplemented {
        return why;
    }
    Status::unavailable(format!("the stream of answers was ended: {}", why.message()))
}

fn broken() -> Status {
    Status::unavailable("the stream of answers broke off")
}

/// The response of a call: an answer with the leader in its metadata.
fn named<T>(answer: T, leader: &str) -> Response<T> {
    let mut response = Response::new(answer);
    if !leader.is_empty()
        && let Ok(leader) = leader.parse()
    {
        response.metadata_mut().insert(LEADER_KEY, leader);
    }
    response
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;
    use crate::error::AttemptFailure;

    fn failure(ended_by: Status) -> AttemptFailure {
        interruption(ended_by).into()
    }

    /// Without it, the caller of an acquire that was granted a moment before would be told that it was refused.
    #[test]
    fn a_refusal_that_ends_an_open_stream_says_nothing_of_its_requests() {
        for (code, reason, retry) in [
            (Code::Unauthenticated, "UNAUTHENTICATED", "no"),
            (Code::InvalidArgument, "INVALID_ARGUMENT", "no"),
            (Code::Unavailable, "NO_LEADER", "safe"),
            (Code::ResourceExhausted, "DISK_SPACE_LOW", "safe"),
        ] {
            let about = HashMap::from([("retry".to_owned(), retry.to_owned())]);
            let details = ErrorDetails::with_error_info(reason, "lockkeeper.v1", about);
            let failure = failure(Status::with_error_details(code, "because", details));
            let AttemptFailure::Again { unknown: true, why, .. } = failure else { panic!("{reason}: {failure:?}") };
            assert!(why.ends_with("because"), "{why}");
        }

        let from_a_proxy = failure(Status::unauthenticated("who are you?"));
        assert!(matches!(from_a_proxy, AttemptFailure::Again { unknown: true, .. }), "{from_a_proxy:?}");
    }

    /// Otherwise it would be sent on streams for ever to a proxy that says so late.
    #[test]
    fn a_stream_that_is_not_implemented_is_still_known_as_one() {
        assert_eq!(interruption(Status::unimplemented("no streams here")).code(), Code::Unimplemented);
    }

    #[test]
    fn a_connection_that_broke_under_a_stream_keeps_its_cause() {
        let mut broke = Status::unknown("transport error");
        broke.set_source(Arc::new(std::io::Error::other("connection reset by peer")));
        let failure = failure(broke);
        let AttemptFailure::Again { unknown: true, why, .. } = failure else { panic!("{failure:?}") };
        assert_eq!(why, "connection reset by peer");
    }
}
