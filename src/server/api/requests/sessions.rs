//! Sessions: opened, renewed, attached, closed, listed.

use lockkeeper_machine::{Label, Reason, Revocation, SessionId, SessionView, Ttl};

/// Opens a session, or renews it if it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OpenSession {
    /// The session's id, if the client chose one. Otherwise this node draws it.
    pub(crate) session: Option<SessionId>,
    pub(crate) ttl: Ttl,
    pub(crate) label: Label,
}

/// The session is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionOpened {
    pub(crate) session: SessionId,
    pub(crate) ttl: Ttl,
}

/// Renews a session once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RenewSession {
    pub(crate) session: SessionId,
}

/// The session was renewed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionRenewed {
    pub(crate) ttl: Ttl,
    /// Grants that an operator revoked and that the session has not released, in the order of their tokens.
    pub(crate) revoked: Vec<Revocation>,
    /// Whether there are more revoked grants.
    pub(crate) more_revoked: bool,
}

/// Renews a session, and attaches it to the connection that asks: a transaction by an earlier attachment is refused from then on, as
/// [`FailureReason::NotOwner`](crate::api::FailureReason::NotOwner) with the number of the last one as `attached`.
///
/// Fails for a session that has ended. Sent again, it attaches again: the number of the last answer counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct AttachSession {
    pub(crate) session: SessionId,
}

/// Makes the caller the owner of a session that has none, and charges it for what the session has. Only adapters ask for it, whose clients
/// show who they are after their sessions are open: the adapter knows that the session is the caller's.
///
/// Fails for a session of another owner, or that has ended, and if the caller has as many sessions as it may have. Sent again, it has no
/// further effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SetSessionOwner {
    pub(crate) session: SessionId,
}

/// The session belongs to the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionOwnerSet;

/// Closes a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CloseSession {
    pub(crate) session: SessionId,
    /// The operator's reason, if an operator closes the session.
    pub(crate) reason: Option<Reason>,
}

/// The session is closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SessionClosed;

/// Lists sessions in the order of their ids.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListSessions {
    /// Lists only sessions above this one, which is the last one of the previous page.
    pub(crate) after: Option<SessionId>,
    /// Lists none above this one. Leaders of earlier versions ignore it.
    pub(crate) last: Option<SessionId>,
    /// Maximum number of sessions; 0 means the maximum of a page.
    pub(crate) page_size: usize,
    /// Whether to read this node's table as it is. Otherwise the read is linearizable.
    pub(crate) stale: bool,
}

/// A page of sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ListedSessions {
    pub(crate) sessions: Vec<SessionView>,
    /// The session after which the next page begins, if there may be one.
    pub(crate) more_after: Option<SessionId>,
    /// The log index that the page shows.
    pub(crate) index: u64,
}
