//! A port that speaks HTTP/1.1: for people, for what watches a node, and for clients of other protocols.
//!
//! What a connection costs is bounded: its handshake, its headers and the time for both ([`Limits`]), and the number of connections. Beyond
//! that, clients wait in the operating system's queue. What an answer costs is the caller's business.

use std::{
    convert::Infallible, error::Error, future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration,
};

use http::{Extensions, Request, Response};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Pause after a connection that could not be accepted: what was short may be there again then, and no more than one line a second says so.
const PAUSE: Duration = Duration::from_secs(1);
/// Time that connections have to end when the port stops.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);

/// What a port takes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections_max: usize,
    /// Bytes of a request's line and headers; 8 KiB at least.
    pub header_bytes_max: usize,
    /// Time for the handshake, and for the headers of each request. An idle connection is closed after it.
    pub header_timeout: Duration,
}

/// Accepts connections. The part that takes time, such as a handshake, is a future of its own, so that one client delays no other.
pub trait Listen: Send + 'static {
    /// A connection that can be served.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection and its client's address.
    fn accept(
        &mut self,
    ) -> impl Future<Output = io::Result<(impl Future<Output = io::Result<Self::Stream>> + Send + 'static, SocketAddr)>> + Send;

    /// What each request of a connection is to know of it.
    fn describe(_stream: &Self::Stream) -> Extensions {
        Extensions::new()
    }
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<TcpStream>> + Send + 'static, SocketAddr)> {
        let (stream, client) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((std::future::ready(Ok(stream)), client))
    }
}

/// Serves connections until `stopping`, and then the requests under way for some seconds. Never fails: an error of one connection does not
/// affect others. Dropping the future closes all connections.
///
/// `answer` gets each request and its client's address.
pub async fn serve<L, F, A, B>(mut listener: L, limits: Limits, answer: F, stopping: CancellationToken)
where
    L: Listen,
    F: Fn(Request<Incoming>, SocketAddr) -> A + Clone + Send + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let mut connections = JoinSet::new();
    loop {
        let slot = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            slot = Arc::clone(&slots).acquire_owned() => slot.expect("never closed"),
        };
        let accepted = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((handshake, client)) => {
                let (answer, stopping) = (answer.clone(), stopping.clone());
                connections.spawn(async move {
                    if let Ok(Ok(stream)) = timeout(limits.header_timeout, handshake).await {
                        let known = L::describe(&stream);
                        let answer = move |mut request: Request<Incoming>, client| {
                            request.extensions_mut().extend(known.clone());
                            answer(request, client)
                        };
                        connection(stream, client, limits, answer, stopping).await;
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(PAUSE).await;
            }
        }
    }
    drop(listener);
    let _ = timeout(CLOSING_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

async fn connection<F, A, B>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    client: SocketAddr,
    limits: Limits,
    answer: F,
    stopping: CancellationToken,
) where
    F: Fn(Request<Incoming>, SocketAddr) -> A,
    A: Future<Output = Response<B>>,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    let service = service_fn(move |request| {
        let answer = answer(request, client);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(limits.header_bytes_max);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = stopping.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%client, %error, "a connection broke");
    }
}
