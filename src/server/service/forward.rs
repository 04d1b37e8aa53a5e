//! Forwards requests that a follower cannot execute to the leader, over the leader's peers' port.
//!
//! The peers' port speaks `lockkeeper.v1`, so forwarding takes a request as its message ([`Form`]) and returns the reply as its message.
//! It lies below the adapters: an adapter of any protocol hands a typed request to [`super::Service`], and it reaches the leader.
//!
//! A request makes one hop. The leader's peers' port executes it or refuses it ([`super::Local`]); it does not forward again. It names the
//! cluster and the node that it is for ([`Destination`]).
//!
//! # What is known when no answer comes
//!
//! A request that changes nothing is safe to repeat. For any other, the follower says [`Retry::SameId`] unless it knows that the request
//! was never sent. It stops waiting when another node is known to lead: a deposed leader may be cut off, and never answer.
//!
//! [`Retry::SameId`]: crate::api::Retry::SameId

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{Stream, StreamExt, stream::unfold};
use openraft::async_runtime::WatchReceiver;
use tokio::time::sleep;
use tonic::{Request, Status, Streaming, metadata::MetadataMap, transport::Channel};

use super::destination::{Destination, is_misdirected};
use crate::{
    api::{
        Caller, Deadline, Error, FailureReason,
        requests::{KeepAlive, KeepAliveEvent, WatchEvent, WatchLocks},
    },
    wire::{Encode, Form, Forward, status::error_of},
};
use lockkeeper_machine::Identity;
use lockkeeper_planted::Planted;
use lockkeeper_proto::v1::{
    StatusRequest, StatusResponse, cluster_client::ClusterClient, locks_client::LocksClient,
    sessions_client::SessionsClient,
};
use lockkeeper_raft::Replica;
use lockkeeper_traces::Origin;
use lockkeeper_transport::{LogThrottle, Windows, never_sent};

/// How long a deposed leader may still take to answer what was forwarded to it. After that, the outcome counts as unknown.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// The metadata key under which a follower names the client of a forwarded request: IP address and port. Only the peers' port reads it, so
/// a client cannot name another one.
const CALLER_KEY: &str = "lockkeeper-client-address";
/// The metadata key of the client's identity, or [`Identity::ANONYMOUS`]. Only the peers' port reads it.
const IDENTITY_KEY: &str = "lockkeeper-client-identity";

/// Makes a channel to the peer with this id at this address, with these flow-control windows for its answers.
pub(crate) type DialPeer = Arc<dyn Fn(u64, &str, Windows) -> Channel + Send + Sync>;

/// Which connection to the leader a request uses. The requests of a connection share its limits: the number of calls, and the bytes that
/// are not read yet. So requests that take long, or whose answers a client reads slowly, have connections of their own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Lane {
    /// Requests that are answered as soon as they are applied.
    Short,
    /// Acquires that may wait.
    Waits,
    KeepAlives,
    Watches,
}

/// The leader, as this node knows it.
pub(super) struct KnownLeader {
    pub(super) id: u64,
    pub(super) peer_address: String,
}

/// The leader's id, its address, and what the channel is for.
type ChannelKey = (u64, String, Lane);

/// Forwards requests to the leader.
#[derive(Clone)]
pub(super) struct Forwarder {
    replica: Replica,
    pub(super) dial: DialPeer,
    pub(super) cluster_id: Arc<str>,
    /// Each with the node at its other end.
    channels: Arc<Mutex<HashMap<ChannelKey, (Channel, Destination)>>>,
    /// Limits how often the log says that another node answers at the leader's address.
    misdirected: Arc<LogThrottle>,
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder").field("replica", &self.replica).finish_non_exhaustive()
    }
}

/// What the error of a request in flight depends on.
#[derive(Clone, Copy)]
struct InFlight {
    changes: bool,
    deadline: Option<Deadline>,
}

impl Forwarder {
    pub(super) fn new(replica: Replica, dial: DialPeer, cluster_id: Arc<str>) -> Self {
        Self { replica, dial, cluster_id, channels: Arc::default(), misdirected: Arc::default() }
    }

    /// Forwards a request with one reply.
    pub(super) async fn call<C: Forward>(
        &self,
        leader: KnownLeader,
        lane: Lane,
        caller: &Caller,
        request: Form<C>,
    ) -> Result<Form<C::Reply>, Error> {
        let in_flight = InFlight { changes: C::CHANGES, deadline: caller.deadline };
        let (channel, destination) = self.channel(&leader, lane);
        let call = C::call(channel, onward(request.message(), caller, &destination));
        let reply = self.while_it_leads(&leader, in_flight, call).await?;
        Ok(Form::Message(reply.into_inner()))
    }

