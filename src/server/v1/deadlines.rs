//! The deadline of a call (`grpc-timeout`), and the answer when it passes.
//!
//! tonic enforces deadlines too, but it answers CANCELLED, without a reason, and at the very moment at which the caller stops listening.
//! This layer answers a little earlier ([`EARLIER`]), with DEADLINE_EXCEEDED, and says whether the request may still take effect. A
//! follower gives the leader the time that is left, so each node on the way answers before its caller gives up.
//!
//! The call's future is dropped, as after a disconnect of the caller.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::Either;
use tokio::time::{Instant, timeout_at};
use tonic::{
    Request, Status,
    body::Body,
    codegen::http::{self, HeaderMap},
};
use tower::{Layer, Service};

use crate::api::{
    Deadline, Error,
    requests::{
        AcquireLocks, AddMember, ApiCall, AttachSession, CheckToken, CloseSession, CommitEach, CompactEntries,
        DropData, GetEntries, GetLock, LiftDelay, ListEntries, ListLocks, ListSessions, OpenSession, PromoteMember,
        ReleaseLocks, RemoveMember, RemoveWaiter, RenewSession, ReplaceMember, ResizeSemaphore, RunUnit, SelectEntries,
        SetSessionOwner, ShowBusiest, TransferLeader, UpdateData,
    },
};
use lockkeeper_machine::{ForceRelease, Txn};
use lockkeeper_proto::LEADER_KEY;

/// The header in which a gRPC call says how long it may take.
const TIMEOUT: &str = "grpc-timeout";
/// The answer comes before the deadline by this fraction of the time, at most by [`EARLIER_MAX`], so that it arrives in time.
const EARLIER: u32 = 10;
const EARLIER_MAX: Duration = Duration::from_millis(50);

/// The paths of the calls of requests, and whether these change something. Any other call changes nothing.
const CALLS: [(&str, bool); 31] = [
    ("/lockkeeper.v1.Sessions/Open", OpenSession::CHANGES),
    ("/lockkeeper.v1.Sessions/Renew", RenewSession::CHANGES),
    ("/lockkeeper.v1.Sessions/CloseSession", CloseSession::CHANGES),
    ("/lockkeeper.v1.Sessions/Close", CloseSession::CHANGES),
    ("/lockkeeper.v1.Sessions/List", ListSessions::CHANGES),
    ("/lockkeeper.v1.Locks/Acquire", AcquireLocks::CHANGES),
    ("/lockkeeper.v1.Locks/Release", ReleaseLocks::CHANGES),
    ("/lockkeeper.v1.Locks/Update", UpdateData::CHANGES),
    ("/lockkeeper.v1.Locks/Check", CheckToken::CHANGES),
    ("/lockkeeper.v1.Locks/Get", GetLock::CHANGES),
    ("/lockkeeper.v1.Locks/List", ListLocks::CHANGES),
    ("/lockkeeper.v1.Locks/Busiest", ShowBusiest::CHANGES),
    ("/lockkeeper.v1.Locks/ForceRelease", ForceRelease::CHANGES),
    ("/lockkeeper.v1.Locks/RemoveWaiter", RemoveWaiter::CHANGES),
    ("/lockkeeper.v1.Locks/LiftDelay", LiftDelay::CHANGES),
    ("/lockkeeper.v1.Locks/DropData", DropData::CHANGES),
    ("/lockkeeper.v1.Locks/Resize", ResizeSemaphore::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/Commit", Txn::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/CommitEach", CommitEach::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/Run", RunUnit::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/Get", GetEntries::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/List", ListEntries::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/Select", SelectEntries::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/Compact", CompactEntries::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/Attach", AttachSession::CHANGES),
    ("/lockkeeper.internal.v1.Keyspace/SetOwner", SetSessionOwner::CHANGES),
    ("/lockkeeper.v1.Cluster/AddMember", AddMember::CHANGES),
    ("/lockkeeper.v1.Cluster/PromoteMember", PromoteMember::CHANGES),
    ("/lockkeeper.v1.Cluster/RemoveMember", RemoveMember::CHANGES),
    ("/lockkeeper.v1.Cluster/ReplaceMember", ReplaceMember::CHANGES),
    ("/lockkeeper.v1.Cluster/TransferLeader", TransferLeader::CHANGES),
];

