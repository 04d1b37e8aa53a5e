//! Byte streams between nodes, and gRPC on top of them.
//!
//! How a connection is opened and how one is accepted are parameters: production passes TCP, a simulation its own network. Nobody
//! else in this crate opens a socket. What this module adds to both is the same: gRPC channels that dial when they are first used,
//! keep-alive, windows that let a large message pass in one go, and a listener that survives whatever knocks on its port.
//!
//! Deliberately absent: retries and pools. Who calls knows what a failure means; a channel that failed is dropped and a new one made.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep, timeout},
};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Server, server::Connected},
};

/// How long opening a connection may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a peer that is silent while a call is open is asked whether it is still there, and how long it has to answer.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long an accepted connection may stay without a first byte.
pub const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(10);

/// HTTP/2 flow control: bytes under way in one direction, which the receiver has not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// In one call.
    pub stream: u32,
    /// In all calls of a connection.
    pub connection: u32,
}

impl Windows {
    /// A large message passes in one go: for nodes among themselves, and for answers.
    ///
    /// A connection has no limit of its own: bytes on one stream that nobody reads would be in the way of all others.
    pub const WIDE: Self = Self { stream: 4 << 20, connection: 1 << 30 };
    /// What a node relays from another one to clients, each of whom reads it when it likes: little for each.
    pub const RELAYED: Self = Self { stream: 64 << 10, connection: 1 << 30 };
    /// Some hundreds of requests on one stream. What a node that is overloaded has not read yet is no more than that, so whoever sends too much
    /// notices it at once: his stream takes no more.
    pub const NARROW: Self = Self { stream: 64 << 10, connection: 1 << 20 };
}

/// Calls open at one time on one connection. Above hyper's 200: a call that waits for a lock stays open, and another node may forward
/// many of them.
pub const STREAMS_PER_CONNECTION_MAX: u32 = 16_384;

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

/// A gRPC server with the settings that match [`channel`], and these windows for what it is sent. Feed it with [`incoming`].
pub fn server(windows: Windows) -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        // Calls that are given up before they are looked at: a client that cancels many waits at once is no attacker, and the default
        // of 20 would break its connection, with all that others wait for on it.
        .http2_max_pending_accept_reset_streams(Some(STREAMS_PER_CONNECTION_MAX as usize))
        .initial_stream_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
}

/// The connections that `listener` accepts, at most `connections_max` at a time; further ones wait in the system's queue.
///
/// Never ends and never fails: what goes wrong with one connection is that connection's.
pub fn incoming<L: Listen>(
    listener: L,
    connections_max: usize,
) -> impl Stream<Item = io::Result<Connection<L::Stream>>> + Send {
    let places = Arc::new(Semaphore::new(connections_max));
    futures::stream::unfold((listener, places), async |(mut listener, places)| {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match listener.accept().await {
                Ok((stream, remote)) => {
                    let connection = Connection::new(stream, remote, place, FIRST_BYTE_TIMEOUT);
                    return Some((Ok(connection), (listener, places)));
                }
                Err(error) => {
                    // Aborted by the other side, or no file descriptor left: a pause keeps the latter from spinning.
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    })
}

/// An accepted connection.
///
/// It ends by itself if its first byte does not come in time: HTTP/2 waits for that one without a deadline, and silent strangers
/// would use up the places of the peers.
pub struct Connection<S> {
    stream: S,
    remote: SocketAddr,
    /// Gone when the connection is: see [`Remote`].
    token: Arc<()>,
    first_byte: Option<Pin<Box<Sleep>>>,
    _place: OwnedSemaphorePermit,
}

/// Who opened a connection, and whether it is still there: in the extensions of each request.
#[derive(Clone, Debug)]
pub struct Remote {
    /// The other end.
    pub address: SocketAddr,
    connection: Weak<()>,
}

impl Remote {
    /// Whether the connection is still there.
    pub fn is_connected(&self) -> bool {
        self.connection.strong_count() > 0
    }

    /// Whether both are the same connection.
    pub fn is_same(&self, other: &Self) -> bool {
        self.connection.ptr_eq(&other.connection)
    }
}

impl<S> Connection<S> {
    fn new(stream: S, remote: SocketAddr, place: OwnedSemaphorePermit, first_byte: Duration) -> Self {
        Self { stream, remote, token: Arc::default(), first_byte: Some(Box::pin(sleep(first_byte))), _place: place }
    }
}

#[cfg(test)]
impl<S> Connection<S> {
    /// One that nobody listened for.
    pub(crate) fn for_test(stream: S) -> Self {
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it is free");
        Self::new(stream, ([127, 0, 0, 1], 1).into(), place, FIRST_BYTE_TIMEOUT)
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = Remote;

    fn connect_info(&self) -> Remote {
        Remote { address: self.remote, connection: Arc::downgrade(&self.token) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        let Some(first_byte) = &mut this.first_byte else { return read };
        if read.is_ready() {
            this.first_byte = None;
            return read;
        }
        first_byte.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn connection() -> (DuplexStream, Connection<DuplexStream>) {
        let (near, far) = duplex(64);
        let place = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it is free");
        (near, Connection::new(far, ([127, 0, 0, 1], 1).into(), place, SHORT))
    }

    #[tokio::test]
    async fn a_silent_stranger_is_hung_up_on() {
        let (_near, mut connection) = connection();
        let error = connection.read_u8().await.expect_err("nothing came");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn who_has_spoken_may_be_silent() {
        let (mut near, mut connection) = connection();
        near.write_u8(7).await.expect("there is room");
        assert_eq!(connection.read_u8().await.expect("it came"), 7);
        timeout(SHORT * 3, connection.read_u8()).await.expect_err("it just waits");
    }

    #[tokio::test]
    async fn who_called_can_be_asked_whether_the_connection_is_still_there() {
        let ((_near, first), (_far, second)) = (connection(), connection());
        let (one, other) = (first.connect_info(), second.connect_info());
        assert!(one.is_same(&first.connect_info()) && !one.is_same(&other));
        drop(first);
        assert!(!one.is_connected() && other.is_connected());
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_wait() {
        use futures::StreamExt;
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let mut incoming = std::pin::pin!(incoming(listener, 1));
        let _callers = [TcpConnector.connect(&address).await, TcpConnector.connect(&address).await];
        let first = incoming.next().await.expect("it does not end").expect("it does not fail");
        assert!(timeout(SHORT, incoming.next()).await.is_err(), "there is no place");
        drop(first);
        incoming.next().await.expect("it does not end").expect("it does not fail");
    }
}
