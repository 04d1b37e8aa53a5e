//! A port that speaks HTTP/1.1: for people, for what watches a node, and for clients of other protocols.
//!
//! What a connection costs is bounded: its handshake, its headers and the time for both ([`PortLimits`]), the time for which its client may
//! leave an answer unread, and the number of connections. What an answer costs is the caller's business.
//!
//! **Which connections stay** is decided as at the ports of gRPC (`lockkeeper-accept`): each one is accepted at once, as an arrival; its
//! first request establishes it. Each of the two kinds has slots of its own. So connections that say nothing, or half a request, displace
//! each other and no other one; and of those with requests the idle ones go first.
//!
//! **Probes** ([`PortLimits::probes`]) need no slot of an established connection: they are answered while the connection is an arrival, and
//! it is closed after the answer. So a probe gets its answer even if other connections are slow or do not read.

use std::{
    convert::Infallible,
    error::Error,
    future::Future,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Extensions, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use lockkeeper_accept::{
    AcceptLimits, AcceptedConnection, NoSlot, OpenCall, Slot, TaskOrder, WriteDeadline, serve_connections,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
use tokio_util::sync::CancellationToken;

pub use lockkeeper_accept::{ConnectionSource, Refusals};

/// The header in which a browser names the origin of a request.
const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What a port takes.
#[derive(Clone, Copy, Debug)]
pub struct PortLimits {
    /// Connections at a time: half of them, at most 256, for those without a request.
    pub connections_max: usize,
    /// Bytes of a request's line and headers; 8 KiB at least.
    pub header_bytes_max: usize,
    /// Time for the handshake, and for the headers of each request. An idle connection is closed after it.
    pub header_timeout: Duration,
    /// The paths of probes: cheap questions whose short answers need no slot.
    pub probes: &'static [&'static str],
    /// Whether a new connection is refused while all slots have a request under way and no address has more than half of them. Otherwise
    /// the oldest one of the address with the most goes: for a port with short requests that clients can repeat.
    pub refuses: bool,
    /// Whether requests of web pages are answered. A browser sends them for whatever page it shows, and a name that somebody points at
    /// this node makes that page one of the same origin. So a port for programs refuses what only a browser says: `Origin` and
    /// `Sec-Fetch-Site`.
    pub browsers: bool,
}

/// Accepts connections, and describes them to their requests.
pub trait HttpListen: ConnectionSource {
    /// What each request of a connection is to know of it.
    fn describe(_stream: &Self::Stream) -> Extensions {
        Extensions::new()
    }
}

impl HttpListen for TcpListener {}

/// Serves connections until `stopping`, and then the requests under way for some seconds. Never fails: an error of one connection does not
/// affect others. Dropping the future closes all connections.
///
/// `answer` gets each request and its client's address.
pub async fn serve<L, F, A, B>(listener: L, limits: PortLimits, answer: F, stopping: CancellationToken)
where
    L: HttpListen,
    F: Fn(Request<Incoming>, SocketAddr) -> A + Clone + Send + 'static,
    A: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data: From<String> + Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    let accepts = AcceptLimits {
        connections_max: limits.connections_max,
        handshake_timeout: limits.header_timeout,
        refuses: limits.refuses,
        settles_arrivals: false,
    };

    let serve = move |accepted: AcceptedConnection<L::Stream>| {
        let known = L::describe(&accepted.stream);
        let answer = answer.clone();
        let answer = move |mut request: Request<Incoming>, client| {
            request.extensions_mut().extend(known.clone());
            answer(request, client)
        };
        connection(accepted, limits, answer)
    };
    serve_connections(listener, accepts, stopping, serve).await;
}