/// Whether a call to this path changes something.
pub(crate) fn changes_something(path: &str) -> bool {
    CALLS.iter().any(|(call, changes)| *changes && *call == path)
}

/// The deadline of a request, if it has one. The layer puts it into the extensions.
pub(crate) fn deadline<T>(request: &Request<T>) -> Option<Deadline> {
    request.extensions().get().copied()
}

/// A layer that enforces the deadlines of all services.
#[derive(Clone)]
pub(crate) struct Deadlines {
    /// Returns the address at which clients reach the leader: the error names it.
    leader: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

impl Deadlines {
    pub(crate) fn new(leader: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { leader: Arc::new(leader) }
    }

    fn passed(&self, changes: bool) -> Status {
        let mut status = Status::from(Error::deadline_passed(changes));
        if let Some(leader) = (self.leader)().and_then(|address| address.parse().ok()) {
            status.metadata_mut().insert(LEADER_KEY, leader);
        }
        status
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deadlines").finish_non_exhaustive()
    }
}

impl<S> Layer<S> for Deadlines {
    type Service = TimedService<S>;

    fn layer(&self, inner: S) -> TimedService<S> {
        TimedService { inner, deadlines: self.clone() }
    }
}

/// A service whose calls end at their deadlines: see [`Deadlines`].
#[derive(Clone, Debug)]
pub(crate) struct TimedService<S> {
    inner: S,
    deadlines: Deadlines,
}

type ServiceAnswer<S> =
    Result<<S as Service<http::Request<Body>>>::Response, <S as Service<http::Request<Body>>>::Error>;

impl<S> Service<http::Request<Body>> for TimedService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    // Boxed only where there is a deadline: most calls have none.
    type Future = Either<S::Future, Pin<Box<dyn Future<Output = ServiceAnswer<S>> + Send>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(time) = timeout(request.headers()) else { return Either::Left(self.inner.call(request)) };
        let at = Instant::now() + time.saturating_sub((time / EARLIER).min(EARLIER_MAX));
        let changes = changes_something(request.uri().path());

        request.extensions_mut().insert(Deadline::at(at));
        let answer = self.inner.call(request);
        let deadlines = self.deadlines.clone();
        Either::Right(Box::pin(async move {
            let answer = timeout_at(at, answer).await;
            answer.unwrap_or_else(|_| Ok(deadlines.passed(changes).into_http()))
        }))
    }
}

