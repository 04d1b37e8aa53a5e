//! Clients with identities in a simulated run: the policy decides at every node and at five ports, and nobody uses what is another's.
//!
//! All other clients are anonymous, and may do everything. Those here may do what an [`Edition`] of the files says, and ask for more; a run
//! changes between two editions. What is judged is each answer, and the table: sessions of an identity hold nothing that no
//! edition names. Three more have limits of their own, and ask for more.

mod judge;
mod limits;
mod ports;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    config::AuthConfig,
    machine::{Identity, Machine, Token},
    proto::v1::{
        AcquireRequest, AcquireResponse, CheckRequest, CloseSessionRequest, ForceReleaseRequest, GetRequest,
        ListRequest, ListSessionsRequest, OpenSessionRequest, ReleaseRequest, RenewSessionRequest,
        TransferLeaderRequest, UpdateRequest, Want, WatchRequest, acquire_response, cluster_client::ClusterClient,
        locks_client::LocksClient, release_request::Target, sessions_client::SessionsClient,
    },
};
use lockkeeper_policy::{BearerToken, Right};
use rand::{Rng as _, seq::IndexedRandom as _};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use crate::{
    clients::Draws,
    contenders::Contention,
    dynamodb::{self, AccessKey},
};
use judge::Outcome;
use limits::{DrawnLimits, LimitedIdentity};
use ports::{DynamoUse, EtcdUse, RedisUse, ZnodeUse};

pub(crate) use judge::RightsJudge;
pub(crate) use limits::NAMES as LIMITS_OF_IDENTITIES;

const LIMIT: Duration = Duration::from_millis(900);
const PAUSE_MS: std::ops::Range<u64> = 20..200;
/// The TTL of sessions: longer than a run, so that a session which is over was closed.
const TTL_MS: u32 = 600_000;
/// Of this number of requests, one is preceded by a change of the files.
const REQUESTS_PER_CHANGE: u32 = 20;
/// The requests of the service that ports make for these clients alone.
pub(crate) const REQUESTS: [&str; 1] = ["set_session_owner"];
/// Sessions that are remembered, of each client.
const SESSIONS_MAX: usize = 1;
const PREFIX: &str = "rights/";

/// A client, by the token that it sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Who {
    Ann,
    Ben,
    /// It has a token and no right.
    Eve,
    /// Its token is none of the nodes'.
    Forger,
}

/// A rule: who may do what, with which names.
type Rule = (Who, &'static [Right], &'static str);

/// The files of tokens and rules: a run changes between these.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Edition {
    #[default]
    First,
    /// Ann's rules are narrower and wider, and Ben's token is withdrawn.
    Second,
}

impl Edition {
    const ALL: [Self; 2] = [Self::First, Self::Second];

