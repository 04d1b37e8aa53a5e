//! Serving HTTP/1.1: the ports of people, of what watches a node, and of clients of other protocols.
//!
//! What a connection costs is bounded: its handshake of TLS, its headers and the time for both ([`Limits`]), and the number of connections.
//! Beyond that, clients wait in the operating system's queue. What an answer costs is the caller's business.

use std::{convert::Infallible, error::Error, future::Future, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use hyper::{
    Request, Response,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::{either::Either, sync::CancellationToken};

use super::{Listen, log_throttle::LogThrottle, tls::Acceptor};

/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// Time that connections have to end when the port stops.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);

/// What a port takes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections_max: usize,
    /// Bytes of a request's line and headers, at least 8 KiB.
    pub header_bytes_max: usize,
    /// Time for the handshake, and for each request's headers; an idle connection is closed after it.
    pub header_timeout: Duration,
}

/// Serves connections until `stopping`, and then the requests under way for some seconds. Never fails: an error of one connection does not
/// affect others. Dropping the future closes all connections.
///
/// `answer` gets each request and its client's address.
pub async fn serve<L, F, A, B>(
    mut listener: L,
    acceptor: Option<Acceptor>,
    limits: Limits,
    answer: F,
    stopping: CancellationToken,
) where
    L: Listen,
    F: Fn(Request<Incoming>, SocketAddr) -> A + Clone + Send + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let slots = Arc::new(Semaphore::new(limits.connections_max));
    let throttle = LogThrottle::default();
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
            Ok((stream, client)) => {
                let (acceptor, answer, stopping) = (acceptor.clone(), answer.clone(), stopping.clone());
                connections.spawn(async move {
                    let handshake = async {
                        match acceptor {
                            Some(acceptor) => acceptor.accept_any(stream).await,
                            None => Ok(Either::Left(stream)),
                        }
                    };
                    if let Ok(Ok(stream)) = timeout(limits.header_timeout, handshake).await {
                        connection(stream, client, limits, answer, stopping).await;
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                if let Some(count) = throttle.count() {
                    tracing::warn!(count, %error, "cannot accept a connection");
                }
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
        let error: Box<dyn Error> = error.into();
        tracing::debug!(%client, %error, "a connection broke");
    }
}
