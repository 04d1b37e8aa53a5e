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
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::AckBeforeSync,
        Self::TokenNotInSnapshot,
        Self::RepliesNotInSnapshot,
        Self::QueueNotInSnapshot,
        Self::ReadWithoutIndex,
        Self::WaitLostOnDisconnect,
        Self::ReleaseIgnoresToken,
        Self::StampFromWallClock,
        Self::EarlyExpiry,
        Self::ReaderOvertakes,
        Self::NoExpiry,
    ];

    /// As the environment variable names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AckBeforeSync => "ack-before-sync",
            Self::TokenNotInSnapshot => "token-not-in-snapshot",
            Self::RepliesNotInSnapshot => "replies-not-in-snapshot",
            Self::QueueNotInSnapshot => "queue-not-in-snapshot",
            Self::ReadWithoutIndex => "read-without-index",
            Self::WaitLostOnDisconnect => "wait-lost-on-disconnect",
            Self::ReleaseIgnoresToken => "release-ignores-token",
            Self::StampFromWallClock => "stamp-from-wall-clock",
            Self::EarlyExpiry => "early-expiry",
            Self::ReaderOvertakes => "reader-overtakes",
            Self::NoExpiry => "no-expiry",
        }
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