async fn connection<F, A, B>(
    accepted: AcceptedConnection<impl AsyncRead + AsyncWrite + Unpin>,
    limits: PortLimits,
    answer: F,
) where
    F: Fn(Request<Incoming>, SocketAddr) -> A,
    A: Future<Output = Response<B>>,
    B: Body<Data: From<String>, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin + 'static,
{
    let AcceptedConnection { stream, client, slot, stopping } = accepted;
    let calls = Arc::clone(&slot);
    let service = service_fn(move |request: Request<Incoming>| {
        let is_probe = limits.probes.contains(&request.uri().path());
        let call = if is_probe { Ok(None) } else { calls.call().map(Some) };

        let is_refused = !limits.browsers && is_of_page(&request);
        let call = call
            .map_err(UnansweredRequest::Full)
            .and_then(|call| if is_refused { Err(UnansweredRequest::OfPage) } else { Ok(call) });
        let answered = call.map(|call| (answer(request, client), call));

        async move {
            let response = match answered {
                Ok((response, call)) => response.await.map(|body| AnswerBody::Of { body, _call: call }),
                Err(refusal) => refusal.into_response(),
            };
            Ok::<_, Infallible>(if is_probe { closing(response) } else { response })
        }
    });

    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_timeout).max_buf_size(limits.header_bytes_max);

    let stream = TokioIo::new(WriteDeadline::new(stream));
    let ended = to_its_end(http.serve_connection(stream, service), &slot, stopping).await;
    if let Some(Err(error)) = ended {
        tracing::debug!(%client, %error, "a connection broke");
    }
}

/// Serves a connection until it ends or has to. Returns `None` if another connection needed its slot.
async fn to_its_end<C>(served: C, slot: &Slot, stopping: CancellationToken) -> Option<hyper::Result<()>>
where
    C: ConnectionServer,
{
    let mut served = pin!(served);
    let mut is_finishing = false;
    loop {
        let finishes = tokio::select! {
            // First, since a request that has arrived is answered even if the connection must go then.
            biased;
            ended = served.as_mut() => return Some(ended),
            () = stopping.cancelled(), if !is_finishing => true,
            order = slot.ordered() => match order {
                TaskOrder::Stay => false,
                TaskOrder::Finish => true,
                TaskOrder::GiveWay => return None,
            },
        };

        if finishes {
            is_finishing = true;
            served.as_mut().finish();
        }
    }
}

/// A connection's server of HTTP.
trait ConnectionServer: Future<Output = hyper::Result<()>> {
    /// Has it end after the answer to the request under way.
    fn finish(self: Pin<&mut Self>);
}

impl<I, S, B> ConnectionServer for http1::Connection<I, S>
where
    Self: Future<Output = hyper::Result<()>>,
    I: hyper::rt::Read + hyper::rt::Write + Unpin,
    S: hyper::service::HttpService<Incoming, ResBody = B>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>> + 'static,
{
    fn finish(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// Whether a browser sends this request for a page.
fn is_of_page<B>(request: &Request<B>) -> bool {
    [header::ORIGIN, SITE].iter().any(|header| request.headers().contains_key(header))
}

/// A request that is not answered.
enum UnansweredRequest {
    Full(NoSlot),
    OfPage,
}

impl UnansweredRequest {
    fn into_response<B: Body<Data: From<String>>>(self) -> Response<AnswerBody<B>> {
        let (status, why) = match self {
            Self::Full(NoSlot { established_max: most }) => {
                let why = format!(
                    "all {most} slots for connections of this port are in use: close connections, or use another node"
                );
                (StatusCode::SERVICE_UNAVAILABLE, why)
            }
            Self::OfPage => {
                let why =
                    "this port is for programs: requests of web pages (Origin, Sec-Fetch-Site) are refused".to_owned();
                (StatusCode::FORBIDDEN, why)
            }
        };

        let mut response = Response::new(AnswerBody::Refusal(Some(format!("{why}\n").into())));
        *response.status_mut() = status;
        response
    }
}

fn closing<B>(mut response: Response<B>) -> Response<B> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// The body of an answer. Its call is open until the body is sent or dropped.
enum AnswerBody<B: Body> {
    Of {
        body: B,
        /// The place among the open calls, which a probe does not take.
        _call: Option<OpenCall>,
    },
    Refusal(Option<B::Data>),
}

// Nothing in it is pinned but the body, which is `Unpin` itself.
impl<B: Body + Unpin> Unpin for AnswerBody<B> {}

impl<B: Body + Unpin> Body for AnswerBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match &mut *self {
            Self::Of { body, .. } => Poll::Ready(ready!(Pin::new(body).poll_frame(context))),
            Self::Refusal(why) => Poll::Ready(why.take().map(|why| Ok(Frame::data(why)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Of { body, .. } => body.is_end_stream(),
            Self::Refusal(why) => why.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Of { body, .. } => body.size_hint(),
            Self::Refusal(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests;
