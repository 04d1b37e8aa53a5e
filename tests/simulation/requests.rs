//! A client process that sends every other request of `lockkeeper.v1`, with values of any kind, to locks and sessions of its own.
//!
//! The workload of the chaos runs sends what applications send, and is judged by its history. Here the requests are drawn by chance, so
//! that each of them is executed among the others, also where its sessions are over, its tokens old and its pages odd. What is judged is
//! the table: all nodes must apply all of it, to the same end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockkeeper::proto::v1::{
    AcquireRequest, BusiestRequest, CheckRequest, CloseSessionRequest, DropDataRequest, ForceReleaseRequest,
    GetRequest, LiftDelayRequest, ListRequest, ListSessionsRequest, Mode, OpenSessionRequest, ReleaseRequest,
    RemoveWaiterRequest, RenewSessionRequest, RequestId, ResizeRequest, UpdateRequest, Want, WatchRequest,
    acquire_request, acquire_response,
    mode::{Exclusive, Kind, Permit, Shared},
    release_request::Target,
    sessions_client::SessionsClient,
};
use rand::{Rng as _, seq::IndexedRandom as _};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use crate::{clients::Draws, hostile::EdgeClient, keyspace::judge::Judge};

/// The time of one request.
const LIMIT: Duration = Duration::from_millis(900);
/// Between two requests, milliseconds.
const PAUSE_MS: std::ops::Range<u64> = 5..120;
/// Requests that wait at one time.
const WAITING_MAX: usize = 12;
/// Sessions, grants and tickets that are remembered, each.
const KNOWN_MAX: usize = 6;
const LOCKS: u32 = 5;
const SEMAPHORE: &str = "spoken/semaphore";

/// The requests, by their names in the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Open,
    Renew,
    Close,
    ListSessions,
    Acquire,
    Release,
    Update,
    Check,
    Get,
    List,
    Busiest,
    ForceRelease,
    RemoveWaiter,
    LiftDelay,
    DropData,
    Resize,
    /// A stream, and so no request with one reply.
    Watch,
}

impl Ask {
    const ALL: [Self; 17] = [
        Self::Open,
        Self::Renew,
        Self::Close,
        Self::ListSessions,
        Self::Acquire,
        Self::Release,
        Self::Update,
        Self::Check,
        Self::Get,
        Self::List,
        Self::Busiest,
        Self::ForceRelease,
        Self::RemoveWaiter,
        Self::LiftDelay,
        Self::DropData,
        Self::Resize,
        Self::Watch,
    ];

    /// The name in the service's list of requests.
    #[cfg(test)]
    fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::Open => "open_session",
            Self::Renew => "renew_session",
            Self::Close => "close_session",
            Self::ListSessions => "list_sessions",
            Self::Acquire => "acquire_locks",
            Self::Release => "release_locks",
            Self::Update => "update_data",
            Self::Check => "check_token",
            Self::Get => "get_lock",
            Self::List => "list_locks",
            Self::Busiest => "show_busiest",
            Self::ForceRelease => "force_release",
            Self::RemoveWaiter => "remove_waiter",
            Self::LiftDelay => "lift_delay",
            Self::DropData => "drop_data",
            Self::Resize => "resize_semaphore",
            Self::Watch => return None,
        })
    }

    fn is_frequent(self) -> bool {
        matches!(self, Self::Acquire | Self::Release | Self::Renew | Self::Open)
    }
}

/// The client process of a run, and its successors.
pub(crate) struct RequestsClientProcess {
    seats: u64,
    seed: u64,
    judge: Arc<Judge>,
    finish: CancellationToken,
    generation: AtomicU32,
}

impl RequestsClientProcess {
    /// The name of its host.
    pub(crate) const HOST: &'static str = "requests";

    pub(crate) fn new(seats: u64, seed: u64, judge: Arc<Judge>, finish: CancellationToken) -> Self {
        Self { seats, seed, judge, finish, generation: AtomicU32::new(0) }
    }

