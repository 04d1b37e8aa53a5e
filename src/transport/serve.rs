//! Serving a port, and the life of a connection.
//!
//! Each connection has a task. It ends when its client closes it, when it exceeds a limit of HTTP/2 ([`Settings`]), or when the node ends
//! it:
//!
//! | because | after | how |
//! |---|---|---|
//! | its handshake of TLS, if there is TLS, and its preface, or the first bytes of HTTP/1.1, are not complete | [`HANDSHAKE_TIMEOUT`] | closed |
//! | it makes no first call | [`FIRST_CALL_TIMEOUT`] | GOAWAY |
//! | it has had no open call | [`IDLE_TIMEOUT`] | GOAWAY |
//! | another connection needs its slot ([`Slots`]) | at once | GOAWAY, closed |
//! | a service has it closed ([`Remote::close`]) | at once | GOAWAY, closed |
//! | its client of HTTP/1.1 does not read | [`UNREAD_TIMEOUT`](lockkeeper_accept::UNREAD_TIMEOUT) | closed |
//! | its client of HTTP/2 does not read | [`UNREAD_HTTP2_TIMEOUT`] | closed |
//! | it was refused since no slot was free | its calls are refused | GOAWAY |
//! | its certificate counts no more ([`ShownCertificate`]) | at once | GOAWAY; closed after [`CLOSING_TIMEOUT`], also with open calls |
//! | the node stops | its calls are answered | GOAWAY |
//!
//! GOAWAY lets open calls end, and tells a client that it did nothing wrong: gRPC libraries connect again with the next call. A
//! connection without an open call that does not end by itself is closed after [`CLOSING_TIMEOUT`].

use std::{
    convert::Infallible,
    error::Error,
    future::{Future, pending},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::poll_fn;
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Incoming},
    rt::{Read, Write, bounds::Http2ServerConnExec},
    server::conn::{http1, http2},
    service::{HttpService, service_fn},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::body::Body;
use tower::Service;

use super::{
    Listen,
    authority::WithoutScheme,
    calls::CallHandler,
    connection::{Connection, Remote},
    plain::{self, Rewound},
    settings::{CLOSING_TIMEOUT, FIRST_CALL_TIMEOUT, HANDSHAKE_TIMEOUT, IDLE_TIMEOUT, Settings, UNREAD_HTTP2_TIMEOUT},
    tls::{Acceptor, ServerStream, ShownCertificate, WithdrawnCertificate},
};
use lockkeeper_accept::{ArrivingBytes, LogThrottle, ReadState, Slot, SlotGuard, Slots, TaskOrder, WriteDeadline};

/// Serves connections until `stopping`, and then the calls under way. Never fails: an error of one connection does not affect others.
///
/// With an `acceptor` all connections use TLS; each call carries the certificate of its connection ([`Remote`](super::Remote)).
/// Dropping the future closes all connections.
pub async fn serve<L, V>(
    mut listener: L,
    acceptor: Option<Acceptor>,
    settings: Settings,
    service: V,
    stopping: CancellationToken,
) where
    L: Listen,
    V: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    V::Future: Send,
{
    let slots = Slots::new(settings.connections_max, listener.refusals());
    let http = (settings.http2(), settings.http1());
    let arriving = ArrivingBytes::new(settings.arriving_bytes_max);
    let handshakes = acceptor.map(|acceptor| Handshakes { acceptor, failed: Arc::default() });
    let mut connections = JoinSet::new();

    loop {
        let (stream, remote) = tokio::select! {
            biased;
            // First of all: under a flood of arrivals the others are always ready, and the node would never stop.
            () = stopping.cancelled() => break,
            // Connections that have ended are taken out before another one is accepted, or the set would grow for as long as some arrive.
            Some(_) = connections.join_next() => continue,
            accepted = next(&mut listener, &slots) => accepted,
        };

        let slot_guard = slots.admit(remote.ip(), ReadState::new(settings.turn_bytes));
        let limits = CallLimits {
            without_message_max: settings.without_message_max,
            arriving: arriving.clone(),
            request_bytes_max: settings.request_bytes_max,
        };
        let http = http.clone();
        let service = service.clone();
        let stopping = stopping.clone();

        match &handshakes {
            None => {
                let read_state = Arc::clone(&slot_guard.0.read_state);
                let stream = Connection::new(stream, remote, read_state);
                connections.spawn(connection(stream, slot_guard, http, limits, service, stopping));
            }
            Some(handshakes) => {
                // On the runtime for handshakes, if there is one: their cryptography must not delay the calls of other connections.
                let handshakes = handshakes.clone();
                connections.spawn(async move {
                    let slot = Arc::clone(&slot_guard.0);
                    if let Some(stream) = handshakes.elsewhere(stream, remote, slot, stopping.clone()).await {
                        connection(stream, slot_guard, http, limits, service, stopping).await;
                    }
                });
            }
        }
    }

    // The operating system refuses new connections from now on, so clients use another node.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// The next connection, and the address that opened it. Never fails: an error of one connection does not affect others.
async fn next<L: Listen>(listener: &mut L, slots: &Slots) -> (L::Stream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => slots.note_failed_accept(&error).await,
        }
    }
}

