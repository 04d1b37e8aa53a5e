//! Serving a port, and the life of a connection.
//!
//! Each connection has a task. It ends when its client closes it, when it exceeds a limit of HTTP/2 ([`Settings`]), or when the node ends
//! it:
//!
//! | because | after | how |
//! |---|---|---|
//! | its preface is not complete | [`HANDSHAKE_TIMEOUT`] | closed |
//! | it makes no first call | [`FIRST_CALL_TIMEOUT`] | GOAWAY |
//! | it has had no open call | [`IDLE_TIMEOUT`] | GOAWAY |
//! | another connection needs its place ([`places`](super::places)) | at once | GOAWAY, closed |
//! | it was refused since no place was free | its calls are refused | GOAWAY |
//! | the node stops | its calls are answered | GOAWAY |
//!
//! GOAWAY lets open calls end, and tells a client that it did nothing wrong: gRPC libraries connect again with the next call. A
//! connection without an open call that does not end by itself is closed after [`CLOSING_TIMEOUT`].

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::poll_fn;
use hyper::{Request, Response, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

use super::{
    Listen, accept,
    calls::Calls,
    complaints::Complaints,
    connection::{Connection, Watched},
    places::{Occupied, Order, Place, Places},
    settings::{CLOSING_TIMEOUT, FIRST_CALL_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Settings},
};

/// Serves connections until `stopping`, and then the calls under way. Never fails: an error of one connection does not affect others.
///
/// Dropping the future closes all connections.
pub async fn serve<L, V>(mut listener: L, settings: Settings, service: V, stopping: CancellationToken)
where
    L: Listen,
    V: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    V::Future: Send,
{
    let places = Places::new(settings.connections_max);
    let (http, complaints) = (settings.http2(), Complaints::default());
    let mut connections = JoinSet::new();
    loop {
        let (stream, remote) = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept::next(&mut listener, &places, &complaints) => accepted,
        };
        let occupied = places.admit(remote.ip(), Watched::new(settings.turn_bytes));
        let unasked = settings.unasked_max;
        connections.spawn(connection(
            stream,
            remote,
            occupied,
            http.clone(),
            unasked,
            service.clone(),
            stopping.clone(),
        ));
    }
    // The operating system refuses new connections from now on, so clients use another node.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Serves one connection to its end.
async fn connection<S, V>(
    stream: S,
    remote: SocketAddr,
    occupied: Occupied,
    http: http2::Builder<TokioExecutor>,
    unasked_max: usize,
    service: V,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    V::Future: Send,
{
    let place = &occupied.0;
    let connection = Connection::new(stream, remote, Arc::clone(&place.watched));
    let unasked = Arc::new(Semaphore::new(unasked_max));
    let calls = Calls { place: Arc::clone(place), remote: connection.remote(), unasked, service };
    let answers = service_fn(move |request| calls.clone().answer(request));
    let mut served = pin!(http.serve_connection(TokioIo::new(connection), answers));
    let mut life = Life { came: Instant::now(), told_to_end: None };
    loop {
        let ends = tokio::select! {
            biased;
            ended = poll_fn(|context| in_turn(&place.watched, served.as_mut(), context)) => {
                if let Err(error) = ended {
                    tracing::debug!(%remote, %error, "a connection broke");
                }
                return;
            }
            () = stopping.cancelled(), if life.told_to_end.is_none() => Ends::Gracefully,
            order = place.ordered() => match order {
                Order::Stay => Ends::NotYet,
                Order::Finish => Ends::Gracefully,
                Order::GiveWay => Ends::Now,
            },
            () = sleep_until(life.next_look(place)) => life.look(place),
        };
        match ends {
            Ends::NotYet => {}
            Ends::Gracefully => {
                served.as_mut().graceful_shutdown();
                life.told_to_end = Some(Instant::now());
            }
            Ends::Now => {
                // Sends only what fits into the socket's buffer.
                served.as_mut().graceful_shutdown();
                let say = |context: &mut Context<'_>| in_turn(&place.watched, served.as_mut(), context).map(drop);
                let mut say = pin!(poll_fn(say));
                let _ = futures::poll!(say.as_mut());
                return;
            }
        }
    }
}

/// One turn of a connection: see [`super::settings`].
fn in_turn<F: Future>(watched: &Watched, connection: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
    watched.begin_turn();
    connection.poll(context)
}

/// Whether a connection must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    NotYet,
    Gracefully,
    Now,
}

/// The deadlines of a connection.
#[derive(Debug)]
struct Life {
    came: Instant,
    told_to_end: Option<Instant>,
}

impl Life {
    /// When to check the connection again: at its deadline, or a whole period from now while calls are open.
    fn next_look(&self, place: &Place) -> Instant {
        let from = |idle: Instant| if place.open_calls() > 0 { Instant::now() } else { idle };
        match self.told_to_end {
            Some(told) => from(place.idle_since().max(told)) + CLOSING_TIMEOUT,
            None if place.is_established() => from(place.idle_since()) + IDLE_TIMEOUT,
            None if place.watched.has_shaken_hands() => self.came + FIRST_CALL_TIMEOUT,
            None => self.came + HANDSHAKE_TIMEOUT,
        }
    }

    fn look(&self, place: &Place) -> Ends {
        if self.next_look(place) > Instant::now() {
            return Ends::NotYet;
        }
        let can_be_told = self.told_to_end.is_none() && place.watched.has_shaken_hands();
        if can_be_told { Ends::Gracefully } else { Ends::Now }
    }
}

#[cfg(test)]
mod tests;
