//! Three clients whose identities have limits of their own, drawn small in most runs: one takes sessions, locks, waits and bytes, one sends
//! more calls than it may, and one opens more [`connections`].
//!
//! The first one asks the leader what it has before and after each of its requests, one after the other. It is refused by a limit only if
//! what it had and what it asked for exceed that limit together; and it never has more than its limits allow. A request without an answer
//! may be carried out late, beside others, so that each adds something to what it may have. A leader that was deposed, and does not know it
//! yet, refuses by an older table: only a refusal that is repeated is wrong.

mod connections;

use std::{collections::BTreeSet, ops::Range, sync::Arc, time::Duration};

use futures::future::join_all;
use lockkeeper::{
    machine::Identity,
    proto::v1::{
        AcquireRequest, CloseSessionRequest, GetRequest, Grant, ListSessionsRequest, OpenSessionRequest,
        ReleaseRequest, SessionInfo, Want, acquire_request::Wait, acquire_response, locks_client::LocksClient,
        release_request::Target, sessions_client::SessionsClient,
    },
    server::DOMAIN,
};
use lockkeeper_policy::BearerToken;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic_types::StatusExt as _;

use super::{LIMIT, RightsJudge, TTL_MS, timed, with_bearer};
use crate::{
    clients::{self, Draws},
    network,
};
use connections::ConnectingClient;

/// The limits that a batch of runs must reach, by their names in refusals.
pub(crate) const NAMES: [&str; 6] = [SESSIONS, LOCKS, WAITERS, BYTES, CALLS, CONNECTIONS];
const SESSIONS: &str = "identity_sessions";
const LOCKS: &str = "identity_locks";
const WAITERS: &str = "identity_waiters";
const BYTES: &str = "identity_bytes";
const CALLS: &str = "identity_calls-per-second";
const CONNECTIONS: &str = "identity_connections";

const PAUSE_MS: Range<u64> = 50..400;
/// The names of its locks begin with this.
const PREFIX: &str = "limits/";
/// The lock for which it waits.
const AWAITED: &str = "limits/awaited";
/// Bytes of data on a lock, and the most that one request can take with everything that it has.
const DATA_BYTES: Range<usize> = 0..400;
const BYTES_PER_REQUEST: u64 = 2_000;
/// How long an acquire waits, and after which time it is taken to wait.
const WAIT_MS: u64 = 4_000;
const SEEN_TO_WAIT: Duration = Duration::from_millis(250);
/// With so many sessions or locks it closes a session, whether it has limits or not: others need some, too.
const SESSIONS_MAX: u64 = 4;
const LOCKS_MAX: u64 = 8;
/// The number that stands for this among those that are drawn.
const GIVES_ALL_BACK: u32 = 20;
/// So many refusals without a reason are one too many.
const REFUSALS_MAX: u32 = 8;
/// A request without an answer is not carried out later than this.
const LATE: Duration = Duration::from_secs(20);
/// The time in which a node's count of calls is full again, and a little more: its clock may be slow.
const CALLS_PAUSE: Duration = Duration::from_secs(3);
/// An identity may send the calls of this many seconds at once.
const BURST_SECONDS: u64 = 2;

/// Who has limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LimitedIdentity {
    /// It has them in the table.
    Taker,
    /// It has one of calls at each node.
    Caller,
    /// It has one of connections at each node.
    Connector,
}

impl LimitedIdentity {
    const ALL: [Self; 3] = [Self::Taker, Self::Caller, Self::Connector];

    fn name(self) -> &'static str {
        match self {
            Self::Taker => "limited-taker",
            Self::Caller => "limited-caller",
            Self::Connector => "limited-connector",
        }
    }

    fn token(self) -> BearerToken {
        BearerToken::from_random([0x10 + self as u8; 32])
    }

    /// Whether this is the name of one of them.
    pub(super) fn is_named(name: &str) -> bool {
        Self::ALL.into_iter().any(|who| who.name() == name)
    }
}

/// The limits of a run. Without one, the identity may take as much as the cluster has.
#[derive(Clone, Copy, Debug)]
pub(super) struct DrawnLimits {
    sessions: Option<u64>,
    locks: Option<u64>,
    waiters: Option<u64>,
    bytes: Option<u64>,
    calls_per_second: Option<u64>,
    connections: Option<u64>,
}

