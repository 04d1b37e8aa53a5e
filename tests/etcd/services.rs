//! The services of locks and elections, and streams, at a node that follows: over gRPC and over the JSON gateway, which take turns.
//!
//! The services by themselves are tested in their own crate; here is that callers of either kind, and `etcdctl`, are in one queue, and
//! that what they wait for and watch outlives the leader.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use futures::future::{join, join_all};
use lockkeeper::local::{LocalCluster, Signal};
use lockkeeper_etcd::proto::{
    etcdserverpb::{
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseRevokeRequest,
        LeaseRevokeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest,
        WatchResponse, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    v3electionpb::{
        CampaignRequest, CampaignResponse, LeaderRequest, LeaderResponse, ProclaimRequest, ProclaimResponse,
        ResignRequest, ResignResponse, election_client::ElectionClient,
    },
    v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse, lock_client::LockClient},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::{Streaming, transport::Channel};

use super::{
    LONG,
    clients::{leader_and_other, until_keys},
    cluster,
    http::Answer,
    locks::Contender,
};
use crate::unmodified::debian;

/// Of leases that are not renewed, and of those of `etcdctl`, seconds.
const TTL: i64 = 600;
const TTL_SHORT: &str = "--ttl=3";

/// How a node is called.
#[derive(Clone)]
enum Calls {
    Grpc(Channel),
    /// Host and port.
    Json(String),
}

/// Each call once: its name, the client of its service, its path below `/v3/`, request and answer.
macro_rules! calls {
    ($($name:ident($client:ident, $path:literal, $request:ty) -> $answer:ty;)*) => {$(
        /// The answer, or the text of the error.
        async fn $name(&self, request: $request) -> Result<$answer, String> {
            let answered = async {
                match self {
                    Self::Grpc(channel) => match $client::new(channel.clone()).$name(request).await {
                        Ok(answer) => Ok(answer.into_inner()),
                        Err(status) => Err(status.message().to_owned()),
                    },
                    Self::Json(address) => match Answer::of(address, $path, &request).await {
                        Ok(answer) => answer.message().await,
                        Err(error) => Err(error.to_string()),
                    },
                }
            };
            timeout(LONG, answered).await.expect("in time")
        }
    )*};
}

impl Calls {
    calls! {
        range(KvClient, "kv/range", RangeRequest) -> RangeResponse;
        put(KvClient, "kv/put", PutRequest) -> PutResponse;
        lease_grant(LeaseClient, "lease/grant", LeaseGrantRequest) -> LeaseGrantResponse;
        lease_revoke(LeaseClient, "lease/revoke", LeaseRevokeRequest) -> LeaseRevokeResponse;
        lock(LockClient, "lock/lock", LockRequest) -> LockResponse;
        unlock(LockClient, "lock/unlock", UnlockRequest) -> UnlockResponse;
        campaign(ElectionClient, "election/campaign", CampaignRequest) -> CampaignResponse;
        proclaim(ElectionClient, "election/proclaim", ProclaimRequest) -> ProclaimResponse;
        leader(ElectionClient, "election/leader", LeaderRequest) -> LeaderResponse;
        resign(ElectionClient, "election/resign", ResignRequest) -> ResignResponse;
    }

    /// A new lease.
    async fn lease(&self) -> i64 {
        self.lease_grant(LeaseGrantRequest { ttl: TTL, id: 0 }).await.expect("a lease").id
    }

    async fn observe(&self, name: &str) -> Stream<LeaderResponse> {
        let request = LeaderRequest { name: name.into() };
        match self {
            Self::Grpc(channel) => {
                let answer = ElectionClient::new(channel.clone()).observe(request).await;
                Stream::Grpc(answer.expect("a stream").into_inner())
            }
            Self::Json(address) => Stream::json(address, "election/observe", &request).await,
        }
    }

    /// The keys with this prefix, from now on.
    async fn watch(&self, prefix: &str) -> Stream<WatchResponse> {
        let key = prefix.as_bytes().to_vec();
        let mut range_end = prefix.as_bytes().to_vec();
        *range_end.last_mut().expect("it is not empty") += 1;
        let create =
            RequestUnion::CreateRequest(WatchCreateRequest { key, range_end, ..WatchCreateRequest::default() });
        let request = WatchRequest { request_union: Some(create) };
        let mut stream = match self {
            Self::Grpc(channel) => {
                let answer = WatchClient::new(channel.clone()).watch(tokio_stream::iter([request])).await;
                Stream::Grpc(answer.expect("a stream").into_inner())
            }
            Self::Json(address) => Stream::json(address, "watch", &request).await,
        };
        assert!(stream.next().await.expect("an answer").created);
        stream
    }

    /// Renews a lease. Its TTL.
    async fn keep_alive(&self, id: i64) -> i64 {
        let request = LeaseKeepAliveRequest { id };
        let mut stream: Stream<LeaseKeepAliveResponse> = match self {
            Self::Grpc(channel) => {
                let answer = LeaseClient::new(channel.clone()).lease_keep_alive(tokio_stream::iter([request])).await;
                Stream::Grpc(answer.expect("a stream").into_inner())
            }
            Self::Json(address) => Stream::json(address, "lease/keepalive", &request).await,
        };
        stream.next().await.expect("an answer").ttl
    }
}

/// The answers of a stream.
enum Stream<T> {
    Grpc(Streaming<T>),
    Json(Answer),
}

impl<T: DeserializeOwned> Stream<T> {
    async fn json(address: &str, path: &str, request: &impl Serialize) -> Self {
        Self::Json(timeout(LONG, Answer::of(address, path, request)).await.expect("in time").expect("an answer"))
    }

    /// The next message; the text of the error that ended it.
    async fn next(&mut self) -> Result<T, String> {
        let next = async {
            match self {
                Self::Grpc(stream) => match stream.message().await {
                    Ok(Some(message)) => Ok(message),
                    Ok(None) => Err("the stream ended".to_owned()),
                    Err(status) => Err(status.message().to_owned()),
                },
                Self::Json(answer) => answer.next().await,
            }
        };
        timeout(LONG, next).await.expect("in time")
    }
}

/// A name twice, each time with the kind of its caller and the other one.
fn turns(name: &str, both: &[Calls; 2]) -> [(String, Calls, Calls); 2] {
    let [grpc, json] = both.clone();
    [(format!("{name}-grpc"), grpc.clone(), json.clone()), (format!("{name}-json"), json, grpc)]
}

fn spawn<F: Future<Output: Send> + Send + 'static>(call: F) -> JoinHandle<F::Output> {
    tokio::spawn(call)
}

