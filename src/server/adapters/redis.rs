//! Redis' protocol on this node: its store is the cluster's keyspace.
//!
//! `lockkeeper-redis` speaks the protocol. This file has the listener, the identity of its callers, and [`RedisKeyspace`], its store.
//!
//! **A key with a time to live is an entry with a deadline of its own.** Every read is on time: what remains is counted by the leader's
//! clock, and an entry is gone when the log says so ([`lockkeeper_raft::Replica::read_on_time`]).
//!
//! **A string that was created by a condition, and ends by itself, claims its name** (see `lockkeeper_machine`'s keyspace): operators list,
//! watch and take back `redis/DB/KEY`.
//!
//! **Units** (scripts, transactions, commands of several keys) run at the leader: [`RunUnit`](crate::api::requests::RunUnit) carries one
//! there, and [`UnitRunner`] is the door's end of it. A leader whose node has no such port runs none; then the unit runs here.
//!
//! **A connection ends with the token** by which its client has proven who it is: within the time in which a node reads its files again.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::{FutureExt, StreamExt, future::BoxFuture};
use lockkeeper_redis::{
    ClientConnection, Expiry, LibraryUse, LockClaim, NodeAddress, Redis, RedisCaller, RedisChange, RedisCommitted,
    RedisCondition, RedisEntry, RedisFound, RedisIdentity, RedisLimits, RedisListener, RedisOptions, RedisPage,
    RedisStore, RedisStoreError, RedisTxn, RedisWrite,
};
use openraft::async_runtime::WatchReceiver as _;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tokio_util::sync::CancellationToken;

use lockkeeper_config::{Config, RedisConfig};
use lockkeeper_environment::{Blocking, Environment};
use lockkeeper_lua::LuaInterpreter;
use lockkeeper_machine::{
    Committed, Compare, Entry, EntryDeadline, EntryEvent, Expire, Identity, Key, KeyRange, LABEL_BYTES_MAX,
    LIFETIME_MS_MAX, Label, Lifetime, LockName, Operand, Put, PutClaim, PutLease, Relation, Revision, Select, Shows,
    Stamp, Txn, TxnOperation, TxnResult, Value,
};
use lockkeeper_planted::Planted;
use lockkeeper_policy::{RequestSubject, Right};
use lockkeeper_transport::{Listen, tls::Acceptor};

use super::{
    certified_port::CertifiedPort,
    etcd::reachable,
    failure_class::FailureClass,
    keyspace_client::{KeyspaceClient, this_node},
};
use crate::{
    api::{
        Caller, Deadline, Error, FailureReason as Reason,
        requests::{GetEntries, ListEntries, RunUnit, SelectEntries, WatchEntries},
    },
    service::{Service, UnitRunner},
};

/// The prefix of the entries in which nodes store the address of this port for clients, by the node's id.
const ADDRESSES: &str = "redis-nodes/";
/// How often a node looks for the addresses of the others, and for its own.
const ADDRESSES_PAUSE: Duration = Duration::from_secs(2);
/// Time limit of a request of the node itself, and of a unit whose caller has none.
const OWN_TIMEOUT: Duration = Duration::from_secs(4);
/// Messages of a watch that wait for their reader. A reader that is further behind begins anew.
const WATCH_QUEUE: usize = 1024;
/// Maximum number of bytes of the entries that one request names.
const ENTRIES_BYTES_MAX: usize = 16 << 20;

/// Returns the address at which clients reach this node's port.
pub(crate) fn address(config: &Config) -> String {
    let RedisConfig { listen, advertise } = &config.redis;
    let own = config.this_member().map_or(&config.client_listen, |member| &member.client_address);
    reachable(if advertise.is_empty() { listen } else { advertise }, own)
}

/// The door: what serves the port, and what runs the units of other nodes.
pub(crate) struct RedisDoor {
    redis: Redis<RedisKeyspace>,
    store: RedisKeyspace,
}

