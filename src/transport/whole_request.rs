//! A request of one message, which its service gets once all of it has arrived.
//!
//! tonic decodes a message as soon as its bytes are there, and then waits for the end of the request. The decoded message takes many times
//! the memory of its bytes, and counts nowhere: a client that leaves out the end of each of thousands of requests would have as many
//! messages held. So the bytes wait here, where they are counted, and go on together with the end.
//!
//! Bytes that wait are copied: a part of the connection's read buffer would keep all of that buffer in memory.
//!
//! Not here: the deadline of the end (`calls`), and the limit of the port for bytes that wait (`lockkeeper_accept`).

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use hyper::{HeaderMap, body::Frame};
use tonic::Status;

/// gRPC's compression flag and the message's length.
pub(super) const PREFIX_BYTES: usize = 5;

/// Why a body breaks off.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;
/// A part of a body, or its end.
pub(super) type BodyPart = Option<Result<Frame<Bytes>, BodyError>>;

/// A request as far as it has arrived.
#[derive(Debug)]
pub(super) struct WholeRequest {
    /// The limit of the message.
    bytes_max: usize,
    arrived: ArrivedBytes,
    end: Option<RequestEnd>,
}

/// The bytes of a request that have arrived: in one of the two.
#[derive(Debug, Default)]
struct ArrivedBytes {
    /// A part of the connection's read buffer.
    borrowed: Bytes,
    copied: BytesMut,
}

/// How a request ends.
#[derive(Debug)]
enum RequestEnd {
    Over,
    Trailers(HeaderMap),
    Failed(BodyError),
}