    /// The rules, beside the one that lets anonymous callers do everything.
    fn rules(self) -> &'static [Rule] {
        match self {
            Self::First => &[
                (Who::Ann, &[Right::Acquire, Right::Read, Right::Watch], "rights/ann/"),
                (Who::Ann, &[Right::Acquire, Right::Read], "redis/0/rights/ann/"),
                (Who::Ann, &[Right::Read], "rights/be"),
                (Who::Ben, &[Right::Acquire, Right::ForceRelease], "rights/ben/"),
                (Who::Ben, &[Right::Watch, Right::Read], "rights/"),
                (Who::Ben, &[Right::Acquire, Right::Read], "redis/0/rights/ben/"),
                (Who::Ann, &[Right::Acquire, Right::Read], "etcd/rights/ann/"),
                (Who::Ben, &[Right::Read], "etcd/rights/"),
                (Who::Ben, &[Right::Acquire], "etcd/rights/ben/"),
                (Who::Ann, &[Right::Acquire, Right::Read], "zookeeper/rights/ann"),
                (Who::Ben, &[Right::Read], "zookeeper/rights/"),
                (Who::Ben, &[Right::Acquire, Right::Read], "zookeeper/rights/ben"),
                (Who::Ann, &[Right::Acquire, Right::Read], "dynamodb/item/rights-ann/"),
                (Who::Ben, &[Right::Read], "dynamodb/item/rights-"),
                (Who::Ben, &[Right::Acquire], "dynamodb/item/rights-ben/"),
            ],
            Self::Second => &[
                (Who::Ann, &[Right::Read], "rights/ann/"),
                (Who::Ann, &[Right::Acquire, Right::ForceRelease], "rights/ann/2"),
                (Who::Ann, &[Right::Acquire, Right::Read], "redis/0/rights/"),
                (Who::Ann, &[Right::Watch], "rights/"),
                (Who::Ben, &[Right::Acquire, Right::Read, Right::Watch], "rights/"),
                (Who::Ann, &[Right::Read], "etcd/rights/ann/"),
                (Who::Ann, &[Right::Acquire], "etcd/rights/ann/2"),
                (Who::Ann, &[Right::Acquire, Right::Read], "etcd/rights/be"),
                (Who::Ann, &[Right::Read], "zookeeper/rights/"),
                (Who::Ann, &[Right::Acquire, Right::Read], "zookeeper/rights/ben/"),
                (Who::Ann, &[Right::Read], "dynamodb/item/rights-ann/"),
                (Who::Ann, &[Right::Acquire, Right::Read], "dynamodb/item/rights-be"),
            ],
        }
    }

    /// Those whose tokens the nodes know.
    fn known(self) -> &'static [Who] {
        match self {
            Self::First => &[Who::Ann, Who::Ben, Who::Eve],
            Self::Second => &[Who::Ann, Who::Eve],
        }
    }

    fn knows(self, who: Who) -> bool {
        self.known().contains(&who)
    }

    /// Whether a rule gives the right to all that begins with this.
    fn lets(self, who: Who, right: Right, beginning: &str) -> bool {
        let gives =
            |(other, rights, prefix): &Rule| *other == who && rights.contains(&right) && beginning.starts_with(prefix);
        self.knows(who) && self.rules().iter().any(gives)
    }

    /// Whether a rule gives the right to anything.
    fn lets_somewhere(self, who: Who, right: Right) -> bool {
        self.knows(who) && self.rules().iter().any(|(other, rights, _)| *other == who && rights.contains(&right))
    }

    /// Writes the files, which all nodes read.
    fn write(self, config: &AuthConfig, limits: &DrawnLimits) -> io::Result<()> {
        let mut tokens = DrawnLimits::tokens();
        for who in self.known() {
            tokens += &who.token().entry(&Identity::new(who.name()).expect("it is one"));
        }
        let mut policy = String::from(
            "[[rule]]\nwho = [\"anonymous\"]\nmay = [\"acquire\", \"read\", \"watch\", \"force-release\", \"administer\"]\n",
        );
        let contender = dynamodb::CONTENDER.id;
        let _ =
            writeln!(policy, "[[rule]]\nwho = [{contender:?}]\nmay = [\"acquire\", \"read\"]\nprefix = \"dynamodb/\"");
        for (who, rights, prefix) in self.rules() {
            let rights: Vec<_> = rights.iter().map(|right| right.as_str()).collect();
            let _ = writeln!(policy, "[[rule]]\nwho = [{:?}]\nmay = {rights:?}\nprefix = {prefix:?}", who.name());
        }
        policy += &limits.policy();

        fs::write(&config.tokens, tokens)?;
        fs::write(&config.policy, policy)
    }
}

impl Who {
    const ALL: [Self; 4] = [Self::Ann, Self::Ben, Self::Eve, Self::Forger];

    fn name(self) -> &'static str {
        match self {
            Self::Ann => "ann",
            Self::Ben => "ben",
            Self::Eve => "eve",
            Self::Forger => "forger",
        }
    }

    fn token(self) -> BearerToken {
        BearerToken::from_random([self as u8; 32])
    }

    /// The secret of its access key for DynamoDB's port. The key is its name.
    fn secret(self) -> String {
        format!("{}-secret", self.name())
    }
}

