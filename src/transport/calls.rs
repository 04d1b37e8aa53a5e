//! The calls of a connection: counted while they are open, and passed to a service with their message.
//!
//! A call that sends headers without a message costs its client almost nothing, while a service allocates memory for the message at once.
//! So only [`Settings::without_message_max`](super::Settings::without_message_max) calls of a connection are passed to a service before
//! the first bytes of their message arrive; the others wait outside. A service that waits for a message is ended after
//! [`FIRST_MESSAGE_TIMEOUT`]. A service that has answered already (its client sends a stream) is not: its client may have nothing to
//! send yet.
//!
//! A request that is one message ([`Settings::request_bytes_max`](super::Settings::request_bytes_max)) has arrived when it has ended, and a
//! service sees nothing of it before (`whole_request`).
//!
//! The bytes of a message are memory from its first byte on, so they count against a limit of the port ([`ArrivingBytes`]): those of the
//! request until it is answered, and then those of a message that is not complete.
//!
//! A request by HTTP/1 is not gRPC's (but etcd's JSON): it has a message with the first bytes of its body, since its service knows when it
//! is complete, and has a limit of its own for the rest. A refusal here has the form of the request's protocol.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures::future::poll_fn;
use hyper::{
    Request, Response, StatusCode, Version,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tonic::{Status, body::Body};
use tower::{Service, ServiceExt as _};

use super::{
    connection::Remote,
    settings::FIRST_MESSAGE_TIMEOUT,
    whole_request::{BodyError, BodyPart, PREFIX_BYTES, WholeRequest},
};
use lockkeeper_accept::{ArrivingBytes, ArrivingRequest, NoSlot, OpenCall, Slot, TooManyBytes};

/// The state that the calls of one connection share.
#[derive(Clone, Debug)]
pub(super) struct CallHandler<V> {
    pub(super) slot: Arc<Slot>,
    pub(super) remote: Remote,
    /// Permits for calls that are passed to the service without a message.
    pub(super) without_message: Arc<Semaphore>,
    pub(super) arriving: ArrivingBytes,
    /// See [`Settings::request_bytes_max`](super::Settings::request_bytes_max).
    pub(super) request_bytes_max: fn(&str) -> Option<usize>,
    pub(super) service: V,
}

impl<V> CallHandler<V>
where
    V: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
{
    /// Answers a call.
    pub(super) async fn answer(self, request: Request<Incoming>) -> Result<Response<ResponseBody>, Infallible> {
        let is_grpc = request.version() == Version::HTTP_2;
        let call = match self.slot.call() {
            Ok(call) => call,
            Err(full) => return Ok(answer(refused(full).into_response(is_grpc), None)),
        };

        let whole = if is_grpc { (self.request_bytes_max)(request.uri().path()).map(WholeRequest::new) } else { None };
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(self.remote.clone());

        let progress = Arc::new(RequestProgress::new(self.arriving.request(self.slot.origin())));
        let messages = (is_grpc && whole.is_none()).then(ArrivingMessages::default);
        let permit = self.without_message.try_acquire_owned().ok();
        let arrival = BodyArrival { messages, bytes: 0, progress: Arc::clone(&progress), permit };
        let mut request_body = RequestBody { body, first: None, whole, arrival };

        // Without a permit the call waits here for its first frame, or for all of a request that is one message, where it costs almost
        // nothing. The service is called once that is there.
        if request_body.arrival.permit.is_none() {
            let begun = timeout(FIRST_MESSAGE_TIMEOUT, poll_fn(|context| request_body.poll_begun(context)));
            if begun.await.is_err() {
                return Ok(answer(no_message().into_response(is_grpc), Some(call)));
            }
        }

        let answered = self.service.oneshot(Request::from_parts(parts, Body::new(request_body)));
        let mut answered = pin!(answered);

        // A service that has part of the message knows itself how long to wait for the rest.
        let response = match timeout(FIRST_MESSAGE_TIMEOUT, &mut answered).await {
            Ok(response) => response?,
            Err(_) if progress.has_message.load(Relaxed) => answered.await?,
            Err(_) => no_message().into_response(is_grpc),
        };

        progress.answered();
        if self.remote.must_finish() {
            self.slot.finish();
        }
        Ok(answer(response, Some(call)))
    }
}

fn answer(response: Response<Body>, call: Option<OpenCall>) -> Response<ResponseBody> {
    response.map(|body| ResponseBody { body, _call: call })
}

/// A call that no service gets to see, in the words of gRPC and of HTTP.
struct RefusedCall(Status, StatusCode);

impl RefusedCall {
    fn into_response(self, is_grpc: bool) -> Response<Body> {
        let Self(status, code) = self;
        if is_grpc {
            return status.into_http();
        }
        let mut response = Response::new(Body::new(status.message().to_owned()));
        *response.status_mut() = code;
        response
    }
}

fn refused(full: NoSlot) -> RefusedCall {
    let most = full.established_max;
    let status = Status::resource_exhausted(format!(
        "all {most} slots for connections of this node are in use: close connections, or use another node of the cluster"
    ));
    RefusedCall(status, StatusCode::SERVICE_UNAVAILABLE)
}

fn no_message() -> RefusedCall {
    let seconds = FIRST_MESSAGE_TIMEOUT.as_secs();
    let status = Status::deadline_exceeded(format!(
        "no message arrived, or not all of the request, within {seconds} s of the call's headers, so the call had no effect: send the \
         message with the call, and end the request if it is one message"
    ));
    RefusedCall(status, StatusCode::REQUEST_TIMEOUT)
}

/// How far a request has come: shared by its body and its call.
#[derive(Debug)]
struct RequestProgress {
    has_message: AtomicBool,
    is_answered: AtomicBool,
    held: Mutex<ArrivingRequest>,
}

impl RequestProgress {
    fn new(request: ArrivingRequest) -> Self {
        Self { has_message: AtomicBool::new(false), is_answered: AtomicBool::new(false), held: Mutex::new(request) }
    }

    /// The answer has begun: what has arrived is the service's business from now on.
    fn answered(&self) {
        self.is_answered.store(true, Relaxed);
        self.held().release();
    }

    /// No code panics while it holds the lock.
    fn held(&self) -> MutexGuard<'_, ArrivingRequest> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a request, which notes when its first message is complete, and counts its bytes.
struct RequestBody {
    body: Incoming,
    /// The frame that was read of it before.
    first: Option<Result<Frame<Bytes>, hyper::Error>>,
    /// A request that is handed over whole.
    whole: Option<WholeRequest>,
    arrival: BodyArrival,
}

/// What has arrived of a request.
struct BodyArrival {
    /// Counts the messages of a stream of gRPC. Another body has none.
    messages: Option<ArrivingMessages>,
    /// All bytes that have arrived.
    bytes: usize,
    progress: Arc<RequestProgress>,
    permit: Option<OwnedSemaphorePermit>,
}

/// The messages of a stream, as far as they have arrived.
#[derive(Debug, Default)]
struct ArrivingMessages {
    /// Whether one is complete.
    has_one: bool,
    /// Bytes of the one that is not complete, with its prefix.
    seen: usize,
    length: usize,
}

impl ArrivingMessages {
    /// Takes further bytes of the stream.
    fn take(&mut self, mut bytes: &[u8]) {
        while bytes.has_remaining() {
            while self.seen < PREFIX_BYTES && bytes.has_remaining() {
                let byte = bytes.get_u8();
                if self.seen > 0 {
                    self.length = self.length << 8 | usize::from(byte);
                }
                self.seen += 1;
            }
            if self.seen < PREFIX_BYTES {
                return;
            }

            let missing = PREFIX_BYTES + self.length - self.seen;
            let here = missing.min(bytes.len());
            bytes.advance(here);
            self.seen += here;
            if here == missing {
                *self = Self { has_one: true, ..Self::default() };
            }
        }
    }
}

impl BodyArrival {
    fn message_is_complete(&mut self) {
        self.progress.has_message.store(true, Relaxed);
        self.permit = None;
    }

    /// Notes a frame; one without data ends the body. Fails if too many bytes wait. Of a request that is handed over whole (`is_whole`),
    /// only the end completes the message.
    fn note(&mut self, data: Option<&[u8]>, is_whole: bool) -> Result<(), TooManyBytes> {
        let (is_complete, unfinished) = match (data, &mut self.messages) {
            (Some(data), Some(messages)) => {
                messages.take(data);
                (messages.has_one, messages.seen)
            }
            (Some(_), None) if is_whole => (false, 0),
            // A stream by HTTP/1 has messages of its service's, which takes them as they come.
            _ => (true, 0),
        };
        if is_complete && !self.progress.has_message.load(Relaxed) {
            self.message_is_complete();
        }

        self.bytes = self.bytes.saturating_add(data.map_or(0, <[u8]>::len));
        let mut held = self.progress.held();
        let is_answered = self.progress.is_answered.load(Relaxed);
        held.hold(if is_answered { unfinished } else { self.bytes })
    }

    /// Notes what was read of the body, and refuses it if too many bytes wait.
    fn noted(&mut self, frame: Option<Result<Frame<Bytes>, hyper::Error>>, is_whole: bool) -> BodyPart {
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        match self.note(data.map(|data| &data[..]), is_whole) {
            Ok(()) => frame.map(|frame| frame.map_err(Into::into)),
            Err(too_many) => Some(Err(Status::resource_exhausted(too_many.to_string()).into())),
        }
    }
}

impl RequestBody {
    /// It is ready once a frame has arrived or, of a request that is handed over whole, its end.
    fn poll_begun(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Self { body, first, whole, arrival } = self;
        let Some(whole) = whole else {
            *first = ready!(Pin::new(body).poll_frame(context));
            return Poll::Ready(());
        };
        whole.poll_arrival(context, |context| {
            Pin::new(&mut *body).poll_frame(context).map(|frame| arrival.noted(frame, true))
        })
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<BodyPart> {
        if self.whole.is_some() {
            ready!(self.poll_begun(context));
            return Poll::Ready(self.whole.as_mut().and_then(WholeRequest::next_part));
        }

        let frame = match self.first.take() {
            Some(first) => Some(first),
            None => ready!(Pin::new(&mut self.body).poll_frame(context)),
        };
        Poll::Ready(self.arrival.noted(frame, false))
    }

    fn is_end_stream(&self) -> bool {
        match &self.whole {
            Some(whole) => whole.is_handed_over(),
            None => self.first.is_none() && self.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.whole, &self.first) {
            (None, None) => self.body.size_hint(),
            (Some(_), _) | (None, Some(_)) => SizeHint::default(),
        }
    }
}

/// The body of an answer. Its call is open until the body is sent or dropped.
pub(super) struct ResponseBody {
    body: Body,
    _call: Option<OpenCall>,
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_there_with_its_last_byte() {
        let bytes = [0, 0, 0, 1, 2].into_iter().chain([7; 258]).collect::<Vec<u8>>();
        let mut messages = ArrivingMessages::default();
        let complete: Vec<bool> = bytes
            .iter()
            .map(|byte| {
                messages.take(&[*byte]);
                messages.has_one
            })
            .collect();
        assert_eq!(complete.iter().position(|complete| *complete), Some(bytes.len() - 1));
        assert_eq!(messages.seen, 0);

        let of = |bytes: &[u8]| {
            let mut messages = ArrivingMessages::default();
            messages.take(bytes);
            (messages.has_one, messages.seen)
        };
        assert_eq!(of(&[0, 0, 0, 0, 0]), (true, 0), "an empty message is one");
        assert_eq!(of(&bytes[..bytes.len() - 1]), (false, bytes.len() - 1));
        assert_eq!(of(&bytes), (true, 0));
        assert_eq!(of(&[&bytes[..], &bytes[..7]].concat()), (true, 7), "a part of the second one");
    }

    #[test]
    fn a_refusal_is_in_the_words_of_its_protocol() {
        let grpc = no_message().into_response(true);
        let http = no_message().into_response(false);
        assert_eq!(Status::from_header_map(grpc.headers()).expect("a status").code(), tonic::Code::DeadlineExceeded);
        assert_eq!((http.status(), http.headers().len()), (StatusCode::REQUEST_TIMEOUT, 0));
    }
}
