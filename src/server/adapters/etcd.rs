//! etcd's API on this node: its store is the cluster's keyspace.
//!
//! `lockkeeper-etcd` speaks the protocol. This file has the identity of its callers, [`EtcdKeyspace`], its store, and the keys by which
//! members tell each other where their clients reach them.
//!
//! **Callers.** The identity comes from the token in the metadata `token`, as etcd's clients send it, or in `authorization`; otherwise from
//! the certificate of the connection. A token is one of the node's tokens, and is also the password of its identity's name.
//!
//! **Addresses.** Each node that serves the API writes its address under [`ADDRESSES`] when it starts, so that every member can list all of
//! them. These keys are out of reach of the API.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{pending, ready},
    stream::BoxStream,
};
use http::{Extensions, HeaderMap, HeaderName, header::AUTHORIZATION};
use openraft::{ServerState, async_runtime::WatchReceiver as _};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use lockkeeper_config::Config;
use lockkeeper_environment::Random;
use lockkeeper_etcd::{
    EtcdFacts, EtcdFound, EtcdMember, EtcdPage, EtcdSession, EtcdStore, EtcdStoreError, KeptAlive, NodeCondition,
    WatchedEvents,
};
use lockkeeper_machine::{
    Committed, Compare, Key, KeyRange, Label, Operand, Put, PutLease, Relation, Revision, Select, Selected, SessionId,
    Ttl, Txn, TxnOperation, Value,
};
use lockkeeper_planted::Planted;
use lockkeeper_transport::Remote;

use super::keyspace_client::{KeyspaceClient, this_node};
use crate::{
    access::guard::rights_needed,
    api::{
        Caller, Deadline, Error, FailureReason, Retry,
        requests::{
            CloseSession, CompactEntries, EntriesCompacted, GetEntries, KeepAlive, KeepAliveEvent, KeepAliveEventKind,
            ListEntries, ListSessions, OpenSession, SelectEntries, WatchEntries,
        },
    },
    service::{LongReads, ReadTurn, Serve, Service},
    wire::Form,
};

/// The first part of the keys of the members' addresses; the node's id follows.
const ADDRESSES: &str = "etcd-members/";
/// Time limit of one call. etcd's own is 7 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers of several pages that are made at the same time. Each is in memory some three times, with up to 4 MiB.
const LARGE_ANSWERS_MAX: usize = 4;
/// Pause between two checks whether this node has applied what the leader has.
const COPY_PAUSE: Duration = Duration::from_millis(2);
/// Pause between two attempts to write the node's address.
const ANNOUNCE_PAUSE: Duration = Duration::from_millis(200);
/// The header in which etcd's clients send their token.
const TOKEN: HeaderName = HeaderName::from_static("token");
const BEARER: &str = "Bearer ";

/// The cluster's keyspace, as an adapter sees it.
#[derive(Clone, Debug)]
pub(crate) struct EtcdKeyspace {
    client: KeyspaceClient,
    cluster_id: u64,
    random: Arc<dyn Random>,
    /// The URL at which clients reach this node.
    url: Arc<str>,
    /// Whether the keyspace has a revision: see [`EtcdKeyspace::begun`].
    has_begun: Arc<AtomicBool>,
    /// The turns of large answers.
    answers: Arc<LongReads>,
}

/// Returns the URL at which clients reach this node's API.
pub(crate) fn url(config: &Config, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    let address = if config.etcd.advertise.is_empty() { &config.etcd.listen } else { &config.etcd.advertise };
    let own = config.this_member().map_or(&config.client_listen, |member| &member.client_address);
    format!("{scheme}://{}", reachable(address, own))
}

/// Returns an address that clients can reach. An address that stands for all of this machine's gets the host at which clients reach the
/// node otherwise.
pub(super) fn reachable(address: &str, own: &str) -> String {
    match (address.parse::<SocketAddr>(), own.rsplit_once(':')) {
        (Ok(address), Some((host, _))) if address.ip().is_unspecified() => format!("{host}:{}", address.port()),
        _ => address.to_owned(),
    }
}

impl EtcdKeyspace {
    /// Makes a store. `url` is where clients reach this node.
    pub(crate) fn new(service: Service, cluster_id: &str, random: Arc<dyn Random>, url: &str) -> Self {
        let client = KeyspaceClient::new(service);
        let answers = Arc::new(LongReads::at_once(LARGE_ANSWERS_MAX));
        Self { client, cluster_id: number_of(cluster_id), random, url: url.into(), has_begun: Arc::default(), answers }
    }