/// HTTP/2, and HTTP/1.1 where it is spoken too.
type Protocols = (http2::Builder<TokioExecutor>, Option<http1::Builder>);

/// The limits of the calls of a connection.
struct CallLimits {
    without_message_max: usize,
    /// Shared by all connections of the port.
    arriving: ArrivingBytes,
    request_bytes_max: fn(&str) -> Option<usize>,
}

/// Serves one connection to its end.
async fn connection<S, V>(
    connection: Connection<S>,
    slot_guard: SlotGuard,
    (http2, http1): Protocols,
    CallLimits { without_message_max, arriving, request_bytes_max }: CallLimits,
    service: V,
    stopping: CancellationToken,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    V::Future: Send,
{
    let slot = &slot_guard.0;
    connection.takes(slot);
    let remote = connection.remote();
    let without_message = Arc::new(Semaphore::new(without_message_max));
    let calls = CallHandler {
        slot: Arc::clone(slot),
        remote: remote.clone(),
        without_message,
        arriving,
        request_bytes_max,
        service,
    };
    let answers = service_fn(move |request| calls.clone().answer(request));

    let Some(http1) = http1 else {
        let stream = TokioIo::new(WriteDeadline::within(UNREAD_HTTP2_TIMEOUT, connection));
        return to_its_end(http2.serve_connection(stream, answers), slot, remote, stopping).await;
    };

    let told = tokio::select! {
        told = timeout(HANDSHAKE_TIMEOUT, plain::is_http2(connection)) => told,
        () = stopping.cancelled() => return,
        () = slot.must_end() => return,
    };

    match told {
        Ok(Ok((stream, true))) => {
            let stream = TokioIo::new(WriteDeadline::within(UNREAD_HTTP2_TIMEOUT, WithoutScheme::new(stream)));
            to_its_end(http2.serve_connection(stream, answers), slot, remote, stopping).await;
        }
        Ok(Ok((mut stream, false))) => {
            stream.stream().skip_preface();
            // HTTP/1 has no pings, so its client has less time.
            let stream = TokioIo::new(WriteDeadline::new(stream));
            to_its_end(http1.serve_connection(stream, answers), slot, remote, stopping).await;
        }
        Ok(Err(_)) | Err(_) => {}
    }
}

/// A connection's server of HTTP.
trait Served: Future<Output = Result<(), hyper::Error>> {
    /// Has it end once its open calls have: by GOAWAY, or by closing after the answer.
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, B> Served for http2::Connection<I, S, TokioExecutor>
where
    Self: Future<Output = Result<(), hyper::Error>>,
    I: Read + Write + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: HttpBody + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
    TokioExecutor: Http2ServerConnExec<S::Future, B>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl<I, S, B> Served for http1::Connection<I, S>
where
    Self: Future<Output = Result<(), hyper::Error>>,
    I: Read + Write + Unpin,
    S: HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: HttpBody + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

async fn to_its_end(served: impl Served, slot: &Slot, remote: Remote, stopping: CancellationToken) {
    let Remote { address: remote, certificate, .. } = remote;
    let mut served = pin!(served);
    let mut withdrawn = pin!(withdrawn(certificate));
    let mut deadlines = ConnectionDeadlines { accepted_at: Instant::now(), goaway_at: None, closed_at: None };
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
                TaskOrder::Stay => Closing::NotYet,
                TaskOrder::Finish => Closing::Gracefully,
                TaskOrder::GiveWay => Closing::Now,
            },
            why = &mut withdrawn, if deadlines.closed_at.is_none() => {
                tracing::info!(%remote, "a connection ends: {why}");
                deadlines.closed_at = Some(Instant::now() + CLOSING_TIMEOUT);
                if deadlines.goaway_at.is_none() { Closing::Gracefully } else { Closing::NotYet }
            }
            () = sleep_until(deadlines.next_check(slot)) => deadlines.check(slot),
        };

        match closing {
            Closing::NotYet => {}
            Closing::Gracefully => {
                served.as_mut().finish();
                deadlines.goaway_at = Some(Instant::now());
            }
            Closing::Now => {
                // Sends only what fits into the socket's buffer.
                served.as_mut().finish();
                let say = |context: &mut Context<'_>| in_turn(&slot.read_state, served.as_mut(), context).map(drop);
                let mut say = pin!(poll_fn(say));
                let _ = futures::poll!(say.as_mut());
                return;
            }
        }
    }
}

