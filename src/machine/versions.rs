//! The cluster version: which commands the members may write into the log.
//!
//! A member that meets a command or a record that its program does not know must stop: to skip it would make its table differ. So a new
//! command waits until all members run a program that knows it. The *cluster version* is replicated, and only rises
//! ([`Command::RaiseVersion`]). The leader proposes a command only if the cluster version covers [`Command::since`], and proposes to raise
//! the version once every member says that it supports the next one.
//!
//! | version | commands and records that it adds |
//! |---|---|
//! | 1 | all from before versions: [`Command::Open`] to [`Command::Tick`], [`Command::Resize`] among them; [`Record::Clock`] to [`Record::Resized`] |
//! | 2 | [`Command::RaiseVersion`], [`Command::Note`]; [`Record::Version`]; the audit trail; the owner of a session, in [`Command::Open`] and [`Record::Session`]; who did it (`by`), in operators' commands and in [`Record::Grant`] |
//! | 3 | [`Command::Txn`], [`Command::Compact`]; [`Record::Entry`], [`Record::Compacted`], [`Record::EntryEvent`]; the locks that entries claim |
//! | 4 | [`Record::Closed`]; [`Command::BeginAudit`]; entries with a deadline of their own, in [`Command::Txn`], [`Record::Entry`] and [`Record::EntryEvent`] |
//! | 5 | [`Command::Attach`], and its number in [`Record::Session`]; children of keys, attachments, fallbacks and more than 256 operations in [`Command::Txn`]; children, and temporary entries without a session, in [`Record::Entry`] and [`Record::EntryEvent`] |
//! | 6 | [`Command::SetOwner`]; limits and costs that earlier versions did not count: see [`Version::ALL_COUNTED`] |
//!
//! To add a command, a record, or a field that changes what a command does: raise [`Versions::OWN`]'s `highest` unless it is higher than in
//! the last release, add a line here, and name the version in [`Command::since`]. A field counts as a command of its own: `since` is the
//! later version only if the field is set.
//!
//! A log or a snapshot without a version has version 1. Applying does not ask whether a command may be in the log: it was allowed there. It
//! asks for the version where a later one applies an old command in another way.

use std::fmt;

use super::*;

/// A cluster version, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(pub u32);

/// The cluster versions that a program supports, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The lowest. It rises when a release drops what only older clusters need.
    pub lowest: Version,
    /// The highest.
    pub highest: Version,
}

impl Version {
    /// The version of clusters from before versions.
    pub const FIRST: Self = Self(1);
    /// The first version whose members know [`Command::RaiseVersion`].
    const RAISING: Self = Self(2);
    /// The first version whose members make the lines of the audit trail.
    pub const AUDITED: Self = Self(2);
    /// The first version whose members know the identities of clients and operators: a member that does not would let another client
    /// use a session.
    const IDENTITIES: Self = Self(2);
    /// The first version whose members have a keyspace.
    pub const KEYSPACE: Self = Self(3);

    /// The first version whose members make lines of the audit trail only when one of them writes it.
    pub const AUDIT_ASKED_FOR: Self = Self(4);
    /// The first version whose members know that a restored cluster grants nothing for some time.
    const CLOSING: Self = Self(4);
    /// The first version whose members know entries of the keyspace with a deadline of their own.
    pub const LIFETIMES: Self = Self(4);
    /// The first version whose members know children of keys, sessions that are attached, and temporary entries without a session.
    pub const CHILDREN: Self = Self(5);
    /// The first version whose members know sessions that get their owner later.
    pub const LATE_OWNERS: Self = Self(6);
    /// The first version whose members count all that a command adds and visits. Before, three things were not counted: the bytes of a
    /// reply that is remembered, grants that a forced release finds revoked already, and a temporary entry that replaces another one by
    /// more bytes.
    pub const ALL_COUNTED: Self = Self(6);

    /// The version that a command or a record needs for this field.
    fn for_identity(identity: Option<&Identity>) -> Self {
        identity.map_or(Self::FIRST, |_| Self::IDENTITIES)
    }