    /// Tells the other members where clients reach this node. Returns when the node stops.
    pub(crate) async fn announce(self, stopping: CancellationToken) {
        let announced = async {
            while let Err(error) = self.write_address().await {
                tracing::debug!(%error, "the address for etcd's clients is not written yet");
                sleep(ANNOUNCE_PAUSE).await;
            }
        };
        stopping.run_until_cancelled(announced).await;
        stopping.cancelled().await;
    }

    async fn write_address(&self) -> Result<(), EtcdStoreError> {
        let invalid = |what: &dyn std::fmt::Display| EtcdStoreError::Other(what.to_string());
        let key = address_key(self.client.service().replica().node_id())?;
        let value = Value::new(self.url.as_bytes()).map_err(|error| invalid(&error))?;

        // The transaction writes only what has changed: nodes restart more often than they move.
        let operand = Operand::Value(value.clone());
        let unchanged = Compare { key: key.clone(), up_to: None, relation: Relation::Equal, operand };
        let put = TxnOperation::Put(Put { key, value, lease: PutLease::None, claims: None });

        let txn = Txn::new(vec![unchanged], Vec::new(), vec![put]).map_err(|error| invalid(&error))?;
        self.call(&this_node(), txn).await.map(drop)
    }

    /// Makes sure that the keyspace has a revision before a client writes.
    ///
    /// etcd's store is at revision 1 before its first write, and its recipes rely on it: a contender asks for the keys that were created
    /// before its own, at its revision less one, and 0 there asks for all. With revision 1, it would wait for its own key for ever.
    async fn begun(&self) -> Result<(), EtcdStoreError> {
        if self.has_begun.load(Ordering::Relaxed) {
            return Ok(());
        }

        // The entry with a node's address gives the keyspace a revision, whenever it was written.
        if self.client.service().replica().table().notified_revision() == Revision(0) {
            self.write_address().await?;
        }

        // It only spares later calls the look, so the order of this store does not matter.
        self.has_begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Answers a request. Waits for a leader while none is known.
    async fn call<C: Serve + Clone>(&self, caller: &Caller, request: C) -> Result<C::Reply, EtcdStoreError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let caller = Caller { deadline: Some(Deadline::at(deadline)), ..caller.clone() };

        let answer = timeout_at(deadline, self.client.call(&caller, request)).await;
        answer.unwrap_or_else(|_| Err(Error::deadline_passed(true))).map_err(|error| failed(&error))
    }
}

impl EtcdStore for EtcdKeyspace {
    type Caller = Caller;
    type AnswerTurn = ReadTurn;

