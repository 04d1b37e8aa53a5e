//! The console: a page for people, and the calls by which it asks its node.
//!
//! | path | answers |
//! |---|---|
//! | `GET /` | the page |
//! | `GET /console/FILE` | its style and its scripts, which are part of the program |
//! | `POST /console/api/CALL` | one call ([`calls`]): JSON there and back |
//! | `POST /console/api/feed` | changes as they happen ([`feed`]): a JSON object a line, without end |
//!
//! The page is an adapter like any other: the calls go to the [`Service`], which checks the rights of the caller as it does for gRPC. The
//! caller is known by a bearer token, or else by the certificate of its connection. Lists and the page of a lock come from the table of
//! this node, so the console shows them even while there is no leader. The acts of operators (a forced release, a closed session, a removed
//! waiter, a lifted lock-delay) go to the leader. What happened lately is recorded by [`history`].
//!
//! **Other sites.** A browser sends requests for any site that it shows. The [`gate`] refuses requests of other sites, and requests for a
//! host that is not this node's (a name that somebody points at it). A Content-Security-Policy limits what the browser runs: scripts of
//! this origin in files, nothing inline, no other host. Names of locks and labels reach the page as JSON and are shown as text.
//!
//! Deliberately absent: accounts and cookies, and any state in the node except the history and the open feeds, which are bounded.

mod assets;
mod calls;
mod feed;
mod history;
mod places;
mod shown;

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Extension, Path, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request::Parts},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Serialize;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use self::{history::RecentHistory, places::FeedPlaces};
use super::{
    api::{Caller, Deadline, Error, FailureReason},
    cluster::Cluster,
    gate::{self, Hosts},
    http_port::HttpConnection,
    service::Service,
    wire::status::outcome,
};
use lockkeeper_environment::Clock;
use lockkeeper_metrics::Metrics;
use lockkeeper_proto::v1::StatusResponse;

/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of bytes of a call's request.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Maximum number of feeds that this node serves at a time.
const FEEDS_MAX: usize = 32;

/// The headers of each answer, which limit what a browser does with it.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// What the console needs of its node.
#[derive(Clone, Debug)]
pub(crate) struct Console {
    cluster: Cluster,
    service: Service,
    clock: Arc<dyn Clock>,
    hosts: Arc<Hosts>,
    feeds: Arc<FeedPlaces>,
    /// The leader's last answer, for all pages that are open here. It is locked while the leader is asked: the others wait for the same
    /// answer.
    leader: Arc<Mutex<Option<LeaderAnswer>>>,
    /// What happened in the last minutes: see [`Console::record`].
    history: Arc<RecentHistory>,
}

/// The leader's last answer about its condition.
#[derive(Debug)]
struct LeaderAnswer {
    asked: Instant,
    /// It is missing if the leader did not answer, or if there is no other leader.
    status: Option<StatusResponse>,
}

impl Console {
    pub(crate) fn new(cluster: Cluster, service: Service, clock: Arc<dyn Clock>, hosts: Arc<Hosts>) -> Self {
        let feeds = Arc::new(FeedPlaces::new(FEEDS_MAX));
        let leader = Arc::default();
        let history = Arc::default();
        Self { cluster, service, clock, hosts, feeds, leader, history }
    }

    /// Records what happens, for somebody who opens the page afterwards. Ends with Raft.
    pub(crate) async fn record(self, metrics: Metrics) {
        self.history.record(&self.cluster, &metrics).await;
    }

    pub(crate) fn routes(self) -> Router {
        Router::new()
            .route("/", get(|headers: HeaderMap| async move { assets::page(&headers) }))
            .route(
                "/console/{file}",
                get(|Path(file): Path<String>, headers: HeaderMap| async move { assets::file(&file, &headers) }),
            )
            .route("/console/api/feed", post(feed::open))
            .route("/console/api/{call}", post(call))
            .layer(from_fn_with_state(self.clone(), guarded))
            .with_state(self)
    }

    /// The caller of a request. Fails if its token is unknown, its certificate counts no more, or its identity has too many connections.
    /// The connection is closed after the answer to the latter two: only on another one can the client show another certificate.
    fn caller(&self, head: &Parts, remote: &RequestOrigin) -> Result<Caller, Error> {
        let access = self.service.access();
        let connection = head.extensions.get::<HttpConnection>();
        let shown = match access.bearer(&head.headers)? {
            Some((identity, token)) => Caller { identity: Some(identity), token: Some(token), ..Caller::default() },
            None => {
                let certificate = connection.and_then(|connection| connection.certificate.as_ref());
                let identified = access.certificate_identity(certificate);
                if let (Err(_), Some(connection)) = (&identified, connection) {
                    connection.finish();
                }
                let (identity, is_of_earlier) = identified?;
                Caller { identity, certificate: certificate.cloned(), is_of_earlier, ..Caller::default() }
            }
        };

        if let (Some(who), Some(connection)) = (&shown.identity, connection) {
            access.count_http_connection(who, connection)?;
        }

        let deadline = Some(Deadline::at(Instant::now() + CALL_TIMEOUT));
        Ok(Caller { remote: Some(remote.0.into()), deadline, ..shown })
    }
}

