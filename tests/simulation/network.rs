//! The simulated network: turmoil's, where the product has TCP.

use std::{io, net::SocketAddr};

use hyper_util::rt::TokioIo;
use lockkeeper::transport::{Connect, Listen};
use tonic::transport::{Channel, Endpoint, Uri};
use turmoil::net::{TcpListener, TcpStream};

/// Where nodes listen, for clients and for their peers.
pub(crate) const CLIENT_PORT: u16 = 7101;
pub(crate) const PEER_PORT: u16 = 7201;

/// Opens connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialer;

impl Connect for Dialer {
    type Stream = TcpStream;

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }
}

/// Accepts connections.
pub(crate) struct Door(TcpListener);

impl Door {
    pub(crate) async fn open(port: u16) -> io::Result<Self> {
        TcpListener::bind(("0.0.0.0", port)).await.map(Self)
    }
}

impl Listen for Door {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        self.0.accept().await
    }
}

/// A client's way to a node.
pub(crate) fn dial(endpoint: Endpoint) -> Channel {
    let connect = |uri: Uri| async move {
        let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
        TcpStream::connect(authority.as_str()).await.map(TokioIo::new)
    };
    endpoint.connect_with_connector_lazy(tower::service_fn(connect))
}

/// The name of a node's host.
pub(crate) fn node_host(node: u64) -> String {
    format!("node{node}")
}

/// Where clients find a node.
pub(crate) fn client_address(node: u64) -> String {
    format!("{}:{CLIENT_PORT}", node_host(node))
}

/// Where its peers find it.
pub(crate) fn peer_address(node: u64) -> String {
    format!("{}:{PEER_PORT}", node_host(node))
}
