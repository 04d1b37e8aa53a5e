//! Where connections come from: a parameter, so that a port has TLS or not, and a simulation its own network.

use lockkeeper_accept::ConnectionSource;
use tokio::net::TcpListener;

use crate::ZookeeperIdentity;

/// Accepts connections of this protocol.
pub trait ZookeeperListener: ConnectionSource {
    /// The identity that the client's certificate proves. Without one, the client may prove one by a digest.
    fn identity(_stream: &Self::Stream) -> Option<ZookeeperIdentity> {
        None
    }
}

impl ZookeeperListener for TcpListener {}
