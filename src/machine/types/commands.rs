//! The commands of the table, and their parts.

use super::*;
use crate::Version;

/// The object of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A grant.
    Grant(Token),
    /// An acquire by its request id, whether it was granted, waits or never arrived.
    Acquire(u64),
}

/// An update of the data on a held lock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Update {
    /// A grant that holds the lock.
    pub token: Token,
    /// The lock.
    pub name: LockName,
    /// The new data; `None` removes the present data.
    pub data: Option<Data>,
    /// Whether the data stays when the grant ends.
    pub keep_data: bool,
}

/// The operation that a session's request asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Acquire locks, all or nothing.
    Acquire(Acquire),
    /// Release a grant or an acquire.
    Release(Target),
    /// Set the data on a lock.
    Update(Update),
}

/// A forced release: which grants an operator revokes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForceRelease {
    /// The lock.
    pub name: LockName,
    /// Revokes only this grant; without a token, all grants of the lock.
    pub token: Option<Token>,
    /// Revokes only grants above this token: continues where another command ended.
    pub after: Token,
    /// Revokes only grants up to this token, not later ones. Without it, all grants that are held now.
    pub up_to: Option<Token>,
    /// The operator's reason.
    pub reason: Reason,
    /// Open at once, rather than at the deadline that the holder's session has now.
    pub now: bool,
    /// The operator, if known. Logs of versions without it have none.
    pub by: Option<Identity>,
}

/// Bytes of each text of a [`Note`], at most.
pub const NOTE_BYTES_MAX: usize = 256;

/// An act that does not change the table: a refused permission, a backup, a transfer of the leadership. The texts have at most
/// [`NOTE_BYTES_MAX`] bytes each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Note {
    /// Who acted, or was refused, if known.
    pub who: Option<String>,
    /// The act, as `refused` or `snapshot-saved`.
    pub act: String,
    /// Its object; may be empty.
    pub target: String,
    /// Why; may be empty.
    pub reason: String,
    /// Notes of its kind that were left out since the last one, since there were too many.
    pub omitted: u64,
}

impl Note {
    /// Cuts the texts to the limit.
    pub fn cut(mut self) -> Self {
        for text in [&mut self.act, &mut self.target, &mut self.reason].into_iter().chain(&mut self.who) {
            text.truncate(text.floor_char_boundary(NOTE_BYTES_MAX));
        }
        self
    }

    /// Whether no text is too long.
    pub fn is_bounded(&self) -> bool {
        let texts = [&self.act, &self.target, &self.reason];
        texts.into_iter().chain(&self.who).all(|text| text.len() <= NOTE_BYTES_MAX)
    }
}

/// One entry of the log's batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Opens a session. A repeat while the session lives renews it.
    Open {
        /// Drawn at random outside the machine.
        session: SessionId,
        /// How long it lives without a renewal.
        ttl: Ttl,
        /// The client's label, for people.
        label: Label,
        /// The client's address; `None` if unknown, and in logs of versions without it. A repeat does not change it.
        address: Option<Address>,
        /// The client that it belongs to. Anonymous clients have none, nor have logs of versions without it. A repeat names the same one.
        owner: Option<Identity>,
    },
    /// Renews sessions.
    Renew {
        /// Answered one by one, in this order.
        sessions: Vec<SessionId>,
    },
    /// Renews a session, and attaches it to the connection that asks. An earlier connection is no longer attached ([`Txn::by_attached`]).
    Attach {
        /// The session's id.
        session: SessionId,
    },
    /// Gives a session that has no owner one: its client has shown who it is after the session was opened.
    SetOwner {
        /// The session's id.
        session: SessionId,
        /// The client that it belongs to from now on. A repeat names the same one.
        owner: Identity,
    },
    /// Closes a session: releases what it holds, cancels what it waits for.
    Close {
        /// The session's id.
        session: SessionId,
        /// The operator, if one closes the session of another client.
        by: Option<Identity>,
        /// An operator's reason. The table does not need it; the audit does.
        reason: Option<Reason>,
    },
    /// A session's request: takes effect at most once for each request id.
    Session {
        /// The session's id.
        session: SessionId,
        /// The id of the request. Without it, a retry may take effect again.
        request: Option<Request>,
        /// The operation that it asks for.
        operation: Operation,
    },
    /// Ends a wait whose call broke off. A wait that was granted meanwhile stays granted.
    CancelWait {
        /// The wait's ticket.
        ticket: Ticket,
        /// Cancel only if the request was repeated exactly this often: a later repeat means that another call waits for it now. `None`:
        /// in any case, as written by versions that did not count.
        repeats: Option<u64>,
    },
    /// Revokes grants of a lock, by an operator: as many as the budget of one command allows.
    ForceRelease(ForceRelease),
    /// Ends a wait, by an operator. A wait that was granted meanwhile stays granted.
    RemoveWaiter {
        /// A lock that it waits for.
        name: LockName,
        /// The wait's ticket.
        ticket: Ticket,
        /// The operator, if known. Logs of versions without it have none.
        by: Option<Identity>,
    },
    /// Ends the lock-delay of a lock, by an operator.
    LiftDelay {
        /// The lock's name.
        name: LockName,
        /// The operator, if known. Logs of versions without it have none.
        by: Option<Identity>,
    },
    /// Drops the data of locks that are not held, by an operator: as many as the budget of one command allows.
    DropData {
        /// Drops data only of locks whose names begin with it. A prefix of more than [`NAME_BYTES_MAX`] bytes matches no lock.
        prefix: String,
        /// Drops data only of locks above this name: continues where another command ended.
        after: Option<LockName>,
        /// The operator, if known. Logs of versions without it have none.
        by: Option<Identity>,
    },
    /// Gives a semaphore in use another size, by an operator: see [`crate`] for the meaning of that size and for its end.
    Resize {
        /// The lock's name.
        name: LockName,
        /// The number of holders that it may have from now on.
        permits: Permits,
        /// The operator, if known. Logs of versions without it have none.
        by: Option<Identity>,
    },
    /// Reads and writes the keyspace, at one moment.
    Txn(Txn),
    /// Forgets the events of the keyspace up to a revision.
    Compact {
        /// The revision, at most the present one.
        revision: Revision,
    },
    /// Advances time.
    Tick,
    /// Raises the cluster version: see [`Version`]. The leader proposes it by itself.
    RaiseVersion {
        /// The new version. Lower than the present one: no effect.
        to: Version,
    },
    /// Changes nothing in the table: records an act in the audit trail.
    Note(Note),
    /// Does nothing to the table: from here on there is an audit trail, since a member writes one.
    BeginAudit,
    /// Does nothing. It stands for the commands of the next release ([`crate::Versions::NEXT`]), so no release proposes it or reads it in a
    /// log.
    Probe,
}