/// One caller holds a lock, another one waits, a third one waits and goes away.
async fn locks_pass_on(channel: &Channel, both: &[Calls; 2]) {
    for (name, one, other) in turns("passed-on", both) {
        let lock = |calls: &Calls, lease: i64| {
            let calls = calls.clone();
            let name = name.clone();
            async move { calls.lock(LockRequest { name: name.into(), lease }).await }
        };
        let held = lock(&one, one.lease().await).await.expect("it is free");
        let goes = spawn(lock(&one, one.lease().await));
        until_keys(channel, &name, 2).await;
        let waits = spawn(lock(&other, other.lease().await));
        until_keys(channel, &name, 3).await;
        // Its connection or its stream ends with it. The lease goes on, and has no key.
        goes.abort();
        until_keys(channel, &name, 2).await;
        assert!(!waits.is_finished());
        other.unlock(UnlockRequest { key: held.key.clone() }).await.expect("it is held");
        let key = timeout(LONG, waits).await.expect("in time").expect("it runs").expect("its turn").key;
        assert_eq!(until_keys(channel, &name, 1).await[0].0.as_bytes(), key);
        let again = one.unlock(UnlockRequest { key: held.key }).await;
        assert!(again.is_err_and(|text| text.contains("is not the key of a lock")), "it is not held any more");
        let ended = one.lease().await;
        let waits = spawn(lock(&one, ended));
        until_keys(channel, &name, 2).await;
        other.lease_revoke(LeaseRevokeRequest { id: ended }).await.expect("a lease");
        let ended = timeout(LONG, waits).await.expect("in time").expect("it runs");
        assert_eq!(ended.expect_err("it has no lease"), "etcdserver: requested lease not found");
        one.unlock(UnlockRequest { key }).await.expect("it is held");
        until_keys(channel, &name, 0).await;
    }
}

fn value(leader: Result<LeaderResponse, String>) -> String {
    let kv = leader.expect("a leader").kv.expect("its key");
    String::from_utf8(kv.value).expect("text")
}