impl WholeRequest {
    /// A request whose message has this number of bytes at the most.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, arrived: ArrivedBytes::default(), end: None }
    }

    /// Takes the parts that are there, by `next`. It is ready once the request has ended or is refused.
    pub(super) fn poll_arrival(
        &mut self,
        context: &mut Context<'_>,
        mut next: impl FnMut(&mut Context<'_>) -> Poll<BodyPart>,
    ) -> Poll<()> {
        while self.end.is_none() {
            match next(context) {
                Poll::Ready(part) => self.take(part),
                Poll::Pending => {
                    self.arrived.copy();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(())
    }

    fn take(&mut self, part: BodyPart) {
        let end = match part.map(|part| part.map(Frame::into_data)) {
            Some(Ok(Ok(data))) => {
                self.arrived.add(data);
                match self.check_length() {
                    Ok(()) => return,
                    Err(too_large) => RequestEnd::Failed(too_large.into()),
                }
            }
            Some(Ok(Err(last))) => last.into_trailers().map_or(RequestEnd::Over, RequestEnd::Trailers),
            Some(Err(error)) => RequestEnd::Failed(error),
            None => RequestEnd::Over,
        };

        if matches!(end, RequestEnd::Failed(_)) {
            self.arrived.take();
        }
        self.end = Some(end);
    }

    /// Refuses a message beyond the limit by the length that it announces, in the words of tonic.
    fn check_length(&self) -> Result<(), Status> {
        let bytes = self.arrived.bytes();
        let Some(([_, announced @ ..], rest)) = bytes.split_first_chunk::<PREFIX_BYTES>() else { return Ok(()) };
        let announced = usize::try_from(u32::from_be_bytes(*announced)).unwrap_or(usize::MAX);

        let found = announced.max(rest.len());
        let limit = self.bytes_max;
        if found <= limit {
            return Ok(());
        }
        Err(Status::out_of_range(format!(
            "Error, decoded message length too large: found {found} bytes, the limit is: {limit} bytes"
        )))
    }

    /// The next part of a request that has ended: all of its bytes, then its end.
    pub(super) fn next_part(&mut self) -> BodyPart {
        let data = self.arrived.take();
        if !data.is_empty() {
            return Some(Ok(Frame::data(data)));
        }
        match self.end.replace(RequestEnd::Over)? {
            RequestEnd::Over => None,
            RequestEnd::Trailers(trailers) => Some(Ok(Frame::trailers(trailers))),
            RequestEnd::Failed(error) => Some(Err(error)),
        }
    }

    /// Whether there is no further part.
    pub(super) fn is_handed_over(&self) -> bool {
        self.arrived.bytes().is_empty() && matches!(self.end, Some(RequestEnd::Over))
    }
}

impl ArrivedBytes {
    fn bytes(&self) -> &[u8] {
        if self.copied.is_empty() { &self.borrowed } else { &self.copied }
    }

    fn add(&mut self, data: Bytes) {
        if self.bytes().is_empty() {
            self.borrowed = data;
        } else {
            self.copy();
            self.copied.extend_from_slice(&data);
        }
    }

    /// Lets go of the read buffer.
    fn copy(&mut self) {
        self.copied.extend_from_slice(&mem::take(&mut self.borrowed));
    }

    fn take(&mut self) -> Bytes {
        if self.copied.is_empty() { mem::take(&mut self.borrowed) } else { mem::take(&mut self.copied).freeze() }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, task::Waker};

    use super::*;

    /// A message of these bytes, with its prefix.
    fn framed(message: &[u8]) -> Vec<u8> {
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        [&[0][..], &length, message].concat()
    }

    fn data(bytes: &[u8]) -> BodyPart {
        Some(Ok(Frame::data(Bytes::copy_from_slice(bytes))))
    }

    /// Takes these parts, after which nothing more has arrived. Returns whether the request has ended.
    fn take(request: &mut WholeRequest, parts: impl IntoIterator<Item = BodyPart>) -> bool {
        let mut parts = VecDeque::from_iter(parts);
        let next = |_: &mut Context<'_>| parts.pop_front().map_or(Poll::Pending, Poll::Ready);
        request.poll_arrival(&mut Context::from_waker(Waker::noop()), next).is_ready()
    }

    fn bytes(part: BodyPart) -> Bytes {
        part.expect("a part").expect("no error").into_data().expect("bytes")
    }

    fn refusal(request: &mut WholeRequest) -> String {
        let error = request.next_part().expect("a part").expect_err("it is refused");
        error.downcast::<Status>().expect("a status").message().to_owned()
    }

    #[test]
    fn a_request_is_handed_over_with_its_end_and_not_before() {
        let message = framed(b"hello");
        let mut request = WholeRequest::new(5);
        assert!(!take(&mut request, [data(&message[..3])]));
        assert!(!take(&mut request, [data(&message[3..])]), "the message is complete, and the request is not");
        assert!(!request.is_handed_over());

        let trailers = HeaderMap::from_iter([(hyper::header::TE, "trailers".parse().expect("a value"))]);
        assert!(take(&mut request, [Some(Ok(Frame::trailers(trailers.clone())))]));
        assert_eq!(bytes(request.next_part()), message);
        let last = request.next_part().expect("a part").expect("no error");
        assert_eq!(last.into_trailers().expect("trailers"), trailers);
        assert!(request.is_handed_over() && request.next_part().is_none());
    }

    #[test]
    fn a_request_that_is_there_at_once_is_not_copied() {
        let message = Bytes::from(framed(b"hello"));
        let mut request = WholeRequest::new(5);
        assert!(take(&mut request, [Some(Ok(Frame::data(message.clone()))), None]));
        assert_eq!(bytes(request.next_part()).as_ptr(), message.as_ptr());

        // What waits is, so that it keeps no more in memory than its own bytes.
        let mut request = WholeRequest::new(5);
        assert!(!take(&mut request, [Some(Ok(Frame::data(message.clone())))]));
        assert!(message.is_unique());
    }

    #[test]
    fn a_message_is_refused_by_the_length_that_it_announces_or_has() {
        let mut announced = WholeRequest::new(4);
        assert!(take(&mut announced, [data(&framed(b"hello")[..PREFIX_BYTES])]));
        assert!(refusal(&mut announced).contains("found 5 bytes, the limit is: 4 bytes"));
        assert!(announced.next_part().is_none());

        let mut longer = WholeRequest::new(4);
        assert!(!take(&mut longer, [data(&framed(b"hi"))]));
        assert!(take(&mut longer, [data(b"hello")]));
        assert!(refusal(&mut longer).contains("found 7 bytes"));
    }
}
