//! Byte streams between nodes, and gRPC on top of them.
//!
//! Opening and accepting connections are parameters: production passes TCP, a simulation its own network. No other module of this crate
//! opens a socket. TLS is a layer over either ([`tls`], a feature of the same name). This module adds to both: gRPC channels that connect
//! on first use, keep-alive, flow-control windows that let a large message pass at once, and a listener that survives bad connections.
//!
//! The life of a connection: [`serve`] accepts it, gives it a slot, for which another connection may be closed (`lockkeeper-accept`),
//! and enforces its deadlines; `connection` reads its bytes, `calls` handles its calls, `whole_request` holds a request until it has ended,
//! [`Settings`] has all limits.
//! All of that is the feature `serve`. Without it, this crate is the client's half: it opens connections, and accepts none.
//!
//! Deliberately absent: retries and pools. The caller knows what a failure means; a channel that failed is dropped and a new one made.

mod pass_writes;
#[cfg(feature = "tls")]
pub mod tls;
mod windows;

#[cfg(feature = "serve")]
mod authority;
#[cfg(feature = "serve")]
mod calls;
#[cfg(feature = "serve")]
mod connection;
#[cfg(feature = "serve")]
mod plain;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod settings;
#[cfg(feature = "serve")]
mod whole_request;

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

#[cfg(feature = "serve")]
pub use connection::{Connection, ConnectionId, Remote};
#[cfg(feature = "serve")]
pub use lockkeeper_accept::{LogThrottle, Refusals};
#[cfg(feature = "serve")]
pub use serve::serve;
#[cfg(feature = "serve")]
pub use settings::{
    CLOSING_TIMEOUT, FIRST_CALL_TIMEOUT, FIRST_MESSAGE_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Settings,
    UNREAD_HTTP2_TIMEOUT,
};
pub use windows::Windows;

/// Time limit for opening a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of HTTP/2 keep-alive pings, while a call is open and the peer is silent; also the time limit for the answer.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// What a port that speaks TLS answers to plain text.
pub const SPEAKS_TLS: &str =
    "this port speaks TLS: a client needs the authority of the cluster (--ca), and a node its certificate ([tls])";

/// What a client says of a port that answers its handshake of TLS in plain text.
pub const SPEAKS_NO_TLS: &str = "the other end does not speak TLS: leave out the certificates, or switch TLS on there";

/// Opens connections.
pub trait Connector: Clone + Send + Sync + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens a connection to `address`, host:port. Need not have a time limit: the caller has one.
    fn connect(&self, address: &str) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// The same, for connections to the node with this id. A connector that can tell nodes apart refuses any other.
    #[must_use]
    fn to_node(&self, _id: u64) -> Self {
        self.clone()
    }
}

/// Accepts connections.
pub trait Listen: Send + 'static {
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address that opened it. Dropping the future loses none.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;

    /// The receiver of reports about connections that are refused because no slot is free.
    #[cfg(feature = "serve")]
    fn refusals(&self) -> Refusals {
        Refusals::default()
    }
}

/// Connections by TCP, without Nagle's delay.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

impl Connector for TcpConnector {
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

/// A gRPC channel to `address`, host:port, that connects on first use.
pub fn channel<C: Connector>(connector: C, address: &str) -> Channel {
    channel_with(connector, address, Windows::WIDE)
}

/// As [`channel`], with these flow-control windows for its answers.
pub fn channel_with<C: Connector>(connector: C, address: &str, windows: Windows) -> Channel {
    // The connector knows the address. The URI only provides the authority, and must be valid whatever the address is.
    let endpoint = Endpoint::from_static("http://lockkeeper")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection);
    channel_of(endpoint, connector, address)
}

/// A channel with the settings of `endpoint`, which connects to `address`, host:port, on first use.
pub fn channel_of<C: Connector>(endpoint: Endpoint, connector: C, address: &str) -> Channel {
    let address: Arc<str> = address.into();
    let dial = move |_| {
        let connector = connector.clone();
        let address = address.clone();
        async move {
            let stream = timeout(CONNECT_TIMEOUT, connector.connect(&address)).await;
            let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));

            let explain =
                |error: io::Error| io::Error::new(error.kind(), format!("cannot connect to {address}: {error}"));
            stream.map(TokioIo::new).map_err(explain)
        }
    };

    endpoint.connect_with_connector_lazy(tower::service_fn(dial))
}

/// Whether a call ended with this status because there was no connection: then its request was never sent.
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
