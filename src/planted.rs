//! Bugs that are put in on purpose, to see whether those who look for bugs find them.
//!
//! A search that finds nothing says something only if it would have found what is there. So each of these is a mistake that a lock
//! service could have, and that others have had; runs under faults and simulations must convict each of them. They exist only in builds
//! with the cargo feature `planted-bugs`, which no release has: in all others, [`Planted::is_on`] is `false` at compile time.
//!
//! At most one is on in a process: the one that the environment variable `LOCKKEEPER_PLANTED_BUG` names, or the one that was
//! chosen by `choose`, for those who run many nodes in one process.

/// The version of this build: one that can have planted bugs says so, and cannot be taken for a release.
#[cfg(feature = "planted-bugs")]
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "+planted-bugs");
/// The version of this build.
#[cfg(not(feature = "planted-bugs"))]
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A bug that can be planted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// The log says that entries and votes are durable before they are.
    AckBeforeSync,
    /// The highest token is not in snapshots: a node that restores one gives tokens out twice.
    TokenNotInSnapshot,
    /// The replies that sessions remember are not in snapshots: a retry happens twice.
    RepliesNotInSnapshot,
    /// The queue is not in snapshots: those who wait are forgotten.
    QueueNotInSnapshot,
    /// Reads are answered by whoever believes to lead, without asking a quorum.
    ReadWithoutIndex,
    /// A read is confirmed by answers that were under way before it began: openraft's word is taken for it.
    LateAnswersConfirm,
    /// A node whose data are gone is taken for who it was.
    LostDataTakenIn,
    /// A node on an older copy of its data is counted on.
    OlderCopyTakenIn,
    /// A wait whose call broke off is not listened to any more, also when the same request comes again.
    WaitLostOnDisconnect,
    /// A release ends the oldest grant of its session, whatever token it bears.
    ReleaseIgnoresToken,
    /// Stamps are read from a wall clock, and those of different nodes differ.
    StampFromWallClock,
    /// A session ends after three quarters of its TTL.
    EarlyExpiry,
    /// A reader is let in while a writer waits.
    ReaderOvertakes,
    /// A dead holder's session never ends.
    NoExpiry,
    /// A grant that was taken by force is forgotten at once: its holder hears of it by a passing notice, or never.
    RevocationNotKept,

    // Those that are staged.
    /// A client counts its deadline from the moment at which the answer came, not from the sending.
    DeadlineFromReceipt,
    /// A snapshot gets its name before its content is synced.
    SnapshotNotSynced,
    /// A snapshot that a peer sent becomes the table before it is durable.
    SnapshotUsedBeforePublished,
    /// A snapshot is cut from a later table than its index says.
    SnapshotOfLaterTable,
    /// A renewal is acknowledged before it is committed.
    RenewalAckedEarly,
    /// A leader goes on with the clock of the term in which it led before.
    ClockOfEarlierTerm,
    /// A batch bears the stamp that the ticker took last, not one of its own.
    StampFromCache,
    /// A file gets its final name, and the directory is not synced.
    NameNotSynced,
    /// The older snapshot is deleted before the newer one is durable.
    OlderSnapshotDeletedFirst,
    /// A read asks a quorum, and does not wait until its own table has come so far.
    ReadWithoutApply,
    /// A batch is not bound to the term in which it was stamped.
    BatchOfEarlierTerm,
    /// A watch listens for changes only after it has taken the state.
    WatchAfterState,
    /// The end of a wait is told before the calls of the same batch listen for it.
    EndToldBeforeCall,
    /// A guard counts as held when its release was sent.
    TrustedWhileReleasing,
    /// A session counts as alive when its close was sent.
    TrustedWhileClosing,
    /// A call that broke off between a follower and the leader is said to have done nothing.
    LostForwardedIsSafe,
    /// A node notes as its own what it has applied, before its own disk has it.
    NotedBeforeDurable,
    /// A keep-alive stream says that a session was renewed, and only then which of its grants are revoked.
    RevokedAfterRenewed,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 33] = [
        Self::AckBeforeSync,
        Self::TokenNotInSnapshot,
        Self::RepliesNotInSnapshot,
        Self::QueueNotInSnapshot,
        Self::ReadWithoutIndex,
        Self::LateAnswersConfirm,
        Self::LostDataTakenIn,
        Self::OlderCopyTakenIn,
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
    ];

    /// Those that neither faults nor seeds are expected to find. A scenario in `tests/calibration` convicts each of them.
    pub const STAGED: &[Self] = &[
        Self::LateAnswersConfirm,
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
    ];

    /// As the environment variable names it.
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
        }
    }

    /// Whether it is one of [`STAGED`](Self::STAGED).
    pub fn is_staged(self) -> bool {
        Self::STAGED.contains(&self)
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|planted| planted.name() == name)
    }

    /// Whether this one is on in this process.
    #[cfg(feature = "planted-bugs")]
    pub fn is_on(self) -> bool {
        planted() == Some(self)
    }

    /// Whether this one is on in this process: this build has none.
    #[cfg(not(feature = "planted-bugs"))]
    pub const fn is_on(self) -> bool {
        false
    }
}

/// The place in [`Planted::ALL`] of the one that was chosen, [`NONE`], or [`BY_ENVIRONMENT`].
#[cfg(feature = "planted-bugs")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(BY_ENVIRONMENT);
#[cfg(feature = "planted-bugs")]
const NONE: u8 = u8::MAX;
#[cfg(feature = "planted-bugs")]
const BY_ENVIRONMENT: u8 = u8::MAX - 1;

/// Has this one on from now on, or none, in the whole process: whatever the environment says.
#[cfg(feature = "planted-bugs")]
pub fn choose(planted: Option<Planted>) {
    let place = planted.and_then(|planted| Planted::ALL.iter().position(|known| *known == planted));
    let place = place.and_then(|place| u8::try_from(place).ok()).unwrap_or(NONE);
    CHOSEN.store(place, std::sync::atomic::Ordering::Relaxed);
}

/// The one that is on, if this build can have any. A name that is none ends the process: a search for nothing must not look like one.
#[cfg(feature = "planted-bugs")]
pub fn planted() -> Option<Planted> {
    match CHOSEN.load(std::sync::atomic::Ordering::Relaxed) {
        BY_ENVIRONMENT => by_environment(),
        place => Planted::ALL.get(usize::from(place)).copied(),
    }
}

#[cfg(feature = "planted-bugs")]
fn by_environment() -> Option<Planted> {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Planted>> = OnceLock::new();
    *PLANTED.get_or_init(|| {
        let name = std::env::var("LOCKKEEPER_PLANTED_BUG").ok().filter(|name| !name.is_empty())?;
        let known = || Planted::ALL.map(Planted::name).join(", ");
        Some(Planted::named(&name).unwrap_or_else(|| panic!("no bug is called {name:?}; there are {}", known())))
    })
}

/// The one that is on: this build has none.
#[cfg(not(feature = "planted-bugs"))]
pub const fn planted() -> Option<Planted> {
    None
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