    fn caller(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<Caller, EtcdStoreError> {
        let access = self.client.service().access();
        let remote = extensions.get::<Remote>();
        let shown = match token(headers) {
            Some(token) => {
                let (identity, token) = access.token(token).map_err(|_| EtcdStoreError::UnknownToken)?;
                Caller { identity: Some(identity), token: Some(token), ..Caller::default() }
            }
            None => {
                let certificate = remote.and_then(|remote| remote.certificate.as_ref());
                let (identity, is_of_earlier) = access.certificate_identity(certificate).map_err(unproven)?;
                Caller { identity, certificate: certificate.cloned(), is_of_earlier, ..Caller::default() }
            }
        };

        if let (Some(who), Some(remote)) = (&shown.identity, remote) {
            access.count_connection(who, remote).map_err(|error| failed(&error))?;
        }

        let origin = self.client.service().traces().origin(headers);
        let remote = remote.map(|remote| remote.address.into());
        let caller = Caller { remote, origin, ..shown };
        access.admit(&caller).map_err(|error| failed(&error))?;
        Ok(caller)
    }

    fn authenticate(&self, name: &str, password: &str) -> Result<Option<String>, EtcdStoreError> {
        let access = self.client.service().access();
        if !access.has_tokens() {
            return Err(EtcdStoreError::Anonymous);
        }
        let known = access.token(password).ok().filter(|(identity, _)| identity.as_str() == name);
        Ok(known.map(|_| password.to_owned()))
    }

    fn needs_identity(&self) -> bool {
        !self.client.service().access().serves_anonymous()
    }

    fn facts(&self) -> EtcdFacts {
        let replica = self.client.service().replica();
        let term = replica.raft().metrics().borrow_watched().current_term;
        let revision = replica.table().notified_revision();
        EtcdFacts { cluster_id: self.cluster_id, member_id: replica.node_id(), term, revision }
    }

    fn leader(&self) -> Option<u64> {
        let replica = self.client.service().replica();
        let leader = replica.look_at_leader(|id, _| id);
        leader.filter(|id| *id == replica.node_id() || !replica.is_silent(*id))
    }

    fn condition(&self) -> NodeCondition {
        let replica = self.client.service().replica();
        // A borrow of the metrics holds up Raft: it ends before the table is read.
        let (index, is_learner) = {
            let metrics = replica.raft().metrics();
            let metrics = metrics.borrow_watched();
            (metrics.last_log_index.unwrap_or_default(), metrics.state == ServerState::Learner)
        };
        let (applied, table_bytes) = replica.table().read(|applied| (applied.index(), applied.machine.bytes()));
        NodeCondition { index, applied, table_bytes, is_learner }
    }

    async fn members(&self, _caller: &Caller) -> Result<Vec<EtcdMember>, EtcdStoreError> {
        let replica = self.client.service().replica();
        let metrics = replica.raft().metrics().borrow_watched().membership_config.membership().clone();
        let voters: Vec<u64> = metrics.voter_ids().collect();

        let mut members = Vec::new();
        for (id, in_log) in metrics.nodes() {
            let peer_address = replica.addresses().look(*id, in_log, |node| node.peer_address.clone());
            let peer_url = format!("https://{peer_address}");
            let is_learner = !voters.contains(id);
            members.push(EtcdMember { id: *id, peer_url, client_url: None, is_learner });
        }

        let keys = members.iter().map(|member| address_key(member.id)).collect::<Result<Vec<_>, _>>()?;
        let found = self.get(&this_node(), keys, None).await?;

        // A cluster without TLS is without it at the ports of peers, too.
        for (member, entry) in members.iter_mut().zip(found.entries) {
            member.client_url = entry.and_then(|entry| String::from_utf8(entry.value.as_bytes().to_vec()).ok());
            if member.client_url.as_ref().is_none_or(|url| !url.starts_with("https:")) {
                member.peer_url = member.peer_url.replacen("https:", "http:", 1);
            }
        }

        Ok(members)
    }

    async fn get(
        &self,
        caller: &Caller,
        mut keys: Vec<Key>,
        at: Option<Revision>,
    ) -> Result<EtcdFound, EtcdStoreError> {
        let mut found = EtcdFound::default();

        let mut at = at;
        loop {
            let page = self.call(caller, GetEntries { keys: keys.clone(), at, on_time: false }).await?;
            // Read all pages at the revision of the first one.
            at = at.or(Some(page.revision));
            if found.entries.is_empty() {
                found.revision = page.revision;
            }

            keys.drain(..page.entries.len().min(keys.len()));
            found.entries.extend(page.entries);

            if keys.is_empty() {
                return Ok(found);
            }
        }
    }

    async fn list(
        &self,
        caller: &Caller,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<EtcdPage, EtcdStoreError> {
        let request = ListEntries { range, backwards: false, page_size: limit, at, leased_by: None, on_time: false };
        let page = self.call(caller, request).await?;
        Ok(EtcdPage { entries: page.entries, more: page.more, revision: page.revision })
    }

    async fn select(
        &self,
        caller: &Caller,
        select: Select,
        at: Option<Revision>,
    ) -> Result<(Selected, Revision), EtcdStoreError> {
        let found = self.call(caller, SelectEntries { select, at, stale: false, on_time: false }).await?;
        Ok((found.selected, found.revision))
    }

    async fn select_from_copy(&self, caller: &Caller, select: Select) -> Result<(Selected, Revision), EtcdStoreError> {
        let found = self.call(caller, SelectEntries { select, at: None, stale: true, on_time: false }).await?;
        Ok((found.selected, found.revision))
    }

    async fn commit(&self, caller: &Caller, txn: Txn) -> Result<Committed, EtcdStoreError> {
        self.begun().await?;
        self.call(caller, txn).await
    }

    async fn denied(&self, caller: &Caller, txn: &Txn) -> EtcdStoreError {
        let access = self.client.service().access();
        if !access.has_policy() || Planted::DeniedWaitGoesOn.is_on() {
            return pending().await;
        }
        let check = || rights_needed(txn).try_for_each(|(right, what)| access.check(caller, right, what));
        failed(&access.denied_by(check).await)
    }

    async fn withdraw(&self, caller: &Caller, txn: Txn) -> Result<Committed, EtcdStoreError> {
        self.call(&withdrawing(caller), txn).await
    }

    async fn compact(&self, caller: &Caller, revision: Revision) -> Result<(), EtcdStoreError> {
        let deadline = Instant::now() + CALL_TIMEOUT;
        let EntriesCompacted { revision } = self.call(caller, CompactEntries { revision }).await?;

        // The leader has dropped the history. A watch is served from this node's copy: a client that has the answer must not find it there.
        let history = self.client.service().replica().table().history_of_entries();
        while history.borrow().compacted() < revision {
            if Instant::now() >= deadline {
                return Err(EtcdStoreError::TimedOut);
            }
            // A compaction wakes nobody, so poll.
            sleep(COPY_PAUSE).await;
        }

        Ok(())
    }

    fn random(&self) -> u64 {
        #[expect(clippy::cast_possible_truncation, reason = "half of the random bits are enough")]
        let bits = self.random.bits() as u64;
        bits
    }

    async fn open(&self, caller: &Caller, session: SessionId, ttl: Ttl) -> Result<(), EtcdStoreError> {
        // A repeated request opens the session again. Its label, which people see, tells this grant from others of the same id.
        let lease = session.0 & u128::from(u64::MAX);
        let grant = EtcdStore::random(self) >> 32;
        let label = format!("etcd lease {lease:x}, grant {grant:08x}");
        let label = Label::new(&label).map_err(|invalid| EtcdStoreError::Other(invalid.to_string()))?;

        match self.call(caller, OpenSession { session: Some(session), ttl, label }).await {
            // A session of this id ended not long ago.
            Err(EtcdStoreError::SessionEnded) => Err(EtcdStoreError::SessionExists),
            opened => opened.map(drop),
        }
    }

    async fn close(&self, caller: &Caller, session: SessionId) -> Result<(), EtcdStoreError> {
        // Closing a session that does not exist succeeds in the machine, but etcd's clients get an error.
        if self.session(caller, session, false).await?.is_none() {
            return Err(EtcdStoreError::SessionEnded);
        }
        self.call(caller, CloseSession { session, reason: None }).await.map(drop)
    }

    async fn session(
        &self,
        caller: &Caller,
        session: SessionId,
        keys: bool,
    ) -> Result<Option<EtcdSession>, EtcdStoreError> {
        let after = session.0.checked_sub(1).map(SessionId);
        // This one alone: a caller to whom it is not shown must not make the leader look for the next that is.
        let request = ListSessions { after, last: Some(session), page_size: 1, stale: false };
        let page = self.call(caller, request).await?;
        let Some(view) = page.sessions.into_iter().find(|view| view.session == session) else { return Ok(None) };
        let keys = if keys { self.keys_of(session).await? } else { Vec::new() };
        Ok(Some(EtcdSession { ttl: view.ttl, remaining_ms: view.remaining_ms, keys }))
    }

    async fn answer_turn(&self, caller: &Caller) -> Result<ReadTurn, EtcdStoreError> {
        let turn = timeout_at(Instant::now() + CALL_TIMEOUT, self.answers.turn(caller)).await;
        turn.ok().and_then(Result::ok).ok_or(EtcdStoreError::Overloaded)
    }

    async fn sessions(
        &self,
        caller: &Caller,
        first: SessionId,
        last: SessionId,
        most: usize,
    ) -> Result<Vec<SessionId>, EtcdStoreError> {
        let mut after = first.0.checked_sub(1).map(SessionId);

        let mut all = Vec::new();
        loop {
            let request = ListSessions { after, last: Some(last), page_size: 0, stale: false };
            let page = self.call(caller, request).await?;

            let within = page.sessions.iter().take_while(|view| view.session <= last);
            all.extend(within.map(|view| (view.opened, view.session)));
            if all.len() > most {
                return Err(EtcdStoreError::TooLarge(format!("there are more than {most} sessions")));
            }

            after = page.more_after.filter(|after| *after < last);
            if after.is_none() {
                break;
            }
        }

        // etcd lists leases in the order in which they were granted.
        all.sort_unstable();
        Ok(all.into_iter().map(|(_, session)| session).collect())
    }

    async fn keep_alive(
        &self,
        caller: &Caller,
        renewals: BoxStream<'static, SessionId>,
    ) -> Result<BoxStream<'static, Result<KeptAlive, EtcdStoreError>>, EtcdStoreError> {
        let caller = Caller { deadline: None, ..caller.clone() };
        let renewals = renewals.map(|session| Ok(Form::Typed(KeepAlive { session, sequence: 0 })));

        // Boxed, since the compiler cannot otherwise name the bounds of the stream in the future.
        let began = self.client.service().keep_alive(&caller, renewals).boxed();
        let events = timeout_at(Instant::now() + CALL_TIMEOUT, began).await;
        let events = events.unwrap_or_else(|_| Err(Error::no_leader())).map_err(|error| failed(&error))?;

        let kept = events.filter_map(|event| ready(kept(event.and_then(Form::typed)).transpose()));
        Ok(kept.boxed())
    }

    async fn watch(
        &self,
        caller: &Caller,
        range: KeyRange,
        from: Option<Revision>,
        with_previous: bool,
    ) -> Result<BoxStream<'static, Result<WatchedEvents, EtcdStoreError>>, EtcdStoreError> {
        let request = WatchEntries { range, from, with_previous };
        let deadline = Instant::now() + CALL_TIMEOUT;
        let begin = || self.client.service().watch_entries(caller, request.clone());
        let events = timeout_at(deadline, self.client.begin(Deadline::at(deadline), begin)).await;
        let events = events.unwrap_or_else(|_| Err(Error::no_leader())).map_err(|error| failed(&error))?;

        let events = events.map(|event| match event {
            Ok(event) => Ok(WatchedEvents { events: event.events, complete: event.complete }),
            Err(error) => Err(failed(&error)),
        });
        Ok(events.boxed())
    }
}

