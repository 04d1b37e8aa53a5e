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
//! | another connection needs its slot ([`slots`](super::slots)) | at once | GOAWAY, closed |
//! | it was refused since no slot was free | its calls are refused | GOAWAY |
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
    calls::CallHandler,
    connection::{Connection, ReadState},
    log_throttle::LogThrottle,
    settings::{CLOSING_TIMEOUT, FIRST_CALL_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Settings},
    slots::{Order, Slot, SlotGuard, Slots},
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
    let slots = Slots::new(settings.connections_max);
    let (http, throttle) = (settings.http2(), LogThrottle::default());
    let mut connections = JoinSet::new();
    loop {
        let (stream, remote) = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept::next(&mut listener, &slots, &throttle) => accepted,
        };
        let slot_guard = slots.admit(remote.ip(), ReadState::new(settings.turn_bytes));
        let without_message = settings.without_message_max;
        connections.spawn(connection(
            stream,
            remote,
            slot_guard,
            http.clone(),
            without_message,
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
    slot_guard: SlotGuard,
    http: http2::Builder<TokioExecutor>,
    without_message_max: usize,
    service: V,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    V::Future: Send,
{
    let slot = &slot_guard.0;
    let connection = Connection::new(stream, remote, Arc::clone(&slot.read_state));
    let without_message = Arc::new(Semaphore::new(without_message_max));
    let calls = CallHandler { slot: Arc::clone(slot), remote: connection.remote(), without_message, service };
    let answers = service_fn(move |request| calls.clone().answer(request));
    let mut served = pin!(http.serve_connection(TokioIo::new(connection), answers));
    let mut deadlines = Deadlines { accepted_at: Instant::now(), goaway_at: None };
    loop {
        let closing = tokio::select! {
            biased;
            ended = poll_fn(|context| in_turn(&slot.read_state, served.as_mut(), context)) => {
                if let Err(error) = ended {
                    tracing::debug!(%remote, %error, "a connection broke");
                }
                return;
            }
            () = stopping.cancelled(), if deadlines.goaway_at.is_none() => Closing::Gracefully,
            order = slot.ordered() => match order {
                Order::Stay => Closing::NotYet,
                Order::Finish => Closing::Gracefully,
                Order::GiveWay => Closing::Now,
            },
            () = sleep_until(deadlines.next_check(slot)) => deadlines.check(slot),
        };
        match closing {
            Closing::NotYet => {}
            Closing::Gracefully => {
                served.as_mut().graceful_shutdown();
                deadlines.goaway_at = Some(Instant::now());
            }
            Closing::Now => {
                // Sends only what fits into the socket's buffer.
                served.as_mut().graceful_shutdown();
                let say = |context: &mut Context<'_>| in_turn(&slot.read_state, served.as_mut(), context).map(drop);
                let mut say = pin!(poll_fn(say));
                let _ = futures::poll!(say.as_mut());
                return;
            }
        }
    }
}

/// One turn of a connection: see [`super::settings`].
fn in_turn<F: Future>(read_state: &ReadState, connection: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
    read_state.begin_turn();
    connection.poll(context)
}

/// Whether a connection must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closing {
    NotYet,
    Gracefully,
    Now,
}

/// The deadlines of a connection.
#[derive(Debug)]
struct Deadlines {
    accepted_at: Instant,
    goaway_at: Option<Instant>,
}

impl Deadlines {
    /// When to check the connection again: at its deadline, or a whole period from now while calls are open.
    fn next_check(&self, slot: &Slot) -> Instant {
        let from = |idle: Instant| if slot.open_calls() > 0 { Instant::now() } else { idle };
        match self.goaway_at {
            Some(told) => from(slot.idle_since().max(told)) + CLOSING_TIMEOUT,
            None if slot.is_established() => from(slot.idle_since()) + IDLE_TIMEOUT,
            None if slot.read_state.is_handshake_complete() => self.accepted_at + FIRST_CALL_TIMEOUT,
            None => self.accepted_at + HANDSHAKE_TIMEOUT,
        }
    }

    fn check(&self, slot: &Slot) -> Closing {
        if self.next_check(slot) > Instant::now() {
            return Closing::NotYet;
        }
        let can_be_told = self.goaway_at.is_none() && slot.read_state.is_handshake_complete();
        if can_be_told { Closing::Gracefully } else { Closing::Now }
    }
}

#[cfg(test)]
mod tests;
