//! The steps of a command's way, and how long each takes.

use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

/// The upper bounds of durations in seconds, from a fast hand-over to a wait of minutes.
const SECONDS: [f64; 20] = [
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0, 300.0,
];

pub(crate) fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}

/// A step of the way from a command to its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommandStage {
    /// The oldest command of a batch waits in the proposer's queue. At the leader.
    Queue,
    /// A batch is with Raft: written, replicated, committed and applied. At the leader.
    Commit,
    /// Entries are written into the log, without its sync.
    Append,
    /// The log's disk makes them durable.
    Sync,
    /// A follower answers an append: its network and its disk. At the leader.
    Replicate,
    /// A group of committed entries is applied to the table.
    Apply,
    /// The replies of a batch are given to their callers. At the leader.
    Reply,
}

impl CommandStage {
    pub(crate) const ALL: [Self; 7] =
        [Self::Queue, Self::Commit, Self::Append, Self::Sync, Self::Replicate, Self::Apply, Self::Reply];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Commit => "commit",
            Self::Append => "append",
            Self::Sync => "sync",
            Self::Replicate => "replicate",
            Self::Apply => "apply",
            Self::Reply => "reply",
        }
    }
}

/// The number of upper bounds of a stage's durations, the infinite one included.
const STAGE_BOUNDS: usize = SECONDS.len() + 1;

/// How many durations of each stage were counted up to each upper bound, since the process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StageCounts([[u64; STAGE_BOUNDS]; CommandStage::ALL.len()]);

impl StageCounts {
    /// Reads the counts from the text of the stages' histograms, which is the only form in which the library gives them out.
    pub(crate) fn from_text(text: &str) -> Self {
        let mut counts = Self::default();
        for stage in CommandStage::ALL {
            let label = format!("stage=\"{}\"", stage.name());
            let is_bucket = |line: &&str| line.contains("_bucket{") && line.contains(&label);
            let values = text.lines().filter(is_bucket).filter_map(|line| line.rsplit(' ').next()?.parse().ok());
            // The text has the bounds of a histogram in ascending order.
            counts.0[stage as usize].iter_mut().zip(values).for_each(|(count, value)| *count = value);
        }
        counts
    }

    /// A quantile of the durations that were counted since `earlier`, interpolated between two bounds. Beyond the largest finite bound it
    /// is that bound. `None` if none was counted.
    pub fn quantile_since(&self, earlier: &Self, stage: CommandStage, quantile: f64) -> Option<Duration> {
        let counted = |bound: usize| {
            let before = earlier.0[stage as usize][bound];
            self.0[stage as usize][bound].saturating_sub(before)
        };
        let all = counted(STAGE_BOUNDS - 1);
        if all == 0 {
            return None;
        }

        #[expect(clippy::cast_precision_loss, reason = "a graph does not show it")]
        let exact = |count: u64| count as f64;
        let wanted = exact(all) * quantile;
        let mut below = 0.0;
        let mut counted_below = 0.0;
        for (bound, seconds) in SECONDS.into_iter().enumerate() {
            let up_to = exact(counted(bound));
            if up_to >= wanted && up_to > counted_below {
                let share = (wanted - counted_below) / (up_to - counted_below);
                return Some(Duration::from_secs_f64(below + (seconds - below) * share));
            }
            below = seconds;
            counted_below = up_to;
        }
        Some(Duration::from_secs_f64(below))
    }
}
