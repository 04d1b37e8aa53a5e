//! Messages that cannot be read: not those of the API, text that is not UTF-8, or larger than any may be.
//!
//! They never reach a service: the transport refuses them by itself, with codes that say "internal error" of what is the caller's
//! mistake. Here its refusal is replaced by one in our terms.

use tonic::{
    Code, Status,
    body::Body,
    codegen::http::{Response, header::HeaderMap},
};
use tower::util::MapResponseLayer;

use super::errors::{invalid, too_large};

/// Puts [`explain`] around all services.
pub(super) type Explaining = MapResponseLayer<fn(Response<Body>) -> Response<Body>>;

pub(super) fn explaining() -> Explaining {
    MapResponseLayer::new(explain)
}

fn explain(response: Response<Body>) -> Response<Body> {
    match refusal(response.headers()) {
        Some(status) => status.into_http(),
        None => response,
    }
}

/// A refusal that came before any answer is in the headers. `None`: it is not one of the transport's about a message.
fn refusal(headers: &HeaderMap) -> Option<Status> {
    explained(&Status::from_header_map(headers)?)
}

/// The same for a stream, where the refusal comes instead of a message.
pub(super) fn explained(status: &Status) -> Option<Status> {
    let said = status.message();
    if status.code() == Code::Internal && said.contains("failed to decode Protobuf message") {
        let why = format!("cannot be read ({said}): send the messages of lockkeeper.v1, text as UTF-8");
        return Some(invalid("message", why));
    }
    let is_too_large = status.code() == Code::OutOfRange && said.contains("message length too large");
    is_too_large.then(|| too_large(said))
}
