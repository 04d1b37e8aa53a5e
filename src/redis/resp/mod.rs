//! Redis' serialization protocol: requests in, replies out.

mod reply;
mod request;
mod writer;

pub use reply::RedisReply;
pub use request::RequestLimits;
pub(crate) use request::{ProtocolError, RequestReader, RequestWords, bytes_in_memory};
pub(crate) use writer::{Protocol, write_push, write_reply};