    /// Forwards a stream of renewals.
    pub(super) async fn keep_alive(
        &self,
        leader: KnownLeader,
        caller: &Caller,
        renewals: impl Stream<Item = Form<KeepAlive>> + Send + 'static,
    ) -> Result<impl Stream<Item = Result<Form<KeepAliveEvent>, Error>> + Send + 'static, Error> {
        // Clients do not rely on a renewal without an acknowledgement, so the stream is safe to repeat.
        let in_flight = InFlight { changes: false, deadline: caller.deadline };
        let (channel, destination) = self.channel(&leader, Lane::KeepAlives);
        let mut client = SessionsClient::new(channel);
        let mut request = Request::new(renewals.map(Form::message));
        destination.name(request.metadata_mut());
        name_caller(request.metadata_mut(), caller);
        let events = self.while_it_leads(&leader, in_flight, client.keep_alive(request)).await?;
        Ok(self.passed_back(events.into_inner(), leader.id, in_flight))
    }

    /// Forwards a watch.
    pub(super) async fn watch(
        &self,
        leader: KnownLeader,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> Result<impl Stream<Item = Result<Form<WatchEvent>, Error>> + Send + 'static, Error> {
        let in_flight = InFlight { changes: false, deadline: caller.deadline };
        let (channel, destination) = self.channel(&leader, Lane::Watches);
        let mut client = LocksClient::new(channel);
        let call = client.watch(onward(request.message(), caller, &destination));
        let events = self.while_it_leads(&leader, in_flight, call).await?;
        Ok(self.passed_back(events.into_inner(), leader.id, in_flight))
    }

    /// Asks the leader for its condition. Returns `None` if it does not answer. The caller must set a time limit.
    pub(super) async fn status(&self, leader: KnownLeader) -> Option<StatusResponse> {
        let (channel, destination) = self.channel(&leader, Lane::Short);
        let mut request = Request::new(StatusRequest::default());
        destination.name(request.metadata_mut());
        let asked = ClusterClient::new(channel).status(request).await;
        asked.ok().map(tonic::Response::into_inner)
    }

    fn channel(&self, leader: &KnownLeader, lane: Lane) -> (Channel, Destination) {
        let address = &leader.peer_address;
        let windows = match lane {
            Lane::Short | Lane::Waits => Windows::WIDE,
            Lane::KeepAlives | Lane::Watches => Windows::RELAYED,
        };

        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let dial = || ((self.dial)(leader.id, address, windows), Destination::new(&self.cluster_id, leader.id));
        channels.entry((leader.id, address.clone(), lane)).or_insert_with(dial).clone()
    }

    /// Returns the leader's answer, unless another node is known to lead before it comes.
    async fn while_it_leads<T>(
        &self,
        leader: &KnownLeader,
        in_flight: InFlight,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Error> {
        tokio::select! {
            // An answer that has come counts, even if another node leads by now.
            biased;
            answer = call => answer.map_err(|status| {
                if is_misdirected(&status) {
                    self.not_there(leader);
                    return self.other_node_answered(leader, &status);
                }
                if never_sent(&status) {
                    self.not_there(leader);
                }
                failed(&status, in_flight)
            }),
            () = led_by_other(self.replica.clone(), leader.id) => Err(moved(in_flight)),
        }
    }

    /// Notes that the leader was not reached at this address: the next request goes to another address of it, if there is one.
    fn not_there(&self, leader: &KnownLeader) {
        let metrics = self.replica.raft().server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        if let Some(node) = membership.get_node(&leader.id) {
            self.replica.addresses().failed(leader.id, node, &leader.peer_address);
        }
    }

    /// The error when another node has refused a request, which it did not execute.
    fn other_node_answered(&self, leader: &KnownLeader, refusal: &Status) -> Error {
        if let Some(times) = self.misdirected.count() {
            let KnownLeader { id, peer_address } = leader;
            let why = refusal.message();
            tracing::warn!(leader = id, %peer_address, times, "another node answers at the leader's address: {why}");
        }
        Error::leader_not_reached()
    }

    /// Passes on the leader's stream until another node is known to lead.
    fn passed_back<T: Encode>(
        &self,
        items: Streaming<T::Message>,
        leader: u64,
        in_flight: InFlight,
    ) -> impl Stream<Item = Result<Form<T>, Error>> + Send + use<T> {
        let deposed = Box::pin(led_by_other(self.replica.clone(), leader));

        unfold(Some((items, deposed)), move |stream| async move {
            let (mut items, mut deposed) = stream?;
            let item = tokio::select! {
                // What has come is passed on, even if another node leads by now.
                biased;
                item = items.next() => item?.map(Form::Message).map_err(|status| failed(&status, in_flight)),
                () = &mut deposed => Err(moved(in_flight)),
            };
            let rest = item.is_ok().then_some((items, deposed));
            Some((item, rest))
        })
    }
}

