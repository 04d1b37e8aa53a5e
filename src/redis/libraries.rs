//! What clients do, by the library that they are written with: for metrics, so the names are few and none is a client's own.
//!
//! Most libraries say their names by CLIENT SETINFO, some with more behind them: `redis-py(django-redis_v7.0.0)`, `go-redis(,go1.24.4)`.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The names that libraries say, in small letters, and those of the clients that say none or another one.
const NAMES: [&str; 20] = [
    UNTOLD,
    OTHER,
    "coredis",
    "fred",
    "go-redis",
    "hiredis",
    "ioredis",
    "jedis",
    "lettuce",
    "node-redis",
    "nredisstack",
    "phpredis",
    "predis",
    "redis-client",
    "redis-py",
    "redis-rs",
    "redisson",
    "rueidis",
    "se.redis",
    "valkey-py",
];
/// The client has said no name, or not yet.
const UNTOLD: &str = "untold";
/// The client has said another name.
const OTHER: &str = "other";
/// The place of [`OTHER`].
const OTHER_PLACE: usize = 1;

/// What the clients of one library do at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryUse {
    /// The library: one of a fixed set of names, or `other`, or `untold` for clients that have said no name.
    pub library: &'static str,
    /// Number of their connections that are open.
    pub connections: u64,
    /// Number of the commands that they have sent, since the port was made.
    pub commands: u64,
    /// Number of the replies that were errors. Without NOSCRIPT, which tells a client to send a script.
    pub errors: u64,
}

/// A library, by its place among the [`NAMES`].
#[derive(Debug, Default)]
pub(crate) struct ToldLibrary(AtomicUsize);

/// The counts of all libraries.
#[derive(Debug, Default)]
pub(crate) struct LibraryCounts([LibraryCount; NAMES.len()]);

#[derive(Debug, Default)]
struct LibraryCount {
    connections: AtomicU64,
    commands: AtomicU64,
    errors: AtomicU64,
}

impl ToldLibrary {
    fn place(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl LibraryCounts {
    /// A connection begins. Its client has said nothing yet.
    pub(crate) fn enter(&self) -> ToldLibrary {
        let told = ToldLibrary::default();
        self.0[told.place()].connections.fetch_add(1, Ordering::Relaxed);
        told
    }

    /// The client of a connection has said the name of its library.
    pub(crate) fn tell(&self, told: &ToldLibrary, said: &str) {
        let place = place(said);
        let before = told.0.swap(place, Ordering::Relaxed);
        self.0[place].connections.fetch_add(1, Ordering::Relaxed);
        self.0[before].connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// A connection ends.
    pub(crate) fn leave(&self, told: &ToldLibrary) {
        self.0[told.place()].connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts commands.
    pub(crate) fn note_commands(&self, told: &ToldLibrary, count: usize) {
        self.0[told.place()].commands.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts a reply that is an error.
    pub(crate) fn note_error(&self, told: &ToldLibrary) {
        self.0[told.place()].errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The libraries of which there was a connection or a command.
    pub(crate) fn used(&self) -> Vec<LibraryUse> {
        let uses = NAMES.iter().zip(&self.0).map(|(library, count)| LibraryUse {
            library,
            connections: count.connections.load(Ordering::Relaxed),
            commands: count.commands.load(Ordering::Relaxed),
            errors: count.errors.load(Ordering::Relaxed),
        });
        uses.filter(|it| it.connections + it.commands > 0).collect()
    }
}

/// The place of the library that a client names.
fn place(said: &str) -> usize {
    if said.is_empty() {
        return 0;
    }
    let name = said.split(['(', ',', ':', '/']).next().unwrap_or_default().to_ascii_lowercase();
    NAMES.iter().position(|known| *known == name).filter(|place| *place > OTHER_PLACE).unwrap_or(OTHER_PLACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_chooses_no_name_of_its_own() {
        let name = |said| NAMES[place(said)];
        assert_eq!(name("redis-py"), "redis-py");
        assert_eq!(name("redis-py(django-redis_v7.0.0)"), "redis-py");
        assert_eq!(name("go-redis(,go1.24.4)"), "go-redis");
        assert_eq!(name("SE.Redis"), "se.redis");
        assert_eq!(name(""), UNTOLD);
        for other in ["mine", "untold", "other", "redis-py2", "(redis-py)"] {
            assert_eq!(name(other), OTHER, "{other}");
        }
    }

    #[test]
    fn a_connection_counts_for_one_library_at_a_time() {
        let counts = LibraryCounts::default();
        let connections = |counts: &LibraryCounts| {
            counts.used().iter().map(|it| (it.library, it.connections, it.commands, it.errors)).collect::<Vec<_>>()
        };
        let told = counts.enter();
        counts.note_commands(&told, 1);
        counts.tell(&told, "ioredis");
        counts.note_commands(&told, 3);
        counts.note_error(&told);
        assert_eq!(connections(&counts), [(UNTOLD, 0, 1, 0), ("ioredis", 1, 3, 1)]);
        counts.tell(&told, "ioredis");
        counts.tell(&told, "mine");
        assert_eq!(connections(&counts), [(UNTOLD, 0, 1, 0), (OTHER, 1, 0, 0), ("ioredis", 0, 3, 1)]);
        counts.leave(&told);
        assert!(counts.used().iter().all(|it| it.connections == 0));
    }
}
