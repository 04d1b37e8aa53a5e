//! The same calls as JSON over HTTP, as etcd's own gateway has them, on the same port: for clients that speak no gRPC.
//!
//! * **A call** is a POST to `/v3/…`, or to `/v3beta/…` and `/v3alpha/…` for older clients, with its message as JSON: 64-bit numbers as
//!   texts or numbers, bytes in base64, fields that have their default left out, fields that are unknown ignored. It goes through the same
//!   methods as gRPC's.
//! * **A stream** is a POST whose body has messages one after the other, and whose answer has a line `{"result":…}` for each one of the
//!   server's; an error is a last line `{"error":…}`, and the status too if nothing came before it (but for an election's observer). The
//!   body may stay open. A watch goes on after the end of the body.
//! * **An error** is `{"error":…,"message":…,"code":…}`, with gRPC's code and the status of HTTP that the gateway has for it.
//! * `GET /version` and `GET /health` are for those who look; `GET /metrics` says where the metrics are.

use std::{future::Future, time::Duration};

use axum::{
    Router,
    body::{Body, BodyDataStream, to_bytes},
    extract::{Request as HttpRequest, State},
    response::Response as HttpResponse,
    routing::{MethodRouter, get, post},
};
use bytes::{Bytes, BytesMut};
use futures::{
    StreamExt as _,
    stream::{BoxStream, iter, unfold},
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header::CONTENT_TYPE, request::Parts};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use tokio::time::timeout;
use tonic::{Code, Request, Response, Status, metadata::MetadataMap};

use crate::{
    EtcdStore,
    call::{Etcd, requires_leader, unknown_service},
    key,
    maintenance::VERSION,
    object_scan::ObjectScan,
    proto::{
        etcdserverpb::{
            LeaseKeepAliveRequest, WatchRequest, auth_server::Auth, cluster_server::Cluster, kv_server::Kv,
            lease_server::Lease, maintenance_server::Maintenance,
        },
        v3electionpb::{LeaderRequest, election_server::Election},
        v3lockpb::lock_server::Lock,
    },
};

/// What paths begin with: since etcd 3.4, in 3.3, in 3.2.
const PREFIXES: [&str; 3] = ["/v3/", "/v3beta/", "/v3alpha/"];
/// The calls that change something, by the rest of their paths.
const CHANGES: [&str; 12] = [
    "kv/put",
    "kv/deleterange",
    "kv/txn",
    "kv/compaction",
    "lease/grant",
    "lease/revoke",
    "kv/lease/revoke",
    "lock/lock",
    "lock/unlock",
    "election/campaign",
    "election/proclaim",
    "election/resign",
];
/// The version of the cluster, as `/version` tells it.
const CLUSTER_VERSION: &str = "3.4.0";
/// Bytes of the body of a call: those of the largest transaction, in base64, and more.
const BODY_BYTES_MAX: usize = 4 << 20;
/// Bytes of one message of a stream: a few keys.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Time for the body of a call, or the first message of a stream, to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// What the type of a call of gRPC begins with.
const GRPC: &[u8] = b"application/grpc";

/// Messages of a client, or answers of a service.
type Items<T> = BoxStream<'static, Result<T, Status>>;

/// The calls and streams as JSON. A gRPC call to a service that the router does not have is answered with UNIMPLEMENTED.
pub(crate) fn gateway<S: EtcdStore>(etcd: Etcd<S>) -> Router {
    let mut router = Router::new().route("/version", get(version)).route("/health", get(health::<S>));
    router = router.route("/metrics", get(metrics));
    for prefix in PREFIXES {
        for (path, method) in methods() {
            router = router.route(&format!("{prefix}{path}"), method.fallback(async || not_allowed()));
        }
    }
    router.fallback(unknown).with_state(etcd)
}

/// Whether a call to this path changes something.
pub(crate) fn changes_something(path: &str) -> bool {
    let rest = PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix));
    rest.is_some_and(|rest| CHANGES.contains(&rest))
}

/// Whether a call to this path is for callers that say who they are. Of all calls, those by which they do it are not.
fn needs_identity(path: &str) -> bool {
    let rest = PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix));
    rest.is_none_or(|rest| !rest.starts_with("auth/"))
}

macro_rules! calls {
    ($($path:literal => $service:ident::$method:ident,)*) => {
        [$(($path, call(|etcd: Etcd<S>, request| async move { $service::$method(&etcd, request).await }))),*]
    };
}

