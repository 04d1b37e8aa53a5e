//! Messages that cannot be decoded: not messages of the API, text that is not UTF-8, or larger than the limit.
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
