//! Planted bugs: bugs on purpose, to test the tests.
//!
//! A search that finds nothing proves something only if it would find a bug that is there. Each planted bug is a mistake that a lock
//! service could have, and that others have had; runs under faults and simulations must detect each of them. They exist only in builds
//! with the cargo feature `planted-bugs` and with debug assertions, so no release has them: in all others, [`Planted::is_on`] is `false`
//! at compile time.
//!
//! At most one is on in a process: the one that the environment variable `LOCKKEEPER_PLANTED_BUG` names, or the one chosen by `choose`,
//! for tests with many nodes in one process.
//!
//! The bugs are in `bugs`, by how they are found. `tests/PROOF.md` shows which layer of the tests convicts which of them. `reached` counts
//! the limits that a run has reached, for the same reason.

mod bugs;
#[cfg(test)]
mod proof;
mod reached;

use std::{
    env,
    sync::{
        OnceLock,
        atomic::{AtomicU8, Ordering},
    },
};

pub use bugs::Planted;
pub use reached::NodeLimit;

/// Whether this build can have planted bugs. A release cannot, whatever its features are.
pub const CAN_HAVE_BUGS: bool = cfg!(all(feature = "planted-bugs", debug_assertions));

/// The version of this build. A build that can have planted bugs is marked, so it cannot be taken for a release.
pub const VERSION: &str =
    if CAN_HAVE_BUGS { concat!(env!("CARGO_PKG_VERSION"), "+planted-bugs") } else { env!("CARGO_PKG_VERSION") };

impl Planted {
    /// Whether it is one of [`STAGED`](Self::STAGED).
    pub fn is_staged(self) -> bool {
        Self::STAGED.contains(&self)
    }

    /// Whether it is one of [`SEEDED`](Self::SEEDED).
    pub fn is_seeded(self) -> bool {
        Self::SEEDED.contains(&self)
    }

    /// Whether it is one of [`SUITES`](Self::SUITES).
    pub fn is_found_by_suites(self) -> bool {
        Self::SUITES.contains(&self)
    }

    /// The bug with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|planted| planted.name() == name)
    }

    /// Whether this bug is on in this process. It costs a relaxed load, and nothing in a build that can have no bugs.
    pub fn is_on(self) -> bool {
        CAN_HAVE_BUGS && chosen() == self as u8
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

/// The environment variable by which a program pretends to be an earlier one: see [`pretended_version`].
pub const PRETENDED_VERSION: &str = "LOCKKEEPER_PRETENDED_VERSION";

/// The highest cluster version that this process says it supports, if [`PRETENDED_VERSION`] is set: a run with two versions of the program
/// needs no second build then. Only in builds that can have bugs. A value that is not a number ends the process, because a node with the
/// highest version would raise that of its cluster.
pub fn pretended_version() -> Option<u32> {
    if !CAN_HAVE_BUGS {
        return None;
    }

    let text = env::var(PRETENDED_VERSION).ok().filter(|text| !text.is_empty())?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{PRETENDED_VERSION} is {text:?}; give the number of a cluster version")),
    )
}

/// The number of the chosen bug, [`NONE`], or [`BY_ENVIRONMENT`] until somebody asks.
static CHOSEN: AtomicU8 = AtomicU8::new(BY_ENVIRONMENT);
const NONE: u8 = u8::MAX;
const BY_ENVIRONMENT: u8 = u8::MAX - 1;
const _: () = assert!(Planted::ALL.len() < BY_ENVIRONMENT as usize);

/// Turns this bug on, or all off, in the whole process, whatever the environment says. Without effect in a build that can have none.
pub fn choose(planted: Option<Planted>) {
    CHOSEN.store(planted.map_or(NONE, |planted| planted as u8), Ordering::Relaxed);
}

/// The bug that is on, if this build can have any. An unknown name ends the process: otherwise a search without a bug would look like one
/// that found none.
pub fn planted() -> Option<Planted> {
    if !CAN_HAVE_BUGS {
        return None;
    }
    Planted::ALL.get(usize::from(chosen())).copied()
}

fn chosen() -> u8 {
    match CHOSEN.load(Ordering::Relaxed) {
        BY_ENVIRONMENT => choose_by_environment(),
        chosen => chosen,
    }
}

#[cold]
fn choose_by_environment() -> u8 {
    let name = env::var("LOCKKEEPER_PLANTED_BUG").ok().filter(|name| !name.is_empty());
    let named = name.map(|name| {
        Planted::named(&name).unwrap_or_else(|| {
            let known = Planted::ALL.map(Planted::name).join(", ");
            panic!("LOCKKEEPER_PLANTED_BUG names an unknown bug {name:?}; the known ones are {known}")
        })
    });

    // Another thread may have chosen one meanwhile: its choice stays.
    let number = named.map_or(NONE, |planted| planted as u8);
    CHOSEN
        .compare_exchange(BY_ENVIRONMENT, number, Ordering::Relaxed, Ordering::Relaxed)
        .map_or_else(|chosen| chosen, |_| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own() {
        for planted in Planted::ALL {
            assert_eq!(Planted::named(planted.name()), Some(planted));
            assert_eq!(Planted::ALL[planted as usize], planted);
            assert!(planted.effect().ends_with('.'));
        }
        assert_eq!(Planted::named("none"), None);
    }
}