/// Wraps the message into a request to the leader, which is this destination, with the caller's address, the time that is left until its
/// deadline, and its trace.
fn onward<T>(message: T, caller: &Caller, destination: &Destination) -> Request<T> {
    let mut request = Request::new(message);
    destination.name(request.metadata_mut());
    if let Some(deadline) = caller.deadline {
        request.set_timeout(deadline.left());
    }

    name_caller(request.metadata_mut(), caller);
    if let Origin::Of(span) = &caller.origin {
        span.write(request.metadata_mut());
    }
    request
}

fn name_caller(metadata: &mut MetadataMap, caller: &Caller) {
    if caller.is_peer {
        return;
    }
    if let Some(address) = caller.remote.and_then(|remote| remote.to_string().parse().ok()) {
        metadata.insert(CALLER_KEY, address);
    }
    // Always named, as nobody if need be: a peer that names no client asks for itself.
    let named = caller.identity.as_ref().filter(|_| !Planted::ForwardedAsAnonymous.is_on());
    let identity = named.map_or(Identity::ANONYMOUS, Identity::as_str);
    metadata.insert(IDENTITY_KEY, identity.parse().expect("an identity is printable ASCII"));
}

/// Reads the client of a forwarded request from the metadata; without it, the caller is the peer itself. A peer of an older version
/// forwards without identities, so its clients are anonymous here.
pub(crate) fn named_caller(metadata: &MetadataMap) -> Caller {
    let value = |key| metadata.get(key)?.to_str().ok();
    let remote = value(CALLER_KEY).and_then(|address| address.parse().ok());
    let is_peer = !metadata.contains_key(CALLER_KEY) && !metadata.contains_key(IDENTITY_KEY);
    let identity = value(IDENTITY_KEY).and_then(|identity| Identity::new(identity).ok());
    Caller { remote, identity, is_peer, ..Caller::default() }
}

/// Returns when another node is known to lead. Unless the former leader is silent, it first gets [`LAST_ANSWERS`] to answer.
async fn led_by_other(replica: Replica, leader: u64) {
    let mut metrics = replica.raft().server_metrics();
    while metrics.borrow_watched().current_leader.is_none_or(|known| known == leader) {
        if metrics.changed().await.is_err() {
            // This node ends, and its calls end with it.
            return std::future::pending().await;
        }
    }
    if !replica.is_silent(leader) {
        sleep(LAST_ANSWERS).await;
    }
}

/// The error when a deposed leader did not answer.
fn moved(in_flight: InFlight) -> Error {
    if in_flight.changes {
        Error::broken_off(
            "another node leads now, and the previous leader does not answer; the request may still take effect: repeat it with the \
             same id",
        )
    } else {
        Error::leader_not_reached()
    }
}

/// The leader's error or, if the status comes from the transport, what is known about the request.
fn failed(status: &Status, in_flight: InFlight) -> Error {
    if let Some(error) = error_of(status) {
        // A leader of an earlier version calls some requests safe to repeat that it may still commit.
        let is_late = matches!(error.reason, FailureReason::DeadlineExceeded);
        return if is_late && in_flight.changes { Error::deadline_passed(true) } else { error };
    }

    if in_flight.deadline.is_some_and(Deadline::has_passed) {
        return Error::deadline_passed(in_flight.changes);
    }

    if !in_flight.changes || never_sent(status) || Planted::LostForwardedIsSafe.is_on() {
        Error::leader_not_reached()
    } else {
        Error::broken_off(
            "the leader could not be reached, or its connection broke; the request may still take effect: repeat it with the \
             same id",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Retry;

    #[test]
    fn a_change_whose_deadline_passed_at_the_leader_may_still_take_effect() {
        let late = Status::from(Error::deadline_passed(false));
        for (changes, retry) in [(true, Retry::SameId), (false, Retry::Safe)] {
            let in_flight = InFlight { changes, deadline: None };
            assert_eq!(failed(&late, in_flight).retry, retry);
        }
    }

    #[test]
    fn a_forwarded_request_names_its_caller() {
        let leader = Destination::new("shop", 1);
        let remote = "10.0.0.7:5123".parse().ok();
        for identity in [None, Identity::new("shop-1").ok()] {
            let caller = Caller { remote, identity: identity.clone(), ..Caller::default() };
            let request = onward((), &caller, &leader);
            let named = named_caller(request.metadata());
            assert_eq!((named.remote, named.identity, named.is_peer), (remote, identity, false));
        }
        assert!(
            !named_caller(onward((), &Caller::default(), &leader).metadata()).is_peer,
            "an anonymous client is no peer"
        );
        assert!(named_caller(&MetadataMap::new()).is_peer);
        for (key, value) in [(CALLER_KEY, "nowhere"), (IDENTITY_KEY, "two words"), (CALLER_KEY, "10.0.0.7:5123")] {
            let mut odd = MetadataMap::new();
            odd.insert(key, value.parse().expect("a value"));
            let named = named_caller(&odd);
            assert_eq!((named.identity, named.is_peer), (None, false), "{key} {value}");
        }
    }
}
