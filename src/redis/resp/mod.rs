//! Redis' serialization protocol: requests in, replies out.

mod reply;

pub use reply::RedisReply;