impl DrawnLimits {
    /// Each is there in about two of three runs.
    pub(super) fn draw(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed ^ 0x11d7);
        let mut small = |most: Range<u64>| {
            let limit = random.random_range(most);
            random.random_bool(0.66).then_some(limit)
        };
        Self {
            sessions: small(1..4),
            locks: small(1..6),
            waiters: small(1..4),
            bytes: small(600..4_000),
            calls_per_second: small(3..9),
            connections: small(1..5),
        }
    }

    /// The entries of all of them in the file of tokens.
    pub(super) fn tokens() -> String {
        let entry = |who: LimitedIdentity| who.token().entry(&Identity::new(who.name()).expect("it is one"));
        LimitedIdentity::ALL.map(entry).concat()
    }

    /// The rules and the limits of all of them in the file of rules.
    pub(super) fn policy(&self) -> String {
        let Self { sessions, locks, waiters, bytes, calls_per_second, connections } = *self;
        let [taker, caller, connector] = LimitedIdentity::ALL.map(LimitedIdentity::name);
        let mut text = format!(
            "[[rule]]\nwho = [{taker:?}, {caller:?}, {connector:?}]\nmay = [\"acquire\", \"read\"]\nprefix = {PREFIX:?}\n[limits.{taker}]\n"
        );

        let of_taker = [("sessions", sessions), ("locks", locks), ("waiters", waiters), ("bytes", bytes)];
        for (name, limit) in of_taker {
            text += &limit.map_or_else(String::new, |limit| format!("{name} = {limit}\n"));
        }
        text += &format!("[limits.{caller}]\n");
        text += &calls_per_second.map_or_else(String::new, |limit| format!("calls-per-second = {limit}\n"));
        text += &format!("[limits.{connector}]\n");
        text += &connections.map_or_else(String::new, |limit| format!("connections = {limit}\n"));
        text
    }
}

/// Runs all of these clients until the run is over.
pub(super) async fn work(judge: &Arc<RightsJudge>, seats: u64, seed: u64, finish: &CancellationToken) {
    let limits = judge.limits;
    let taker = TakingClient {
        judge: Arc::clone(judge),
        limits,
        draws: Draws::new(seats, seed ^ 0x7a4e),
        held: Vec::new(),
        waiting: JoinSet::new(),
        unanswered: Vec::new(),
        suspicions: 0,
        locks_taken: 0,
    };
    let caller = CallingClient { judge: Arc::clone(judge), seats, random: StdRng::seed_from_u64(seed ^ 0xca11) };
    let calls = async {
        if let Some(per_second) = limits.calls_per_second {
            caller.work(per_second, finish).await;
        }
    };
    let connections = async {
        if let Some(most) = limits.connections {
            ConnectingClient::new(Arc::clone(judge), seats, seed ^ 0xc099, most).work(finish).await;
        }
    };
    tokio::join!(taker.work(finish), calls, connections);
}

/// What an identity has, as the leader lists it; or what a request adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct ListedUsage {
    sessions: u64,
    locks: u64,
    waiters: u64,
    bytes: u64,
}

impl ListedUsage {
    fn from_sessions(sessions: &[SessionInfo]) -> Self {
        let mut usage = Self { sessions: sessions.len() as u64, ..Self::default() };
        for session in sessions {
            usage.locks += u64::from(session.grants);
            usage.waiters += u64::from(session.waits);
            usage.bytes += session.bytes;
        }
        usage
    }
}

/// A grant of one lock.
struct TakenLock {
    session: String,
    token: u64,
    /// Whether it waited: a limit of locks counts those that are held when an acquire arrives, not when it is granted.
    has_waited: bool,
}

/// A request that adds to what the identity has, and what it adds.
struct Addition {
    usage: ListedUsage,
    /// Until when it may be carried out late.
    until: Instant,
}

/// Takes more and more, and gives some back.
struct TakingClient {
    judge: Arc<RightsJudge>,
    limits: DrawnLimits,
    draws: Draws,
    held: Vec<TakenLock>,
    waiting: JoinSet<Option<TakenLock>>,
    unanswered: Vec<Addition>,
    /// Refusals without a reason, one after the other.
    suspicions: u32,
    /// The number of its locks, for their names.
    locks_taken: u64,
}

/// How a request ended.
enum TakeOutcome {
    Done,
    /// By this limit.
    Limited(String),
    /// It had no effect.
    Refused,
    Unknown,
}

