//! The service below all protocols: takes typed requests, routes them to the leader, and executes them.
//!
//! ```text
//! adapters        v1 calls     v1 pipeline     (etcd, DynamoDB, HTTP: next)
//!                     \            |            /
//! Service          call / keep_alive / watch          route: this node leads? the leader? nobody?
//!                     /                          \
//! Local            execute on the replica         Forwarder   to the leader's peers' port → its Local
//! ```
//!
//! * [`Service`] is what an adapter calls. Any node answers any request: a follower forwards it to the leader, one hop. While no leader is
//!   known, the caller is told so at once. A draining node refuses new requests, except those that give something up. Each node serves
//!   watches of the keyspace itself.
//! * [`local`] executes a request on this node's replica: `sessions`, `locks`, `keyspace`, `keep_alive`, `watch`, `watch_entries`, and
//!   `waiting` for acquires that queue.
//! * `busiest` shows the busiest locks of this node's own table.
//! * `browse` looks at this node's own table, for people.
//! * `client_waits` limits the acquires that wait here, for each client.
//! * [`forward`] sends a request to the leader, and says what is known when no answer comes; [`destination`] names the node that it is for.
//!
//! The service holds no state that matters: the waits, sessions and locks are in the replicated table.

mod browse;
mod busiest;
mod client_waits;
pub(crate) mod destination;
pub(crate) mod forward;
mod keep_alive;
mod keyspace;
pub(crate) mod local;
mod locks;
mod long_reads;
mod members;
mod pages;
mod patience;
mod sessions;
mod wait_limits;
pub(crate) mod waiting;
mod watch;
mod watch_entries;

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt,
    future::{Either, ready},
    stream::{self, BoxStream},
};
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::sync::CancellationToken;

pub(crate) use self::browse::Browse;
pub(crate) use self::client_waits::{ClientWaitLimit, ClientWaits};
use self::forward::{DialPeer, Forwarder, KnownLeader, Lane};
use self::local::until_error;
pub(crate) use self::local::{Local, Serve, UnitRunner};
pub use self::long_reads::LongReadLimits;
pub(crate) use self::long_reads::{LongReads, ReadTurn};
pub use self::wait_limits::WaitLimits;
use super::{
    access::{Access, guard::Guarded},
    api::{
        Caller, Deadline, Error, Retry,
        requests::{EntriesWatched, GetEntries, KeepAlive, KeepAliveEvent, WatchEntries, WatchEvent, WatchLocks},
    },
    wire::{Form, status::outcome},
};
use lockkeeper_machine::Revision;
use lockkeeper_planted::NodeLimit;
use lockkeeper_policy::{RequestSubject, Right};
use lockkeeper_proto::v1::StatusResponse;
use lockkeeper_raft::Replica;
use lockkeeper_redis::LibraryUse;
use lockkeeper_table::MemberNode;
use lockkeeper_traces::{Origin, Traces};

/// Wakes the watches of locks that the applier leaves to this task. Ends when the replica is gone.
pub(crate) async fn dispatch_watches(replica: Replica) {
    watch::dispatch(&replica).await;
}

/// Wakes the watches of the keyspace in the same way.
pub(crate) async fn dispatch_entry_watches(replica: Replica) {
    watch_entries::dispatch(&replica).await;
}

/// A stream of replies.
pub(crate) type ReplyStream<T> = BoxStream<'static, Result<Form<T>, Error>>;

/// What a caller is told whose token was withdrawn while it waited, if the end of the wait is not known.
const WAIT_NOT_ENDED: &str = "the token or the certificate of this call counts no more, and its wait may go on for some seconds: repeat \
                              the request with the same id and another token, or close the session";

/// The attribute of a forwarded request's span: the id of the node that leads.
const FORWARDED_TO: &str = "lockkeeper.forwarded_to";

