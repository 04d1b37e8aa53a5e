//! The endpoint: HTTP/1.1, with one operation for each POST.
//!
//! The cost of a connection is bounded: its headers ([`HEADER_BYTES_MAX`]) and the time for them, the body's bytes and the time for them,
//! the bytes of all bodies in flight ([`bodies`](crate::bodies)) and of what is decoded ([`decoded`](crate::decoded)), the time of an
//! operation ([`DynamoOptions`]), and the bytes of unread answers ([`unread`](crate::unread)). A client that exceeds a limit gets
//! DynamoDB's error, if HTTP still allows an answer.
//!
//! Nothing is kept for a client before its headers were checked. They name an operation and, if signatures are checked, a known access key,
//! a time close to now, and the scope of DynamoDB ([`sigv4`]).

use std::{
    future::poll_fn,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use lockkeeper_http1::{HttpListen, PortLimits};
use sha2::{Digest as _, Sha256};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    DynamoCaller, DynamoOptions, DynamoStore,
    bodies::{self, Bodies, BodyShare},
    budget::SharedBytes,
    call::body_bytes_max,
    database::Database,
    decoded::{DecodedShare, json_decoded_bytes},
    error::{Error, ErrorType, Result},
    large_work::LARGE_BYTES,
    sigv4::{self, IdentityClaim},
    unread::{OutgoingAnswer, Unread, WaitRefused},
};

/// Maximum number of bytes of a request's line and headers.
const HEADER_BYTES_MAX: usize = 32 << 10;
/// The first part of each request's target.
const TARGET: &str = "DynamoDB_20120810.";
/// Time after an operation's deadline in which the store may still say why it did not answer.
const DEADLINE_SLACK: Duration = Duration::from_secs(1);
/// Pause after a failure to remove the items of a deleted table.
const PAUSE: Duration = Duration::from_secs(1);
/// Time limit of one step of that removal.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The state that all connections share.
struct Endpoint<S> {
    database: Database<S>,
    bodies: Bodies,
    decoded: Arc<SharedBytes>,
    unread: Arc<Unread>,
    requests: AtomicU64,
}

/// Serves DynamoDB's API over a store until `stopping` is cancelled, and then the requests in flight. Never fails: an error of one
/// connection does not affect others. Dropping the future closes all connections.
pub async fn serve<L: HttpListen, S: DynamoStore>(
    listener: L,
    store: S,
    options: DynamoOptions,
    stopping: CancellationToken,
) {
    let DynamoOptions { connections_max, header_timeout, .. } = options;
    let header_bytes_max = HEADER_BYTES_MAX;
    // Requests are short, and SDKs ask again: to refuse a connection costs less than to close one that is in use.
    let limits =
        PortLimits { connections_max, header_bytes_max, header_timeout, probes: &[], refuses: true, browsers: false };

    let bodies = Bodies::new(options.all_bodies_bytes_max, options.address_bodies_bytes_max);
    let decoded = SharedBytes::new(options.all_decoded_bytes_max, options.address_decoded_bytes_max);
    let unread = Unread::new(options.unread);
    let watching = Arc::clone(&unread).watch_over();
    let database = Database::new(store, options);
    let endpoint = Arc::new(Endpoint { database, bodies, decoded, unread, requests: AtomicU64::new(0) });

    let sweeping = Arc::clone(&endpoint);
    let mut duties = JoinSet::new();
    duties.spawn(async move { sweeping.sweep().await });
    duties.spawn(watching);

    let answer = move |request, client| {
        let endpoint = Arc::clone(&endpoint);
        async move { endpoint.answer(request, client).await }
    };
    lockkeeper_http1::serve(listener, limits, answer, stopping).await;
}

