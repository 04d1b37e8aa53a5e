//! Where connections come from: a parameter, so that a port has TLS or not, and a simulation its own network.

use std::{io, net::SocketAddr};

use lockkeeper_accept::Refusals;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

/// Accepts connections. The part that takes time, such as a handshake, is a future of its own, so that one client delays no other.
pub trait ClientListener: Send + 'static {
    /// A connection that can be served.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection and its client's address. Dropping the future loses none.
    fn accept(
        &mut self,
    ) -> impl Future<Output = io::Result<(impl Future<Output = io::Result<Self::Stream>> + Send + 'static, SocketAddr)>> + Send;

    /// The identity that the client's certificate proves. Without one, the client may prove one by AUTH.
    fn identity(_stream: &Self::Stream) -> Option<String> {
        None
    }

    /// Who is told of connections that are refused since no slot is free.
    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

impl ClientListener for TcpListener {
    type Stream = TcpStream;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<TcpStream>> + Send + 'static, SocketAddr)> {
        let (stream, client) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((std::future::ready(Ok(stream)), client))
    }
}