    /// The version that a record needs for this entry.
    fn for_entry(entry: &Entry) -> Self {
        match entry {
            Entry { kin: Some(_), .. } | Entry { is_temporary: true, .. } => Self::CHILDREN,
            Entry { until: Some(_), .. } => Self::LIFETIMES,
            _ => Self::KEYSPACE,
        }
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Versions {
    /// The versions that this program supports.
    pub const OWN: Self = Self { lowest: Version::FIRST, highest: Version(6) };
    /// The versions of a program that does not report them.
    pub const UNSAID: Self = Self { lowest: Version::FIRST, highest: Version::FIRST };
    /// The versions of the next release, which does not exist yet. Its new command is [`Command::Probe`]. For tests of an upgrade.
    pub const NEXT: Self = Self { lowest: Version::FIRST, highest: Version(Self::OWN.highest.0 + 1) };

    /// Whether a member with these versions can be in a cluster of this version.
    pub fn include(self, version: Version) -> bool {
        self.lowest <= version && version <= self.highest
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lowest == self.highest {
            write!(f, "version {}", self.lowest)
        } else {
            write!(f, "versions {} to {}", self.lowest, self.highest)
        }
    }
}

impl Command {
    /// The first cluster version that has this command.
    pub fn since(&self) -> Version {
        match self {
            Self::Renew { .. } | Self::Session { .. } | Self::CancelWait { .. } | Self::Tick => Version::FIRST,
            Self::Open { owner: by, .. }
            | Self::Close { by, .. }
            | Self::ForceRelease(ForceRelease { by, .. })
            | Self::RemoveWaiter { by, .. }
            | Self::LiftDelay { by, .. }
            | Self::DropData { by, .. }
            | Self::Resize { by, .. } => Version::for_identity(by.as_ref()),
            // A member that does not support the new version must stop here, not at the first command of that version.
            Self::RaiseVersion { to } => (*to).max(Version::RAISING),
            Self::Note(_) => Version::AUDITED,
            Self::Txn(_) if Planted::CommandBeforeItsVersion.is_on() => Version::FIRST,
            Self::Txn(txn) if txn.has_children() || txn.is_long() => Version::CHILDREN,
            Self::Txn(txn) if txn.has_temporary_deadlines() => Version::CHILDREN,
            Self::Txn(txn) if txn.has_deadlines() => Version::LIFETIMES,
            Self::Txn(_) | Self::Compact { .. } => Version::KEYSPACE,
            Self::BeginAudit => Version::AUDIT_ASKED_FOR,
            Self::Attach { .. } => Version::CHILDREN,
            Self::SetOwner { .. } => Version::LATE_OWNERS,
            Self::Probe => Versions::NEXT.highest,
        }
    }
}

impl Record {
    /// The first cluster version whose members know this record.
    pub fn since(&self) -> Version {
        match self {
            Self::Version { version } => (*version).max(Version::RAISING),
            Self::Session { attached: 1.., .. } => Version::CHILDREN,
            Self::Session { owner: identity, .. } | Self::Grant { revoked_by: identity, .. } => {
                Version::for_identity(identity.as_ref())
            }
            Self::Entry { entry, .. } | Self::EntryEvent { before: Some(entry), .. } => Version::for_entry(entry),
            Self::Compacted { .. } | Self::EntryEvent { before: None, .. } => Version::KEYSPACE,
            Self::Closed { .. } => Version::CLOSING,
            Self::Clock { .. }
            | Self::Ended { .. }
            | Self::Lock { .. }
            | Self::Taken { .. }
            | Self::Wait { .. }
            | Self::Resized { .. }
            | Self::Reply { .. }
            | Self::Work(_) => Version::FIRST,
        }
    }
}

impl Machine {
    /// The cluster version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// See [`Version::ALL_COUNTED`].
    pub(crate) fn counts_all(&self) -> bool {
        self.version >= Version::ALL_COUNTED
    }

    /// Never lowers it: a leader that proposed this may have known less than the present one.
    pub(super) fn raise_version(&mut self, to: Version) -> Reply {
        self.version = if Planted::VersionLowered.is_on() { to } else { self.version.max(to) };
        Reply::VersionRaised(self.version)
    }
}