    /// Sends requests until the run is over.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let mut clerk = Clerk {
            judge: Arc::clone(&self.judge),
            draws: Draws::new(self.seats, self.seed ^ (u64::from(generation) << 20)),
            sessions: Vec::new(),
            grants: Vec::new(),
            request: 0,
            waiting: JoinSet::new(),
        };
        let asking = async {
            while !self.finish.is_cancelled() {
                clerk.ask().await;
                let pause = clerk.draws.random.random_range(PAUSE_MS);
                sleep(Duration::from_millis(pause)).await;
            }
        };

        let seed = self.seed ^ 0xed9e ^ (u64::from(generation) << 20);
        let edges = EdgeClient::new(self.seats, seed, Arc::clone(&self.judge));
        tokio::join!(asking, edges.work(&self.finish));
        Ok(())
    }
}

/// A grant that it got.
#[derive(Clone, Debug)]
struct Held {
    session: String,
    token: u64,
    name: String,
}

struct Clerk {
    judge: Arc<Judge>,
    draws: Draws,
    sessions: Vec<String>,
    grants: Vec<Held>,
    /// The last request id.
    request: u64,
    /// Acquires that wait.
    waiting: JoinSet<Option<Held>>,
}

impl Clerk {
    fn name(&mut self) -> String {
        match self.draws.random.random_range(0..60) {
            0 => "n".repeat(lockkeeper::machine::NAME_BYTES_MAX),
            1 => "n".repeat(lockkeeper::machine::NAME_BYTES_MAX + 1),
            2 => String::new(),
            _ => format!("spoken/{}", self.draws.random.random_range(0..LOCKS)),
        }
    }

    /// A session that is open, or was, or never existed.
    fn session(&mut self) -> String {
        let known = self.sessions.choose(&mut self.draws.random).cloned();
        known
            .filter(|_| self.draws.percent(95))
            .unwrap_or_else(|| format!("{:032x}", self.draws.random.random::<u128>()))
    }

    /// A grant that it holds, or held, or never got.
    fn held(&mut self) -> Held {
        let known = self.grants.choose(&mut self.draws.random).cloned();
        known.filter(|_| self.draws.percent(90)).unwrap_or_else(|| Held {
            session: self.session(),
            token: self.draws.random.random_range(0..1_000),
            name: self.name(),
        })
    }

    fn request(&mut self) -> Option<RequestId> {
        if self.draws.percent(30) {
            return None;
        }
        self.request += 1;
        let lowest = self.request.saturating_sub(self.draws.random.random_range(0..20)).max(1);
        let kept = if lowest > 3 && self.draws.percent(20) { vec![1, lowest - 1] } else { Vec::new() };
        // At times one is used again.
        let id = if self.draws.percent(10) { self.draws.random.random_range(1..=self.request) } else { self.request };
        Some(RequestId { id, lowest, kept })
    }

    fn data(&mut self) -> Option<Vec<u8>> {
        let most = lockkeeper::machine::DATA_BYTES_MAX;
        match self.draws.random.random_range(0..40) {
            0 => Some(vec![1; most]),
            1 => Some(vec![1; most + 1]),
            2..20 => Some(vec![2; self.draws.random.random_range(0..300)]),
            _ => None,
        }
    }

    fn want(&mut self) -> Want {
        let kind = match self.draws.random.random_range(0..5) {
            0 => Kind::Shared(Shared {}),
            1 => Kind::Permit(Permit { limit: self.draws.random.random_range(0..4) }),
            _ => Kind::Exclusive(Exclusive {}),
        };
        // Most semaphores have a name of their own: otherwise few of them would ever be in use.
        let is_permit = matches!(kind, Kind::Permit(_));
        let name = if is_permit && self.draws.percent(80) { SEMAPHORE.to_owned() } else { self.name() };
        let kind = if name == SEMAPHORE { Kind::Permit(Permit { limit: 3 }) } else { kind };
        Want {
            name,
            mode: Some(Mode { kind: Some(kind) }),
            data: self.data(),
            keep_data: self.draws.percent(30),
            must_exist: self.draws.percent(5),
        }
    }

    fn page_size(&mut self) -> u32 {
        *[0, 1, 2, 3, 1_000, u32::MAX].choose(&mut self.draws.random).expect("it is not empty")
    }

    async fn ask(&mut self) {
        while let Some(waited) = self.waiting.try_join_next() {
            let held = waited.ok().flatten();
            held.into_iter().for_each(|held| self.remember(held));
        }
        let ask = *Ask::ALL.choose(&mut self.draws.random).expect("it is not empty");
        let ask = if self.draws.percent(50) && !ask.is_frequent() { Ask::Acquire } else { ask };
        let answer = timeout(LIMIT, self.send(ask)).await;
        if let Ok(Err(status)) = answer {
            self.judge.count(&format!("v1 {:?}", status.code()));
        }
    }