/// The calls and streams, by the rest of their paths.
fn methods<S: EtcdStore>() -> impl IntoIterator<Item = (&'static str, MethodRouter<Etcd<S>>)> {
    let calls = calls! {
        "kv/range" => Kv::range,
        "kv/put" => Kv::put,
        "kv/deleterange" => Kv::delete_range,
        "kv/txn" => Kv::txn,
        "kv/compaction" => Kv::compact,
        "lease/grant" => Lease::lease_grant,
        "lease/revoke" => Lease::lease_revoke,
        "kv/lease/revoke" => Lease::lease_revoke,
        "lease/timetolive" => Lease::lease_time_to_live,
        "kv/lease/timetolive" => Lease::lease_time_to_live,
        "lease/leases" => Lease::lease_leases,
        "kv/lease/leases" => Lease::lease_leases,
        "cluster/member/list" => Cluster::member_list,
        "maintenance/status" => Maintenance::status,
        "maintenance/alarm" => Maintenance::alarm,
        "auth/authenticate" => Auth::authenticate,
        "auth/status" => Auth::auth_status,
        "lock/lock" => Lock::lock,
        "lock/unlock" => Lock::unlock,
        "election/campaign" => Election::campaign,
        "election/proclaim" => Election::proclaim,
        "election/leader" => Election::leader,
        "election/resign" => Election::resign,
    };

    let streams = [
        ("watch", stream(watch::<S>, Begins::WithItsFirst)),
        ("lease/keepalive", stream(keep_alive::<S>, Begins::WithItsFirst)),
        // The first message may take long, because the election may have no leader.
        ("election/observe", stream(observe::<S>, Begins::AtOnce)),
    ];

    calls.into_iter().chain(streams)
}

fn watch<S: EtcdStore>(
    etcd: &Etcd<S>,
    asks: &Asks<S>,
    _first: &WatchRequest,
    messages: Items<WatchRequest>,
) -> Result<Items<impl Serialize + Send + use<S>>, Status> {
    Ok(etcd.watches(asks.caller.clone(), messages, asks.requires_leader))
}

fn keep_alive<S: EtcdStore>(
    etcd: &Etcd<S>,
    asks: &Asks<S>,
    _first: &LeaseKeepAliveRequest,
    messages: Items<LeaseKeepAliveRequest>,
) -> Result<Items<impl Serialize + Send + use<S>>, Status> {
    let sessions = messages.map(|message| message.map(|message| key::session(message.id)));
    Ok(etcd.keep_alive(asks.caller.clone(), sessions.boxed(), asks.requires_leader).boxed())
}

/// The first message is the only one.
fn observe<S: EtcdStore>(
    etcd: &Etcd<S>,
    asks: &Asks<S>,
    first: &LeaderRequest,
    _messages: Items<LeaderRequest>,
) -> Result<Items<impl Serialize + Send + use<S>>, Status> {
    Ok(etcd.leaders(asks.caller.clone(), first.name.clone(), asks.requires_leader)?)
}

/// When the answer to a stream begins: with the first item, whose error is the status then; or at once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begins {
    AtOnce,
    WithItsFirst,
}

/// Who asks for a stream.
struct Asks<S: EtcdStore> {
    caller: S::Caller,
    requires_leader: bool,
}

async fn version() -> HttpResponse {
    answer(StatusCode::OK, &json!({ "etcdserver": VERSION, "etcdcluster": CLUSTER_VERSION }))
}

async fn health<S: EtcdStore>(State(etcd): State<Etcd<S>>) -> HttpResponse {
    match etcd.store.leader() {
        Some(_) => answer(StatusCode::OK, &json!({ "health": "true" })),
        None => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "health": "false", "reason": "no leader" })),
    }
}

/// Metrics are served at another port, where scrapers cannot hinder clients.
async fn metrics() -> HttpResponse {
    failed(&Status::not_found(
        "the metrics of this node are at /metrics of another port: that of http.listen in its configuration",
    ))
}

async fn unknown(uri: Uri, headers: HeaderMap) -> HttpResponse {
    let is_grpc = headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(GRPC));
    if is_grpc { unknown_service(uri.path()).into_http() } else { failed(&Status::not_found("Not Found")) }
}

fn not_allowed() -> HttpResponse {
    let status = Status::unimplemented("Method Not Allowed");
    answer(StatusCode::METHOD_NOT_ALLOWED, &error(&status))
}

