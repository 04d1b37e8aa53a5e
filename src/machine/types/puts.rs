//! Writes of an entry by a transaction: its value, its lease or deadline, the lock that it claims, its parent.

use super::*;

/// A write of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Put {
    /// The key.
    pub key: Key,
    /// Its new value.
    pub value: Value,
    /// Its lease from now on.
    pub lease: PutLease,
    /// The lock that it holds or waits for while a given lease lasts, or until its deadline.
    pub claims: Option<PutClaim>,
}

/// The lock that a put claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutClaim {
    /// The lock.
    pub lock: LockName,
    /// Who claims it, for people. Of an entry with a lease, the label of its session is shown instead.
    pub label: Label,
}

/// The lease of an entry after a put.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PutLease {
    /// No lease. The entry lives until it is deleted.
    #[default]
    None,
    /// This lease.
    Given(Lease),
    /// The lease, the deadline and the claim stay as they are. A lease that is over remains over.
    Kept,
    /// The lease stays, and its session is renewed if a transaction opened it. Other sessions are renewed by their clients, and a deadline
    /// stays as it is.
    Renewed,
    /// No lease, but a deadline.
    Until(EntryDeadline),
    /// Like `Until`, and the entry keeps its claim if it had a deadline before.
    Extended(EntryDeadline),
    /// No lease, but a deadline: an adapter stores the entry for a limited time. Temporary entries have their own limits, and claim no
    /// lock. Since version 5 of the cluster.
    Temporary(Lifetime),
}

/// The moment of cluster time at which an entry is deleted that has a deadline of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryDeadline {
    /// This long after the operation takes effect.
    After(Lifetime),
    /// This moment. If it has passed when the operation takes effect, the operation deletes the entry.
    At(Stamp),
}

/// A put that creates its entry, as a child of another. The parent must exist, without a lease and without a deadline of its own, and can
/// be given neither from then on; it cannot be deleted before its last child has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutChild {
    /// The key of the parent.
    pub parent: Key,
    /// The child. There must be no entry under its key.
    pub put: Put,
    /// The key of the child is that of the put with the number of children that were made below the parent before it: ten digits, or more
    /// from 10^10 on. So many clients make children of one key at one time, and none of them has to compare and try again.
    pub is_numbered: bool,
}

/// A change of the end of an entry. Its value stays, and what it claims, as long as it had a deadline of its own and gets one. Without an
/// entry nothing happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Expire {
    /// The key.
    pub key: Key,
    /// The deadline from now on. Without one, the entry lives until it is deleted.
    pub deadline: Option<EntryDeadline>,
}

/// Digits of the number of a child at the most.
const NUMBER_DIGITS_MAX: usize = 20;

impl Put {
    pub(super) fn check_limits(&self) -> Result<(), Invalid> {
        self.key.check_limits()?;
        self.value.check_limits()?;
        self.lease.deadline().map_or(Ok(()), EntryDeadline::check_limits)?;
        self.claims.as_ref().map_or(Ok(()), PutClaim::check_limits)
    }

    pub(super) fn bytes(&self) -> usize {
        let claimed = self.claims.as_ref().map_or(0, PutClaim::bytes);
        self.key.as_bytes().len() + self.value.as_bytes().len() + claimed
    }
}

impl PutChild {
    /// The put of the child, if so many were made before it.
    pub(crate) fn numbered(&self, made: u64) -> Put {
        let mut put = self.put.clone();
        if self.is_numbered {
            let key = [put.key.as_bytes(), format!("{made:010}").as_bytes()].concat();
            put.key = Key::from_log(&key).expect("a key with digits is not empty");
        }
        put
    }

    pub(super) fn check_limits(&self) -> Result<(), Invalid> {
        self.parent.check_limits()?;
        let bytes = self.put.key.as_bytes().len();
        if self.is_numbered && bytes > KEY_BYTES_MAX - NUMBER_DIGITS_MAX {
            let most = KEY_BYTES_MAX - NUMBER_DIGITS_MAX;
            return Err(Invalid::new(format!("the key before the number has {bytes} bytes: the limit is {most}")));
        }
        self.put.check_limits()
    }
}

impl PutLease {
    pub(crate) fn given(self) -> Option<Lease> {
        if let Self::Given(lease) = self { Some(lease) } else { None }
    }

    /// The entry's own deadline, if it is given one.
    pub fn deadline(self) -> Option<EntryDeadline> {
        match self {
            Self::Until(deadline) | Self::Extended(deadline) => Some(deadline),
            Self::Temporary(lifetime) => Some(EntryDeadline::After(lifetime)),
            Self::None | Self::Given(_) | Self::Kept | Self::Renewed => None,
        }
    }

    /// Whether the entry is one that an adapter remembers for a time.
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::Temporary(_))
    }

    /// Whether a put may claim a lock with it.
    pub(super) fn can_claim(self) -> bool {
        matches!(self, Self::Given(_) | Self::Until(_))
    }
}

impl EntryDeadline {
    pub(super) fn check_limits(self) -> Result<(), Invalid> {
        if let Self::After(lifetime) = self { lifetime.check_limits() } else { Ok(()) }
    }
}

impl PutClaim {
    pub(super) fn check_limits(&self) -> Result<(), Invalid> {
        self.lock.check_limits()?;
        self.label.check_limits()
    }

    pub(super) fn bytes(&self) -> usize {
        self.lock.as_str().len() + self.label.as_str().len()
    }
}

impl From<LockName> for PutClaim {
    /// A claim without a label.
    fn from(lock: LockName) -> Self {
        Self { lock, label: Label::default() }
    }
}

impl From<Option<Lease>> for PutLease {
    fn from(lease: Option<Lease>) -> Self {
        lease.map_or(Self::None, Self::Given)
    }
}
