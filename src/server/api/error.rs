//! Errors of requests.
//!
//! An error has a [`FailureReason`], which adapters translate into the codes of their protocol; a [`Retry`], which says whether the request
//! may have taken effect; a message for users, which names the thing and the remedy; and the message's values for programs.
//!
//! The table of reasons for clients is `proto/lockkeeper/v1/errors.proto`.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use lockkeeper_machine::{
    ENTRIES_MAX, GRANTS_PER_SESSION_MAX, Identity, Invalid, LOCKS_MAX, Limit, REPLIES_PER_SESSION_MAX, Refusal, Reply,
    RevisionError, SESSIONS_MAX, SessionEnd, SessionId, TAKEN_PER_SESSION_MAX, TEMPORARY_ENTRIES_MAX, TXN_BYTES_MAX,
    TXN_READS_MAX, TXN_WRITES_MAX, Version, WAITERS_MAX, WAITS_PER_SESSION_MAX,
};
use lockkeeper_policy::Denied;
use lockkeeper_raft::{NoReply, elections::handover::TransferError, members::MemberError};
use lockkeeper_table::watch_index::TooManyWatches;
use lockkeeper_transport::tls::WithdrawnCertificate;

/// Whether, and how, the caller may repeat a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retry {
    /// Nothing happened, so it is safe to send the request again.
    Safe,
    /// The request may have taken effect. Sent again with the same request id, it takes effect once.
    SameId,
    /// The request cannot succeed unchanged.
    No,
}

/// The reason of a failure: one for each case that a caller may handle differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FailureReason {
    /// A field is malformed or exceeds its limit; [`Error::about`] names it as `field`.
    InvalidArgument,
    /// The session was never opened, or ended long ago.
    SessionUnknown,
    /// The session was not renewed within its TTL.
    SessionExpired,
    /// The session was closed.
    SessionClosed,
    /// Another session has the id that the caller chose.
    SessionExists,
    /// The token names no grant that the session holds now.
    NotHeld,
    /// The lock is in use as a semaphore of another size, or as a lock.
    ModeMismatch,
    /// The caller released this acquire by its request id, before it arrived or while it waited.
    Abandoned,
    /// The session has forgotten the request id.
    RequestStale,
    /// The request id was used for another request.
    RequestReused,
    /// The wait was cancelled: its call ended early and was not repeated in time.
    WaitCancelled,
    /// An operator removed the acquire from the queue.
    WaitRemoved,
    /// A limit of the cluster or of the connection was reached; [`Error::about`] names it as `limit`.
    LimitReached,
    /// The node sheds load.
    Overloaded,
    /// The disks of too many members are nearly full; [`Error::about`] has `node_id`, `free_bytes` and `reserve_bytes`.
    DiskSpaceLow,
    /// This node does not lead, and knows no leader or cannot reach it.
    NoLeader,
    /// This node is draining, or it ends the connection since the certificate counts no more.
    ShuttingDown,
    /// There was no reply; the request may still take effect.
    OutcomeUnknown {
        /// Whether a deadline passed. Otherwise the connection to the leader broke, or the leader changed.
        is_late: bool,
    },
    /// The caller's deadline passed, and the request changes nothing.
    DeadlineExceeded,
    /// The lock does not exist, and the acquire required that it does.
    LockUnknown,
    /// The request needs a command that the cluster version does not cover yet.
    ClusterVersion,
    /// The lock is not in use as a semaphore, and only a semaphore can be resized.
    NotSemaphore,
    /// The history of the keyspace begins after this revision.
    RevisionCompacted,
    /// The keyspace has not reached the revision.
    RevisionFuture,
    /// An operator revoked the grant.
    Revoked,
    /// The membership may not be changed in this way, or the leadership not be handed over.
    MembershipRefused,
    /// Another change of the membership is under way.
    MembershipChanging,
    /// The caller has shown no identity, or a token that is not known.
    Unauthenticated,
    /// No rule of the policy allows the request.
    PermissionDenied,
    /// The session belongs to another identity.
    NotOwner,
    /// A bug; see the node's log.
    Internal,
    /// The leader runs a newer version, which has a reason that this node does not know.
    Newer {
        /// The reason's name in `lockkeeper.v1`.
        name: String,
        /// The reason's gRPC status code.
        code: i32,
    },
}

