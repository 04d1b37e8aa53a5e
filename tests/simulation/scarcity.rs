//! Small limits: a seed draws the capacity of the table, and each start of a node the limits that it writes into the log while it leads.
//!
//! They are small enough that [`greed`](crate::greed) reaches them, and large enough for the rest of the workload.

use lockkeeper::machine::{Limits, TableCapacity};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

/// What a run has of everything.
#[derive(Clone, Debug)]
pub(crate) struct Scarcity {
    pub(crate) capacity: TableCapacity,
    limits: Limits,
}

impl Scarcity {
    /// Each limit is small in about two of three runs.
    pub(crate) fn draw(random: &mut StdRng) -> Self {
        let real = TableCapacity::REAL;
        let mut small = |least: usize, most: usize, real: usize| {
            if random.random_range(0..3) == 0 { real } else { random.random_range(least..=most) }
        };
        let replies_per_session = small(24, 60, real.replies_per_session);
        let capacity = TableCapacity {
            sessions: small(60, 120, real.sessions),
            waiters: small(60, 150, real.waiters),
            locks: small(100, 250, real.locks),
            entries: small(70, 120, real.entries),
            temporary_entries: small(3, 30, real.temporary_entries),
            events: small(20, 500, real.events),
            event_bytes: small(4_000, 300_000, real.event_bytes),
            waits_per_session: small(10, 40, real.waits_per_session),
            replies_per_session,
            all_replies_per_session: replies_per_session.saturating_add(small(10, 40, 1_024)),
            taken_per_session: small(3, 20, real.taken_per_session),
        };
        let usual = Limits::default();
        let limits = Limits {
            work: *[150, 300, usual.work].choose(random).expect("it is not empty"),
            grants_per_session: *[20, 60, usual.grants_per_session].choose(random).expect("it is not empty"),
            table_bytes: *[500_000, 1_500_000, usual.table_bytes].choose(random).expect("it is not empty"),
            session_bytes: *[20_000, 100_000, usual.session_bytes].choose(random).expect("it is not empty"),
        };
        Self { capacity, limits }
    }

    /// The limits of a node from one of its starts on: up to a third less or more. So a change of the leader changes them, and the table
    /// may be beyond them.
    pub(crate) fn limits(&self, random: &mut StdRng) -> Limits {
        let mut about = |limit: usize| limit / 3 * random.random_range(2..=4);
        let Limits { work, grants_per_session, table_bytes, session_bytes } = self.limits;
        Limits {
            work: about(work).max(1),
            grants_per_session: about(grants_per_session),
            table_bytes: about(table_bytes),
            session_bytes: about(session_bytes),
        }
    }
}
