//! Requests, executed on this node's replica.
//!
//! Every change of the table, and every linearizable read, needs the leader: a node that does not lead refuses it with
//! [`FailureReason::NoLeader`]. [`super::Service`] therefore routes such requests to the leader first. Any node executes a stale read.

use std::{
    fmt,
    future::{pending, ready},
    sync::{Arc, OnceLock},
};

use futures::{
    FutureExt as _, Stream, StreamExt, TryFutureExt as _,
    future::{BoxFuture, Either},
    stream::unfold,
};
use tokio::time::Instant;

use super::{
    browse::Browse, client_waits::ClientWaits, keep_alive, long_reads::LongReads, patience::PATIENCE, watch,
    watch_entries,
};
use crate::{
    access::{
        Access,
        guard::{Adds, Concern, Guarded, Needs, is_of_adapter, is_of_zookeeper, keys_of, rights_needed},
    },
    api::{
        Caller, Error, FailureReason,
        requests::{EntriesWatched, KeepAlive, KeepAliveEvent, WatchEntries, WatchEvent, WatchLocks},
    },
    wire::{Form, Forward, status::outcome},
};
use lockkeeper_environment::Random;
use lockkeeper_machine::{Command, Identity, Key, Machine, Note, Reply, SessionId, Stamp, Ticket};
use lockkeeper_metrics::Metrics;
use lockkeeper_planted::Planted;
use lockkeeper_policy::{RequestSubject, Right};
use lockkeeper_raft::{NoReply, NoteKind, Replica, members::Members};
use lockkeeper_redis::LibraryUse;
use lockkeeper_table::{Applied, Delivery, Times};
use lockkeeper_traces::{TraceSpan, Traces};
use lockkeeper_transport::LogThrottle;

/// This node's replica, and everything else that requests need.
#[derive(Clone, Debug)]
pub(crate) struct Local {
    pub(crate) replica: Replica,
    /// Changes the membership.
    pub(crate) members: Members,
    /// Draws the session ids that clients leave to the node.
    pub(crate) random: Arc<dyn Random>,
    /// The rules of who may do what.
    pub(crate) access: Arc<Access>,
    pub(crate) metrics: Metrics,
    /// Limits how often the log says that a limit is reached.
    pub(crate) limits_reached: Arc<LogThrottle>,
    /// Limits the reads of the keyspace that visit many keys.
    pub(crate) long_reads: Arc<LongReads>,
    /// Limits the acquires that wait here.
    pub(crate) waits: Arc<ClientWaits>,
    /// Those of them that other nodes pass on.
    pub(crate) forwarded_waits: Arc<ClientWaits>,
    pub(crate) traces: Traces,
    /// Runs the units of other nodes, once this node has a port whose clients send some.
    pub(crate) units: Arc<OnceLock<Arc<dyn UnitRunner>>>,
    /// The span of a traced request, while the request is executed.
    pub(crate) span: Option<Arc<TraceSpan>>,
}

/// The attribute of a span with the lock that a request names, or the first of its locks.
const LOCK: &str = "lockkeeper.lock";
/// The number of locks that a request names, if there are several.
const LOCKS: &str = "lockkeeper.locks";
/// The index of the log entry with a request's command.
const LOG_INDEX: &str = "lockkeeper.log_index";

/// The end of an adapter that runs the units of other nodes, and tells what its clients do.
pub(crate) trait UnitRunner: fmt::Debug + Send + Sync {
    /// Runs a unit for a caller, and returns its answer. It ends soon after the caller's deadline.
    fn run(&self, caller: Caller, unit: Vec<u8>) -> BoxFuture<'static, Vec<u8>>;

    /// What the clients of its port have done, by the library that they are written with.
    fn libraries(&self) -> Vec<LibraryUse>;
}

/// A request that a node can execute.
pub(crate) trait Serve: Forward + Guarded {
    /// Executes the request. Replies are typed, except those whose encoded size is limited: they are built as messages.
    fn serve(self, node: &Local, caller: &Caller) -> impl Future<Output = Result<Form<Self::Reply>, Error>> + Send;
}

impl Local {
    /// Executes a request that another node has forwarded. An acquire that may wait counts for its client until it is answered or breaks
    /// off.
    pub(crate) async fn call_forwarded<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> Result<Form<C::Reply>, Error> {
        let may_wait = C::may_wait(&request) && self.replica.leads();
        let _counted = if may_wait { Some(self.forwarded_waits.begin(caller)?) } else { None };
        self.call(caller, request).await
    }