/// Whether a request for this path changes something, so that its answer must reach the reader.
pub(crate) fn changes_something(path: &str) -> bool {
    path.strip_prefix("/console/api/").is_some_and(calls::changes)
}

/// The address of the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin(pub(crate) SocketAddr);

/// Refuses requests of other sites, and says what a browser may do with the answers.
async fn guarded(State(console): State<Console>, request: Request, next: Next) -> Response {
    let connection = request.extensions().get::<HttpConnection>().cloned();
    let mut answer = match gate::check_page(&request, &console.hosts) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    };
    for (name, value) in HEADERS {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    // Its certificate may count no more since this request was let in: whatever the answer is, the next one is for another connection.
    let counts_no_more = |connection: &HttpConnection| {
        connection.certificate.as_ref().is_some_and(|certificate| certificate.check().is_err())
    };
    if connection.is_some_and(|connection| connection.must_finish() || counts_no_more(&connection)) {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

async fn call(
    State(console): State<Console>,
    Extension(remote): Extension<RequestOrigin>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let answer = async {
        let (caller, body) = received(&console, &remote, request).await?;
        calls::answer(&console, &caller, &name, &body).await
    };

    // An operator's act carries the caller's deadline to the leader, so it is over there by then.
    match timeout(CALL_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => failed(&error),
        Err(_) => failed(&Error::deadline_passed(calls::changes(&name))),
    }
}

async fn received(console: &Console, remote: &RequestOrigin, request: Request) -> Result<(Caller, Vec<u8>), Error> {
    let (head, body) = request.into_parts();
    let caller = console.caller(&head, remote)?;

    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await;
    let body = body.map_err(|_| Error::invalid("body", format!("is broken, or exceeds {BODY_BYTES_MAX} bytes")))?;
    Ok((caller, body.into()))
}

fn json(value: &impl Serialize) -> Response {
    json_with(StatusCode::OK, value)
}

fn json_with(status: StatusCode, value: &impl Serialize) -> Response {
    static NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
    static JSON: LazyLock<HeaderValue> = LazyLock::new(|| HeaderValue::from_static("application/json"));

    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let headers = [(header::CONTENT_TYPE, JSON.clone()), (header::CACHE_CONTROL, NO_STORE.clone())];
            (status, headers, Body::from(bytes)).into_response()
        }
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Writes an error as the page reads it.
fn failed(error: &Error) -> Response {
    let status = match &error.reason {
        FailureReason::Unauthenticated => StatusCode::UNAUTHORIZED,
        FailureReason::PermissionDenied | FailureReason::NotOwner => StatusCode::FORBIDDEN,
        FailureReason::InvalidArgument => StatusCode::BAD_REQUEST,
        FailureReason::NoLeader | FailureReason::ShuttingDown => StatusCode::SERVICE_UNAVAILABLE,
        FailureReason::OutcomeUnknown { .. } | FailureReason::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        FailureReason::LimitReached | FailureReason::Overloaded | FailureReason::DiskSpaceLow => {
            StatusCode::TOO_MANY_REQUESTS
        }
        FailureReason::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        FailureReason::SessionUnknown
        | FailureReason::SessionExpired
        | FailureReason::SessionClosed
        | FailureReason::SessionExists
        | FailureReason::NotHeld
        | FailureReason::ModeMismatch
        | FailureReason::Abandoned
        | FailureReason::RequestStale
        | FailureReason::RequestReused
        | FailureReason::WaitCancelled
        | FailureReason::WaitRemoved
        | FailureReason::LockUnknown
        | FailureReason::ClusterVersion
        | FailureReason::NotSemaphore
        | FailureReason::RevisionCompacted
        | FailureReason::RevisionFuture
        | FailureReason::Revoked
        | FailureReason::MembershipRefused
        | FailureReason::MembershipChanging
        | FailureReason::Newer { .. } => StatusCode::CONFLICT,
    };

    json_with(status, &shown::ShownFailure { reason: outcome(&error.reason), message: &error.message })
}