impl EtcdKeyspace {
    /// Lists the keys whose lease is this session, for a caller to whom the session was shown: its owner has put them. The node itself
    /// asks, since the keys may lie anywhere and the caller needs no right to all of them. Beyond a page, keys that come and go meanwhile
    /// may be missed.
    async fn keys_of(&self, session: SessionId) -> Result<Vec<Key>, EtcdStoreError> {
        let mut keys = Vec::new();
        let mut range = lockkeeper_etcd::all_keys();
        loop {
            let leased_by = Some(session);
            let request = ListEntries {
                range: range.clone(),
                backwards: false,
                page_size: 0,
                at: None,
                leased_by,
                on_time: false,
            };
            let page = self.call(&this_node(), request).await?;
            let last = page.entries.last().filter(|_| page.more).map(|(key, _)| key.clone());

            // A leader of an older version lists all keys.
            let own = page.entries.into_iter().filter(|(_, entry)| entry.lease.is_some_and(|it| it.session == session));
            keys.extend(own.map(|(key, _)| key));

            let Some(last) = last else { return Ok(keys) };
            let next = Key::new(&[last.as_bytes(), &[0]].concat());
            range.from = Some(next.map_err(|invalid| EtcdStoreError::Other(invalid.to_string()))?);
        }
    }
}