    /// Executes a request.
    ///
    /// **Every request of every protocol passes here exactly once**: typed and checked, on the node that executes it. The caller is the
    /// client, as the node to which it is connected knows it. The checks of rights and owners happen here, and in `keep_alive`, `watch` and
    /// `watch_entries` below.
    ///
    /// Neither this function nor the ones on the way to it are `async`: each would keep the request in its future, beside the future that
    /// has got it. A request may wait for hours.
    pub(crate) fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        let began = Instant::now();
        let answer = match self.traces.serve(C::NAME, &caller.origin) {
            None => Either::Left(self.answer(caller, request)),
            // Boxed, so that the future of a request that is not traced does not carry the space for it.
            Some(span) => Either::Right(Box::pin(self.traced(span, caller, request))),
        };

        answer.map(move |answer| {
            let outcome = answer.as_ref().map_or_else(|error| outcome(&error.reason), |_| "ok");
            self.metrics.called(C::NAME, outcome, began.elapsed());
            answer.inspect_err(|error| self.count_limit(error))
        })
    }

    fn count_limit(&self, error: &Error) {
        if error.reason == FailureReason::LimitReached
            && let Some(limit) = error.about("limit")
        {
            self.metrics.limit_reached(limit);
            // The limit of an identity was logged with its name.
            let is_of_all = !limit.starts_with("identity_");
            if is_of_all && let Some(count) = self.limits_reached.count() {
                tracing::warn!(count, limit, "requests were refused: a limit is reached");
            }
        }
    }

    async fn traced<C: Serve>(
        &self,
        span: Arc<TraceSpan>,
        caller: &Caller,
        request: Form<C>,
    ) -> Result<Form<C::Reply>, Error> {
        let node = Self { span: Some(Arc::clone(&span)), ..self.clone() };
        let answer = node.answer(caller, request).await;
        span.end(answer.as_ref().err().map(|error| outcome(&error.reason)));
        answer
    }

    fn answer<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        let checked = request.typed().and_then(|request| {
            if let Some(span) = &self.span {
                name_locks(span, &request);
            }
            self.check(caller, &request)?;
            Ok(request)
        });
        match checked {
            Ok(request) => Either::Left(request.serve(self, caller)),
            Err(error) => Either::Right(ready(Err(error))),
        }
    }

    /// Renews sessions as `renewals` arrive, until they end, and reports what the sessions lose.
    pub(crate) fn keep_alive<S>(
        &self,
        caller: &Caller,
        renewals: S,
    ) -> impl Stream<Item = Result<Form<KeepAliveEvent>, Error>> + Send + use<S>
    where
        S: Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    {
        let node = self.clone();
        let caller = caller.clone();

        // Each renewal is checked like a request: its session may belong to another identity than the session of the last one.
        let renewals = renewals.map(move |renewal| {
            let renewal = renewal.and_then(Form::typed)?;
            node.check(&caller, &renewal)?;
            Ok(renewal)
        });
        keep_alive::start(self.replica.clone(), renewals).map(|event| event.map(Form::Typed))
    }

    /// Sends the state of the locks under a prefix, and then their changes.
    pub(crate) async fn watch(
        &self,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> Result<impl Stream<Item = Result<Form<WatchEvent>, Error>> + Send + use<>, Error> {
        let request = request.typed()?;
        self.check(caller, &request)?;

        let WatchLocks { prefix, after_index } = request;
        let replica = self.replica.clone();
        let metrics = self.metrics.clone();
        let events = watch::start(replica, metrics, prefix.clone(), after_index, &caller.owner()).await;
        let events = events.inspect_err(|error| self.count_limit(error))?;

        // The policy may change while the stream is open.
        let access = Arc::clone(&self.access);
        let caller = caller.clone();
        let denied = async move { access.denied(&caller, Right::Watch, RequestSubject::Under(&prefix)).await };
        Ok(until_error(events, denied).map(|event| event.map(Form::Message)))
    }

    /// Looks at this node's own table, for people.
    pub(super) async fn browse<B: Browse>(&self, caller: &Caller, request: B) -> Result<B::View, Error> {
        let began = Instant::now();
        let seen = self.look(caller, request).await;
        let outcome = seen.as_ref().map_or_else(|error| outcome(&error.reason), |_| "ok");
        self.metrics.called(B::NAME, outcome, began.elapsed());
        seen
    }

    async fn look<B: Browse>(&self, caller: &Caller, request: B) -> Result<B::View, Error> {
        self.check(caller, &request)?;
        // Read a clone, so that no apply waits for this read.
        let (table, index) = self.replica.table().read(|applied| (applied.machine.clone(), applied.index()));
        let _turn = self.long_reads.turn_for(caller, table.counts().locks.min(B::VISITS_MAX)).await?;
        request.look(&self.access, caller, &table, index)
    }

    /// Sends the events of the keyspace as this node applies them.
    pub(crate) fn watch_entries(
        &self,
        caller: &Caller,
        request: WatchEntries,
    ) -> Result<impl Stream<Item = Result<EntriesWatched, Error>> + Send + use<>, Error> {
        self.check(caller, &request)?;
        let owner = caller.owner();

        let access = Arc::clone(&self.access);
        let caller = caller.clone();
        let range = request.range.clone();
        let denied = async move { access.denied(&caller, Right::Watch, keys_of(&range)).await };

        let events = watch_entries::start(self.replica.clone(), request, &owner);
        let events = events.inspect_err(|error| self.count_limit(error))?;
        Ok(until_error(events, denied))
    }

    /// Returns once the policy no longer lets the caller acquire what a wait of it is for.
    pub(super) fn wait_denied<'a>(
        &'a self,
        caller: &'a Caller,
        ticket: Ticket,
    ) -> impl Future<Output = Error> + Send + use<'a> {
        // The names are looked up in the table: a request need not be copied for the case that it waits.
        let check = move || {
            let names = self.replica.table().read(|applied| {
                let wants = applied.machine.wanted_by(ticket).unwrap_or_default();
                wants.iter().map(|want| want.name.clone()).collect::<Vec<_>>()
            });
            let mut names = names.iter().map(|name| RequestSubject::Name(name.as_str()));
            names.try_for_each(|name| self.access.check(caller, Right::Acquire, name))
        };

        // Boxed, so that the future of an acquire at a node without a policy does not carry the space for it.
        let may_be_denied = self.access.has_policy() && !Planted::DeniedWaitGoesOn.is_on();
        let denied = may_be_denied.then(|| Box::pin(self.access.denied_by(check)));
        async move {
            match denied {
                Some(denied) => denied.await,
                None => pending().await,
            }
        }
    }

    /// Refuses a request for which the caller has no right, or that uses the session of another identity.
    pub(super) fn check(&self, caller: &Caller, request: &impl Guarded) -> Result<(), Error> {
        self.decide(caller, request).inspect_err(|error| self.note_refusal(caller, error))
    }

    /// Refuses an anonymous caller if the node serves none.
    pub(super) fn admit(&self, caller: &Caller) -> Result<(), Error> {
        self.access.admit(caller).inspect_err(|error| self.note_refusal(caller, error))
    }

    /// Has the refusal of an identity or a right in the audit trail.
    fn note_refusal(&self, caller: &Caller, error: &Error) {
        if matches!(
            error.reason,
            FailureReason::PermissionDenied | FailureReason::NotOwner | FailureReason::Unauthenticated
        ) {
            let who = caller.identity.as_ref().map(ToString::to_string);
            let act = "refused".to_owned();
            let reason = error.message.clone().into_owned();
            // The note is written in the background, and only for some refusals, because a client can cause any number of them.
            _ = self.replica.note(NoteKind::Refusal, Note { who, act, reason, ..Note::default() });
        }
    }

    fn decide(&self, caller: &Caller, request: &impl Guarded) -> Result<(), Error> {
        self.access.admit(caller)?;

        let needs = request.needs();
        match needs.right {
            None => {}
            Some((right, Concern::One(what))) => self.access.check(caller, right, what)?,
            Some((right, Concern::All(wants))) => {
                wants
                    .iter()
                    .try_for_each(|want| self.access.check(caller, right, RequestSubject::Name(want.name.as_str())))?;
            }
            Some((right, Concern::Keys(keys))) => {
                let mut asked = keys.iter().map(Key::as_bytes).filter(|key| !is_of_adapter(right, key));
                asked.try_for_each(|key| self.access.check(caller, right, RequestSubject::Key(key)))?;
            }
        }

        if let Some(txn) = needs.txn {
            rights_needed(txn).try_for_each(|(right, what)| self.access.check(caller, right, what))?;
            for session in txn.sessions() {
                if !self.may_use(caller, session)? && !self.is_shown_by_its_door(session) {
                    return Err(self.not_owner(caller, session));
                }
            }
        }

        if let Some(session) = needs.session
            && !self.may_use(caller, session)?
            && !(needs.for_others && self.access.administers(caller))
        {
            return Err(self.not_owner(caller, session));
        }

        match (&caller.identity, needs.adds) {
            (Some(who), Some(adds)) => self.check_limits(who, &needs, adds),
            _ => Ok(()),
        }
    }

    fn not_owner(&self, caller: &Caller, session: SessionId) -> Error {
        if let Some(count) = self.access.count_denied() {
            tracing::info!(count, from = %caller.shown(), %session, "requests for sessions of other identities were refused");
        }
        Error::not_owner(caller.identity.as_ref()).with_session(session)
    }

    /// Refuses what exceeds a limit of the identity. The check reads the table as it is applied here, so requests in flight at the same
    /// time may together exceed a limit by what they ask for. A repetition of a request that was executed adds nothing and must not be
    /// refused: its client does not know yet that it holds a lock. A transaction by which a client renews or releases must not be refused
    /// either.
    fn check_limits(&self, who: &Identity, needs: &Needs<'_>, adds: Adds) -> Result<(), Error> {
        let limits = self.access.limits(who);
        if (limits.sessions, limits.locks, limits.waiters, limits.bytes) == (None, None, None, None) {
            return Ok(());
        }

        let usage = self.replica.table().read(|applied| {
            let machine = &applied.machine;
            let is_repeated = adds.opens.is_some_and(|id| machine.owner(id).is_some())
                || needs
                    .session
                    .zip(adds.request)
                    .is_some_and(|(session, request)| machine.remembers(session, request));
            let goes_on = needs.txn.is_some_and(|txn| !machine.txn_asks_for_more(txn));
            (!is_repeated && !goes_on).then(|| machine.usage(who))
        });
        let Some(usage) = usage else { return Ok(()) };

        let asked = [
            ("sessions", usage.sessions, adds.sessions, limits.sessions),
            ("locks", usage.locks, adds.locks, limits.locks),
            ("waiters", usage.waiters, adds.waiters, limits.waiters),
            // Each of these requests adds some bytes.
            ("bytes", usage.bytes, 1, limits.bytes),
        ];

        let over = |(_, has, more, limit): &&(_, u64, u64, Option<u64>)| {
            let counted = if Planted::AskedForUncounted.is_on() { 0 } else { *more };
            *more > 0 && limit.is_some_and(|limit| has.saturating_add(counted) > limit)
        };
        match asked.iter().find(over) {
            Some((name, _, _, Some(limit))) => Err(self.access.over_limit(who, name, *limit, false)),
            _ => Ok(()),
        }
    }

    /// Whether a client of ZooKeeper opened the session before it had shown who it is. Only adapters send transactions, and ZooKeeper's
    /// adapter has checked the session's password: the client may use the session under its present identity.
    fn is_shown_by_its_door(&self, session: SessionId) -> bool {
        is_of_zookeeper(session) && self.owner(session) == Some(None)
    }

    /// Whether the caller may use a session: a member asks, the caller owns it, or it has no owner and the node serves anonymous callers.
    ///
    /// It suffices to read the table as it is applied here, though the command comes later in the log. A session's owner is set once, those
    /// who could use it before that are no strangers to it, and an id is not used again. A leader has applied all entries of its
    /// predecessors, and proposals are bound to its term. So a session that this table lacks was not open when the command was sent, or its
    /// open is in flight. In the first case the table refuses the command. In the second, only the client that drew the id from 128 random
    /// bits knows it.
    fn may_use(&self, caller: &Caller, session: SessionId) -> Result<bool, Error> {
        if !self.replica.leads() {
            return Err(Error::no_leader());
        }
        let owner = self.owner(session);
        Ok(caller.is_peer || owner.is_none_or(|owner| self.access.owns(caller, owner.as_ref())))
    }

    /// The owner of a session, if the table has the session.
    pub(super) fn owner(&self, session: SessionId) -> Option<Option<Identity>> {
        self.replica.table().read(|applied| applied.machine.owner(session).map(Option::<&Identity>::cloned))
    }

    /// Proposes a command and waits until it is applied.
    pub(super) fn propose(&self, command: Command) -> impl Future<Output = Result<Delivery, Error>> + Send {
        self.propose_in(None, command)
    }

    /// The same, but only while this node leads in this term, if one is given.
    pub(super) fn propose_in(
        &self,
        term: Option<u64>,
        command: Command,
    ) -> impl Future<Output = Result<Delivery, Error>> + Send {
        // Boxed, so that a request that goes on after it, as an acquire that waits, does not carry the space for it.
        let proposed = Box::pin(self.replica.propose_in(term, command, PATIENCE));
        proposed.map(|proposed| {
            let delivery = proposed.map_err(|why| {
                if let NoReply::VersionTooLow { needs, has } = why {
                    return Error::version_too_low(needs, has, &self.replica.members_without(needs));
                }
                Error::no_reply(why)
            })?;
            if let (Some(span), Some(times)) = (&self.span, delivery.times) {
                show_stages(span, times);
            }
            Ok(delivery)
        })
    }

    /// Proposes a command and waits for its reply.
    pub(super) fn apply(&self, command: Command) -> impl Future<Output = Result<Reply, Error>> + Send {
        self.propose(command).map_ok(|delivery| delivery.reply)
    }

    /// Reads the table. `look` holds a lock that applying needs, so it must be short.
    pub(super) async fn read<T>(&self, stale: bool, look: impl FnOnce(&Applied) -> T) -> Result<T, Error> {
        if stale {
            Ok(self.replica.table().read(look))
        } else {
            self.replica.read(PATIENCE, look).await.map_err(Error::no_reply)
        }
    }

    /// Reads the table, and cluster time: see [`Replica::read_on_time`]. Otherwise the time is that of the table.
    pub(super) async fn read_at<T>(&self, on_time: bool, look: impl FnOnce(&Applied, Stamp) -> T) -> Result<T, Error> {
        if on_time {
            self.replica.read_on_time(PATIENCE, look).await.map_err(Error::no_reply)
        } else {
            self.read(false, |applied| look(applied, applied.machine.now())).await
        }
    }

    /// Returns the table as it is after one log entry, and that entry's index. The table is persistent, so a clone costs a few reference
    /// counts; showing a thousand locks, or a queue of thousands, from the table itself would delay applying.
    pub(super) async fn frozen(&self, stale: bool) -> Result<(Machine, u64), Error> {
        self.read(stale, |applied| (applied.machine.clone(), applied.index())).await
    }
}