/// The files of tokens and rules of a run, in its directory.
pub(crate) fn config(directory: &Path) -> AuthConfig {
    AuthConfig { tokens: directory.join("tokens.toml"), policy: directory.join("policy.toml"), ..AuthConfig::default() }
}

/// The file of access keys and secrets of DynamoDB's port. Nodes read it when they start, so it does not change in a run.
pub(crate) fn secrets(directory: &Path) -> PathBuf {
    directory.join("dynamodb-secrets")
}

/// Writes that file: of all but the forger.
fn write_secrets(directory: &Path) -> io::Result<()> {
    let known = Who::ALL.into_iter().filter(|who| *who != Who::Forger);
    let lines: String = known.map(|who| format!("{} {}\n", who.name(), who.secret())).collect();
    let AccessKey { id, secret } = dynamodb::CONTENDER;
    fs::write(secrets(directory), format!("{lines}{id} {secret}\n"))
}

/// What is wrong in a table: a session of an identity holds a lock that its rules have never let it acquire.
pub(crate) fn check(machine: &Machine) -> Result<(), String> {
    for session in machine.sessions(None) {
        let has_other_rules = |owner: &str| owner == dynamodb::CONTENDER.id || LimitedIdentity::is_named(owner);
        let Some(owner) = session.owner.filter(|owner| !has_other_rules(owner.as_str())) else { continue };
        let who = Who::ALL.into_iter().find(|who| who.name() == owner.as_str());
        let mut names = machine.grants_of(session.session, Token(0)).flat_map(|grant| grant.names);

        let is_wrong = |name: &str| {
            who.is_none_or(|who| Edition::ALL.iter().all(|edition| !edition.lets(who, Right::Acquire, name)))
        };
        if let Some(name) = names.find(|name| is_wrong(name.as_str())) {
            return Err(format!("{owner} holds {name}, which no rule allows"));
        }
    }
    Ok(())
}

/// The client processes of a run, in one host.
pub(crate) struct RightsClientProcess {
    pub(crate) seats: u64,
    pub(crate) seed: u64,
    pub(crate) judge: Arc<RightsJudge>,
    /// What ZooKeeper's sessions complain to.
    pub(crate) contention: Arc<Contention>,
    pub(crate) finish: CancellationToken,
    /// The number of its starts.
    pub(crate) generation: AtomicU32,
}

impl RightsClientProcess {
    /// The name of its host.
    pub(crate) const HOST: &'static str = "rights";

    /// Asks until the run is over.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let mut callers = Callers {
            seats: self.seats,
            judge: Arc::clone(&self.judge),
            contention: Arc::clone(&self.contention),
            draws: Draws::new(self.seats, self.seed ^ (u64::from(generation) << 20)),
            sessions: BTreeMap::new(),
            grants: Vec::new(),
        };
        let asking = async {
            while !self.finish.is_cancelled() {
                if callers.draws.random.random_ratio(1, REQUESTS_PER_CHANGE) {
                    self.judge.change_files()?;
                }
                let who = *Who::ALL.choose(&mut callers.draws.random).expect("it is not empty");
                let ask = *Ask::ALL.choose(&mut callers.draws.random).expect("it is not empty");
                callers.ask(who, ask).await;
                let pause = callers.draws.random.random_range(PAUSE_MS);
                sleep(Duration::from_millis(pause)).await;
            }
            Ok::<_, io::Error>(())
        };

        let seed = self.seed ^ 0x11a1 ^ (u64::from(generation) << 20);
        let limited = limits::work(&self.judge, self.seats, seed, &self.finish);
        let (asked, ()) = tokio::join!(asking, limited);
        asked?;
        Ok(())
    }
}