impl RedisDoor {
    /// `address` is where clients reach this node's port, host:port.
    pub(crate) fn new(
        service: Service,
        address: String,
        connections_max: usize,
        limits: RedisLimits,
        environment: &Environment,
    ) -> Self {
        let clock = Arc::clone(&environment.clock);
        #[expect(clippy::cast_possible_truncation, reason = "half of the random bits are enough")]
        let seed = environment.random.bits() as u64;

        let wall_us = move || clock.wall_ms().saturating_mul(1000);
        let scripts_in_place = environment.blocking == Blocking::Here;
        let blocking = environment.blocking;

        // Long scripts run at a low priority: those of strangers could otherwise take the processors that heartbeats need.
        let run_apart = move |work: Box<dyn FnOnce() + Send>| {
            let done = blocking.run_in_background("redis-script", move || {
                work();
                Ok(())
            });
            // It begins once it is polled. Nobody needs its end.
            tokio::spawn(done.map(drop));
        };

        let run_apart = Arc::new(run_apart);
        let options = RedisOptions::new(wall_us, seed).with_limits(limits);
        let options = RedisOptions { connections_max, scripts_in_place, run_apart, ..options };

        let store =
            RedisKeyspace { client: KeyspaceClient::new(service), address: address.into(), addresses: Arc::default() };
        let redis = Redis::new(store.clone(), Arc::new(LuaInterpreter::default()), options);
        Self { redis, store }
    }

    /// What runs units that other nodes send.
    pub(crate) fn runner(&self) -> Arc<dyn UnitRunner> {
        Arc::new(RedisUnits { redis: self.redis.clone() })
    }

    /// Serves the port until `stopping` is cancelled.
    pub(crate) fn serve<L: Listen>(
        self,
        listener: L,
        acceptor: Option<Acceptor>,
        stopping: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<L> {
        let access = Arc::clone(self.store.client.service().access());
        let listener = CertifiedPort { listener, acceptor, access };
        let announcing = self.store.announce(stopping.clone());
        async move {
            tokio::join!(self.redis.serve(listener, stopping), announcing);
        }
    }
}

/// Runs the units of other nodes.
#[derive(Debug)]
struct RedisUnits {
    redis: Redis<RedisKeyspace>,
}

impl UnitRunner for RedisUnits {
    fn run(&self, service_caller: Caller, unit: Vec<u8>) -> BoxFuture<'static, Vec<u8>> {
        let redis = self.redis.clone();
        async move {
            let unknown = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            let caller = RedisCaller {
                identity: service_caller.identity.as_ref().map(|identity| identity.as_str().to_owned()),
                address: service_caller.remote.map_or(unknown, |remote| SocketAddr::new(remote.ip(), remote.port())),
                deadline: Instant::now() + service_caller.deadline.map_or(OWN_TIMEOUT, Deadline::left),
                // A member asks for its own port, and not for a client: no policy concerns it.
                is_port: service_caller.is_peer,
            };

            redis.run_unit(&caller, &unit).await
        }
        .boxed()
    }

    fn libraries(&self) -> Vec<LibraryUse> {
        self.redis.libraries()
    }
}

impl<L: Listen> RedisListener for CertifiedPort<L> {
    fn identity(stream: &Self::Stream) -> Option<RedisIdentity> {
        stream.proven().map(|(name, withdrawn)| RedisIdentity { name, withdrawn })
    }
}

/// The cluster's keyspace, as this adapter sees it.
#[derive(Clone)]
struct RedisKeyspace {
    client: KeyspaceClient,
    /// The address at which clients reach this node's port.
    address: Arc<str>,
    /// The same of all nodes, as far as this one knows, by their ids.
    addresses: Arc<RwLock<Vec<(u64, String)>>>,
}

