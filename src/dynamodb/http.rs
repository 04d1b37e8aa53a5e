//! The endpoint: HTTP/1.1, one operation a POST.
//!
//! What a connection costs is bounded: its headers ([`HEADER_BYTES_MAX`]) and the time for them, the body's bytes and the time for them,
//! the bytes of all bodies under way, and the time of an operation ([`Options`]). A client that exceeds one is told in DynamoDB's words
//! where HTTP still allows an answer.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Incoming};
use lockkeeper_http1::{Limits, Listen};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::{
    Caller, Options, Store,
    database::Database,
    error::{Error, Kind, Result},
    sigv4,
};

/// Maximum bytes of a request's line and headers.
const HEADER_BYTES_MAX: usize = 32 << 10;
/// Bodies are counted in these.
const BODY_UNIT: usize = 4 << 10;
/// How long after an operation's deadline the store may still say why it did not answer.
const DEADLINE_SLACK: Duration = Duration::from_secs(1);
/// Pause after a failure to remove the items of a deleted table.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for one step of that removal.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(10);

/// What all connections share.
struct Endpoint<S> {
    database: Database<S>,
    /// For the bytes of bodies.
    bodies: Arc<Semaphore>,
    requests: AtomicU64,
}

/// Serves DynamoDB's API over a store until `stopping`, and then the requests under way. Never fails: an error of one connection does not
/// affect others. Dropping the future closes all connections.
pub async fn serve<L: Listen, S: Store>(listener: L, store: S, options: Options, stopping: CancellationToken) {
    let Options { connections_max, header_timeout, .. } = options;
    let limits = Limits { connections_max, header_bytes_max: HEADER_BYTES_MAX, header_timeout };
    let bodies = Arc::new(Semaphore::new(options.all_bodies_bytes_max / BODY_UNIT));
    let endpoint = Arc::new(Endpoint { database: Database::new(store, options), bodies, requests: AtomicU64::new(0) });
    let sweeping = Arc::clone(&endpoint);
    let mut sweeper = JoinSet::new();
    sweeper.spawn(async move { sweeping.sweep().await });
    let answer = move |request, client| {
        let endpoint = Arc::clone(&endpoint);
        async move { endpoint.answer(request, client).await }
    };
    lockkeeper_http1::serve(listener, limits, answer, stopping).await;
}

impl<S: Store> Endpoint<S> {
    async fn answer(&self, request: Request<Incoming>, client: SocketAddr) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        if parts.method == Method::GET {
            return self.response(StatusCode::OK, "text/plain", Bytes::from_static(b"healthy: dynamodb\n"));
        }
        let answer = self.operation(&parts, body, client).await;
        let (status, body) = match answer {
            Ok(body) => (StatusCode::OK, body),
            Err(error) => {
                let body = serde_json::to_vec(&error).expect("texts and numbers are JSON");
                (StatusCode::from_u16(error.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), body)
            }
        };
        self.response(status, "application/x-amz-json-1.0", body.into())
    }

    async fn operation(&self, parts: &Parts, body: Incoming, client: SocketAddr) -> Result<Vec<u8>> {
        let options = &self.database.options;
        let started = Instant::now();
        let (body, _counted) = timeout_at(started + options.body_timeout, self.body(body)).await.map_err(|_| {
            Error::new(
                Kind::Serialization,
                format!("the body did not arrive within {} ms", options.body_timeout.as_millis()),
            )
        })??;
        let target = parts.headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
        let unknown = |message: String| Error::new(Kind::UnknownOperation, message);
        let operation = target.strip_prefix("DynamoDB_20120810.").filter(|_| parts.method == Method::POST);
        let operation = operation.ok_or_else(|| {
            unknown(format!(
                "{} with X-Amz-Target '{target}': expected POST and 'DynamoDB_20120810.Operation'",
                parts.method
            ))
        })?;
        let claim = sigv4::claim(parts, options.secrets.as_ref(), (options.wall_ms)())?;
        let identity = claim.prove(parts, &body)?;
        let deadline = Instant::now() + options.operation_timeout;
        let caller = Caller { identity, address: client, deadline };
        let invocation = parts.headers.get("amz-sdk-invocation-id").and_then(|id| id.to_str().ok());
        let answer = self.database.call(&caller, operation, invocation, &body);
        timeout_at(deadline + DEADLINE_SLACK, answer).await.unwrap_or_else(|_| {
            Err(Error::new(
                Kind::InternalServerError,
                format!(
                    "no answer within {} ms; the operation may still take effect",
                    options.operation_timeout.as_millis()
                ),
            ))
        })
    }

    /// The whole body, and what counts it as long as it is in use.
    async fn body(&self, mut body: Incoming) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>)> {
        let bytes_max = self.database.options.body_bytes_max;
        let too_large = || Error::new(Kind::RequestTooLarge, format!("the body is larger than {bytes_max} bytes"));
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(too_large());
        }
        let mut read = BytesMut::new();
        let mut counted: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let broken = |error: hyper::Error| Error::new(Kind::Serialization, format!("the body broke off: {error}"));
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if read.len() + data.len() > bytes_max {
                return Err(too_large());
            }
            read.extend_from_slice(&data);
            let units = read.len().div_ceil(BODY_UNIT) - counted.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let more = Arc::clone(&self.bodies).try_acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX));
            let more = more.map_err(|_| {
                Error::new(Kind::Throttled, "the bodies of other requests take all memory for them: try again")
            })?;
            match &mut counted {
                Some(counted) => counted.merge(more),
                None => counted = Some(more),
            }
        }
        Ok((read.into(), counted))
    }

    fn response(&self, status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
        let checksum = crc32fast::hash(&body);
        let mut response = Response::new(Full::new(body));
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

    /// 52 characters that no other request has.
    fn request_id(&self) -> String {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let seed = self.database.options.seed;
        let hash = Sha256::digest([seed.to_be_bytes(), number.to_be_bytes()].concat());
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        hash.iter().chain(&hash[..20]).map(|byte| char::from(letters[usize::from(byte & 31)])).collect()
    }

    /// Removes the items of deleted tables: of those that a crash left behind, and of each that is deleted.
    async fn sweep(&self) {
        loop {
            let deadline = Instant::now() + SWEEP_TIMEOUT;
            let caller = Caller { identity: None, address: SocketAddr::from(([0; 4], 0)), deadline };
            match timeout_at(deadline, self.database.sweep(&caller)).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => self.database.dropped.notified().await,
                Ok(Err(_)) | Err(_) => sleep(PAUSE).await,
            }
        }
    }
}