/// What a client may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Open,
    ListSessions,
    Session(SessionUse),
    Grant(GrantUse),
    Name(NameUse),
    Redis(RedisUse),
    Etcd(EtcdUse),
    Znode(ZnodeUse),
    Dynamo(DynamoUse),
}

/// What needs a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionUse {
    Renew,
    Close,
    Acquire,
}

/// What needs a session that holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrantUse {
    Release,
    Update,
}

/// What needs a right alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NameUse {
    Check,
    Get,
    List,
    Watch,
    ForceRelease,
    TransferLeader,
}

impl Ask {
    const ALL: [Self; 33] = [
        Self::Open,
        Self::ListSessions,
        Self::Session(SessionUse::Renew),
        Self::Session(SessionUse::Close),
        Self::Session(SessionUse::Acquire),
        Self::Grant(GrantUse::Release),
        Self::Grant(GrantUse::Update),
        Self::Name(NameUse::Check),
        Self::Name(NameUse::Get),
        Self::Name(NameUse::List),
        Self::Name(NameUse::Watch),
        Self::Name(NameUse::ForceRelease),
        Self::Name(NameUse::TransferLeader),
        Self::Redis(RedisUse::Set),
        Self::Redis(RedisUse::Get),
        Self::Redis(RedisUse::Script),
        Self::Redis(RedisUse::Keys),
        Self::Etcd(EtcdUse::Put),
        Self::Etcd(EtcdUse::Get),
        Self::Etcd(EtcdUse::List),
        Self::Etcd(EtcdUse::Range),
        Self::Etcd(EtcdUse::Delete),
        Self::Etcd(EtcdUse::Txn),
        Self::Znode(ZnodeUse::Get),
        Self::Znode(ZnodeUse::Create),
        Self::Znode(ZnodeUse::Set),
        Self::Znode(ZnodeUse::Delete),
        Self::Dynamo(DynamoUse::Get),
        Self::Dynamo(DynamoUse::Put),
        Self::Dynamo(DynamoUse::Delete),
        Self::Dynamo(DynamoUse::Scan),
        Self::Dynamo(DynamoUse::Transact),
        Self::Dynamo(DynamoUse::CreateTable),
    ];
}

impl NameUse {
    fn right(self) -> Right {
        match self {
            Self::Check | Self::Get | Self::List => Right::Read,
            Self::Watch => Right::Watch,
            Self::ForceRelease => Right::ForceRelease,
            Self::TransferLeader => Right::Administer,
        }
    }
}

/// A session, and whose it is.
#[derive(Clone, Debug)]
struct OwnedSession {
    owner: Who,
    id: String,
}

struct Callers {
    seats: u64,
    judge: Arc<RightsJudge>,
    contention: Arc<Contention>,
    draws: Draws,
    sessions: BTreeMap<Who, Vec<String>>,
    /// Grants that were told, of sessions that were not closed: with their tokens and the first of their names.
    grants: Vec<(OwnedSession, u64, String)>,
}

impl Callers {
    /// The name of a lock, or of a key: of one's own, of another's, and at the edges of prefixes.
    fn name(&mut self) -> String {
        let names = ["ann/1", "ann/2", "ann/", "ann", "an", "ann0", "ben/1", "ben/2", "ben", "be", "eve/1", "x"];
        format!("{PREFIX}{}", names.choose(&mut self.draws.random).expect("it is not empty"))
    }

    /// A session that was opened: mostly one's own.
    fn session(&mut self, who: Who) -> Option<OwnedSession> {
        let others = *[Who::Ann, Who::Ben].choose(&mut self.draws.random).expect("it is not empty");
        let owner = if self.draws.percent(60) && self.sessions.contains_key(&who) { who } else { others };
        let id = self.sessions.get(&owner)?.choose(&mut self.draws.random)?.clone();
        Some(OwnedSession { owner, id })
    }