    fn remember(&mut self, held: Held) {
        if self.grants.len() >= KNOWN_MAX {
            let place = self.draws.random.random_range(0..self.grants.len());
            self.grants.swap_remove(place);
        }
        self.grants.push(held);
    }

    async fn send(&mut self, ask: Ask) -> Result<(), Status> {
        match ask {
            Ask::Open => self.open().await,
            Ask::Renew => {
                let message = RenewSessionRequest { session_id: self.session() };
                done(SessionsClient::new(self.draws.channel()).renew(message).await)
            }
            Ask::Close => {
                let reason = if self.draws.percent(30) { "the run closes it".to_owned() } else { String::new() };
                let message = CloseSessionRequest { session_id: self.session(), reason };
                done(SessionsClient::new(self.draws.channel()).close_session(message).await)
            }
            Ask::ListSessions => {
                let page_size = self.page_size();
                let message =
                    ListSessionsRequest { page_size, stale: self.draws.percent(50), ..ListSessionsRequest::default() };
                done(SessionsClient::new(self.draws.channel()).list(message).await)
            }
            Ask::Acquire => self.acquire(),
            Ask::Release => {
                let held = self.held();
                let target = if self.draws.percent(80) {
                    Target::Token(held.token)
                } else {
                    Target::AcquireRequestId(self.draws.random.random_range(1..=self.request + 3))
                };
                let request = self.request();
                let message = ReleaseRequest { session_id: held.session, request, target: Some(target) };
                done(self.draws.locks().release(message).await)
            }
            Ask::Update => {
                let Held { session, token, name } = self.held();
                let data = self.data();
                let request = self.request();
                let keep_data = self.draws.percent(50);
                let message = UpdateRequest { session_id: session, request, token, name, data, keep_data };
                done(self.draws.locks().update(message).await)
            }
            Ask::Check => {
                let Held { token, name, .. } = self.held();
                done(self.draws.locks().check(CheckRequest { name, token }).await)
            }
            Ask::Get => self.get().await,
            Ask::List => {
                let page_size = self.page_size();
                let prefix = self.prefix();
                let message =
                    ListRequest { prefix, page_size, page_token: String::new(), stale: self.draws.percent(50) };
                done(self.draws.locks().list(message).await)
            }
            Ask::Busiest => {
                let message =
                    BusiestRequest { prefix: self.prefix(), size: self.page_size().min(1_000), after_index: 0 };
                done(self.draws.locks().busiest(message).await)
            }
            Ask::ForceRelease => self.force_release().await,
            Ask::RemoveWaiter => self.remove_waiter().await,
            Ask::LiftDelay => {
                let message = LiftDelayRequest { name: self.name() };
                done(self.draws.locks().lift_delay(message).await)
            }
            Ask::DropData => {
                let after = if self.draws.percent(30) { self.name() } else { String::new() };
                done(self.draws.locks().drop_data(DropDataRequest { prefix: "spoken/".to_owned(), after }).await)
            }
            Ask::Resize => {
                let name = if self.draws.percent(80) { SEMAPHORE.to_owned() } else { self.name() };
                let message = ResizeRequest { name, permits: self.draws.random.random_range(0..5) };
                done(self.draws.locks().resize(message).await)
            }
            Ask::Watch => self.watch().await,
        }
    }

    fn prefix(&mut self) -> String {
        (*["", "spoken/", "spoken/1", "x"].choose(&mut self.draws.random).expect("it is not empty")).to_owned()
    }

    async fn open(&mut self) -> Result<(), Status> {
        let ttl_ms = *[99, 100, 500, 1_500, 2_500].choose(&mut self.draws.random).expect("it is not empty");
        let session_id = if self.draws.percent(30) { self.session() } else { String::new() };
        let label = "l".repeat(self.draws.random.random_range(0..=lockkeeper::machine::LABEL_BYTES_MAX + 1));
        let message = OpenSessionRequest { session_id, ttl_ms, label };
        let opened = SessionsClient::new(self.draws.channel()).open(message).await?.into_inner();
        if self.sessions.len() >= KNOWN_MAX {
            let place = self.draws.random.random_range(0..self.sessions.len());
            self.sessions.swap_remove(place);
        }
        self.sessions.push(opened.session_id);
        Ok(())
    }

