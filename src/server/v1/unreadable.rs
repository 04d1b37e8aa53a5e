//! Messages that cannot be decoded: not messages of the API, text that is not UTF-8, larger than the limit, or of too many locks
//! ([`lockkeeper_proto::codec`]).
//!
//! They never reach a service: tonic refuses them by itself, with codes that mean "internal error" although the caller made the mistake.
//! Here its status is replaced by one of ours.

use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{Response, header::HeaderMap},
};
use tower::util::MapResponseLayer;

use crate::api::Error;

/// Puts [`explain`] around all services.
pub(crate) type Explaining = MapResponseLayer<fn(Response<Body>) -> Response<Body>>;

pub(crate) fn explaining() -> Explaining {
    MapResponseLayer::new(explain)
}

fn explain(response: Response<Body>) -> Response<Body> {
    match refusal(response.headers()) {
        Some(error) => Status::from(error).into_http(),
        None => response,
    }
}

/// The error for a status in the headers, which is the place in a refusal without an answer. `None` unless tonic says that it cannot decode
/// a message.
fn refusal(headers: &HeaderMap) -> Option<Error> {
    explained(&Status::from_header_map(headers)?)
}

/// The same for a stream of requests, where the status comes instead of a message.
pub(crate) fn explained(status: &Status) -> Option<Error> {
    let said = status.message();
    if status.code() == Code::Internal && said.contains("failed to decode Protobuf message") {
        let why = format!("cannot be read ({said}): send the messages of lockkeeper.v1, text as UTF-8");
        return Some(Error::invalid("message", why));
    }
    let is_too_large = status.code() == Code::OutOfRange && said.contains("message length too large");
    is_too_large.then(|| Error::too_large(said))
}

#[cfg(test)]
mod tests {
    use lockkeeper_proto::{
        codec::CountingCodec,
        v1::{AcquireRequest, PipelineRequest, Want, pipeline_request::What},
    };
    use prost::Message;
    use tonic::{Streaming, codec::Codec as _};

    use super::*;

    /// What a node makes of a message: itself, or a status.
    async fn received<M: Message + Default + 'static>(message: &M) -> Result<M, Status> {
        let message = message.encode_to_vec();
        let length = u32::try_from(message.len()).expect("short").to_be_bytes();
        let body = axum::body::Body::from([&[0][..], &length, &message].concat());
        let decoder = CountingCodec::<M, M>::default().decoder();
        let mut messages = Streaming::new_request(decoder, body, None, None);
        Ok(messages.message().await?.expect("a message"))
    }

    fn acquire(locks: usize) -> AcquireRequest {
        AcquireRequest { locks: vec![Want::default(); locks], ..AcquireRequest::default() }
    }

    fn pipelined(locks: usize) -> PipelineRequest {
        PipelineRequest { number: 1, what: Some(What::Acquire(acquire(locks))) }
    }

    /// Each lock takes many times its bytes once it is decoded.
    #[tokio::test]
    async fn an_acquire_of_very_many_locks_is_not_decoded() {
        // So many are decoded, and refused with the limit of an acquire.
        assert_eq!(received(&acquire(1024)).await.expect("decoded"), acquire(1024));
        assert_eq!(received(&pipelined(1024)).await.expect("decoded"), pipelined(1024));

        let alone = received(&acquire(1025)).await.expect_err("refused");
        let in_pipeline = received(&pipelined(1025)).await.expect_err("refused");
        for status in [alone, in_pipeline] {
            assert!(status.message().contains("1025 locks"), "{status}");
            assert!(explained(&status).is_some(), "the caller made the mistake: {status}");
        }
    }
}