/// A method that takes one message and gives one.
fn call<S, Q, A, F, R>(method: F) -> MethodRouter<Etcd<S>>
where
    S: EtcdStore,
    Q: DeserializeOwned + Default + Send + 'static,
    A: Serialize + Send + 'static,
    F: Fn(Etcd<S>, Request<Q>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<A>, Status>> + Send + 'static,
{
    post(async move |State(etcd): State<Etcd<S>>, request: HttpRequest| {
        let (Parts { headers, extensions, uri, .. }, body) = request.into_parts();
        // Who asks, before the body takes memory. A call that asks for no identity has a small body.
        let bytes_max = if needs_identity(uri.path()) { BODY_BYTES_MAX } else { MESSAGE_BYTES_MAX };
        if needs_identity(uri.path())
            && let Err(status) = etcd.caller_of(&extensions, &headers)
        {
            return failed(&status);
        }

        let message = match whole(body, bytes_max).await {
            Ok(message) => message,
            Err(status) => return failed(&status),
        };

        let request = Request::from_parts(MetadataMap::from_headers(headers), extensions, message);
        match method(etcd, request).await {
            Ok(message) => answer(StatusCode::OK, message.get_ref()),
            Err(status) => failed(&status),
        }
    })
}

/// A method that takes messages and gives some.
fn stream<S, Q, A, F>(method: F, begins: Begins) -> MethodRouter<Etcd<S>>
where
    S: EtcdStore,
    Q: DeserializeOwned + Clone + Send + 'static,
    A: Serialize + Send + 'static,
    F: Fn(&Etcd<S>, &Asks<S>, &Q, Items<Q>) -> Result<Items<A>, Status> + Clone + Send + Sync + 'static,
{
    post(async move |State(etcd): State<Etcd<S>>, request: HttpRequest| {
        let (Parts { headers, extensions, .. }, body) = request.into_parts();
        let begun = async {
            let requires_leader = requires_leader(&headers);
            let asks = Asks { caller: etcd.caller_of(&extensions, &headers)?, requires_leader };

            let mut messages = JsonMessages::from_body(body);
            // An error of the first message has a status of its own.
            let first = timeout(BODY_TIMEOUT, messages.next()).await.map_err(|_| late())?;
            let first: Q = first.unwrap_or_else(|| Err(garbage("it is empty")))?;

            let rest = unfold(Some(messages), |messages| async {
                let mut messages = messages?;
                let next = messages.next().await?;
                let messages = next.is_ok().then_some(messages);
                Some((next, messages))
            });
            let messages = iter([Ok(first.clone())]).chain(rest).boxed();

            // It is asked again after it has ended, if that is at once.
            let mut answers = method(&etcd, &asks, &first, messages)?.fuse();

            let first = match begins {
                Begins::AtOnce => None,
                Begins::WithItsFirst => answers.next().await,
            };
            Ok((first, answers))
        };

        match begun.await {
            Ok((first, answers)) => {
                // An error that comes first is the status, as in etcd: Patroni looks for an error only where the status is one, and would
                // take its lease for lost.
                let status = match &first {
                    Some(Err(status)) => http_status(status.code()),
                    Some(Ok(_)) | None => StatusCode::OK,
                };

                let lines = iter(first).chain(answers).map(|item| line(&item));
                let mut response = HttpResponse::new(Body::from_stream(lines));
                *response.status_mut() = status;
                response.headers_mut().insert(CONTENT_TYPE, JSON);
                response
            }
            Err(status) => failed(&status),
        }
    })
}

/// The message of a call.
async fn whole<Q: DeserializeOwned + Default>(body: Body, bytes_max: usize) -> Result<Q, Status> {
    let bytes = timeout(BODY_TIMEOUT, to_bytes(body, bytes_max)).await.map_err(|_| late())?;
    let bytes = bytes.map_err(|error| {
        refusal_in(&error).unwrap_or_else(|| {
            Status::invalid_argument(format!("the body has more than {bytes_max} bytes, or broke off: send less"))
        })
    })?;

    match bytes.trim_ascii() {
        // As in etcd.
        [] => Ok(Q::default()),
        bytes => serde_json::from_slice(bytes).map_err(garbage),
    }
}

/// The refusal by the layer that passes the body on, for example its limit for all bodies.
fn refusal_in(error: &(dyn std::error::Error + 'static)) -> Option<Status> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(status) = error.downcast_ref::<Status>() {
            return Some(Status::new(status.code(), status.message()));
        }
        cause = error.source();
    }
    None
}

fn garbage(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("the body is not the JSON of this call: {error}"))
}