/// One candidate leads, proclaims and resigns, and the next one leads; observers of both kinds see it.
async fn leaders_follow(channel: &Channel, both: &[Calls; 2]) {
    for (name, one, other) in turns("led", both) {
        let nobody = one.leader(LeaderRequest { name: name.clone().into() }).await;
        assert_eq!(nobody.expect_err("nobody leads"), "election: no leader");
        let mut observers = [one.observe(&name).await, other.observe(&name).await];
        let campaign = |calls: &Calls, lease: i64, value: &str| {
            let calls = calls.clone();
            let name = name.clone().into();
            let value = value.into();
            async move { calls.campaign(CampaignRequest { name, lease, value }).await }
        };
        let leader = campaign(&one, one.lease().await, "one").await.expect("it is free").leader;
        for observer in &mut observers {
            assert_eq!(value(observer.next().await), "one");
        }
        let second = spawn(campaign(&other, other.lease().await, "two"));
        until_keys(channel, &name, 2).await;
        let again = ProclaimRequest { leader: leader.clone(), value: b"again".into() };
        other.proclaim(again.clone()).await.expect("it leads");
        assert_eq!(value(one.leader(LeaderRequest { name: name.clone().into() }).await), "again");
        one.resign(ResignRequest { leader: leader.clone() }).await.expect("it leads");
        let second = timeout(LONG, second).await.expect("in time").expect("it runs").expect("its turn").leader;
        assert_eq!(one.proclaim(again).await.expect_err("it leads no more"), "election: not leader");
        for observer in &mut observers {
            for wanted in ["again", "two"] {
                assert_eq!(value(observer.next().await), wanted);
            }
        }
        other.resign(ResignRequest { leader: second }).await.expect("it leads");
        until_keys(channel, &name, 0).await;
    }
}

/// Streams that were open when the leader died.
struct Open {
    calls: Calls,
    name: String,
    lease: i64,
    elected: CampaignResponse,
    leaders: Stream<LeaderResponse>,
    events: Stream<WatchResponse>,
    waits: JoinHandle<Result<LockResponse, String>>,
}

impl Open {
    async fn of(channel: &Channel, calls: Calls, name: String) -> Self {
        let lease = calls.lease().await;
        let leaders = calls.observe(&name).await;
        let campaign = CampaignRequest { name: name.clone().into(), lease, value: b"before".into() };
        let elected = calls.campaign(campaign).await.expect("it is free");
        let events = calls.watch(&format!("{name}-watched")).await;
        let lock = format!("{name}-lock");
        let request = |lease| LockRequest { name: lock.clone().into(), lease };
        calls.lock(request(lease)).await.expect("it is free");
        let request = request(calls.lease().await);
        let caller = calls.clone();
        let waits = spawn(async move { caller.lock(request).await });
        until_keys(channel, &lock, 2).await;
        let mut open = Self { calls, name, lease, elected, leaders, events, waits };
        assert_eq!(value(open.leaders.next().await), "before");
        open
    }

    /// All of them go on, as does what waits.
    async fn goes_on(mut self) {
        let ttl = self.calls.keep_alive(self.lease).await;
        assert_eq!(ttl, TTL, "its lease goes on");
        let proclaim = ProclaimRequest { leader: self.elected.leader.clone(), value: b"after".into() };
        self.calls.proclaim(proclaim).await.expect("it leads");
        assert_eq!(value(self.leaders.next().await), "after");
        let key: Vec<u8> = format!("{}-watched", self.name).into();
        let put = PutRequest { key: key.clone(), value: b"1".into(), lease: self.lease, ..PutRequest::default() };
        let put = self.calls.put(put).await.expect("it is written").header.expect("a header").revision;
        let events = self.events.next().await.expect("an event").events;
        let seen = events.iter().map(|event| event.kv.as_ref().map_or(0, |kv| kv.mod_revision));
        assert_eq!(seen.collect::<Vec<_>>(), [put], "it is seen once, and nothing before it");
        assert!(!self.waits.is_finished(), "the lock is held");
        // With the lease goes all that it has.
        self.calls.lease_revoke(LeaseRevokeRequest { id: self.lease }).await.expect("it lives");
        let locked = timeout(LONG, self.waits).await.expect("in time").expect("it runs").expect("its turn");
        self.calls.unlock(UnlockRequest { key: locked.key }).await.expect("it is held");
        assert_eq!(self.events.next().await.expect("an event").events.len(), 1, "the key is deleted");
        let gone = self.calls.range(RangeRequest { key, ..RangeRequest::default() }).await.expect("an answer");
        assert_eq!(gone.count, 0);
    }
}

/// Contenders for one lock, and what was seen.
#[derive(Default)]
struct Contention {
    is_over: AtomicBool,
    inside: AtomicUsize,
    overlaps: AtomicU64,
    tenures: [AtomicU64; 6],
}

