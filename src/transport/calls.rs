//! The calls of a connection: counted while they are open, and passed to a service with their message.
//!
//! A call that sends headers without a message costs its client almost nothing, while a service allocates memory for the message at once.
//! So only [`Settings::without_message_max`](super::Settings::without_message_max) calls of a connection are passed to a service before
//! the first bytes of their message arrive; the others wait outside. A service that waits for a message is ended after
//! [`FIRST_MESSAGE_TIMEOUT`]. A service that has answered already (its client sends a stream) is not: such a client may have nothing to
//! send yet.
//!
//! A request by HTTP/1 is not gRPC's (but etcd's JSON): it has a message with the first bytes of its body, since its service knows when it
//! is complete, and has a limit of its own for the rest. What is refused here is refused in the words of its protocol.

use std::{
    convert::Infallible,
    pin::{Pin, pin},
    sync::{
        Arc,
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

use super::{connection::Remote, settings::FIRST_MESSAGE_TIMEOUT};
use lockkeeper_accept::{NoSlot, OpenCall, Slot};

/// gRPC's compression flag and the message's length.
const PREFIX_BYTES: usize = 5;

/// The state that the calls of one connection share.
#[derive(Clone, Debug)]
pub(super) struct CallHandler<V> {
    pub(super) slot: Arc<Slot>,
    pub(super) remote: Remote,
    /// Permits for calls that are passed to the service without a message.
    pub(super) without_message: Arc<Semaphore>,
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
            Err(full) => return Ok(answer(refused(full).of(is_grpc), None)),
        };
        let (mut parts, mut body) = request.into_parts();
        parts.extensions.insert(self.remote.clone());
        let mut first = None;
        let permit = match self.without_message.try_acquire_owned() {
            Ok(permit) => Some(permit),
            Err(_) => {
                let frame = timeout(FIRST_MESSAGE_TIMEOUT, poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
                match frame.await {
                    Ok(frame) => first = frame,
                    Err(_) => return Ok(answer(no_message().of(is_grpc), Some(call))),
                }
                None
            }
        };
        let has_message = Arc::new(AtomicBool::new(false));
        let message = is_grpc.then(Message::default);
        let request_body = RequestBody { body, first, message, has_message: Arc::clone(&has_message), permit };
        let answered = self.service.oneshot(Request::from_parts(parts, Body::new(request_body)));
        let mut answered = pin!(answered);
        let response = match timeout(FIRST_MESSAGE_TIMEOUT, &mut answered).await {
            Ok(response) => response?,
            Err(_) if has_message.load(Relaxed) => answered.await?,
            Err(_) => no_message().of(is_grpc),
        };
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
struct Refusal(Status, StatusCode);

impl Refusal {
    fn of(self, is_grpc: bool) -> Response<Body> {
        let Self(status, code) = self;
        if is_grpc {
            return status.into_http();
        }
        let mut response = Response::new(Body::new(status.message().to_owned()));
        *response.status_mut() = code;
        response
    }
}

fn refused(full: NoSlot) -> Refusal {
    let most = full.established_max;
    let status = Status::resource_exhausted(format!(
        "all {most} slots for connections of this node are in use: close connections, or use another node of the cluster"
    ));
    Refusal(status, StatusCode::SERVICE_UNAVAILABLE)
}

fn no_message() -> Refusal {
    let seconds = FIRST_MESSAGE_TIMEOUT.as_secs();
    let status = Status::deadline_exceeded(format!(
        "no message arrived within {seconds} s of the call's headers, so the call had no effect: send the message with the call"
    ));
    Refusal(status, StatusCode::REQUEST_TIMEOUT)
}

/// The body of a request, which notes when its first message is complete.
struct RequestBody {
    body: Incoming,
    /// The frame that was read of it before.
    first: Option<Result<Frame<Bytes>, hyper::Error>>,
    /// `None`: it is not gRPC's.
    message: Option<Message>,
    has_message: Arc<AtomicBool>,
    permit: Option<OwnedSemaphorePermit>,
}

/// The progress of the first message.
#[derive(Debug, Default)]
struct Message {
    seen: usize,
    length: usize,
}

impl Message {
    /// Whether the message is complete with these bytes.
    fn take(&mut self, mut bytes: &[u8]) -> bool {
        while self.seen < PREFIX_BYTES && bytes.has_remaining() {
            let byte = bytes.get_u8();
            if self.seen > 0 {
                self.length = self.length << 8 | usize::from(byte);
            }
            self.seen += 1;
        }
        self.seen += bytes.len();
        self.seen >= PREFIX_BYTES + self.length
    }
}

impl RequestBody {
    fn message_is_complete(&mut self) {
        self.has_message.store(true, Relaxed);
        self.permit = None;
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = match self.first.take() {
            Some(first) => Some(first),
            None => ready!(Pin::new(&mut self.body).poll_frame(context)),
        };
        if !self.has_message.load(Relaxed) {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
            // A frame without data ends the body.
            let is_complete = match (data, &mut self.message) {
                (Some(data), Some(message)) => message.take(data),
                _ => true,
            };
            if is_complete {
                self.message_is_complete();
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.first {
            None => self.body.size_hint(),
            Some(_) => SizeHint::default(),
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
        let mut message = Message::default();
        let complete: Vec<bool> = bytes.iter().map(|byte| message.take(&[*byte])).collect();
        assert_eq!(complete.iter().position(|complete| *complete), Some(bytes.len() - 1));
        assert!(Message::default().take(&[0, 0, 0, 0, 0]), "an empty message is one");
        assert!(!Message::default().take(&bytes[..bytes.len() - 1]));
        assert!(Message::default().take(&bytes));
    }

    #[test]
    fn a_refusal_is_in_the_words_of_its_protocol() {
        let (grpc, http) = (no_message().of(true), no_message().of(false));
        assert_eq!(Status::from_header_map(grpc.headers()).expect("a status").code(), tonic::Code::DeadlineExceeded);
        assert_eq!((http.status(), http.headers().len()), (StatusCode::REQUEST_TIMEOUT, 0));
    }
}
