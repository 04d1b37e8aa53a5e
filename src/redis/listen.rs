//! Where connections come from: a parameter, so that a port has TLS or not, and a simulation its own network.

use lockkeeper_accept::ConnectionSource;
use tokio::net::TcpListener;

use crate::RedisIdentity;

/// Accepts connections, and knows who is at their other end.
pub trait RedisListener: ConnectionSource {
    /// The identity that the client's certificate proves. Without one, the client may prove one by AUTH.
    fn identity(_stream: &Self::Stream) -> Option<RedisIdentity> {
        None
    }
}

impl RedisListener for TcpListener {}
