//! Byte streams between nodes, and gRPC on top of them.
//!
//! How a connection is opened and how one is accepted are parameters: production passes TCP, a simulation its own network. Nobody
//! else in this crate opens a socket. What this module adds to both is the same: gRPC channels that dial when they are first used,
//! keep-alive, windows that let a large message pass in one go, and a listener that survives whatever knocks on its port.
//!
//! The way of a connection: [`serve`] accepts it (`accept`), gives it a place, for which another one may have to go (`places`), and
//! watches over its deadlines; `connection` is its bytes, `calls` are what comes of them, [`Settings`] has the limits of all of it.
//!
//! Deliberately absent: retries and pools. Who calls knows what a failure means; a channel that failed is dropped and a new one made.

mod settings;

mod accept;
mod calls;
mod complaints;
mod connection;
mod places;
mod serve;

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

pub use connection::{Connection, Remote};
pub use serve::serve;
pub use settings::{
    CLOSING_TIMEOUT, FIRST_CALL_TIMEOUT, FIRST_MESSAGE_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Settings, Windows,
};

/// How long opening a connection may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a peer that is silent while a call is open is asked whether it is still there, and how long it has to answer.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Opens connections.
pub trait Connect: Clone + Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens one to `address`, host:port. Need not watch the time: the caller does.
    fn connect(&self, address: &str) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

/// Accepts connections.
pub trait Listen: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and who opened it. Dropping the future loses none.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

/// Connections by TCP, without Nagle's delay.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

impl Connect for TcpConnector {
    type Stream = TcpStream;

    async fn connect(&self, address: &str) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, remote) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((stream, remote))
    }
}

/// A gRPC channel to `address`, host:port, that dials when it is first used.
pub fn channel<C: Connect>(connector: C, address: &str) -> Channel {
    channel_with(connector, address, Windows::WIDE)
}

/// As [`channel`], with these windows for what it is answered.
pub fn channel_with<C: Connect>(connector: C, address: &str, windows: Windows) -> Channel {
    let address: Arc<str> = address.into();
    let dial = move |_| {
        let (connector, address) = (connector.clone(), address.clone());
        async move {
            let stream = timeout(CONNECT_TIMEOUT, connector.connect(&address)).await;
            let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            let explain =
                |error: io::Error| io::Error::new(error.kind(), format!("cannot connect to {address}: {error}"));
            stream.map(TokioIo::new).map_err(explain)
        }
    };
    // The connector knows where to go. The URI only names the authority, and must be one whatever the address is.
    Endpoint::from_static("http://lockkeeper")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .connect_with_connector_lazy(tower::service_fn(dial))
}

/// Whether a call ended with this status because there was no connection: then its request never left.
pub fn never_sent(status: &Status) -> bool {
    let mut error = std::error::Error::source(status);
    while let Some(cause) = error {
        if cause.is::<tonic::ConnectError>() {
            return true;
        }
        error = cause.source();
    }
    false
}