/// The failure of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Error {
    pub(crate) reason: FailureReason,
    pub(crate) retry: Retry,
    /// The problem and the remedy, for users.
    pub(crate) message: Cow<'static, str>,
    /// The values that the message names, for programs, by the names that `errors.proto` lists.
    pub(crate) about: Vec<(Cow<'static, str>, String)>,
}

/// The value of an error that tells a session which was attached by another connection from one of another identity.
const ATTACHED: &str = "attached";
/// The name of the session that an error is about.
const SESSION: &str = "session_id";

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error {
    fn new(reason: FailureReason, retry: Retry, message: impl Into<Cow<'static, str>>) -> Self {
        Self { reason, retry, message: message.into(), about: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.about.push((name.into(), value.to_string()));
        self
    }

    /// Returns the value with this name.
    pub(crate) fn about(&self, name: &str) -> Option<&str> {
        self.about.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The same, about this session: on a stream of many sessions, only this one is refused.
    pub(crate) fn with_session(self, session: SessionId) -> Self {
        self.with(SESSION, session)
    }

    /// Returns the session that it is about, if it names one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.about(SESSION).and_then(|session| session.parse().ok())
    }

    /// Whether another connection has attached the session ([`Refusal::SessionMoved`]).
    pub(crate) fn is_session_moved(&self) -> bool {
        self.reason == FailureReason::NotOwner && self.about(ATTACHED).is_some()
    }

    /// Returns the field and the problem of a [`FailureReason::InvalidArgument`].
    pub(crate) fn violation(&self) -> Option<(&str, &str)> {
        let field = self.about("field").filter(|_| self.reason == FailureReason::InvalidArgument)?;
        Some((field, self.message.strip_prefix(field)?.strip_prefix(": ")?))
    }

    /// The value of a field is malformed or exceeds its limit.
    pub(crate) fn invalid(field: &str, why: impl fmt::Display) -> Self {
        Self::new(FailureReason::InvalidArgument, Retry::No, format!("{field}: {why}")).with("field", field)
    }

    /// Makes the error of [`Error::invalid`] from the type that refused the value.
    pub(crate) fn invalid_value(field: &str) -> impl FnOnce(Invalid) -> Self {
        move |why| Self::invalid(field, why)
    }

    /// A message exceeds the limit of bytes. `found` is the transport's message.
    pub(crate) fn too_large(found: &str) -> Self {
        let message = format!("{found}: send fewer locks or less data in one request");
        Self::new(FailureReason::LimitReached, Retry::No, message).with("limit", "message_bytes")
    }

    /// The table refused a command.
    pub(crate) fn refused(refusal: Refusal) -> Self {
        use Refusal::*;
        match refusal {
            SessionEnded(end) => Self::session_ended(end),
            SessionExists => Self::new(
                FailureReason::SessionExists,
                Retry::No,
                "another session has this id: draw 128 random bits for each session",
            ),
            NotHeld => Self::new(
                FailureReason::NotHeld,
                Retry::No,
                "the token names no grant that is held by this session: the grant was released or lost, or belongs to another session",
            ),

            Revoked { token, reason } => {
                let message = format!(
                    "an operator revoked the grant with token {} of this session: {}; it no longer holds its locks",
                    token.0,
                    reason.as_str()
                );
                Self::new(FailureReason::Revoked, Retry::No, message)
                    .with("token", token.0)
                    .with("revoked_reason", reason.as_str())
            }

            ModeMismatch { name, in_use } => {
                let (limit, how) = match in_use {
                    Some(permits) => (permits.get(), format!("as a semaphore of {}", permits.get())),
                    None => (0, "as a lock".to_string()),
                };
                let message = format!("the lock {:?} is in use {how}: ask for it in the same way", name.as_str());
                Self::new(FailureReason::ModeMismatch, Retry::No, message).with("lock", name).with("limit", limit)
            }
            LockUnknown { name } => {
                let message = format!(
                    "the lock {:?} does not exist, and the acquire requires it: nobody holds it or waits for it, and it has no data",
                    name.as_str()
                );
                Self::new(FailureReason::LockUnknown, Retry::No, message).with("lock", name)
            }
            NotSemaphore { name } => {
                let message = format!(
                    "{:?} is not a semaphore in use: only one that is held or awaited with a number of permits can be resized",
                    name.as_str()
                );
                Self::new(FailureReason::NotSemaphore, Retry::No, message).with("lock", name)
            }
            RevisionFuture { present } => Self::revision(RevisionError::Future { present }),

            Abandoned => Self::new(
                FailureReason::Abandoned,
                Retry::No,
                "this acquire was released by its request id before it arrived: use a new request id",
            ),
            RequestStale { lowest } => {
                let message = format!(
                    "the session has forgotten the request id: it is below {lowest}, the lowest open one, and not in `kept`; use a new id"
                );
                Self::new(FailureReason::RequestStale, Retry::No, message).with("lowest", lowest)
            }
            RequestReused => Self::new(
                FailureReason::RequestReused,
                Retry::No,
                "the request id was used before, for another request of this session: use a new id for each request",
            ),
            Closed { remaining_ms } => {
                let message = format!(
                    "this cluster was restored from a backup and grants no lock for another {remaining_ms} ms, until the deadlines of the \
                     old cluster's holders have passed: try again then"
                );
                Self::new(FailureReason::Overloaded, Retry::Safe, message)
                    .with("limit", "restored")
                    .with("remaining_ms", remaining_ms)
            }
            SessionMoved { number } => Self::session_moved(number),
            TxnFailed { index, reason } => Self::invalid("txn", format!("operation {index}, counted from 0: {reason}")),
            Limit(limit) => Self::limit_reached(limit),
        }
    }

    /// Another connection has attached the session.
    fn session_moved(number: u64) -> Self {
        let message = "another connection has attached the session since: go on with that one";
        Self::new(FailureReason::NotOwner, Retry::No, message).with(ATTACHED, number)
    }

    /// A revision of the keyspace cannot be shown.
    pub(crate) fn revision(why: RevisionError) -> Self {
        match why {
            RevisionError::Compacted { compacted } => {
                let message = format!(
                    "{why}, and earlier events are forgotten: read the present entries, and go on from their revision"
                );
                Self::new(FailureReason::RevisionCompacted, Retry::No, message).with("revision", compacted.0)
            }
            RevisionError::Future { present } => {
                let message = format!("{why}: ask for that revision or an earlier one");
                Self::new(FailureReason::RevisionFuture, Retry::No, message).with("revision", present.0)
            }
        }
    }

    /// The session has ended.
    pub(crate) fn session_ended(end: SessionEnd) -> Self {
        let (reason, message) = match end {
            SessionEnd::Closed => (FailureReason::SessionClosed, "the session was closed: open a new one"),
            SessionEnd::Expired => (
                FailureReason::SessionExpired,
                "the session was not renewed within its TTL, and its grants are lost: open a new one",
            ),
            SessionEnd::Unknown => (
                FailureReason::SessionUnknown,
                "no such session: it was never opened, or ended long ago; open a new one",
            ),
        };
        Self::new(reason, Retry::No, message)
    }

    /// A wait was cancelled because its call had ended early.
    pub(crate) fn wait_cancelled() -> Self {
        let message = "the wait was cancelled: its call broke off and was not repeated in time; acquire again";
        Self::new(FailureReason::WaitCancelled, Retry::No, message)
    }

    /// A release that named the request ended its wait.
    pub(crate) fn wait_abandoned() -> Self {
        let message = "this acquire was released by its request id while it waited: use a new request id";
        Self::new(FailureReason::Abandoned, Retry::No, message)
    }

    /// An operator ended the wait.
    pub(crate) fn wait_removed() -> Self {
        let message = "an operator removed this acquire from the queue: ask the operators before you acquire again";
        Self::new(FailureReason::WaitRemoved, Retry::No, message)
    }

    /// A command or a read got no reply from the table.
    pub(crate) fn no_reply(why: NoReply) -> Self {
        match why {
            NoReply::NotLeader => Self::no_leader(),
            NoReply::NoQuorum => Self::new(FailureReason::NoLeader, Retry::Safe, why.to_string()),
            NoReply::Overloaded => Self::new(FailureReason::Overloaded, Retry::Safe, why.to_string()),
            NoReply::VersionTooLow { needs, has } => Self::version_too_low(needs, has, &BTreeMap::new()),
            NoReply::DiskSpaceLow(shortage) => {
                Self::new(FailureReason::DiskSpaceLow, Retry::Safe, shortage.to_string())
                    .with("node_id", shortage.node_id)
                    .with("free_bytes", shortage.free)
                    .with("reserve_bytes", shortage.reserve)
            }
            NoReply::Unfit(_) => Self::new(FailureReason::InvalidArgument, Retry::No, why.to_string()),
            NoReply::Unknown => {
                Self::new(FailureReason::OutcomeUnknown { is_late: true }, Retry::SameId, why.to_string())
            }
        }
    }

    /// The membership was not changed.
    pub(crate) fn membership(why: MemberError) -> Self {
        match why {
            MemberError::NotLeader => Self::no_leader(),
            MemberError::Unconfirmed => {
                Self::new(FailureReason::OutcomeUnknown { is_late: true }, Retry::SameId, why.to_string())
            }
            MemberError::UnderWay { .. } => Self::new(FailureReason::MembershipChanging, Retry::No, why.to_string()),
            MemberError::IdInUse { .. }
            | MemberError::IdUsedBefore { .. }
            | MemberError::Unknown { .. }
            | MemberError::Itself { .. }
            | MemberError::NotVoter { .. }
            | MemberError::LastVoter { .. }
            | MemberError::LosesQuorum { .. }
            | MemberError::TooMany
            | MemberError::NotThere { .. }
            | MemberError::Refused { .. } => {
                Self::new(FailureReason::MembershipRefused, Retry::No, why.to_string()).with("refusal", why.name())
            }
        }
    }

    /// The leadership was not handed over.
    pub(crate) fn transfer(why: TransferError) -> Self {
        match why {
            TransferError::NotLeader { .. } | TransferError::Stopped => Self::no_leader(),
            TransferError::Unfinished { .. } => {
                Self::new(FailureReason::OutcomeUnknown { is_late: true }, Retry::SameId, why.to_string())
            }
            TransferError::NotVoter { .. }
            | TransferError::Alone
            | TransferError::Unreachable { .. }
            | TransferError::Behind { .. }
            | TransferError::Other { .. } => Self::new(FailureReason::MembershipRefused, Retry::No, why.to_string()),
        }
    }

    /// The cluster version does not cover the command. `without` has the members that keep it where it is, each with the reason.
    pub(crate) fn version_too_low(needs: Version, has: Version, without: &BTreeMap<u64, &'static str>) -> Self {
        let members: Vec<_> = without.iter().map(|(id, why)| format!("node {id} ({why})")).collect();
        let members = if members.is_empty() { "some member".to_owned() } else { members.join(", ") };

        let message = format!(
            "the cluster has version {has}, and this request needs version {needs}, which waits for {members}: install a version of \
             Lockkeeper that supports version {needs} on all members, and try again"
        );
        Self::new(FailureReason::ClusterVersion, Retry::No, message).with("version", has).with("needs", needs)
    }

    /// The leader runs a program without this request.
    pub(crate) fn leader_lacks(needs: Version) -> Self {
        let message = format!(
            "the leader runs a version of Lockkeeper without this request, which needs cluster version {needs}: install a version that \
             supports version {needs} on all members, and try again"
        );
        Self::new(FailureReason::ClusterVersion, Retry::No, message).with("needs", needs)
    }

    /// The caller has no identity, and needs one; or its token is not known.
    pub(crate) fn unauthenticated(why: impl Into<Cow<'static, str>>) -> Self {
        Self::new(FailureReason::Unauthenticated, Retry::No, why)
    }

    /// No rule of the policy allows the request.
    pub(crate) fn permission_denied(denied: &Denied) -> Self {
        Self::new(FailureReason::PermissionDenied, Retry::No, denied.to_string())
    }

    /// The session belongs to another identity than the caller's.
    pub(crate) fn not_owner(caller: Option<&Identity>) -> Self {
        let who = caller.map_or("an anonymous caller", Identity::as_str);
        let message = format!(
            "the session belongs to another identity than {who}: only its owner can use it; open a session of your own (an identity \
             that the policy lets administer the cluster can close this one)"
        );
        Self::new(FailureReason::NotOwner, Retry::No, message)
    }

    /// A limit of the caller's identity was reached. If it `is_passing`, a pause helps; otherwise the identity must give something back.
    pub(crate) fn over_limit(who: &Identity, limit: &'static str, value: u64, refused: u64, is_passing: bool) -> Self {
        let (retry, remedy) = match (is_passing, limit) {
            (true, "connections") => (Retry::Safe, "close some, or use another node"),
            (true, _) => (Retry::Safe, "send fewer, or try again in a second"),
            (false, _) => (Retry::No, "give some back"),
        };

        let message = format!(
            "{who} has reached its limit of {value} for {limit}: {remedy}; an operator can raise [limits.{who}] in the policy (this node \
             has refused {refused} requests by such limits)"
        );

        let error = Self::new(FailureReason::LimitReached, retry, message);
        error.with("limit", format!("identity_{limit}")).with("limit_value", value).with("refused", refused)
    }

    /// No leader is known.
    pub(crate) fn no_leader() -> Self {
        let message = "no leader is known right now: try again in a moment, here or at another node";
        Self::new(FailureReason::NoLeader, Retry::Safe, message)
    }

    /// The leader was not reached, or the connection to it broke before it answered a request that changes nothing.
    pub(crate) fn leader_not_reached() -> Self {
        let message = "the leader could not be reached, or its connection broke; nothing was changed: try again, here or at another node";
        Self::new(FailureReason::NoLeader, Retry::Safe, message)
    }

    /// The request is for another node, named with its cluster, than this one.
    pub(crate) fn misdirected((here, own_cluster): (&str, &str), (node, cluster): (&str, &str)) -> Self {
        let message = format!(
            "this is node {here} of cluster {own_cluster}, and the request is for node {node} of cluster {cluster}, whose address leads \
             here; nothing was changed: try again at another node of cluster {cluster}"
        );
        Self::new(FailureReason::NoLeader, Retry::Safe, message)
    }

    /// The caller's deadline passed.
    pub(crate) fn deadline_passed(changes: bool) -> Self {
        if changes {
            Self::new(
                FailureReason::OutcomeUnknown { is_late: true },
                Retry::SameId,
                "the call's deadline passed before there was an answer; the request may still take effect: repeat it with the same id",
            )
        } else {
            Self::new(
                FailureReason::DeadlineExceeded,
                Retry::Safe,
                "the call's deadline passed before there was an answer: try again with more time",
            )
        }
    }

    /// A keep-alive stream ended because it had more to report than its queue holds.
    pub(crate) fn stream_lags() -> Self {
        let message = "the stream has more to report than its queue holds: open another one; the next renewal reports every revoked grant";
        Self::new(FailureReason::Overloaded, Retry::Safe, message)
    }

    /// A follower has reached its limit of forwarded waiting acquires.
    pub(crate) fn too_many_waits(limit: usize) -> Self {
        let message = format!(
            "this node does not lead, and forwards {limit} waiting acquires, the limit: send acquires that wait to the leader, which this \
             answer names"
        );
        Self::new(FailureReason::Overloaded, Retry::Safe, message).with("limit", "waits_passed_on")
    }

    /// The leader has as many waiting acquires of the caller as other nodes may pass on.
    pub(crate) fn too_many_forwarded_waits(limit: usize) -> Self {
        let message = format!(
            "other nodes pass on {limit} waiting acquires of this client, the limit: send acquires that wait to the leader, which this \
             answer names"
        );
        Self::new(FailureReason::Overloaded, Retry::Safe, message).with("limit", "waits_passed_on")
    }

    /// This node has as many waiting acquires as the caller may have, beside those of others.
    pub(crate) fn too_many_waits_at_node(limit: usize) -> Self {
        let message = format!(
            "too many acquires wait at this node: the limit is {limit}, of which one client may have half of what others leave; end some \
             waits, or try again later"
        );
        Self::new(FailureReason::Overloaded, Retry::Safe, message).with("limit", "waits_at_node")
    }

    /// As many calls as may wait for the end of one wait. The wait itself goes on.
    pub(crate) fn too_many_calls(limit: usize) -> Self {
        let message = format!(
            "{limit} calls wait for the answer to this request, the limit, and it waits on: read the answer of one of them, or end some and \
             repeat it with the same id"
        );
        Self::new(FailureReason::Overloaded, Retry::SameId, message).with("limit", "calls_per_wait")
    }

    /// The client does not read its replies. `found` states the unread bytes and the limit.
    pub(crate) fn unread(found: &str) -> Self {
        let message = format!("{found}: read answers as they arrive, and send fewer requests at a time");
        Self::new(FailureReason::LimitReached, Retry::Safe, message).with("limit", "unread_answers")
    }

    /// The client does not read the answer to a request that may have changed something.
    pub(crate) fn unread_after_change(found: &str) -> Self {
        let message = format!(
            "{found}: the request may have taken effect; read answers as they arrive, then repeat it with the same id"
        );
        Self::new(FailureReason::LimitReached, Retry::SameId, message).with("limit", "unread_answers")
    }

    /// This node stopped serving the call, or lost its connection to the leader, before there was a reply.
    pub(crate) fn broken_off(message: &'static str) -> Self {
        Self::new(FailureReason::OutcomeUnknown { is_late: false }, Retry::SameId, message)
    }

    /// A node sends the maximum number of backups already.
    pub(crate) fn too_many_backups(limit: usize) -> Self {
        let message =
            format!("this node sends {limit} backups already, the limit: try again later, or at another node");
        Self::new(FailureReason::Overloaded, Retry::Safe, message).with("limit", "backups")
    }

    /// The client has more feeds of the console than others, and another one needs a place.
    pub(crate) fn feed_gave_way() -> Self {
        let message = "this node serves as many feeds as it can, and you have the most of them: close a page that shows one, or open another \
                       node's";
        Self::new(FailureReason::LimitReached, Retry::Safe, message).with("limit", "feeds")
    }

    /// The node has the maximum number of watches of one kind already.
    pub(crate) fn too_many_watches(why: TooManyWatches) -> Self {
        let message = format!("{why}: end some, watch a prefix rather than many keys, or watch at another node");
        Self::new(FailureReason::LimitReached, Retry::No, message).with("limit", "watches")
    }

    /// A follower has not applied in time the entry that the call needs.
    pub(crate) fn lags(index: u64) -> Self {
        let message = format!("this node has not applied entry {index} in time, and the leader has: ask another node");
        Self::new(FailureReason::NoLeader, Retry::Safe, message)
    }

    /// This node is draining.
    pub(crate) fn shutting_down() -> Self {
        Self::new(FailureReason::ShuttingDown, Retry::Safe, "this node is shutting down: ask another one")
    }

    /// The certificate of the caller's connection counts no more, so the connection ends. Its client may have another one by now, so it is
    /// told what one of a draining node is told: to go on with another connection. A handshake decides about that.
    pub(crate) fn certificate_withdrawn(withdrawn: &WithdrawnCertificate) -> Self {
        let message = format!("{withdrawn}: connect again, with a certificate that counts");
        Self::new(FailureReason::ShuttingDown, Retry::Safe, message)
    }

    /// A bug, which is logged and reported to the caller.
    pub(crate) fn internal(what: &'static str) -> Self {
        tracing::error!(what, "broken state");
        Self::new(FailureReason::Internal, Retry::No, what)
    }

    /// Makes an error of a reply that is a refusal. Any other reply at this point is a bug.
    pub(crate) fn unexpected(reply: Reply) -> Self {
        let Reply::Refused(refusal) = reply else {
            return Self::internal("the table replied to another command");
        };
        Self::refused(refusal)
    }

    fn limit_reached(limit: Limit) -> Self {
        Self::new(FailureReason::LimitReached, Retry::No, limit_message(limit)).with("limit", limit_name(limit))
    }
}

/// The name of a limit, for programs.
fn limit_name(limit: Limit) -> &'static str {
    match limit {
        Limit::Sessions => "sessions",
        Limit::Waiters => "waiters",
        Limit::Locks => "locks",
        Limit::RepliesPerSession => "replies_per_session",
        Limit::WaitsPerSession => "waits_per_session",
        Limit::GrantsPerSession => "grants_per_session",
        Limit::TableBytes => "table_bytes",
        Limit::SessionBytes => "session_bytes",
        Limit::Entries => "entries",
        Limit::TemporaryEntries => "temporary_entries",
        Limit::TxnWrites => "txn_writes",
        Limit::TxnReads => "txn_reads",
        Limit::TxnBytes => "txn_bytes",
        Limit::TakenPerSession => "taken_per_session",
    }
}