/// Answers requests, here or at the leader.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    local: Local,
    forwarder: Forwarder,
    stopping: CancellationToken,
    /// A permit for each waiting acquire that is forwarded.
    waits: Arc<Semaphore>,
    limits: WaitLimits,
}

/// The place where a request is executed.
enum Route {
    Here,
    There(KnownLeader),
}

impl Service {
    /// Refuses new requests once `stopping` is cancelled.
    pub(crate) fn new(
        local: Local,
        dial: DialPeer,
        cluster_id: Arc<str>,
        stopping: CancellationToken,
        limits: WaitLimits,
    ) -> Self {
        let forwarder = Forwarder::new(local.replica.clone(), dial, cluster_id);
        Self { local, forwarder, stopping, waits: Arc::new(Semaphore::new(limits.passed_on)), limits }
    }

    /// Returns the same service with connections of its own to the leader, and its own limit of what it forwards.
    pub(crate) fn with_own_connections(&self) -> Self {
        let Self { local, stopping, limits, .. } = self.clone();
        let Forwarder { dial, cluster_id, .. } = self.forwarder.clone();
        Self::new(local, dial, cluster_id, stopping, limits)
    }

    /// Answers a request. An acquire that waits is answered when its wait ends. Dropping the future breaks the wait off: see [`waiting`].
    ///
    /// The caller's deadline only limits what the leader does. The adapter enforces it, by dropping this future.
    pub(crate) fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        match self.local.traces.decided(&caller.origin) {
            None => Either::Left(self.route_call(caller, request)),
            // Boxed, so that the future of a request that begins no trace does not carry the space for it.
            Some(origin) => Either::Right(Box::pin(async move {
                let caller = Caller { origin, ..caller.clone() };
                self.route_call(&caller, request).await
            })),
        }
    }

    /// The same for a call of its own, not one of a stream, which ends with its stream: a wait ends when its caller's token is withdrawn.
    ///
    /// A client that is refused believes that it holds nothing, and does not release. So the wait has ended before, and a grant that has
    /// just come is given back. A certificate that counts no more ends the connection instead: its client comes again with another one, and
    /// takes up its place.
    pub(crate) async fn call_while_known<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> Result<Form<C::Reply>, Error> {
        let has_token = caller.token.is_some() || caller.is_of_earlier;
        if !C::may_wait(&request) || !has_token {
            return self.call(caller, request).await;
        }

        let access = Arc::clone(self.access());
        let withdrawn = async {
            let error = access.withdrawn(caller.clone()).await;
            if error.retry == Retry::No { error } else { pending().await }
        };
        let abandonment = C::abandonment(&request);
        let give_up = async {
            // Without an id, the wait ends with its call.
            let Some(release) = abandonment else { return Ok(()) };
            let caller = Caller { is_withdrawal: true, ..caller.clone() };
            let given_up = self.call(&caller, Form::Typed(release)).await;
            given_up.map(drop).map_err(|_| Error::broken_off(WAIT_NOT_ENDED))
        };

        // Boxed, so that the futures of other requests do not carry the space for it.
        Box::pin(answer_unless(self.call(caller, request), withdrawn, give_up)).await
    }

    fn route_call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        match self.place_of(caller, &request) {
            Ok(Route::Here) => Either::Left(Either::Left(self.local.call(caller, request))),
            // Boxed, so that the future of a request that is executed here does not carry the space for it.
            Ok(Route::There(leader)) => Either::Left(Either::Right(Box::pin(self.forward(leader, caller, request)))),
            Err(error) => Either::Right(ready(Err(error))),
        }
    }

    fn place_of<C: Serve>(&self, caller: &Caller, request: &Form<C>) -> Result<Route, Error> {
        self.local.access.count_call(caller)?;
        if C::is_stale(request) { Ok(Route::Here) } else { self.route(caller) }
    }

    /// Forwards a request. The leader's table limits the acquires that wait there; this node limits those that it passes on.
    async fn forward<C: Serve>(
        &self,
        leader: KnownLeader,
        caller: &Caller,
        request: Form<C>,
    ) -> Result<Form<C::Reply>, Error> {
        if !C::may_wait(&request) {
            return self.forward_on(leader, Lane::Short, caller, request).await;
        }
        let permit = self.waits.try_acquire().inspect_err(|_| NodeLimit::WaitsPassedOn.note());
        let _permit = permit.map_err(|_| Error::too_many_waits(self.limits.passed_on))?;
        self.forward_on(leader, Lane::Waits, caller, request).await
    }

    /// Sends a request to the leader. If it is traced, this node adds a span, and the leader's span is its child.
    async fn forward_on<C: Serve>(
        &self,
        leader: KnownLeader,
        lane: Lane,
        caller: &Caller,
        request: Form<C>,
    ) -> Result<Form<C::Reply>, Error> {
        let Some(span) = self.local.traces.serve(C::NAME, &caller.origin) else {
            return self.forwarder.call(leader, lane, caller, request).await;
        };

        span.note(FORWARDED_TO, i64::try_from(leader.id).unwrap_or(i64::MAX));
        let caller = Caller { origin: Origin::Of(span.as_parent()), ..caller.clone() };

        let answer = self.forwarder.call(leader, lane, &caller, request).await;
        span.end(answer.as_ref().err().map(|error| outcome(&error.reason)));
        answer
    }

    /// Renews sessions as `renewals` arrive, until they end, and reports what the sessions lose. An error ends the stream.
    pub(crate) async fn keep_alive(
        &self,
        caller: &Caller,
        renewals: impl Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    ) -> Result<ReplyStream<KeepAliveEvent>, Error> {
        self.local.access.count_call(caller)?;

        match self.route(caller)? {
            Route::Here => Ok(self.while_known(caller, self.local.keep_alive(caller, renewals))),
            Route::There(leader) => {
                // The client's stream ends at the leader when it ends here, whether it broke or not.
                let renewals = renewals.scan((), |(), renewal| ready(renewal.ok()));
                let events = self.forwarder.keep_alive(leader, caller, renewals).await?;
                Ok(self.while_known(caller, events))
            }
        }
    }

    /// Sends the state of the locks under a prefix, and then their changes. An error ends the stream.
    pub(crate) async fn watch(
        &self,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> Result<ReplyStream<WatchEvent>, Error> {
        self.local.access.count_call(caller)?;
        match self.route(caller)? {
            Route::Here => Ok(self.while_known(caller, self.local.watch(caller, request).await?)),
            Route::There(leader) => Ok(self.while_known(caller, self.forwarder.watch(leader, caller, request).await?)),
        }
    }

    /// Ends a stream at its deadline, or when its caller's token is withdrawn.
    fn while_known<T: Send + 'static>(
        &self,
        caller: &Caller,
        events: impl Stream<Item = Result<T, Error>> + Send + 'static,
    ) -> BoxStream<'static, Result<T, Error>> {
        let withdrawn = Arc::clone(&self.local.access).withdrawn(caller.clone());
        until(caller.deadline, until_error(events, withdrawn))
    }

    /// Ends a stream for an administrator when the caller's token is withdrawn, or when the policy of this node no longer lets it
    /// administer the cluster.
    pub(crate) fn while_administrator<T: Send + 'static>(
        &self,
        caller: &Caller,
        items: impl Stream<Item = Result<T, Error>> + Send + 'static,
    ) -> impl Stream<Item = Result<T, Error>> + Send + 'static {
        let withdrawn = Arc::clone(self.access()).withdrawn(caller.clone());
        let access = Arc::clone(self.access());
        let caller = caller.clone();

        until_error(items, async move {
            tokio::select! {
                error = withdrawn => error,
                error = access.denied(&caller, Right::Administer, RequestSubject::Cluster) => error,
            }
        })
    }

    /// Sends the events of the keyspace, from this node's own table. An error ends the stream.
    pub(crate) async fn watch_entries(
        &self,
        caller: &Caller,
        request: WatchEntries,
    ) -> Result<BoxStream<'static, Result<EntriesWatched, Error>>, Error> {
        let from = match request.from {
            Some(from) => {
                self.local.access.count_call(caller)?;
                from
            }
            // This node may lag behind, so it asks the leader which revision is acknowledged by now.
            None => {
                let now = self
                    .call(caller, Form::Typed(GetEntries { keys: Vec::new(), at: None, on_time: false }))
                    .await?
                    .typed()?;
                Revision(now.revision.0 + 1)
            }
        };

        let events = self.local.watch_entries(caller, WatchEntries { from: Some(from), ..request })?;

        // A draining node tells its watchers why the stream ends, so that they go on at another node.
        let stopping = self.stopping.clone();
        let stopped = stream::once(async { Err(Error::shutting_down()) });
        let until_stopped = events.take_until(stopping.clone().cancelled_owned());
        let stopped = stopped.filter(move |_| ready(stopping.is_cancelled()));
        Ok(self.while_known(caller, until_stopped.chain(stopped)))
    }

    /// Looks at this node's own table, for people.
    pub(crate) async fn browse<B: Browse>(&self, caller: &Caller, request: B) -> Result<B::View, Error> {
        self.local.access.count_call(caller)?;
        self.local.browse(caller, request).await
    }

    /// Refuses a caller that may not even see this node's condition. For an answer that names no lock.
    pub(crate) fn admit_call(&self, caller: &Caller) -> Result<(), Error> {
        self.local.access.count_call(caller)?;
        self.local.access.admit(caller)
    }

    /// Refuses an anonymous caller before its request is read, if the node serves none. Counts no call.
    pub(crate) fn admit(&self, caller: &Caller) -> Result<(), Error> {
        self.local.admit(caller)
    }

    /// Refuses what the caller may not, as the request itself would be refused. For an answer that an adapter has already, or makes itself.
    pub(crate) fn check(&self, caller: &Caller, request: &impl Guarded) -> Result<(), Error> {
        self.local.access.count_call(caller)?;
        self.local.check(caller, request)
    }

    /// Asks the leader for its condition, which includes that of the others. Returns `None` if this node leads, if no leader is known, or
    /// if it does not answer in time. This node asks as a member, so the caller must have been admitted.
    pub(crate) async fn leader_status(&self, limit: Duration) -> Option<StatusResponse> {
        match self.route(&Caller::default()).ok()? {
            Route::Here => None,
            Route::There(leader) => timeout(limit, self.forwarder.status(leader)).await.ok()?,
        }
    }

    /// Whether an acquire would be refused here because the node sheds load. An adapter that takes many requests at a time asks this first,
    /// before it spends more on one of them.
    pub(crate) fn is_overloaded(&self) -> bool {
        !self.stopping.is_cancelled() && self.replica().is_overloaded()
    }

    /// Returns the address at which clients reach the leader, if the leader is known and not silent.
    pub(crate) fn leader(&self) -> Option<String> {
        let replica = self.replica();
        let is_silent = |id| id != *replica.raft().node_id() && replica.is_silent(id);
        replica.look_at_leader(|id, node| (!is_silent(id)).then(|| node.client_address.clone())).flatten()
    }

    /// Number of commands that wait here for a batch.
    pub(crate) fn queued(&self) -> u64 {
        self.replica().queued()
    }

    /// From now on, this node runs the units of other nodes.
    pub(crate) fn run_units(&self, runner: Arc<dyn UnitRunner>) {
        // A node has one such adapter.
        let _ = self.local.units.set(runner);
    }

    /// What the clients of that adapter have done at this node, by the library that they are written with.
    pub(crate) fn libraries(&self) -> Vec<LibraryUse> {
        self.local.units.get().map(|runner| runner.libraries()).unwrap_or_default()
    }

    /// The rules of who may do what.
    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.local.access
    }

    /// The traces of requests.
    pub(crate) fn traces(&self) -> &Traces {
        &self.local.traces
    }

    /// A token that is cancelled when the node drains.
    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    /// This node's replica.
    pub(crate) fn replica(&self) -> &Replica {
        &self.local.replica
    }

    fn route(&self, caller: &Caller) -> Result<Route, Error> {
        if self.stopping.is_cancelled() && !caller.is_withdrawal {
            return Err(Error::shutting_down());
        }

        let replica = self.replica();
        if replica.leads() {
            return Ok(Route::Here);
        }

        match replica.leader() {
            // This node was elected, and has not yet applied what its predecessors left.
            Some((id, _)) if id == *replica.raft().node_id() => Err(Error::no_leader()),
            Some((id, MemberNode { peer_address, .. })) => Ok(Route::There(KnownLeader { id, peer_address })),
            None => Err(Error::no_leader()),
        }
    }
}