impl Command {
    /// Fails on a value beyond a limit of this version. Asked before a command is proposed, and never when it is applied: what is in the
    /// log was within the limits of the version that proposed it.
    pub fn check_limits(&self) -> Result<(), Invalid> {
        let owned = |identity: &Option<Identity>| identity.as_ref().map_or(Ok(()), Identity::check_limits);
        match self {
            Self::Open { ttl, label, owner, .. } => {
                ttl.check_limits()?;
                label.check_limits()?;
                owned(owner)
            }
            Self::SetOwner { owner, .. } => owner.check_limits(),
            Self::Close { by, reason, .. } => {
                reason.as_ref().map_or(Ok(()), Reason::check_limits)?;
                owned(by)
            }
            Self::Session { request, operation, .. } => {
                request.as_ref().map_or(Ok(()), |request| request.open.check_limits())?;
                operation.check_limits()
            }
            Self::ForceRelease(ForceRelease { name, reason, by, .. }) => {
                name.check_limits()?;
                reason.check_limits()?;
                owned(by)
            }
            Self::RemoveWaiter { name, by, .. } | Self::LiftDelay { name, by } => {
                name.check_limits()?;
                owned(by)
            }
            Self::DropData { prefix: _, after, by } => {
                after.as_ref().map_or(Ok(()), LockName::check_limits)?;
                owned(by)
            }
            Self::Resize { name, permits, by } => {
                name.check_limits()?;
                permits.check_limits()?;
                owned(by)
            }
            Self::Txn(txn) => txn.check_limits().map_err(|invalid| Invalid::new(invalid.to_string())),
            Self::Note(note) if !note.is_bounded() => {
                Err(Invalid::new(format!("a text of a note has more than {NOTE_BYTES_MAX} bytes: cut it")))
            }
            Self::Renew { .. }
            | Self::Attach { .. }
            | Self::CancelWait { .. }
            | Self::Compact { .. }
            | Self::RaiseVersion { .. }
            | Self::Note(_)
            | Self::BeginAudit
            | Self::Probe
            | Self::Tick => Ok(()),
        }
    }

    /// What kind of command it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::Renew { .. } => "renew",
            Self::Attach { .. } => "attach",
            Self::SetOwner { .. } => "set-owner",
            Self::Close { .. } => "close",
            Self::Session { operation: Operation::Acquire(_), .. } => "acquire",
            Self::Session { operation: Operation::Release(_), .. } => "release",
            Self::Session { operation: Operation::Update(_), .. } => "update",
            Self::CancelWait { .. } => "cancel-wait",
            Self::ForceRelease(_) => "force-release",
            Self::RemoveWaiter { .. } => "remove-waiter",
            Self::LiftDelay { .. } => "lift-delay",
            Self::DropData { .. } => "drop-data",
            Self::Resize { .. } => "resize",
            Self::Txn(_) => "txn",
            Self::Compact { .. } => "compact",
            Self::Tick => "tick",
            Self::RaiseVersion { .. } => "raise-version",
            Self::Note(_) => "note",
            Self::BeginAudit => "begin-audit",
            Self::Probe => "probe",
        }
    }
}

impl Operation {
    fn check_limits(&self) -> Result<(), Invalid> {
        match self {
            Self::Acquire(acquire) => acquire.check_limits(),
            Self::Release(_) => Ok(()),
            Self::Update(Update { name, data, .. }) => {
                name.check_limits()?;
                data.as_ref().map_or(Ok(()), Data::check_limits)
            }
        }
    }
}
