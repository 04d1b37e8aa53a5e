//! Small limits: a seed draws the capacity of the table, and each start of a node the limits that it writes into the log while it leads,
//! and those for what its clients may have under way.
//!
//! They are small enough that [`greed`](crate::greed) reaches them, and large enough for the rest of the workload.

use lockkeeper::{
    machine::{Limits, TableCapacity},
    raft::proposals::{LargeCommandLimits, proposer::ProposalLimits},
    server::node::{
        ConnectionLimits, DynamoLimits, LongReadLimits, NodeLimits, PipelineLimits, RedisLimits, UnreadAnswerLimits,
        WaitLimits, ZookeeperLimits,
    },
};
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
        let mut small = |least, most, real| small(random, least, most, real);
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

/// A limit that is small at about two of three times.
fn small(random: &mut StdRng, least: usize, most: usize, real: usize) -> usize {
    if random.random_range(0..3) == 0 { real } else { random.random_range(least..=most) }
}

/// The limits of a node, from one of its starts on, for what its clients may have under way. Each is small at about two of three starts:
/// few requests at one moment reach it. All let a request alone pass, so that a client which tries again is served.
pub(crate) fn node_limits(random: &mut StdRng) -> NodeLimits {
    let mut small = |least, most, real| small(random, least, most, real);
    let real = ProposalLimits::REAL;
    let large = LargeCommandLimits {
        small_units: small(1, 64, real.large.small_units),
        small_bytes: small(200, 5_000, real.large.small_bytes),
        units_under_way: small(100, 4_000, real.large.units_under_way),
        bytes_under_way: small(4_000, 60_000, real.large.bytes_under_way),
        places: small(2, 12, real.large.places),
    };
    let queue = small(16, 48, real.queue);
    let proposals = ProposalLimits {
        queue,
        reserved: queue / 4,
        batch_commands: small(4, 24, real.batch_commands),
        batch_bytes: small(1_000, 20_000, real.batch_bytes),
        batch_units: small(50, 2_000, real.batch_units),
        large,
    };

    let real = PipelineLimits::REAL;
    let pipelines = PipelineLimits {
        // The waits of a client of the library share a stream. One that is refused there is tried again, and must find a place.
        waits: small(24, 48, real.waits),
        requests: small(1, 12, real.requests),
        small_bytes: small(600, 1_024, real.small_bytes),
        waiting_bytes: small(8_000, 40_000, real.waiting_bytes),
        request_bytes: small(1_000, 12_000, real.request_bytes),
        node_bytes: small(10_000, 60_000, real.node_bytes),
    };
    let real = WaitLimits::REAL;
    let waits = WaitLimits {
        // One client has at least what it may have in a pipeline.
        at_node: small(100, 250, real.at_node),
        passed_on: small(16, 32, real.passed_on),
        passed_on_for_one: small(16, 32, real.passed_on_for_one),
        // A client that lost its connections needs a few.
        calls_per_wait: small(4, 8, real.calls_per_wait),
    };
    let real = LongReadLimits::REAL;
    let long_reads =
        LongReadLimits { reads: small(2, 8, real.reads), visits_per_turn: small(3, 40, real.visits_per_turn) };
    let real = UnreadAnswerLimits::CLIENTS;
    let unread = UnreadAnswerLimits {
        // A block of a backup is an answer of 128 KiB.
        connection: small(150_000, 300_000, real.connection),
        address: small(170_000, 400_000, real.address),
        node: small(190_000, 450_000, real.node),
        ..real
    };
    NodeLimits {
        proposals,
        pipelines,
        waits,
        long_reads,
        unread,
        dynamodb: dynamodb_limits(random),
        redis: redis_limits(random),
        zookeeper: zookeeper_limits(random),
    }
}

/// The limits of the port for Redis' clients. Those that take locks, wait or subscribe have far less than the least of these.
fn redis_limits(random: &mut StdRng) -> RedisLimits {
    let mut small = |least, most, real| small(random, least, most, real);
    let real = RedisLimits::REAL;
    let connection = ConnectionLimits {
        queued: small(8, 24, real.connection.queued),
        queued_bytes: small(2_000, 8_000, real.connection.queued_bytes),
        watched: small(4, 16, real.connection.watched),
        watched_bytes: small(600, 2_000, real.connection.watched_bytes),
        topics: small(6, 16, real.connection.topics),
    };
    RedisLimits {
        requests_bytes: small(60_000, 150_000, real.requests_bytes),
        replies_bytes: small(60_000, 400_000, real.replies_bytes),
        connection_replies_bytes: small(2_000, 40_000, real.connection_replies_bytes),
        connection,
    }
}

/// The limits of the port for ZooKeeper's clients. Those that take locks have far less than the least of these.
fn zookeeper_limits(random: &mut StdRng) -> ZookeeperLimits {
    let mut small = |least, most, real| small(random, least, most, real);
    let real = ZookeeperLimits::REAL;
    ZookeeperLimits {
        requests_bytes: small(60_000, 150_000, real.requests_bytes),
        replies_bytes: small(60_000, 400_000, real.replies_bytes),
        connection_replies_bytes: small(2_000, 40_000, real.connection_replies_bytes),
        connection_watches: small(8, 24, real.connection_watches),
        watches_bytes: small(40_000, 100_000, real.watches_bytes),
    }
}

/// The limits of the port for DynamoDB's clients. The requests of lock clients do not count.
fn dynamodb_limits(random: &mut StdRng) -> DynamoLimits {
    let mut small = |least, most, real| small(random, least, most, real);
    let real = DynamoLimits::REAL;
    DynamoLimits {
        all_bodies_bytes: small(10_000, 60_000, real.all_bodies_bytes),
        address_bodies_bytes: small(10_000, 40_000, real.address_bodies_bytes),
        all_decoded_bytes: small(100_000, 600_000, real.all_decoded_bytes),
        address_decoded_bytes: small(100_000, 400_000, real.address_decoded_bytes),
    }
}
