//! The parameters that a seed determines before a run.

use std::time::Duration;

use crate::{node::Pace, scarcity::Scarcity};
use lockkeeper::config::RaftConfig;
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) nodes: u64,
    pub(crate) clients: u32,
    /// Time in which faults begin.
    pub(crate) duration: Duration,
    /// Minimal and maximal message latency.
    pub(crate) latency: (Duration, Duration),
    /// Minimal and maximal duration of a sync, milliseconds.
    pub(crate) sync_ms: (u64, u64),
    pub(crate) raft: RaftConfig,
    pub(crate) scarcity: Scarcity,
    /// What one unit of work takes, nanoseconds.
    pub(crate) unit_ns: u64,
    /// Whether the keyspace is watched, after the faults, for longer than a watch may take to report a change. It takes simulated time, so
    /// that not each run has it.
    pub(crate) is_watched_for_long: bool,
    /// Whether a majority of the last cluster is lost for good at the end.
    pub(crate) loses_majority: bool,
    /// The size at which an audit file is followed by another one, bytes, if the nodes write audit trails.
    pub(crate) audit_file_bytes: Option<u64>,
}

impl Plan {
    /// How fast a node is. Its clock may be as much faster or slower as clients allow for.
    pub(crate) fn pace(&self, node: u64) -> Pace {
        let mut random = StdRng::seed_from_u64(self.seed.wrapping_mul(77).wrapping_add(node));
        Pace { rate: random.random_range(0.99..=1.01), unit_ns: self.unit_ns }
    }

    pub(crate) fn of(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let latency_ms_max = *[2, 4, 10, 25].choose(&mut random).expect("it is not empty");
        let sync_ms_max = *[1, 3, 8, 20].choose(&mut random).expect("it is not empty");
        let raft = RaftConfig {
            snapshot_entries: *[20, 60, 150, 2_000].choose(&mut random).expect("it is not empty"),
            keep_entries: *[0, 5, 20, 100].choose(&mut random).expect("it is not empty"),
            election_timeout_ms_min: *[230, 300].choose(&mut random).expect("it is not empty"),
            ..RaftConfig::default()
        };
        Self {
            seed,
            nodes: if random.random_range(0..10) < 6 { 3 } else { 5 },
            clients: random.random_range(2..=4),
            duration: Duration::from_secs(random.random_range(60..75)),
            latency: (Duration::from_millis(1), Duration::from_millis(latency_ms_max)),
            sync_ms: (0, sync_ms_max),
            raft,
            scarcity: Scarcity::draw(&mut random),
            unit_ns: *[100, 300, 1_000, 3_000, 10_000].choose(&mut random).expect("it is not empty"),
            is_watched_for_long: random.random_range(0..4) == 0,
            // Its own generator: what else a seed draws stays as it was.
            loses_majority: StdRng::seed_from_u64(seed ^ 0x4ec0).random_bool(0.5),
            audit_file_bytes: draw_audit_file_bytes(seed),
        }
    }
}

/// Half of the runs have audit trails. It has its own generator, too.
fn draw_audit_file_bytes(seed: u64) -> Option<u64> {
    let mut random = StdRng::seed_from_u64(seed ^ 0xa0d1);
    let is_audited = random.random_bool(0.5);
    let file_bytes = *[4 << 10, 64 << 10, 64 << 20].choose(&mut random).expect("it is not empty");
    is_audited.then_some(file_bytes)
}
