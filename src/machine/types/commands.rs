//! What the table is told.

use std::sync::Arc;

use super::{words::number, *};
use crate::machine::limits::*;

/// One lock of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which.
    pub name: LockName,
    /// How.
    pub mode: Mode,
    /// Data to set once it is held; `None` leaves what is there.
    pub data: Option<Data>,
    /// Whether the data stay when the grant ends.
    pub keep_data: bool,
    /// Refuse the acquire if nothing is known of the lock when it arrives: nobody holds or awaits it, it is not delayed, and carries
    /// no data.
    pub must_exist: bool,
}

/// How long an acquire waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Not at all.
    Never,
    /// At most so many milliseconds: 1 to [`WAIT_MS_MAX`].
    Millis(u64),
    /// As long as its session lives.
    Forever,
}

/// What to acquire: 1 to [`WANTS_MAX`] locks, all or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// In the order of their names, no name twice: see [`Acquire::new`].
    wants: Arc<[Want]>,
    /// How long to wait.
    pub wait: Wait,
    /// How long the locks stay closed if this holder is lost, milliseconds: 0 to [`LOCK_DELAY_MS_MAX`].
    pub lock_delay_ms: u32,
}

/// What to release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A grant.
    Grant(Token),
    /// An acquire by its request id, whether it was granted, waits or never arrived.
    Acquire(u64),
}

/// What to set on a held lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Update {
    /// A grant that holds it.
    pub token: Token,
    /// The lock.
    pub name: LockName,
    /// `None` removes what is there.
    pub data: Option<Data>,
    /// Whether the data stay when the grant ends.
    pub keep_data: bool,
}

/// What a session asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Locks, all or nothing.
    Acquire(Acquire),
    /// Give a grant back, or take an acquire back.
    Release(Target),
    /// Set the data on a lock.
    Update(Update),
}

/// Which grants an operator takes back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForceRelease {
    /// The lock.
    pub name: LockName,
    /// Only this grant; `None`: all of the lock's.
    pub token: Option<Token>,
    /// Only grants above this token: it goes on where another command ended.
    pub after: Token,
    /// Only grants up to this token: those who came in since the first command are not concerned. `None`: all that are held now.
    pub up_to: Option<Token>,
    /// Why.
    pub reason: Reason,
    /// Open at once, rather than at the deadline that the holder's session has now.
    pub now: bool,
}

/// One entry of the log's batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens a session. The same again, while it lives, renews it.
    Open {
        /// Drawn at random outside the machine.
        session: SessionId,
        /// How long it lives without a renewal.
        ttl: Ttl,
        /// Who it is.
        label: Label,
        /// From where: `None` where that is not known, and in logs of versions that did not ask. It stays as it was at the first opening.
        address: Option<Address>,
    },
    /// Renews sessions.
    Renew {
        /// Answered one by one, in this order.
        sessions: Vec<SessionId>,
    },
    /// Closes a session: releases what it holds, cancels what it waits for.
    Close {
        /// Which.
        session: SessionId,
    },
    /// A session's request, at most once for each request id.
    Session {
        /// Whose.
        session: SessionId,
        /// `None`: no promise that a retry happens once.
        request: Option<Request>,
        /// What.
        operation: Operation,
    },
    /// Ends a wait whose call broke off. A wait that was granted meanwhile stays granted.
    CancelWait {
        /// Which.
        ticket: Ticket,
        /// Only if its request came again so often, and not once more: who cancels saw that nobody waits, and another call may have come
        /// since. `None`: in any case, as versions asked for it that did not count.
        repeats: Option<u64>,
    },
    /// Revokes grants of a lock, by an operator: as many as one command may.
    ForceRelease(ForceRelease),
    /// Ends a wait, by an operator. A wait that was granted meanwhile stays granted.
    RemoveWaiter {
        /// A lock that it waits for.
        name: LockName,
        /// Which.
        ticket: Ticket,
    },
    /// Ends the lock-delay of a lock, by an operator.
    LiftDelay {
        /// Which lock.
        name: LockName,
    },
    /// Drops the data of locks that nobody holds, by an operator: as many as one command may.
    DropData {
        /// Of locks whose names begin with it: at most [`NAME_BYTES_MAX`] bytes, or it is the beginning of none.
        prefix: String,
        /// Only of locks above this name: it goes on where another command ended.
        after: Option<LockName>,
    },
    /// Gives a semaphore in use another size, by an operator: see [`crate::machine`] on what that size means and when it ends.
    Resize {
        /// Which.
        name: LockName,
        /// How many may hold it from now on.
        permits: Permits,
    },
    /// Lets time pass.
    Tick,
}

impl Wait {
    /// 0 does not wait. Fails over [`WAIT_MS_MAX`].
    pub fn from_millis(ms: u64) -> Result<Self, Invalid> {
        match number("the wait in milliseconds", ms, 0, WAIT_MS_MAX)? {
            0 => Ok(Self::Never),
            ms => Ok(Self::Millis(ms)),
        }
    }
}

impl Acquire {
    /// Sorts the locks by name. Fails on none or more than [`WANTS_MAX`], on a name given twice, on a wait outside 1 to
    /// [`WAIT_MS_MAX`], and on a lock-delay over [`LOCK_DELAY_MS_MAX`].
    pub fn new(mut wants: Vec<Want>, wait: Wait, lock_delay_ms: u32) -> Result<Self, Invalid> {
        number("the number of locks in one acquire", wants.len(), 1, WANTS_MAX)?;
        if let Wait::Millis(ms) = wait {
            number("the wait in milliseconds", ms, 1, WAIT_MS_MAX)?;
        }
        number("the lock-delay in milliseconds", lock_delay_ms, 0, LOCK_DELAY_MS_MAX)?;
        wants.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = wants.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Invalid(format!("the lock {:?} is named twice in one acquire: name it once", pair[0].name)));
        }
        Ok(Self { wants: wants.into(), wait, lock_delay_ms })
    }

    /// In the order of their names, no name twice.
    pub fn wants(&self) -> &[Want] {
        &self.wants
    }
}
