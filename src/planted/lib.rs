//! Planted bugs: bugs on purpose, to test the tests.
//!
//! A search that finds nothing proves something only if it would find a bug that is there. Each planted bug is a mistake that a lock
//! service could have, and that others have had; runs under faults and simulations must detect each of them. They exist only in builds
//! with the cargo feature `planted-bugs` and with debug assertions, so no release has them: in all others, [`Planted::is_on`] is `false`
//! at compile time.
//!
//! At most one is on in a process: the one that the environment variable `LOCKKEEPER_PLANTED_BUG` names, or the one chosen by `choose`,
//! for tests with many nodes in one process.

use std::{
    env,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

/// Whether this build can have planted bugs. A release cannot, whatever its features are.
pub const CAN_HAVE_BUGS: bool = cfg!(all(feature = "planted-bugs", debug_assertions));

/// The version of this build. A build that can have planted bugs is marked, so it cannot be taken for a release.
pub const VERSION: &str =
    if CAN_HAVE_BUGS { concat!(env!("CARGO_PKG_VERSION"), "+planted-bugs") } else { env!("CARGO_PKG_VERSION") };

/// A bug that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The log reports entries and votes as durable before they are.
    AckBeforeSync,
    /// Snapshots lack the highest token: a node that restores one issues tokens twice.
    TokenNotInSnapshot,
    /// Snapshots lack the remembered replies: a retry takes effect twice.
    RepliesNotInSnapshot,
    /// Snapshots lack the queue: waiters are forgotten.
    QueueNotInSnapshot,
    /// Any node that believes to lead answers reads, without asking a quorum.
    ReadWithoutIndex,
    /// A read is confirmed by answers that were under way before it began, as openraft does.
    LateAnswersConfirm,
    /// A node whose data is gone is accepted under its old id.
    LostDataTakenIn,
    /// A node on an older copy of its data is accepted.
    OlderCopyTakenIn,
    /// A node that was removed still takes part: the others admit its calls, and it does not end.
    RemovedTakenIn,
    /// A leader counts the acknowledgements of learners as those of voters: with a learner on its side it does not notice its deposition.
    LearnerCounts,
    /// A wait whose call broke off is never answered, even if the same request is repeated.
    WaitLostOnDisconnect,
    /// A release ends the oldest grant of its session, whatever its token.
    ReleaseIgnoresToken,
    /// Stamps are read from wall clocks, which differ between nodes.
    StampFromWallClock,
    /// A session ends after three quarters of its TTL.
    EarlyExpiry,
    /// A reader is granted a lock while a writer waits.
    ReaderOvertakes,
    /// A dead holder's session never ends.
    NoExpiry,
    /// A grant that was taken by force is forgotten at once: its holder is told by a single notice, or never.
    RevocationNotKept,

    // Staged bugs: see `STAGED`.
    /// A client counts its deadline from the receipt of the answer, not from the sending.
    DeadlineFromReceipt,
    /// A snapshot is renamed before its content is synced.
    SnapshotNotSynced,
    /// A received snapshot becomes the table before it is durable.
    SnapshotUsedBeforePublished,
    /// A snapshot contains a later table than its index says.
    SnapshotOfLaterTable,
    /// A renewal is acknowledged before it is committed.
    RenewalAckedEarly,
    /// A leader continues with its clock of an earlier term.
    ClockOfEarlierTerm,
    /// A batch has the stamp that the ticker read last, not one of its own.
    StampFromCache,
    /// A file is renamed to its final name, and the directory is not synced.
    NameNotSynced,
    /// The older snapshot is deleted before the newer one is durable.
    OlderSnapshotDeletedFirst,
    /// A read asks a quorum, but does not wait until its own table has applied the read index.
    ReadWithoutApply,
    /// A batch is not bound to the term in which it was stamped.
    BatchOfEarlierTerm,
    /// A watch subscribes to changes only after it has read the state.
    WatchAfterState,
    /// The end of a wait is reported before the calls of the same batch are registered.
    EndToldBeforeCall,
    /// A guard counts as held after its release was sent.
    TrustedWhileReleasing,
    /// A session counts as alive after its close was sent.
    TrustedWhileClosing,
    /// A call that broke off between a follower and the leader is reported as having had no effect.
    LostForwardedIsSafe,
    /// A node records an applied entry as its own before its own disk has it.
    NotedBeforeDurable,
    /// A keep-alive stream reports that a session was renewed, and only then which of its grants are revoked.
    RevokedAfterRenewed,
    /// A cluster that is restored from a backup goes on with the tokens of the backup.
    RestoreForgetsTokenOffset,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 36] = [
        Self::AckBeforeSync,
        Self::TokenNotInSnapshot,
        Self::RepliesNotInSnapshot,
        Self::QueueNotInSnapshot,
        Self::ReadWithoutIndex,
        Self::LateAnswersConfirm,
        Self::LostDataTakenIn,
        Self::OlderCopyTakenIn,
        Self::RemovedTakenIn,
        Self::LearnerCounts,
        Self::WaitLostOnDisconnect,
        Self::ReleaseIgnoresToken,
        Self::StampFromWallClock,
        Self::EarlyExpiry,
        Self::ReaderOvertakes,
        Self::NoExpiry,
        Self::RevocationNotKept,
        Self::DeadlineFromReceipt,
        Self::SnapshotNotSynced,
        Self::SnapshotUsedBeforePublished,
        Self::SnapshotOfLaterTable,
        Self::RenewalAckedEarly,
        Self::ClockOfEarlierTerm,
        Self::StampFromCache,
        Self::NameNotSynced,
        Self::OlderSnapshotDeletedFirst,
        Self::ReadWithoutApply,
        Self::BatchOfEarlierTerm,
        Self::WatchAfterState,
        Self::EndToldBeforeCall,
        Self::TrustedWhileReleasing,
        Self::TrustedWhileClosing,
        Self::LostForwardedIsSafe,
        Self::NotedBeforeDurable,
        Self::RevokedAfterRenewed,
        Self::RestoreForgetsTokenOffset,
    ];

    /// Bugs that neither random faults nor seeds are expected to find. A scenario in `tests/calibration` detects each of them.
    pub const STAGED: &[Self] = &[
        Self::LateAnswersConfirm,
        Self::LearnerCounts,
        Self::LostDataTakenIn,
        Self::OlderCopyTakenIn,
        Self::DeadlineFromReceipt,
        Self::SnapshotNotSynced,
        Self::SnapshotUsedBeforePublished,
        Self::SnapshotOfLaterTable,
        Self::RenewalAckedEarly,
        Self::ClockOfEarlierTerm,
        Self::StampFromCache,
        Self::NameNotSynced,
        Self::OlderSnapshotDeletedFirst,
        Self::ReadWithoutApply,
        Self::BatchOfEarlierTerm,
        Self::WatchAfterState,
        Self::EndToldBeforeCall,
        Self::TrustedWhileReleasing,
        Self::TrustedWhileClosing,
        Self::LostForwardedIsSafe,
        Self::NotedBeforeDurable,
        Self::RevokedAfterRenewed,
        Self::RestoreForgetsTokenOffset,
    ];

    /// Bugs that need a change of the membership at a certain moment: the seeds of `tests/simulation` find them, other runs are not
    /// expected to.
    pub const SEEDED: &[Self] = &[Self::RemovedTakenIn];

    /// The name for the environment variable.
    pub fn name(self) -> &'static str {
        match self {
            Self::AckBeforeSync => "ack-before-sync",
            Self::TokenNotInSnapshot => "token-not-in-snapshot",
            Self::RepliesNotInSnapshot => "replies-not-in-snapshot",
            Self::QueueNotInSnapshot => "queue-not-in-snapshot",
            Self::ReadWithoutIndex => "read-without-index",
            Self::LateAnswersConfirm => "late-answers-confirm",
            Self::LostDataTakenIn => "lost-data-taken-in",
            Self::OlderCopyTakenIn => "older-copy-taken-in",
            Self::RemovedTakenIn => "removed-taken-in",
            Self::LearnerCounts => "learner-counts",
            Self::WaitLostOnDisconnect => "wait-lost-on-disconnect",
            Self::ReleaseIgnoresToken => "release-ignores-token",
            Self::StampFromWallClock => "stamp-from-wall-clock",
            Self::EarlyExpiry => "early-expiry",
            Self::ReaderOvertakes => "reader-overtakes",
            Self::NoExpiry => "no-expiry",
            Self::RevocationNotKept => "revocation-not-kept",
            Self::DeadlineFromReceipt => "deadline-from-receipt",
            Self::SnapshotNotSynced => "snapshot-not-synced",
            Self::SnapshotUsedBeforePublished => "snapshot-used-before-published",
            Self::SnapshotOfLaterTable => "snapshot-of-later-table",
            Self::RenewalAckedEarly => "renewal-acked-early",
            Self::ClockOfEarlierTerm => "clock-of-earlier-term",
            Self::StampFromCache => "stamp-from-cache",
            Self::NameNotSynced => "name-not-synced",
            Self::OlderSnapshotDeletedFirst => "older-snapshot-deleted-first",
            Self::ReadWithoutApply => "read-without-apply",
            Self::BatchOfEarlierTerm => "batch-of-earlier-term",
            Self::WatchAfterState => "watch-after-state",
            Self::EndToldBeforeCall => "end-told-before-call",
            Self::TrustedWhileReleasing => "trusted-while-releasing",
            Self::TrustedWhileClosing => "trusted-while-closing",
            Self::LostForwardedIsSafe => "lost-forwarded-is-safe",
            Self::NotedBeforeDurable => "noted-before-durable",
            Self::RevokedAfterRenewed => "revoked-after-renewed",
            Self::RestoreForgetsTokenOffset => "restore-forgets-token-offset",
        }
    }

    /// Whether it is one of [`STAGED`](Self::STAGED).
    pub fn is_staged(self) -> bool {
        Self::STAGED.contains(&self)
    }

    /// Whether it is one of [`SEEDED`](Self::SEEDED).
    pub fn is_seeded(self) -> bool {
        Self::SEEDED.contains(&self)
    }

    /// The bug with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|planted| planted.name() == name)
    }

    /// Whether this bug is on in this process.
    pub fn is_on(self) -> bool {
        CAN_HAVE_BUGS && planted() == Some(self)
    }
}