/// Makes the caller of a withdrawal. This node gives up what it has put itself, so it asks as a member does: the client may have lost the
/// right to it.
fn withdrawing(caller: &Caller) -> Caller {
    Caller { is_peer: true, is_withdrawal: true, ..caller.clone() }
}

fn address_key(node_id: u64) -> Result<Key, EtcdStoreError> {
    Key::new(format!("{ADDRESSES}{node_id}").as_bytes()).map_err(|invalid| EtcdStoreError::Other(invalid.to_string()))
}

/// Turns a cluster's id into a number, as etcd's ids are.
fn number_of(cluster_id: &str) -> u64 {
    // FNV-1a: it needs no dependency and is the same everywhere.
    cluster_id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The token of a request.
fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(TOKEN).or_else(|| headers.get(AUTHORIZATION))?;

    // A header that is not valid text cannot be a token.
    let value = value.to_str().unwrap_or_default();
    Some(value.strip_prefix(BEARER).unwrap_or(value))
}

/// Translates an event of a stream that keeps sessions alive, unless this protocol has no such event.
///
/// A session of another identity ends the service's stream. For etcd's clients there is no such lease, and the other leases of theirs go
/// on: the stream breaks after this event, and is opened again.
fn kept(event: Result<KeepAliveEvent, Error>) -> Result<Option<KeptAlive>, EtcdStoreError> {
    let KeepAliveEvent { session, kind } = match event {
        Ok(event) => event,
        Err(error) => {
            let foreign = error.session().filter(|_| error.reason == FailureReason::NotOwner);
            return foreign.map(|session| Some(KeptAlive::Ended(session))).ok_or_else(|| failed(&error));
        }
    };

    Ok(match kind {
        KeepAliveEventKind::Renewed { ttl, .. } => Some(KeptAlive::Renewed(session, ttl)),
        KeepAliveEventKind::Ended(_) => Some(KeptAlive::Ended(session)),
        KeepAliveEventKind::Revoked(_) => None,
    })
}