impl<S: DynamoStore> Endpoint<S> {
    async fn answer(&self, request: Request<Incoming>, client: SocketAddr) -> Response<OutgoingAnswer> {
        let (parts, body) = request.into_parts();
        if parts.method == Method::GET {
            let body = Bytes::from_static(b"healthy: dynamodb\n");
            return self.response(StatusCode::OK, "text/plain", crc32fast::hash(&body), OutgoingAnswer::Small(body));
        }

        let answer = self.operation(&parts, body, client).await;
        let answer = answer.and_then(|body| {
            let checksum = crc32fast::hash(&body);
            self.unread.answer(client.ip(), body.into()).map(|answer| (checksum, answer)).map_err(unread_error(&parts))
        });

        let ends_connection = answer.as_ref().is_err_and(|error| error.ends_connection);
        let (status, checksum, answer) = match answer {
            Ok((checksum, answer)) => (StatusCode::OK, checksum, answer),
            Err(error) => self.failure(client.ip(), error),
        };

        let mut response = self.response(status, "application/x-amz-json-1.0", checksum, answer);
        if ends_connection {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Makes the answer of an error. An error that shows items may be too large, and then shows none.
    fn failure(&self, client: IpAddr, error: Error) -> (StatusCode, u32, OutgoingAnswer) {
        let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let json = |error: &Error| Bytes::from(serde_json::to_vec(error).expect("texts and numbers are JSON"));
        let body = json(&error);
        let checksum = crc32fast::hash(&body);
        self.unread.answer(client, body).map(|answer| (status, checksum, answer)).unwrap_or_else(|_| {
            let body = json(&error.without_items());
            (status, crc32fast::hash(&body), OutgoingAnswer::Small(body))
        })
    }

    async fn operation(&self, parts: &Parts, mut body: Incoming, client: SocketAddr) -> Result<Vec<u8>> {
        let options = &self.database.options;
        let body_until = Instant::now() + options.body_timeout;
        let (operation, claim) = match self.checked_head(parts) {
            Ok(checked) => checked,
            Err(error) => {
                // Whatever comes of it, the answer is this error.
                let _ = timeout_at(body_until, pass_over(&mut body)).await;
                return Err(error);
            }
        };
        let bytes_max = body_bytes_max(operation, options.body_bytes_max);
        let read = timeout_at(body_until, self.body(body, bytes_max, client.ip())).await.map_err(|_| {
            Error::new(
                ErrorType::Serialization,
                format!("the body did not arrive within {} ms", options.body_timeout.as_millis()),
            )
        });
        let (body, _share) = read??;

        let deadline = Instant::now() + options.operation_timeout;
        let turn = timeout_at(deadline, self.database.large_work.turn(body.len())).await.map_err(|_| {
            let problem = format!(
                "other large requests took all the time: send it again later, or send bodies of less than {LARGE_BYTES} bytes"
            );
            Error::new(ErrorType::Throttled, problem)
        })?;
        let identity = claim.prove(parts, &body)?;
        if let Some(access_key) = &identity {
            let admitted = self.database.store.admit(access_key, &parts.extensions);
            admitted.map_err(|refused| Error { ends_connection: true, ..refused.into() })?;
        }

        // Before anything of it is decoded.
        let decoded = DecodedShare::new(&self.decoded, client.ip());
        let _body_decoded = decoded.charge(json_decoded_bytes(&body))?;

        let caller = DynamoCaller { identity, address: client, deadline, is_port: false, decoded };
        let invocation = parts.headers.get("amz-sdk-invocation-id").and_then(|id| id.to_str().ok());
        let mut answer = pin!(self.database.call(&caller, operation, invocation, &body));
        // The body is decoded before anything is waited for.
        let begun = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        drop(turn);
        if let Poll::Ready(answer) = begun {
            return answer;
        }

        timeout_at(deadline + DEADLINE_SLACK, answer).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorType::InternalServerError,
                format!(
                    "no answer within {} ms; the operation may still take effect",
                    options.operation_timeout.as_millis()
                ),
            ))
        })
    }

    /// Returns the operation of a request, and the identity that the request claims.
    fn checked_head<'a>(&'a self, parts: &'a Parts) -> Result<(&'a str, IdentityClaim<'a>)> {
        let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
        let operation = target.strip_prefix(TARGET).filter(|_| parts.method == Method::POST).ok_or_else(|| {
            let message =
                format!("{} with X-Amz-Target '{target}': expected POST and '{TARGET}Operation'", parts.method);
            Error::new(ErrorType::UnknownOperation, message)
        })?;
        let options = &self.database.options;
        let claim = sigv4::claim(parts, options.secrets.as_ref(), (options.wall_ms)())?;
        Ok((operation, claim))
    }

    /// Reads the whole body. Returns it with the share that counts it as long as it is in use.
    async fn body(&self, mut body: Incoming, bytes_max: usize, client: IpAddr) -> Result<(Vec<u8>, BodyShare)> {
        let too_large = || Error::new(ErrorType::RequestTooLarge, format!("the body is larger than {bytes_max} bytes"));
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(too_large());
        }

        let mut read = Vec::new();
        let mut share = self.bodies.share(client);
        while let Some(frame) = body.frame().await {
            let broken =
                |error: hyper::Error| Error::new(ErrorType::Serialization, format!("the body broke off: {error}"));
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if read.len() + data.len() > bytes_max {
                return Err(too_large());
            }
            share.grow_to(read.len() + data.len())?;
            read.extend_from_slice(&data);
        }
        Ok((read, share))
    }

    fn response(
        &self,
        status: StatusCode,
        content_type: &'static str,
        checksum: u32,
        answer: OutgoingAnswer,
    ) -> Response<OutgoingAnswer> {
        let mut response = Response::new(answer);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::SERVER, HeaderValue::from_static("lockkeeper"));
        headers.insert("x-amz-crc32", HeaderValue::from(checksum));

        if let Ok(id) = HeaderValue::from_str(&self.request_id()) {
            headers.insert("x-amzn-requestid", id);
        }
        response
    }

    /// Returns an id of 52 characters that no other request has.
    fn request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let seed = self.database.options.seed;
        let hash = Sha256::digest([seed.to_be_bytes(), number.to_be_bytes()].concat());
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        hash.iter().chain(&hash[..20]).map(|byte| char::from(letters[usize::from(byte & 31)])).collect()
    }

    /// Removes the items of deleted tables: of those that a crash left behind, and of each that is deleted from now on.
    async fn sweep(&self) {
        loop {
            let deadline = Instant::now() + SWEEP_TIMEOUT;
            match timeout_at(deadline, self.database.sweep(deadline)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => self.database.dropped.notified().await,
                Ok(Err(_)) | Err(_) => sleep(PAUSE).await,
            }
        }
    }
}

/// Reads a small body and keeps nothing of it. Otherwise a client that still sends would find a closed connection, and not the error.
async fn pass_over(body: &mut Incoming) {
    let mut left = bodies::SMALL_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        if bytes > left {
            return;
        }
        left -= bytes;
    }
}

/// Makes the error that replaces an answer without room to wait. A read is refused; a write may have taken effect, and its answer is not
/// known.
fn unread_error(parts: &Parts) -> impl Fn(WaitRefused) -> Error {
    let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let operation = target.strip_prefix(TARGET).unwrap_or_default();
    let reads = ["GetItem", "Query", "Scan", "BatchGetItem", "TransactGetItems"].contains(&operation);
    move |WaitRefused { problem, is_passing }| {
        if reads {
            Error::new(if is_passing { ErrorType::Throttled } else { ErrorType::Validation }, problem)
        } else {
            Error::new(ErrorType::InternalServerError, format!("{problem} (the operation took effect)"))
        }
    }
}