/// Whether a node is to panic while it applies the entry with this index: the environment variable `LOCKKEEPER_PANIC_AT_ENTRY` names it. No
/// [`Planted`] bug, since nothing goes wrong silently: it shows what a node does about an entry that no program can apply. Only in builds
/// that can have bugs.
pub fn panics_at(index: u64) -> bool {
    static ENTRY: OnceLock<Option<u64>> = OnceLock::new();
    let entry = || env::var("LOCKKEEPER_PANIC_AT_ENTRY").ok()?.parse().ok();
    CAN_HAVE_BUGS && *ENTRY.get_or_init(entry) == Some(index)
}

/// The index in [`Planted::ALL`] of the chosen bug, [`NONE`], or [`BY_ENVIRONMENT`].
static CHOSEN: AtomicU8 = AtomicU8::new(BY_ENVIRONMENT);
const NONE: u8 = u8::MAX;
const BY_ENVIRONMENT: u8 = u8::MAX - 1;

/// Turns this bug on, or all off, in the whole process, whatever the environment says. Without effect in a build that can have none.
pub fn choose(planted: Option<Planted>) {
    let place = planted.and_then(|planted| Planted::ALL.iter().position(|known| *known == planted));
    let place = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(NONE);
    CHOSEN.store(place, Ordering::Relaxed);
}

/// The bug that is on, if this build can have any. An unknown name ends the process: otherwise a search without a bug would look like one
/// that found none.
pub fn planted() -> Option<Planted> {
    if !CAN_HAVE_BUGS {
        return None;
    }

    match CHOSEN.load(Ordering::Relaxed) {
        BY_ENVIRONMENT => planted_by_environment(),
        place => Planted::ALL.get(usize::from(place)).copied(),
    }
}

fn planted_by_environment() -> Option<Planted> {
    static PLANTED: OnceLock<Option<Planted>> = OnceLock::new();
    *PLANTED.get_or_init(|| {
        let name = env::var("LOCKKEEPER_PLANTED_BUG").ok().filter(|name| !name.is_empty())?;
        let known = || Planted::ALL.map(Planted::name).join(", ");
        Some(Planted::named(&name).unwrap_or_else(|| {
            panic!("LOCKKEEPER_PLANTED_BUG names an unknown bug {name:?}; the known ones are {}", known())
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        for planted in Planted::ALL {
            assert_eq!(Planted::named(planted.name()), Some(planted));
        }
        assert_eq!(Planted::named("none"), None);
    }
}