/// Returns the answer of a call, unless the call is refused before it comes. Then it is given up, and goes on until that is done.
async fn answer_unless<T>(
    answer: impl Future<Output = Result<T, Error>>,
    refused: impl Future<Output = Error>,
    give_up: impl Future<Output = Result<(), Error>>,
) -> Result<T, Error> {
    let mut answer = pin!(answer);
    let refusal = tokio::select! {
        // An answer that has come counts: it may be a grant.
        biased;
        answer = &mut answer => return answer,
        refusal = refused => refusal,
    };

    give_up.await?;
    Err(refusal)
}

/// Ends a stream that changes nothing at its deadline.
fn until<T: Send + 'static>(
    deadline: Option<Deadline>,
    items: impl Stream<Item = Result<T, Error>> + Send + 'static,
) -> BoxStream<'static, Result<T, Error>> {
    let Some(deadline) = deadline else { return Box::pin(items) };
    let end = stream::once(async move { deadline.has_passed().then(|| Err(Error::deadline_passed(false))) });
    Box::pin(items.take_until(Deadline::pass(Some(deadline))).chain(end.filter_map(ready)))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::time::Instant;

    use super::*;
    use crate::api::FailureReason;

    #[tokio::test]
    async fn a_call_that_lasts_is_given_up_when_it_is_refused_unless_its_answer_has_come() {
        let refused = || async { Error::unauthenticated("withdrawn") };
        let given_up = Cell::new(0);
        let give_up = async || {
            given_up.set(given_up.get() + 1);
            Ok(())
        };
        let never = pending::<Result<u32, Error>>;

        let answer = answer_unless(never(), refused(), give_up()).await;
        assert_eq!(answer.expect_err("it would wait for ever").reason, FailureReason::Unauthenticated);
        let answer = answer_unless(never(), refused(), async { Err(Error::no_leader()) }).await;
        assert_eq!(answer.expect_err("its wait goes on").reason, FailureReason::NoLeader);

        let answer = answer_unless(async { Ok(1) }, refused(), give_up()).await;
        assert_eq!((answer.ok(), given_up.get()), (Some(1), 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_at_its_deadline_and_says_so() {
        let deadline = Deadline::at(Instant::now() + Duration::from_secs(1));
        let mut endless = until(Some(deadline), stream::iter([Ok(1)]).chain(stream::pending()));
        assert_eq!(endless.next().await.expect("an item").expect("no error"), 1);
        let error = endless.next().await.expect("an item").expect_err("its deadline passed");
        assert_eq!(error.reason, FailureReason::DeadlineExceeded);
        assert!(endless.next().await.is_none());

        let deadline = Deadline::at(Instant::now() + Duration::from_secs(1));
        let ended: Vec<_> = until(Some(deadline), stream::iter([Ok(1)])).collect().await;
        assert_eq!(ended.len(), 1, "a stream that ended before its deadline has no error");
    }
}