impl RedisStore for RedisKeyspace {
    fn authenticate(
        &self,
        user: &str,
        password: &[u8],
        connection: &ClientConnection,
    ) -> Result<Option<RedisIdentity>, RedisStoreError> {
        let access = self.client.service().access();
        let shown = std::str::from_utf8(password).ok().and_then(|token| access.token(token).ok());
        // The token alone decides who it is. A name beside it must agree, or a client with the wrong one of two tokens would work
        // unnoticed.
        let meant = shown.filter(|(identity, _)| user == "default" || user == identity.as_str());
        let Some((identity, token)) = meant else { return Ok(None) };

        access.count_other_connection(&identity, connection.observe()).map_err(|error| failed(&error))?;
        let name = identity.as_str().to_owned();
        let caller = Caller { identity: Some(identity), token: Some(token), ..Caller::default() };
        let withdrawn = Arc::clone(access).withdrawn(caller);
        Ok(Some(RedisIdentity { name, withdrawn: withdrawn.map(drop).boxed() }))
    }

    fn admit(&self, identity: &str, connection: &ClientConnection) -> Result<(), RedisStoreError> {
        let identity = Identity::new(identity).map_err(|invalid| RedisStoreError::Denied(invalid.to_string()))?;
        let access = self.client.service().access();
        access.count_other_connection(&identity, connection.observe()).map_err(|error| failed(&error))
    }

    fn ensure_may_pop(&self, caller: &RedisCaller, keys: &[Vec<u8>]) -> Result<(), RedisStoreError> {
        let access = self.client.service().access();
        if !access.has_policy() || Planted::DeniedWaitGoesOn.is_on() {
            return Ok(());
        }
        let caller = self.service_caller(caller);
        // A pop reads and writes.
        let mut needs = keys.iter().flat_map(|key| [Right::Read, Right::Acquire].map(|right| (right, key)));
        let check = needs.try_for_each(|(right, key)| access.check(&caller, right, RequestSubject::Key(key)));
        check.map_err(|error| failed(&error))
    }

    fn has_users(&self) -> bool {
        self.client.service().access().has_tokens()
    }

    fn needs_identity(&self) -> bool {
        !self.client.service().access().serves_anonymous()
    }

    fn has_leader(&self) -> bool {
        self.client.service().replica().leads() || self.client.service().leader().is_some()
    }

    fn nodes(&self) -> Vec<NodeAddress> {
        let leader = self.client.service().replica().look_at_leader(|id, _| id);
        let addresses = self.addresses.read().unwrap_or_else(PoisonError::into_inner);
        let node = |(id, address): &(u64, String)| {
            let (host, port) = host_and_port(address)?;
            Some(NodeAddress { host: host.to_owned(), port, leads: leader == Some(*id) })
        };
        addresses.iter().filter_map(node).collect()
    }

    fn committed_wall_ms(&self) -> u64 {
        self.client.service().replica().table().latest_wall().0
    }

    async fn get(&self, caller: &RedisCaller, keys: Vec<Vec<u8>>) -> Result<RedisFound, RedisStoreError> {
        let service_caller = self.service_caller(caller);
        let mut keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;

        let request = GetEntries { keys: keys.clone(), at: None, on_time: true };
        let first = self.call(&service_caller, request).await?;
        let now = first.now;
        let mut all = RedisFound { revision: first.revision.0, now_ms: now.0, entries: Vec::new() };
        let mut found = first.entries;
        let mut bytes = 0;
        loop {
            bytes += found.iter().flatten().map(|entry| entry.value.as_bytes().len()).sum::<usize>();
            if bytes > ENTRIES_BYTES_MAX {
                return Err(RedisStoreError::TooLarge(format!("the entries have more than {ENTRIES_BYTES_MAX} bytes")));
            }
            // An answer is cut where it would become too large. At least one key goes on each time, so that this ends.
            keys.drain(..found.len().clamp(1, keys.len().max(1)).min(keys.len()));
            let is_present = |entry: &Arc<Entry>| entry.until.is_none_or(|until| until > now);
            let shown = found.into_iter().map(|entry| entry.filter(is_present).as_deref().map(stored));
            all.entries.extend(shown);
            if keys.is_empty() {
                return Ok(all);
            }

            // The rest as of the same revision.
            let at = Some(first.revision);
            found = self.call(&service_caller, GetEntries { keys: keys.clone(), at, on_time: false }).await?.entries;
        }
    }

