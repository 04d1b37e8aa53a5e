//! What each request needs: a right, on which locks, and the session that it uses.
//!
//! A caller needs the right, and must own the session. A release and a close need no right: whoever held a lock when the policy changed can
//! still give it back. A renewal needs the right to acquire anywhere, so the sessions of an identity that lost all its rights expire.

use crate::api::requests::*;
use lockkeeper_machine::{ForceRelease, SessionId, Wait, Want};
use lockkeeper_policy::{Right, What};

/// What a request concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Concern<'a> {
    One(What<'a>),
    /// Each of these locks.
    All(&'a [Want]),
}

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs<'a> {
    /// `None`: the session suffices.
    pub(crate) right: Option<(Right, Concern<'a>)>,
    /// The session that it uses: its caller must own it.
    pub(crate) session: Option<SessionId>,
    /// Whether an administrator may send it for a session of another identity.
    pub(crate) for_others: bool,
    /// What it adds to the table. `None`: nothing.
    pub(crate) adds: Option<Adds>,
}

/// What a request adds to the table, for the limits of its caller's identity.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Adds {
    /// The session that it opens, if the client chose its id.
    pub(crate) opens: Option<SessionId>,
    pub(crate) sessions: u64,
    pub(crate) locks: u64,
    pub(crate) waiters: u64,
    /// The request's id: a repetition adds nothing.
    pub(crate) request: Option<u64>,
}

/// A request that needs a right or a session.
pub(crate) trait Guarded {
    fn needs(&self) -> Needs<'_>;
}

fn right(right: Right, what: What<'_>) -> Needs<'_> {
    Needs { right: Some((right, Concern::One(what))), session: None, for_others: false, adds: None }
}

fn session(session: SessionId) -> Needs<'static> {
    Needs { right: None, session: Some(session), for_others: false, adds: None }
}

/// One line a request.
macro_rules! guarded {
    ($($request:ty, |$this:ident| $needs:expr;)*) => {
        $(impl Guarded for $request {
            fn needs(&self) -> Needs<'_> {
                let $this = self;
                $needs
            }
        })*
    };
}

guarded! {
    // Also a repeated open renews: the table refuses it unless the owner is the same.
    OpenSession, |it| Needs {
        adds: Some(Adds { opens: it.session, sessions: 1, ..Adds::default() }),
        ..right(Right::Acquire, What::Anywhere)
    };
    RenewSession, |it| Needs { session: Some(it.session), ..right(Right::Acquire, What::Anywhere) };
    KeepAlive, |it| Needs { session: Some(it.session), ..right(Right::Acquire, What::Anywhere) };
    CloseSession, |it| Needs { for_others: true, ..session(it.session) };
    AcquireLocks, |it| Needs {
        right: Some((Right::Acquire, Concern::All(it.acquire.wants()))),
        adds: Some(Adds {
            locks: it.acquire.wants().len() as u64,
            waiters: u64::from(it.acquire.wait != Wait::Never),
            request: it.request.as_ref().map(|request| request.id),
            ..Adds::default()
        }),
        ..session(it.session)
    };
    ReleaseLocks, |it| session(it.session);
    UpdateData, |it| Needs {
        session: Some(it.session),
        adds: it.update.data.as_ref().map(|_| Adds { request: it.request.as_ref().map(|request| request.id), ..Adds::default() }),
        ..right(Right::Acquire, What::Name(it.update.name.as_str()))
    };
    CheckToken, |it| right(Right::Read, What::Name(it.name.as_str()));
    GetLock, |it| right(Right::Read, What::Name(it.name.as_str()));
    ListLocks, |it| right(Right::Read, What::Under(&it.prefix));
    // Shows the caller's own sessions, unless it administers the cluster.
    ListSessions, |_it| right(Right::Read, What::Anywhere);
    WatchLocks, |it| right(Right::Watch, What::Under(&it.prefix));
    ForceRelease, |it| right(Right::ForceRelease, What::Name(it.name.as_str()));
    RemoveWaiter, |it| right(Right::ForceRelease, What::Name(it.name.as_str()));
    LiftDelay, |it| right(Right::ForceRelease, What::Name(it.name.as_str()));
    ResizeSemaphore, |it| right(Right::Administer, What::Name(it.name.as_str()));
    DropData, |it| right(Right::Administer, What::Under(&it.prefix));
    AddMember, |_it| right(Right::Administer, What::Cluster);
    PromoteMember, |_it| right(Right::Administer, What::Cluster);
    RemoveMember, |_it| right(Right::Administer, What::Cluster);
    ReplaceMember, |_it| right(Right::Administer, What::Cluster);
    TransferLeader, |_it| right(Right::Administer, What::Cluster);
}