/// The message for a limit that is reached: the thing, and the remedy.
fn limit_message(limit: Limit) -> String {
    match limit {
        Limit::Sessions => format!("the cluster has {SESSIONS_MAX} sessions, the limit: close some"),
        Limit::Waiters => format!("{WAITERS_MAX} acquires wait in the cluster, the limit: try again when some have ended"),
        Limit::Locks => format!("the cluster has {LOCKS_MAX} locks, the limit: release some, or drop kept data"),
        Limit::RepliesPerSession => format!(
                    "the session remembers the replies of {REPLIES_PER_SESSION_MAX} requests, the limit: raise `lowest`, with the ids \
                     below it that are still open in `kept`, or use several sessions"
                ),
        Limit::WaitsPerSession => format!(
                    "{WAITS_PER_SESSION_MAX} acquires of this session wait, the limit: try again when some have ended, or use several \
                     sessions"
                ),
        Limit::GrantsPerSession => format!(
                    "the session holds and waits for {GRANTS_PER_SESSION_MAX} grants, the limit: release some, or use several sessions"
                ),
        Limit::TableBytes => "the cluster's table has as many bytes as the setting limits.table_bytes allows: release locks, close sessions, or drop \
                 kept data"
                    .to_owned(),
        Limit::SessionBytes => "the session has as many bytes as the setting limits.session_bytes allows: release some of its locks, wait for fewer, or \
                 use several sessions"
                    .to_owned(),
        Limit::Entries => format!("the cluster has {ENTRIES_MAX} entries in its keyspace, the limit: delete some"),
        Limit::TemporaryEntries => format!(
                    "the cluster remembers answers in {TEMPORARY_ENTRIES_MAX} temporary entries, or in a quarter of the bytes of its table, \
                     the limit: send the request again later, or fewer requests that can be repeated"
                ),
        Limit::TxnWrites => format!(
                    "the transaction writes or deletes more than {TXN_WRITES_MAX} entries, the limit: delete a range in parts"
                ),
        Limit::TxnReads => format!(
                    "the ranges that the transaction compares and shows have more than {TXN_READS_MAX} entries, the limit: take \
                     smaller ranges"
                ),
        Limit::TxnBytes => format!("the transaction shows more than {TXN_BYTES_MAX} bytes of values, the limit: get fewer entries"),
        Limit::TakenPerSession => format!(
                    "operators revoked {TAKEN_PER_SESSION_MAX} grants of the session that it has not released, the limit: release those \
                     that its renewals name"
                ),
    }
}