    async fn list(
        &self,
        caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
    ) -> Result<RedisPage, RedisStoreError> {
        let request = ListEntries {
            range: range(&from, &to)?,
            backwards: false,
            page_size: limit,
            at: None,
            leased_by: None,
            on_time: true,
        };
        let page = self.call(&self.service_caller(caller), request).await?;

        let now_ms = page.now.0;
        let entries = page.entries.iter().map(|(key, entry)| (key.as_bytes().to_vec(), stored(entry))).collect();
        Ok(RedisPage { entries, more: page.more, revision: page.revision.0, now_ms })
    }

    async fn count(&self, caller: &RedisCaller, from: Vec<u8>, to: Vec<u8>) -> Result<u64, RedisStoreError> {
        let select = Select { range: range(&from, &to)?, shows: Shows::Count, ..Select::default() };
        let request = SelectEntries { select, at: None, stale: false, on_time: true };
        let found = self.call(&self.service_caller(caller), request).await?;
        Ok(found.selected.count)
    }

    async fn commit(&self, caller: &RedisCaller, txn: RedisTxn) -> Result<RedisCommitted, RedisStoreError> {
        let committed = self.call(&self.service_caller(caller), compile(&txn)?).await?;
        Ok(outcome(committed))
    }

    async fn commit_each(
        &self,
        caller: &RedisCaller,
        txns: Vec<RedisTxn>,
    ) -> Vec<Result<RedisCommitted, RedisStoreError>> {
        if txns.len() > 1 {
            let compiled = txns.iter().map(compile).map_while(Result::ok).collect();
            let answers = self.client.commit_each(&self.service_caller(caller), caller.deadline, compiled).await;
            if !answers.is_empty() {
                let mut outcomes = Vec::with_capacity(answers.len());
                for (txn, answer) in txns.iter().zip(answers) {
                    outcomes.push(match answer {
                        Ok(committed) => self.with_found(caller, txn, outcome(committed)).await,
                        Err(error) => Err(failed(&error)),
                    });
                }
                return outcomes;
            }
        }

        let mut outcomes = Vec::with_capacity(txns.len());
        for txn in txns {
            outcomes.push(self.commit(caller, txn).await);
            // It may still take effect: the others come after it.
            if matches!(outcomes.last(), Some(Err(RedisStoreError::Unknown(_)))) {
                break;
            }
        }
        outcomes
    }