/// Notes in the span which locks the request names.
fn name_locks(span: &TraceSpan, request: &impl Guarded) {
    match request.needs().right {
        Some((_, Concern::One(RequestSubject::Name(name)))) => span.note(LOCK, name.to_owned()),
        Some((_, Concern::All(wants))) => {
            if let Some(first) = wants.first() {
                span.note(LOCK, first.name.as_str().to_owned());
            }
            if wants.len() > 1 {
                span.note(LOCKS, i64::try_from(wants.len()).unwrap_or(i64::MAX));
            }
        }
        Some((_, Concern::One(_) | Concern::Keys(_))) | None => {}
    }
}

/// Notes in the span the stages of a command that went through Raft.
fn show_stages(span: &TraceSpan, times: Times) {
    let Times { queued, proposed, committed, applied, log_index } = times;
    span.note(LOG_INDEX, i64::try_from(log_index).unwrap_or(i64::MAX));
    span.part("queue", queued, proposed);
    span.part("commit", proposed, committed);
    span.part("apply", committed, applied);
}

/// The size of a page that the caller asks for, up to the limit. 0 asks for the limit.
pub(super) fn page_size(asked: usize, limit: usize) -> usize {
    if asked == 0 { limit } else { asked.min(limit) }
}

/// Passes on the events until an error: one of theirs, or the one that `ended` returns.
pub(super) fn until_error<T>(
    events: impl Stream<Item = Result<T, Error>> + Send + 'static,
    ended: impl Future<Output = Error> + Send + 'static,
) -> impl Stream<Item = Result<T, Error>> + Send + 'static {
    unfold(Some((Box::pin(events), Box::pin(ended))), |state| async {
        let (mut events, mut ended) = state?;
        tokio::select! {
            // The end first: nothing is passed on after it.
            biased;
            error = &mut ended => Some((Err(error), None)),
            event = events.next() => event.map(|event| {
                let rest = event.is_ok().then_some((events, ended));
                (event, rest)
            }),
        }
    })
}