    async fn ask(&mut self, who: Who, ask: Ask) {
        match ask {
            Ask::Open => self.open(who).await,
            Ask::ListSessions => self.list_sessions(who).await,
            Ask::Session(what) => self.use_session(who, what).await,
            Ask::Grant(what) => self.use_grant(who, what).await,
            Ask::Name(what) => self.use_name(who, what).await,
            Ask::Redis(what) => self.use_redis(who, what).await,
            Ask::Etcd(what) => self.use_etcd(who, what).await,
            Ask::Znode(what) => self.use_znode(who, what).await,
            Ask::Dynamo(what) => self.use_dynamo(who, what).await,
        }
    }

    async fn open(&mut self, who: Who) {
        if self.sessions.get(&who).is_some_and(|sessions| sessions.len() >= SESSIONS_MAX) {
            return;
        }
        let message = OpenSessionRequest { session_id: String::new(), ttl_ms: TTL_MS, label: String::new() };
        let opened = timed(SessionsClient::new(self.draws.channel()).open(with_token(who, message))).await;
        let is_allowed = |edition: Edition| edition.lets_somewhere(who, Right::Acquire);
        self.judge.judge(who, "to open a session", is_allowed, outcome(&opened));
        if let Ok(opened) = opened {
            self.sessions.entry(who).or_default().push(opened.session_id);
        }
    }

    /// Uses a session, its own or another's.
    async fn use_session(&mut self, who: Who, what: SessionUse) {
        let Some(session) = self.session(who) else { return };
        let channel = self.draws.channel();
        let mut sessions = SessionsClient::new(channel.clone());
        let mut locks = LocksClient::new(channel);

        let OwnedSession { owner, id } = session.clone();
        let is_own = owner == who;
        let mut names = Vec::new();
        let asked;
        let outcome = match what {
            SessionUse::Renew => {
                asked = format!("to renew the session of {owner:?}");
                outcome(&timed(sessions.renew(with_token(who, RenewSessionRequest { session_id: id }))).await)
            }
            SessionUse::Close => {
                asked = format!("to close the session of {owner:?}");
                if is_own {
                    // Whether it will be closed or not: it is used no more.
                    self.forget(&session);
                }
                let message = CloseSessionRequest { session_id: id, reason: String::new() };
                outcome(&timed(sessions.close_session(with_token(who, message))).await)
            }
            SessionUse::Acquire => {
                names = (0..self.draws.random.random_range(1..=2)).map(|_| self.name()).collect();
                asked = format!("to acquire {names:?} with the session of {owner:?}");

                let locks_wanted = names.iter().map(|name| Want { name: name.clone(), ..Want::default() }).collect();
                let message = AcquireRequest { session_id: id, locks: locks_wanted, ..AcquireRequest::default() };
                let answer = timed(locks.acquire(with_token(who, message))).await;
                if let Ok(AcquireResponse { outcome: Some(acquire_response::Outcome::Granted(grant)) }) = &answer {
                    self.grants.push((session, grant.token, names[0].clone()));
                }
                outcome(&answer)
            }
        };
        let is_allowed = |edition: Edition| {
            is_own && edition.knows(who) && names.iter().all(|name| edition.lets(who, Right::Acquire, name))
        };
        self.judge.judge(who, &asked, is_allowed, outcome);
    }

    /// Releases or changes what it holds, or another does.
    async fn use_grant(&mut self, who: Who, what: GrantUse) {
        let Some((session, token, name)) = self.grants.choose(&mut self.draws.random).cloned() else { return };
        let OwnedSession { owner, id } = session;
        let mut locks = self.draws.locks();

        let outcome = match what {
            GrantUse::Release => {
                let message = ReleaseRequest { session_id: id, request: None, target: Some(Target::Token(token)) };
                outcome(&timed(locks.release(with_token(who, message))).await)
            }
            GrantUse::Update => {
                let message = UpdateRequest {
                    session_id: id,
                    token,
                    name: name.clone(),
                    data: Some(vec![7]),
                    ..UpdateRequest::default()
                };
                outcome(&timed(locks.update(with_token(who, message))).await)
            }
        };
        let is_allowed = |edition: Edition| {
            let may_change = what == GrantUse::Release || edition.lets(who, Right::Acquire, &name);
            owner == who && edition.knows(who) && may_change
        };
        self.judge.judge(who, &format!("{what:?} of {name}, which {owner:?} had"), is_allowed, outcome);
    }