    async fn watch(
        &self,
        caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
    ) -> Result<mpsc::Receiver<Vec<RedisChange>>, RedisStoreError> {
        let request = WatchEntries { range: range(&from, &to)?, from: None, with_previous: false };
        let service_caller = self.service_caller(caller);
        let deadline = Deadline::at(caller.deadline);
        // The stream goes on after the request that began it.
        let service_caller = Caller { deadline: None, ..service_caller };
        let begin = || self.client.service().watch_entries(&service_caller, request.clone());
        let events = timeout_at(caller.deadline, self.client.begin(deadline, begin)).await;
        let mut events = events.unwrap_or_else(|_| Err(Error::no_leader())).map_err(|error| failed(&error))?;

        let (changes, receiver) = mpsc::channel(WATCH_QUEUE);
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    event = events.next() => event,
                    () = changes.closed() => return,
                };
                // A reader that is too slow, and a stream that ends, begin anew.
                let Some(Ok(watched)) = event else { return };
                if !watched.events.is_empty()
                    && changes.try_send(watched.events.into_iter().map(changed).collect()).is_err()
                {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    async fn run_at_leader(
        &self,
        caller: &RedisCaller,
        unit: impl FnOnce() -> Vec<u8> + Send,
    ) -> Result<Option<Vec<u8>>, RedisStoreError> {
        if self.client.service().replica().leads() {
            return Ok(None);
        }

        let unit = unit().into();
        let answer = self.within(caller.deadline, &self.service_caller(caller), RunUnit { unit }).await;
        match answer {
            Ok(done) => Ok(Some(done.answer.to_vec())),
            // The leader's node has no such port, or an earlier version: a unit is right on any node.
            Err(error) if matches!(error.reason, Reason::ClusterVersion | Reason::InvalidArgument) => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }
}

impl RedisKeyspace {
    fn service_caller(&self, caller: &RedisCaller) -> Caller {
        let deadline = Some(Deadline::at(caller.deadline));
        if caller.is_port {
            return Caller { deadline, ..this_node() };
        }
        let identity = caller.identity.as_deref().and_then(|name| Identity::new(name).ok());
        Caller { remote: Some(caller.address.into()), identity, deadline, ..Caller::default() }
    }

    /// Reads what a transaction has found, as of that moment, if its outcome does not show it: the answer to transactions that were
    /// committed together has a limit. It has changed nothing, and none of those behind it may be seen instead.
    async fn with_found(
        &self,
        caller: &RedisCaller,
        txn: &RedisTxn,
        outcome: RedisCommitted,
    ) -> Result<RedisCommitted, RedisStoreError> {
        if outcome.succeeded || outcome.found.len() == txn.otherwise_get.len() {
            return Ok(outcome);
        }

        let mut found = Vec::with_capacity(txn.otherwise_get.len());
        for bytes in &txn.otherwise_get {
            let request = GetEntries { keys: vec![key(bytes)?], at: Some(Revision(outcome.revision)), on_time: false };
            let read = self.call(&self.service_caller(caller), request).await?;
            let is_present = |entry: &Arc<Entry>| entry.until.is_none_or(|until| until.0 > outcome.now_ms);
            let entry = read.entries.into_iter().next().flatten().filter(is_present);
            found.push(entry.as_deref().map(stored));
        }
        Ok(RedisCommitted { found, ..outcome })
    }

    async fn call<C>(&self, service_caller: &Caller, request: C) -> Result<C::Reply, RedisStoreError>
    where
        C: crate::service::Serve + Clone,
    {
        let deadline = Instant::now() + service_caller.deadline.map_or(OWN_TIMEOUT, Deadline::left);
        self.within(deadline, service_caller, request).await.map_err(|error| failed(&error))
    }

    async fn within<C>(&self, deadline: Instant, service_caller: &Caller, request: C) -> Result<C::Reply, Error>
    where
        C: crate::service::Serve + Clone,
    {
        let changes = C::CHANGES;
        let answer = timeout_at(deadline, self.client.call(service_caller, request)).await;
        answer.unwrap_or_else(|_| Err(Error::deadline_passed(changes)))
    }

    /// Tells the other nodes where clients reach this one, and learns the same of them. Returns when the node stops.
    fn announce(&self, stopping: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        let store = self.clone();
        async move {
            let announced = async {
                loop {
                    if let Err(error) = store.exchange_addresses().await {
                        tracing::debug!(%error, "the addresses for Redis' clients are not known yet");
                    }
                    sleep(ADDRESSES_PAUSE).await;
                }
            };
            stopping.run_until_cancelled(announced).await;
        }
    }

    async fn exchange_addresses(&self) -> Result<(), RedisStoreError> {
        let replica = self.client.service().replica();
        let own = (replica.node_id(), self.address.to_string());
        let range = range(ADDRESSES.as_bytes(), b"redis-nodes0")?;
        let request = ListEntries { range, backwards: false, page_size: 0, at: None, leased_by: None, on_time: false };
        let page = self.call(&this_node(), request).await?;

        let node = |(key, entry): &(Key, Arc<Entry>)| {
            let id = std::str::from_utf8(key.as_bytes()).ok()?.strip_prefix(ADDRESSES)?.parse::<u64>().ok()?;
            Some((id, String::from_utf8(entry.value.as_bytes().to_vec()).ok()?))
        };
        let mut known: Vec<(u64, String)> = page.entries.iter().filter_map(node).collect();
        if !known.contains(&own) {
            let put = Put {
                key: key(format!("{ADDRESSES}{}", own.0).as_bytes())?,
                value: Value::new(own.1.as_bytes()).map_err(too_large)?,
                lease: PutLease::None,
                claims: None,
            };
            let txn = Txn::new(Vec::new(), vec![TxnOperation::Put(put)], Vec::new()).map_err(too_large)?;
            self.call(&this_node(), txn).await?;
            known.retain(|(id, _)| *id != own.0);
            known.push(own);
        }

        // Members that were removed are not told of.
        let members = replica.raft().metrics().borrow_watched().membership_config.membership().clone();
        known.retain(|(id, _)| members.nodes().any(|(member, _)| member == id));
        *self.addresses.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }
}

fn key(bytes: &[u8]) -> Result<Key, RedisStoreError> {
    Key::new(bytes).map_err(too_large)
}

fn range(from: &[u8], to: &[u8]) -> Result<KeyRange, RedisStoreError> {
    Ok(KeyRange { from: Some(key(from)?), to: Some(key(to)?) })
}

fn stored(entry: &Entry) -> RedisEntry {
    RedisEntry {
        created: entry.created.0,
        modified: entry.modified.0,
        deadline_ms: entry.until.map(|until| until.0),
        token: entry.claim.as_ref().map(|claim| claim.token.0),
        holder: entry.claim.as_ref().map(|claim| claim.label.as_str().to_owned()),
        value: entry.value.as_bytes().to_vec(),
    }
}

fn changed(event: EntryEvent) -> RedisChange {
    let value = event.after.map(|entry| entry.value.as_bytes().to_vec());
    RedisChange { key: event.key.as_bytes().to_vec(), value }
}

/// The transaction of the machine that does this.
fn compile(txn: &RedisTxn) -> Result<Txn, RedisStoreError> {
    let compares = txn.conditions.iter().map(compare).collect::<Result<Vec<_>, _>>()?;
    let mut then = Vec::with_capacity(txn.writes.len());
    for write in &txn.writes {
        then.extend(operation(write)?);
    }
    let get = |bytes: &Vec<u8>| Ok(TxnOperation::Get(key(bytes)?));
    let otherwise = txn.otherwise_get.iter().map(get).collect::<Result<Vec<_>, RedisStoreError>>()?;
    Txn::new(compares, then, otherwise).map_err(too_large)
}

/// What the machine says became of a transaction.
fn outcome(committed: Committed) -> RedisCommitted {
    let mut outcome = RedisCommitted {
        succeeded: committed.succeeded,
        revision: committed.revision.0,
        now_ms: committed.now.0,
        ..RedisCommitted::default()
    };

    for result in committed.results {
        match result {
            TxnResult::Deleted(count) => outcome.deleted += count,
            TxnResult::Got(entry) => outcome.found.push(entry.as_deref().map(stored)),
            TxnResult::Put | TxnResult::PutChild(_) | TxnResult::Expires(_) => {}
            TxnResult::Selected(_) | TxnResult::Opened(_) => {}
        }
    }
    outcome
}

fn compare(condition: &RedisCondition) -> Result<Compare, RedisStoreError> {
    let one = |bytes: &[u8], relation, operand| Ok(Compare { key: key(bytes)?, up_to: None, relation, operand });
    match condition {
        RedisCondition::Modified { key, .. } if Planted::RedisReadNotInCommit.is_on() => {
            one(key, Relation::NotEqual, Operand::Version(u64::MAX))
        }
        RedisCondition::Value { key, .. } if Planted::RedisValueUncompared.is_on() => {
            one(key, Relation::NotEqual, Operand::Version(0))
        }
        RedisCondition::Modified { key, revision } => one(key, Relation::Equal, Operand::Modified(Revision(*revision))),
        RedisCondition::Present { key } => one(key, Relation::NotEqual, Operand::Version(0)),
        RedisCondition::Value { key, value } => {
            one(key, Relation::Equal, Operand::Value(Value::new(value).map_err(too_large)?))
        }
        RedisCondition::RangeUnwritten { from, to, revision } => {
            let operand = Operand::Modified(Revision(revision.saturating_add(1)));
            Ok(Compare { key: key(from)?, up_to: Some(key(to)?), relation: Relation::Less, operand })
        }
    }
}

/// The operation of a write, if there is something to do.
fn operation(write: &RedisWrite) -> Result<Option<TxnOperation>, RedisStoreError> {
    Ok(match write {
        RedisWrite::Put { key: bytes, value, expiry, claim } => {
            let (lease, claims) = lease(*expiry, claim);
            let value = Value::new(value).map_err(too_large)?;
            Some(TxnOperation::Put(Put { key: key(bytes)?, value, lease, claims }))
        }
        RedisWrite::Expire { expiry: Expiry::Kept, .. } => None,
        RedisWrite::Expire { key: bytes, expiry } => {
            Some(TxnOperation::Expire(Expire { key: key(bytes)?, deadline: deadline(*expiry) }))
        }
        RedisWrite::Delete { key: bytes } => Some(TxnOperation::Delete(key(bytes)?)),
        RedisWrite::DeleteRange { from, to } => Some(TxnOperation::DeleteRange(range(from, to)?)),
    })
}

/// Only an entry with a deadline can claim a lock.
fn lease(expiry: Expiry, claim: &LockClaim) -> (PutLease, Option<PutClaim>) {
    let Some(deadline) = deadline(expiry) else {
        return (if expiry == Expiry::Kept { PutLease::Kept } else { PutLease::None }, None);
    };

    match claim {
        LockClaim::None => (PutLease::Until(deadline), None),
        LockClaim::Kept => (PutLease::Extended(deadline), None),
        LockClaim::New { name, holder } => {
            // An entry whose name a lock cannot have is not shown as a lock. It has its deadline all the same.
            let lock = LockName::new(name).ok();
            let label = Label::new(&shortened(holder)).unwrap_or_default();
            (PutLease::Until(deadline), lock.map(|lock| PutClaim { lock, label }))
        }
    }
}

fn deadline(expiry: Expiry) -> Option<EntryDeadline> {
    match expiry {
        Expiry::None | Expiry::Kept => None,
        Expiry::AfterMs(ms) => Lifetime::from_millis(ms.clamp(1, LIFETIME_MS_MAX)).ok().map(EntryDeadline::After),
        Expiry::AtMs(ms) => Some(EntryDeadline::At(Stamp(ms))),
    }
}

/// Shortens the text of a holder, which has no limit, to a label, which has one.
fn shortened(holder: &str) -> String {
    let mut label: String = holder.chars().filter(|c| !c.is_control()).collect();
    while label.len() > LABEL_BYTES_MAX {
        label.pop();
    }
    label
}

fn too_large(invalid: impl fmt::Display) -> RedisStoreError {
    RedisStoreError::TooLarge(invalid.to_string())
}

fn failed(error: &Error) -> RedisStoreError {
    let kind = match FailureClass::from(error) {
        FailureClass::Denied => RedisStoreError::Denied,
        FailureClass::TooLarge => RedisStoreError::TooLarge,
        FailureClass::Full => RedisStoreError::Full,
        FailureClass::Overloaded => RedisStoreError::Overloaded,
        FailureClass::Unavailable => RedisStoreError::Unavailable,
        FailureClass::Unknown => RedisStoreError::Unknown,
    };
    kind(error.message.to_string())
}

/// The parts of an address. The brackets of an IPv6 address are part of neither: clients that are given a host and a port connect to the
/// host as it is.
fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((bare, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_one_that_clients_connect_to() {
        for (address, parts) in [
            ("[2001:db8::1]:6379", Some(("2001:db8::1", 6379))),
            ("192.0.2.1:6380", Some(("192.0.2.1", 6380))),
            ("a.example:6379", Some(("a.example", 6379))),
            ("a.example", None),
            ("a.example:redis", None),
        ] {
            assert_eq!(host_and_port(address), parts, "{address}");
        }
    }
}