/// Translates the error of a certificate that proves nothing. Its message says which one is wanted; etcd's own errors of this kind say
/// nothing. Whoever has a better one comes again.
fn unproven(error: Error) -> EtcdStoreError {
    if error.reason == FailureReason::ShuttingDown {
        failed(&error)
    } else {
        EtcdStoreError::Other(error.message.to_string())
    }
}

/// Translates an error of the service into one of etcd's API.
fn failed(error: &Error) -> EtcdStoreError {
    let message = || error.message.to_string();
    match &error.reason {
        FailureReason::NoLeader => EtcdStoreError::NoLeader,
        FailureReason::ShuttingDown => EtcdStoreError::Stopping,
        FailureReason::OutcomeUnknown { is_late: false } => EtcdStoreError::LeaderChanged,
        FailureReason::OutcomeUnknown { is_late: true } | FailureReason::DeadlineExceeded => EtcdStoreError::TimedOut,
        FailureReason::SessionUnknown | FailureReason::SessionExpired | FailureReason::SessionClosed => {
            EtcdStoreError::SessionEnded
        }
        FailureReason::SessionExists => EtcdStoreError::SessionExists,
        FailureReason::LimitReached if error.retry == Retry::Safe => EtcdStoreError::Overloaded,
        FailureReason::LimitReached => match error.about("limit") {
            Some("txn_writes" | "txn_reads" | "txn_bytes" | "message_bytes") => EtcdStoreError::TooLarge(message()),
            _ => EtcdStoreError::Full(message()),
        },
        FailureReason::InvalidArgument => EtcdStoreError::TooLarge(message()),
        FailureReason::Overloaded => EtcdStoreError::Overloaded,
        FailureReason::DiskSpaceLow => EtcdStoreError::Full(message()),
        FailureReason::Unauthenticated => EtcdStoreError::Anonymous,
        FailureReason::PermissionDenied | FailureReason::NotOwner => EtcdStoreError::Denied(message()),

        FailureReason::RevisionCompacted => {
            let compacted = error.about("revision").and_then(|revision| revision.parse().ok());
            EtcdStoreError::Compacted { compacted: Revision(compacted.unwrap_or_default()) }
        }
        FailureReason::RevisionFuture => EtcdStoreError::Future,

        FailureReason::NotHeld
        | FailureReason::ModeMismatch
        | FailureReason::Abandoned
        | FailureReason::RequestStale
        | FailureReason::RequestReused
        | FailureReason::WaitCancelled
        | FailureReason::WaitRemoved
        | FailureReason::LockUnknown
        | FailureReason::ClusterVersion
        | FailureReason::NotSemaphore
        | FailureReason::Revoked
        | FailureReason::MembershipRefused
        | FailureReason::MembershipChanging
        | FailureReason::Internal
        | FailureReason::Newer { .. } => EtcdStoreError::Other(message()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_host_gets_that_of_the_clients_port() {
        assert_eq!(reachable("0.0.0.0:2379", "node1.example:7101"), "node1.example:2379");
        assert_eq!(reachable("[::]:2379", "10.0.0.1:7101"), "10.0.0.1:2379");
        assert_eq!(reachable("127.0.0.1:2379", "10.0.0.1:7101"), "127.0.0.1:2379");
        assert_eq!(reachable("etcd.example:2379", "10.0.0.1:7101"), "etcd.example:2379");
    }

    #[test]
    fn a_lease_of_another_identity_is_over_for_others_and_ends_no_stream() {
        let session = SessionId(7);
        let refused = || Error::not_owner(None);
        assert_eq!(kept(Err(refused().with_session(session))), Ok(Some(KeptAlive::Ended(session))));

        // Without a session it is about the caller, and so is what the policy says.
        assert!(matches!(kept(Err(refused())), Err(EtcdStoreError::Denied(_))));
        let denied = Error::unauthenticated("no token").with_session(session);
        assert_eq!(kept(Err(denied)), Err(EtcdStoreError::Anonymous));
    }

    #[test]
    fn a_token_comes_in_either_header() {
        let token_of = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())]);
            token(&headers).map(str::to_owned)
        };
        for (name, value) in [("token", "abc"), ("authorization", "abc"), ("authorization", "Bearer abc")] {
            assert_eq!(token_of(name, value).as_deref(), Some("abc"));
        }
        assert_eq!(token(&HeaderMap::new()), None);
    }
}