    fn forget(&mut self, session: &OwnedSession) {
        if let Some(sessions) = self.sessions.get_mut(&session.owner) {
            sessions.retain(|id| *id != session.id);
        }
        self.grants.retain(|(held_by, _, _)| held_by.id != session.id);
    }

    /// A list of sessions has one's own alone.
    async fn list_sessions(&mut self, who: Who) {
        let message =
            ListSessionsRequest { page_size: 1_000, stale: self.draws.percent(50), ..ListSessionsRequest::default() };
        let listed = timed(SessionsClient::new(self.draws.channel()).list(with_token(who, message))).await;
        let shown = listed.as_ref().map(|listed| &listed.sessions[..]).unwrap_or_default();
        let sees_others = shown.iter().any(|session| session.owner != who.name());
        let is_allowed = |edition: Edition| edition.lets_somewhere(who, Right::Read) && !sees_others;
        self.judge.judge(who, "to list sessions", is_allowed, outcome(&listed));
    }

    /// Looks at a name, or does what operators do.
    async fn use_name(&mut self, who: Who, what: NameUse) {
        let name = self.name();
        let asked = format!("{what:?} {name}");
        let stale = self.draws.percent(50);
        let mut locks = self.draws.locks();

        let outcome = match what {
            NameUse::Check => {
                let message = CheckRequest { name: name.clone(), token: 1 };
                outcome(&timed(locks.check(with_token(who, message))).await)
            }
            NameUse::Get => {
                let message = GetRequest { name: name.clone(), stale, ..GetRequest::default() };
                outcome(&timed(locks.get(with_token(who, message))).await)
            }
            NameUse::List => {
                let message = ListRequest { prefix: name.clone(), stale, ..ListRequest::default() };
                outcome(&timed(locks.list(with_token(who, message))).await)
            }
            NameUse::Watch => {
                let message = WatchRequest { prefix: name.clone(), after_index: 0 };
                let mut locks = locks.clone();
                let first = async { locks.watch(with_token(who, message)).await?.into_inner().message().await };
                outcome(&timeout(LIMIT, first).await.unwrap_or_else(|_| Err(too_late())))
            }
            NameUse::ForceRelease => {
                let message = ForceReleaseRequest { name: name.clone(), now: true, ..ForceReleaseRequest::default() };
                outcome(&timed(locks.force_release(with_token(who, message))).await)
            }
            NameUse::TransferLeader => {
                let message = TransferLeaderRequest { to_node_id: 1 };
                outcome(
                    &timed(ClusterClient::new(self.draws.channel()).transfer_leader(with_token(who, message))).await,
                )
            }
        };
        self.judge.judge(who, &asked, |edition| edition.lets(who, what.right(), &name), outcome);
    }
}

fn with_token<T>(who: Who, message: T) -> Request<T> {
    with_bearer(&who.token(), message)
}

fn with_bearer<T>(token: &BearerToken, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let value = format!("Bearer {}", token.reveal()).parse().expect("it is text");
    request.metadata_mut().insert("authorization", value);
    request
}

async fn timed<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
    timeout(LIMIT, call).await.unwrap_or_else(|_| Err(too_late())).map(Response::into_inner)
}

fn too_late() -> Status {
    Status::deadline_exceeded("no answer in time")
}

fn outcome<T>(answer: &Result<T, Status>) -> Outcome {
    match answer.as_ref().map_err(Status::code) {
        Ok(_) => Outcome::Served,
        Err(Code::PermissionDenied | Code::Unauthenticated) => Outcome::Refused,
        Err(_) => Outcome::Failed,
    }
}