    /// An acquire may wait for long, so it has a task of its own.
    fn acquire(&mut self) -> Result<(), Status> {
        if self.waiting.len() >= WAITING_MAX {
            return Ok(());
        }
        let count = if self.draws.percent(75) { 1 } else { self.draws.random.random_range(0..4) };
        let wants: Vec<_> = (0..count).map(|_| self.want()).collect();
        let wait = match self.draws.random.random_range(0..4) {
            0 => None,
            1 => Some(acquire_request::Wait::WaitForever(true)),
            _ => Some(acquire_request::Wait::WaitMs(self.draws.random.random_range(0..2_000))),
        };
        let message = AcquireRequest {
            session_id: self.session(),
            request: self.request(),
            locks: wants,
            wait,
            lock_delay_ms: if self.draws.percent(20) { self.draws.random.random_range(0..800) } else { 0 },
        };
        let mut locks = self.draws.locks();
        let judge = Arc::clone(&self.judge);
        let patience = Duration::from_millis(self.draws.random.random_range(200..5_000));
        self.waiting.spawn(async move {
            // At the end of its patience the call breaks off.
            let answer = timeout(patience, locks.acquire(message)).await.ok()?;
            let answer = answer.inspect_err(|status| judge.count(&format!("v1 {:?}", status.code()))).ok()?;
            let Some(acquire_response::Outcome::Granted(grant)) = answer.into_inner().outcome else { return None };
            let name = grant.names.first().cloned().unwrap_or_default();
            Some(Held { session: grant.session_id, token: grant.token, name })
        });
        Ok(())
    }

    async fn get(&mut self) -> Result<(), Status> {
        let message = GetRequest {
            name: self.name(),
            page_size: self.page_size(),
            holders_after: if self.draws.percent(20) { self.held().token } else { 0 },
            waiters_after: if self.draws.percent(20) { self.draws.random.random_range(0..100) } else { 0 },
            stale: self.draws.percent(50),
        };
        done(self.draws.locks().get(message).await)
    }

    async fn force_release(&mut self) -> Result<(), Status> {
        let Held { token, name, .. } = self.held();
        let message = ForceReleaseRequest {
            name,
            token: if self.draws.percent(60) { token } else { 0 },
            reason: "r".repeat(self.draws.random.random_range(0..=lockkeeper::machine::REASON_BYTES_MAX + 1)),
            now: self.draws.percent(50),
            after_token: if self.draws.percent(20) { token } else { 0 },
            up_to_token: if self.draws.percent(20) { token } else { 0 },
        };
        done(self.draws.locks().force_release(message).await)
    }

    async fn remove_waiter(&mut self) -> Result<(), Status> {
        let name = self.name();
        let shown =
            self.draws.locks().get(GetRequest { name: name.clone(), ..GetRequest::default() }).await?.into_inner();
        let waiters = shown.lock.map(|lock| lock.waiters).unwrap_or_default();
        let ticket = waiters.choose(&mut self.draws.random).map_or(7, |waiter| waiter.ticket);
        done(self.draws.locks().remove_waiter(RemoveWaiterRequest { name, ticket }).await)
    }

    /// Looks at the beginning of a watch, and leaves it.
    async fn watch(&mut self) -> Result<(), Status> {
        let message = WatchRequest { prefix: self.prefix(), after_index: self.draws.random.random_range(0..3) };
        let mut stream = self.draws.locks().watch(message).await?.into_inner();
        for _ in 0..self.draws.random.random_range(1..8) {
            if stream.message().await?.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn done<T>(answer: Result<Response<T>, Status>) -> Result<(), Status> {
    answer.map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Ask;
    use crate::{batch::KEYSPACE_REQUESTS, changes, redis, rights};

    /// A request that nobody sends would be one that no run attacks.
    #[test]
    fn every_request_of_the_service_has_a_sender() {
        let asked = Ask::ALL.into_iter().filter_map(Ask::name);
        let sent = asked.chain(KEYSPACE_REQUESTS).chain(changes::REQUESTS);
        let sent: BTreeSet<_> = sent.chain(redis::REQUESTS).chain(rights::REQUESTS).collect();
        let all: BTreeSet<_> = lockkeeper::server::REQUESTS.iter().copied().collect();
        assert_eq!(sent, all);
    }
}