fn late() -> Status {
    let seconds = BODY_TIMEOUT.as_secs();
    Status::deadline_exceeded(format!("no message arrived within {seconds} s: send it with the call"))
}

/// The messages of a stream, one after the other.
struct JsonMessages {
    body: BodyDataStream,
    buffer: BytesMut,
    /// The search for the end of the first message in the buffer.
    scan: ObjectScan,
    has_ended: bool,
}

impl JsonMessages {
    fn from_body(body: Body) -> Self {
        let scan = ObjectScan::default();
        Self { body: body.into_data_stream(), buffer: BytesMut::new(), scan, has_ended: false }
    }

    /// The next message, if there are more. An error is the last item.
    async fn next<Q: DeserializeOwned>(&mut self) -> Option<Result<Q, Status>> {
        loop {
            if let Some(message) = self.take() {
                return Some(message);
            }
            if self.has_ended {
                return None;
            }

            match self.body.next().await {
                Some(Ok(bytes)) => {
                    if self.buffer.len() + bytes.len() > MESSAGE_BYTES_MAX {
                        return Some(Err(garbage(format!("a message has more than {MESSAGE_BYTES_MAX} bytes"))));
                    }
                    self.buffer.extend_from_slice(&bytes);
                }
                Some(Err(error)) => {
                    let status = refusal_in(&error);
                    return Some(Err(status.unwrap_or_else(|| Status::cancelled("the body broke off"))));
                }
                None => self.has_ended = true,
            }
        }
    }

    /// Takes a message from the buffer, if one is there.
    fn take<Q: DeserializeOwned>(&mut self) -> Option<Result<Q, Status>> {
        let end = match self.scan.end(&self.buffer) {
            Some(end) => end,
            // It does not become whole any more. The parser says what it lacks.
            None if self.has_ended && !self.buffer.trim_ascii().is_empty() => self.buffer.len(),
            None => return None,
        };
        self.scan = ObjectScan::default();
        Some(serde_json::from_slice(&self.buffer.split_to(end)).map_err(garbage))
    }
}

fn answer(status: StatusCode, message: &impl Serialize) -> HttpResponse {
    let mut response = match serde_json::to_vec(message) {
        Ok(bytes) => HttpResponse::new(Body::from(bytes)),
        Err(error) => return failed(&Status::internal(error.to_string())),
    };

    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn failed(status: &Status) -> HttpResponse {
    answer(http_status(status.code()), &error(status))
}

fn error(status: &Status) -> serde_json::Value {
    let message = status.message();
    let code = i32::from(status.code());
    json!({ "error": message, "message": message, "code": code })
}

/// A line of a stream's answer.
fn line(item: &Result<impl Serialize, Status>) -> Result<Bytes, serde_json::Error> {
    let value = match item {
        Ok(message) => json!({ "result": message }),
        Err(status) => {
            let http = http_status(status.code());
            json!({ "error": {
                "grpc_code": i32::from(status.code()),
                "http_code": http.as_u16(),
                "message": status.message(),
                "http_status": http.canonical_reason(),
            } })
        }
    };

    let mut line = serde_json::to_vec(&value)?;
    line.push(b'\n');
    Ok(line.into())
}

/// The status of HTTP that etcd's gateway has for a code.
fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::REQUEST_TIMEOUT,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use serde::{Deserialize, Deserializer, de::IgnoredAny};

    use super::*;

    static PARSED: AtomicUsize = AtomicUsize::new(0);

    /// A message that counts how often it is parsed.
    struct CountedMessage;

    impl<'de> Deserialize<'de> for CountedMessage {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            PARSED.fetch_add(1, Ordering::Relaxed);
            IgnoredAny::deserialize(deserializer).map(|_| Self)
        }
    }

    /// Parts that end an object, or seem to, must not cost a pass over all before them.
    #[tokio::test]
    async fn a_message_in_many_parts_is_parsed_once() {
        let text = "}".repeat(1000);
        let objects = "{},".repeat(1000);
        let whole = format!(r#" {{"key":"{text}","list":[{objects}{{}}]}} {{}} "#);
        let parts: Vec<_> = whole.bytes().map(|byte| Ok::<_, Infallible>(Bytes::from(vec![byte]))).collect();
        let mut messages = JsonMessages::from_body(Body::from_stream(iter(parts)));

        for expected in [1, 2] {
            assert!(matches!(messages.next::<CountedMessage>().await, Some(Ok(_))));
            assert_eq!(PARSED.load(Ordering::Relaxed), expected);
        }
        assert!(messages.next::<CountedMessage>().await.is_none());
    }
}