impl Contention {
    async fn enter(&self, number: usize) {
        self.overlaps.fetch_add(u64::from(self.inside.fetch_add(1, SeqCst) > 0), SeqCst);
        sleep(Duration::from_millis(5)).await;
        self.inside.fetch_sub(1, SeqCst);
        self.tenures[number].fetch_add(1, SeqCst);
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(SeqCst)
    }

    /// By a service.
    async fn served(&self, number: usize, calls: &Calls, name: &str) {
        let lease = calls.lease().await;
        while self.goes_on() {
            let locked = calls.lock(LockRequest { name: name.into(), lease }).await.expect("its turn");
            self.enter(number).await;
            calls.unlock(UnlockRequest { key: locked.key }).await.expect("it is held");
        }
    }

    /// By etcd's recipe, in `etcdctl`. One whose write was lost fails, and leaves its key to its lease.
    async fn by_recipe(&self, number: usize, programs: &Path, endpoint: &str, name: &str) {
        while self.goes_on() {
            let mut one = Contender::start(programs, endpoint, &["lock", TTL_SHORT, name]);
            if one.try_line().await.is_some() {
                self.enter(number).await;
                one.end().await;
            }
        }
    }

    /// Waits until each has had the lock so many times more.
    async fn more(&self, times: u64) {
        let before = self.tenures.each_ref().map(|count| count.load(SeqCst));
        let deadline = Instant::now() + LONG;
        while self.tenures.iter().zip(before).any(|(count, before)| count.load(SeqCst) < before + times) {
            assert!(Instant::now() < deadline, "after {before:?}: {:?}", self.tenures);
            sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Two contenders of each kind, while something happens. The name of each contender's lock is given by its number.
async fn contend<T>(
    both: &[Calls; 2],
    programs: &Path,
    endpoint: &str,
    name: impl Fn(usize) -> String,
    meanwhile: impl AsyncFnOnce(&Contention) -> T,
) -> (T, u64) {
    let contention = Contention::default();
    let all = join_all((0..contention.tenures.len()).map(async |number| {
        let name = name(number);
        match both.get(number / 2) {
            Some(calls) => contention.served(number, calls, &name).await,
            None => contention.by_recipe(number, programs, endpoint, &name).await,
        }
    }));
    let stage = async {
        let done = meanwhile(&contention).await;
        contention.is_over.store(true, SeqCst);
        done
    };
    let (_, done) = join(all, stage).await;
    (done, contention.overlaps.load(SeqCst))
}

/// Kills the leader, and waits for the next one.
async fn lose_leader(cluster: &LocalCluster, leader: u64) {
    cluster.node(leader).signal(Signal::KILL);
    let deadline = Instant::now() + LONG;
    while !cluster.statuses().await.values().any(|status| ![0, leader].contains(&status.leader_id)) {
        assert!(Instant::now() < deadline, "no other leader");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_grpc_json_and_recipes_are_in_one_queue_and_outlive_the_leader() {
    let programs = debian::etcd().await;
    let mut cluster = cluster().await;
    let (leader, follower) = leader_and_other(&cluster).await;
    let endpoint = cluster.node(follower).etcd_endpoint().expect("it serves the API");
    let channel =
        Channel::from_shared(format!("http://{endpoint}")).expect("a URL").connect().await.expect("it listens");
    let both = [Calls::Grpc(channel.clone()), Calls::Json(endpoint.clone())];
    locks_pass_on(&channel, &both).await;
    leaders_follow(&channel, &both).await;
    let open = join_all(turns("open", &both).map(|(name, calls, _)| Open::of(&channel, calls, name))).await;
    match programs {
        Ok(programs) => {
            // What a broken lock looks like.
            let apart = contend(
                &both,
                &programs,
                &endpoint,
                |number| format!("apart-{number}"),
                async |contention| {
                    contention.more(2).await;
                },
            );
            assert!(apart.await.1 > 0, "locks of their own overlap");
            let shared = contend(
                &both,
                &programs,
                &endpoint,
                |_| "shared".to_owned(),
                async |contention| {
                    contention.more(2).await;
                    lose_leader(&cluster, leader).await;
                    contention.more(2).await;
                },
            );
            assert_eq!(shared.await.1, 0, "two were inside");
        }
        Err(problem) => {
            crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}"));
            lose_leader(&cluster, leader).await;
        }
    }
    join_all(open.into_iter().map(Open::goes_on)).await;
    until_keys(&channel, "open", 0).await;
    cluster.stop().await;
}