impl TakeOutcome {
    fn from_error(status: &Status) -> Self {
        let Some(info) = status.get_details_error_info().filter(|info| info.domain == DOMAIN) else {
            return Self::Unknown;
        };
        match (info.metadata.get("limit"), info.metadata.get("retry").map(String::as_str)) {
            (Some(limit), _) if NAMES.contains(&limit.as_str()) => Self::Limited(limit.clone()),
            (_, Some("no" | "safe")) => Self::Refused,
            _ => Self::Unknown,
        }
    }
}

impl TakingClient {
    async fn work(mut self, finish: &CancellationToken) {
        while !finish.is_cancelled() {
            self.take_or_give().await;
            let pause = self.draws.random.random_range(PAUSE_MS);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Sends one request, between two looks at what it has.
    async fn take_or_give(&mut self) {
        while let Some(waited) = self.waiting.try_join_next() {
            self.held.extend(waited.ok().flatten());
        }
        let Some(sessions) = self.list().await else { return };
        let alive: BTreeSet<&str> = sessions.iter().map(|session| session.session_id.as_str()).collect();
        self.held.retain(|lock| alive.contains(lock.session.as_str()));
        let before = ListedUsage::from_sessions(&sessions);

        let session = sessions.choose(&mut self.draws.random).map(|session| session.session_id.clone());
        let drawn: u32 = self.draws.random.random_range(0..GIVES_ALL_BACK);
        let has_enough = before.sessions >= SESSIONS_MAX || before.locks >= LOCKS_MAX;
        let (adds, outcome) = match (if has_enough { GIVES_ALL_BACK } else { drawn }, session) {
            (0..5, _) | (_, None) => (ListedUsage { sessions: 1, ..ListedUsage::default() }, self.open().await),
            (5..12, Some(session)) => (ListedUsage { locks: 1, ..ListedUsage::default() }, self.acquire(session).await),
            (12..15, Some(session)) => {
                (ListedUsage { locks: 1, waiters: 1, ..ListedUsage::default() }, self.wait(session).await)
            }
            (15..18, Some(_)) => (ListedUsage::default(), self.release().await),
            (_, Some(session)) => (ListedUsage::default(), self.close(session).await),
        };

        let after = self.list().await.map(|sessions| ListedUsage::from_sessions(&sessions));
        // An acquire that waits has no answer yet. If nothing is seen of it, it may still be on its way.
        let is_unseen = adds.waiters > 0 && after.is_none_or(|after| after == before);
        if is_unseen || matches!(outcome, TakeOutcome::Unknown) {
            self.unanswered.push(Addition { usage: adds, until: Instant::now() + LATE });
        }
        if let Some(after) = after {
            self.judge_usage(&adds, &outcome, before, after);
        }
    }

    /// Its sessions, as the leader lists them.
    async fn list(&mut self) -> Option<Vec<SessionInfo>> {
        let message = ListSessionsRequest { page_size: 1_000, ..ListSessionsRequest::default() };
        let mut client = SessionsClient::new(self.draws.channel());
        Some(timed(client.list(with_bearer(&LimitedIdentity::Taker.token(), message))).await.ok()?.sessions)
    }

    async fn open(&mut self) -> TakeOutcome {
        let message = OpenSessionRequest { session_id: String::new(), ttl_ms: TTL_MS, label: String::new() };
        let mut client = SessionsClient::new(self.draws.channel());
        let opened = timed(client.open(with_bearer(&LimitedIdentity::Taker.token(), message))).await;
        opened.map_or_else(|status| TakeOutcome::from_error(&status), |_| TakeOutcome::Done)
    }

    async fn close(&mut self, session_id: String) -> TakeOutcome {
        let message = CloseSessionRequest { session_id, reason: String::new() };
        let mut client = SessionsClient::new(self.draws.channel());
        let closed = timed(client.close_session(with_bearer(&LimitedIdentity::Taker.token(), message))).await;
        closed.map_or_else(|status| TakeOutcome::from_error(&status), |_| TakeOutcome::Done)
    }

    /// Acquires a lock that nobody has.
    async fn acquire(&mut self, session: String) -> TakeOutcome {
        self.locks_taken += 1;
        let name = format!("{PREFIX}{}", self.locks_taken);
        let data = vec![8; self.draws.random.random_range(DATA_BYTES)];
        let wants = vec![Want { name, data: Some(data), ..Want::default() }];
        let message = AcquireRequest { session_id: session, locks: wants, ..AcquireRequest::default() };

        let mut client = self.draws.locks();
        let answer = timed(client.acquire(with_bearer(&LimitedIdentity::Taker.token(), message))).await;
        match answer.map(|answer| answer.outcome) {
            Ok(Some(acquire_response::Outcome::Granted(grant))) => {
                self.held.push(taken(grant, false));
                TakeOutcome::Done
            }
            Ok(_) => TakeOutcome::Refused,
            Err(status) => TakeOutcome::from_error(&status),
        }
    }

    /// Asks for one lock, which it may have already, and waits for it beside other requests.
    async fn wait(&mut self, session: String) -> TakeOutcome {
        let wants = vec![Want { name: AWAITED.to_owned(), ..Want::default() }];
        let wait = Some(Wait::WaitMs(WAIT_MS));
        let message = AcquireRequest { session_id: session, locks: wants, wait, ..AcquireRequest::default() };
        let mut client: LocksClient<_> = self.draws.locks();
        let request = with_bearer(&LimitedIdentity::Taker.token(), message);

        let limit = Duration::from_millis(WAIT_MS) + LIMIT;
        let mut answer = Box::pin(async move { timeout(limit, client.acquire(request)).await });
        let Ok(answered) = timeout(SEEN_TO_WAIT, &mut answer).await else {
            // Another look shows whether it waits.
            self.waiting.spawn(async move {
                let answered = answer.await.ok()?.ok()?.into_inner().outcome;
                let Some(acquire_response::Outcome::Granted(grant)) = answered else { return None };
                Some(taken(grant, true))
            });
            return TakeOutcome::Done;
        };

        match answered.map(|answer| answer.map(|answer| answer.into_inner().outcome)) {
            Ok(Ok(Some(acquire_response::Outcome::Granted(grant)))) => {
                self.held.push(taken(grant, true));
                TakeOutcome::Done
            }
            Ok(Ok(_)) => TakeOutcome::Refused,
            Ok(Err(status)) => TakeOutcome::from_error(&status),
            Err(_) => TakeOutcome::Unknown,
        }
    }

    async fn release(&mut self) -> TakeOutcome {
        if self.held.is_empty() {
            return TakeOutcome::Refused;
        }
        let place = self.draws.random.random_range(0..self.held.len());
        let lock = self.held.swap_remove(place);
        let session_id = lock.session.clone();
        let message = ReleaseRequest { session_id, request: None, target: Some(Target::Token(lock.token)) };
        let mut client = self.draws.locks();
        let released = timed(client.release(with_bearer(&LimitedIdentity::Taker.token(), message))).await;

        let outcome = released.map_or_else(|status| TakeOutcome::from_error(&status), |_| TakeOutcome::Done);
        if matches!(outcome, TakeOutcome::Unknown) {
            self.held.push(lock);
        }
        outcome
    }

    fn judge_usage(&mut self, adds: &ListedUsage, outcome: &TakeOutcome, before: ListedUsage, after: ListedUsage) {
        let DrawnLimits { sessions, locks, waiters, bytes, calls_per_second: _, connections: _ } = self.limits;
        let names = [SESSIONS, LOCKS, WAITERS, BYTES];
        let limits = [sessions, locks, waiters, bytes];
        let parts = |usage: &ListedUsage| [usage.sessions, usage.locks, usage.waiters, usage.bytes];

        // Each of these requests adds some bytes.
        let added = parts(&ListedUsage { bytes: 1, ..*adds });
        match outcome {
            TakeOutcome::Limited(limit) => {
                let place = names.iter().position(|name| name == limit);
                let is_within =
                    |place: usize| limits[place].is_none_or(|most| parts(&before)[place] + added[place] <= most);
                if before == after && place.is_none_or(is_within) {
                    self.suspect(limit, before);
                } else {
                    self.judge.count(&format!("refused by {limit}"));
                }
            }
            TakeOutcome::Done if *adds != ListedUsage::default() => {
                self.suspicions = 0;
                self.judge.count("served within limits");
            }
            TakeOutcome::Done | TakeOutcome::Refused | TakeOutcome::Unknown => {}
        }

        let may_exceed = self.may_exceed();
        for place in 0..names.len() {
            // What is beyond a limit for a reason may stay so, and grows no more.
            let has = parts(&after)[place];
            let has_grown = has > parts(&before)[place];
            let is_beyond = |most: &u64| has_grown && has > *most + parts(&may_exceed)[place];
            let Some(most) = limits[place].filter(is_beyond) else { continue };
            let name = names[place];
            self.judge
                .complain(format!("{name}: the limit is {most}, and the table has {has} ({may_exceed:?} are late)"));
        }
    }

    /// It was refused, and is within the limit.
    fn suspect(&mut self, limit: &str, before: ListedUsage) {
        self.suspicions += 1;
        if self.suspicions >= REFUSALS_MAX {
            self.suspicions = 0;
            let limits = self.limits;
            self.judge
                .complain(format!("{limit} refused what is within {limits:?} again and again: it has {before:?}"));
        }
    }

    /// By how much it may be beyond its limits: by what was granted to those that waited, by requests that may be carried out at the same
    /// time, and by the bytes of the last one.
    fn may_exceed(&mut self) -> ListedUsage {
        let now = Instant::now();
        self.unanswered.retain(|addition| addition.until > now);
        let waited = self.held.iter().filter(|lock| lock.has_waited).count() + self.waiting.len();

        let mut may_exceed = ListedUsage { locks: waited as u64, ..ListedUsage::default() };
        for Addition { usage, .. } in &self.unanswered {
            may_exceed.sessions += usage.sessions;
            may_exceed.locks += usage.locks;
            may_exceed.waiters += usage.waiters;
        }
        may_exceed.bytes = BYTES_PER_REQUEST * (1 + waited + self.unanswered.len()) as u64;
        may_exceed
    }
}

fn taken(grant: Grant, has_waited: bool) -> TakenLock {
    TakenLock { session: grant.session_id, token: grant.token, has_waited }
}

/// Sends bursts of calls, each to one node.
struct CallingClient {
    judge: Arc<RightsJudge>,
    seats: u64,
    random: StdRng,
}

/// The answers to a burst.
struct BurstAnswers {
    served: u64,
    limited: u64,
    unanswered: u64,
    took: Duration,
}

impl BurstAnswers {
    fn count(all: Vec<Result<(), Status>>, took: Duration) -> Self {
        let mut answers = Self { served: 0, limited: 0, unanswered: 0, took };
        for answer in all {
            match answer.map_err(|status| TakeOutcome::from_error(&status)) {
                Ok(()) | Err(TakeOutcome::Done) => answers.served += 1,
                Err(TakeOutcome::Limited(_)) => answers.limited += 1,
                Err(TakeOutcome::Refused | TakeOutcome::Unknown) => answers.unanswered += 1,
            }
        }
        answers
    }
}

impl CallingClient {
    /// After a pause, as many calls as are allowed at once must pass, and of many more, some must not.
    async fn work(mut self, per_second: u64, finish: &CancellationToken) {
        let at_once = BURST_SECONDS * per_second;
        let mut last_unanswered: Option<Instant> = None;
        while !finish.is_cancelled() {
            sleep(CALLS_PAUSE).await;
            let is_within = self.random.random_bool(0.5);
            let calls = if is_within { at_once } else { 2 * at_once + 5 * per_second };
            let answers = self.burst(calls).await;
            let BurstAnswers { served, limited, unanswered, took } = answers;
            self.judge.count(if limited > 0 {
                "bursts beyond the limit of calls"
            } else {
                "bursts within the limit of calls"
            });

            // Calls that were held up may arrive together with these.
            let is_alone = unanswered == 0 && last_unanswered.is_none_or(|at| at.elapsed() > LATE);
            if unanswered > 0 {
                last_unanswered = Some(Instant::now());
            }
            if is_within && is_alone && limited > 0 {
                self.judge.complain(format!(
                    "{limited} of {calls} calls after a pause were refused, and {at_once} are allowed at once"
                ));
            }

            // The clock of a node may be a little fast.
            let most = at_once + 1 + (per_second as f64 * took.as_secs_f64() * 1.02).ceil() as u64;
            if unanswered == 0 && served > most {
                self.judge.complain(format!(
                    "{served} of {calls} calls within {took:?} were served, and {per_second} a second are allowed"
                ));
            }
            if !is_within && limited > 0 {
                self.judge.reach(CALLS);
            }
        }
    }

    /// Sends so many calls to one node, by one new connection, at one moment.
    async fn burst(&mut self, calls: u64) -> BurstAnswers {
        let seat = self.random.random_range(1..=self.seats);
        let channel = clients::channel(&network::seat_address(seat));
        let began = Instant::now();
        let call = || {
            let message = GetRequest { name: AWAITED.to_owned(), stale: true, ..GetRequest::default() };
            let request = with_bearer(&LimitedIdentity::Caller.token(), message);
            let mut client = LocksClient::new(channel.clone());
            async move { timed(client.get(request)).await.map(drop) }
        };
        let all = join_all((0..calls).map(|_| call())).await;

        BurstAnswers::count(all, began.elapsed())
    }
}