/// Returns once a certificate counts no more. Never returns without one.
async fn withdrawn(certificate: Option<ShownCertificate>) -> WithdrawnCertificate {
    match certificate {
        Some(certificate) => certificate.withdrawn().await,
        None => pending().await,
    }
}

/// The handshakes of a port.
#[derive(Clone)]
struct Handshakes {
    acceptor: Acceptor,
    failed: Arc<LogThrottle>,
}

impl Handshakes {
    /// As [`secured`](Self::secured), on the runtime for handshakes, if there is one. Those at one time are bounded by the slots for
    /// arrivals.
    async fn elsewhere<S>(
        self,
        stream: S,
        remote: SocketAddr,
        slot: Arc<Slot>,
        stopping: CancellationToken,
    ) -> Option<Connection<ServerStream<Rewound<S>>>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = self.acceptor.runtime().cloned();
        let handshake = async move { self.secured(stream, remote, &slot, &stopping).await };

        match runtime {
            None => handshake.await,
            // An error: that runtime ends, and with it the node.
            Some(runtime) => AbortOnDropHandle::new(runtime.spawn(handshake)).await.ok().flatten(),
        }
    }

    /// Shakes hands. Returns `None` if that failed, took too long, or the connection had to make room for another.
    async fn secured<S>(
        &self,
        stream: S,
        remote: SocketAddr,
        slot: &Slot,
        stopping: &CancellationToken,
    ) -> Option<Connection<ServerStream<Rewound<S>>>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // Plain text is told apart first: its client gets an answer that it can read instead of an alert of TLS.
        let handshake = async { self.acceptor.accept(plain::refused(stream).await?).await };
        let secured = tokio::select! {
            secured = timeout(HANDSHAKE_TIMEOUT, handshake) => secured,
            () = stopping.cancelled() => return None,
            () = slot.must_end() => return None,
        };

        match secured.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((stream, certificate)) => {
                Some(Connection::new(stream, remote, Arc::clone(&slot.read_state)).with_certificate(certificate))
            }
            Err(error) => {
                // Counted, and logged now and then: any client can cause as many of these as it likes.
                if let Some(count) = self.failed.count() {
                    tracing::warn!(count, %remote, %error, "a connection was refused: its TLS handshake failed");
                }
                None
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
struct ConnectionDeadlines {
    accepted_at: Instant,
    goaway_at: Option<Instant>,
    /// When it is closed whatever is open, since its certificate counts no more.
    closed_at: Option<Instant>,
}

impl ConnectionDeadlines {
    /// When to check the connection again.
    fn next_check(&self, slot: &Slot) -> Instant {
        let idle = self.next_idle_check(slot);
        self.closed_at.map_or(idle, |closed| closed.min(idle))
    }

    /// At its deadline, or a whole period from now while calls are open.
    fn next_idle_check(&self, slot: &Slot) -> Instant {
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