/// How long a call may take, if it has the header and the value is well-formed.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    /// gRPC's limit of digits, so that no unit overflows.
    const DIGITS_MAX: usize = 8;
    let value = headers.get(TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let count: u32 = digits.parse().ok().filter(|_| digits.len() <= DIGITS_MAX)?;

    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    Some(unit * count)
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;

    fn time(value: &str) -> Option<Duration> {
        let value = value.parse().expect("a header's value");
        timeout(&HeaderMap::from_iter([(http::HeaderName::from_static(TIMEOUT), value)]))
    }

    #[test]
    fn the_time_is_a_number_and_a_unit() {
        assert_eq!(time("3H"), Some(Duration::from_secs(10_800)));
        assert_eq!(time("99999999S"), Some(Duration::from_secs(99_999_999)));
        assert_eq!(time("250m"), Some(Duration::from_millis(250)));
        assert_eq!((time("7u"), time("0n")), (Some(Duration::from_micros(7)), Some(Duration::ZERO)));
        for none in ["", "S", "5", "5s", "-5S", "1 S", "999999999S"] {
            assert_eq!(time(none), None, "{none:?}");
        }
        assert_eq!(timeout(&HeaderMap::new()), None);
    }

    /// A call that were forgotten in the table would be called safe to repeat while its first copy is still under way.
    #[test]
    fn each_call_of_a_request_is_in_the_table() {
        let calls = declared_calls();
        let is_known = |call: &str| CALLS.iter().any(|(known, _)| *known == call);
        for call in &calls {
            assert!(
                is_known(call) != WITHOUT_REQUEST.contains(&call.as_str()),
                "{call}: put it into CALLS, or into WITHOUT_REQUEST"
            );
        }
        for call in CALLS.iter().map(|(call, _)| call).chain(&WITHOUT_REQUEST) {
            assert!(calls.contains(&(*call).to_owned()), "there is no call {call}");
        }
    }

    /// The paths of streams, whose requests have deadlines of their own, and of calls that show this node alone.
    const WITHOUT_REQUEST: [&str; 6] = [
        "/lockkeeper.v1.Sessions/KeepAlive",
        "/lockkeeper.v1.Locks/Watch",
        "/lockkeeper.v1.Locks/Pipeline",
        "/lockkeeper.v1.Cluster/Status",
        "/lockkeeper.v1.Maintenance/SaveSnapshot",
        "/lockkeeper.internal.v1.Keyspace/Watch",
    ];

    /// The paths of all calls of these services, from the texts that declare them.
    fn declared_calls() -> Vec<String> {
        let mut calls = Vec::new();
        for (package, text) in [
            ("lockkeeper.v1", include_str!("../../../proto/lockkeeper/v1/sessions.proto")),
            ("lockkeeper.v1", include_str!("../../../proto/lockkeeper/v1/locks.proto")),
            ("lockkeeper.v1", include_str!("../../../proto/lockkeeper/v1/cluster.proto")),
            ("lockkeeper.v1", include_str!("../../../proto/lockkeeper/v1/maintenance.proto")),
            ("lockkeeper.internal.v1", include_str!("../../../proto/lockkeeper/internal/v1/keyspace.proto")),
        ] {
            let mut service = "";
            for line in text.lines().map(str::trim) {
                if let Some(name) = line.strip_prefix("service ") {
                    service = name.trim_end_matches(" {");
                } else if let Some((name, _)) = line.strip_prefix("rpc ").and_then(|line| line.split_once('(')) {
                    calls.push(format!("/{package}.{service}/{name}"));
                }
            }
        }
        // The former name of `CloseSession`.
        calls.push("/lockkeeper.v1.Sessions/Close".to_owned());
        calls
    }

    /// The answer to a call whose service never answers, and after how long it comes.
    async fn answer(path: &str, timeout: &str) -> (Status, Duration) {
        let never = tower::service_fn(|_: http::Request<Body>| std::future::pending());
        let mut timed = Deadlines::new(|| Some("leader:1".to_owned())).layer(never);
        let request = http::Request::builder().uri(path).header(TIMEOUT, timeout);
        let began = Instant::now();
        let called: Result<_, std::convert::Infallible> =
            timed.call(request.body(Body::default()).expect("a request")).await;
        let response = called.expect("it cannot fail");
        (Status::from_header_map(response.headers()).expect("a status"), began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_before_the_deadline_says_whether_a_retry_is_safe() {
        for (path, retry) in [
            ("/lockkeeper.v1.Locks/Acquire", "same-id"),
            ("/lockkeeper.v1.Sessions/Open", "same-id"),
            ("/lockkeeper.internal.v1.Keyspace/CommitEach", "same-id"),
            ("/lockkeeper.internal.v1.Keyspace/Run", "same-id"),
            ("/lockkeeper.v1.Locks/Get", "safe"),
            ("/lockkeeper.v1.Locks/Watch", "safe"),
            ("/lockkeeper.v1.Cluster/Status", "safe"),
        ] {
            let (status, after) = answer(path, "200m").await;
            assert_eq!((status.code(), after), (tonic::Code::DeadlineExceeded, Duration::from_millis(180)), "{path}");
            let info = status.get_details_error_info().expect("a reason");
            assert_eq!(info.metadata["retry"], retry, "{path}");
            assert_eq!(status.metadata().get(LEADER_KEY).expect("the leader is named"), "leader:1");
        }
        let (_, after) = answer("/lockkeeper.v1.Locks/Get", "1H").await;
        assert_eq!(after, Duration::from_secs(3600) - EARLIER_MAX);
    }
}
