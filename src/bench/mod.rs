//! How fast a cluster is, and what it costs.
//!
//! Each [`Work`] is a question that people ask of a lock service. Load comes from closed loops: so many workers, each of which begins its
//! next operation when its last one is done. So the latencies are those of a service that is as busy as its clients can make it; how it
//! fares at a fixed rate is asked by `keepalive`, where sessions have one, and how beyond its limits, by `overload`.
//!
//! After a warm-up there are several repetitions, one after the other without a pause. What is shown of each figure is the median and
//! how far the repetitions lie apart: one number alone says little on a machine that does other things too. What those use is shown.
//!
//! How it is put together:
//!
//! * `target`: the cluster that is measured, one of its own or any other;
//! * `pairs`, `read`, `keep_alive`, `failover`, `held`, `overload`: the works; `closed_loop` lets workers work, `crowd` fills the table
//!   before;
//! * `recorder`: when operations count; [`Latencies`], `usage`: what is counted;
//! * [`Figure`], [`Series`], [`Report`]: what comes out; [`picture`]: latencies to look at.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn example() -> Result<(), lockkeeper::bench::BenchError> {
//! use lockkeeper::bench::{Figure, Options, Timing, Where, Work, run};
//!
//! let place = Where::Endpoints("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101".to_owned());
//! let timing = Timing { warm_up: Duration::from_secs(2), duration: Duration::from_secs(5), repetitions: 3 };
//! let report = run(Options { work: Work::Uncontended { workers: vec![1, 64] }, beside: vec![], place, timing }, Default::default(), &|_| ()).await?;
//! for series in &report.series {
//!     println!("{}: {:?} pairs a second", series.label(), series.spread(Figure::PerSecond));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Left out: load from several machines (start it on each, against `--endpoints`), and latencies at rates that are given, below what a
//! service can do.

mod closed_loop;
mod crowd;
mod failover;
mod figures;
mod held;
mod keep_alive;
mod latencies;
mod overload;
mod pairs;
pub mod picture;
mod read;
mod recorder;
mod report;
mod restart;
mod target;
mod usage;

use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use closed_loop::{Worker, measure};
pub use crowd::Beside;
pub use figures::{Condition, Figure, Figures, Series, Spread};
pub use held::Held;
pub use keep_alive::{KeepAlive, Rate};
pub use latencies::Latencies;
pub use overload::Overload;
pub use report::Report;
pub use target::Where;
pub use usage::resident_bytes;

use crate::{client, local::LocalError};
use crowd::Crowd;
use target::Target;

/// What is measured.
#[derive(Clone, PartialEq, Debug)]
pub enum Work {
    /// Acquire, then release, a lock that nobody else wants: pairs.
    Uncontended {
        /// How many do so at a time; one measurement for each number.
        workers: Vec<usize>,
    },
    /// All acquire and release the same lock: hand-overs.
    Contended {
        /// How many do so at a time; one measurement for each number.
        workers: Vec<usize>,
    },
    /// Who holds a lock? Linearizable reads.
    Read {
        /// How many ask at a time; one measurement for each number.
        workers: Vec<usize>,
    },
    /// Renewals of sessions.
    KeepAlive(KeepAlive),
    /// The leader is killed, once in each repetition: how long until the next pair is done.
    Failover,
    /// Many locks that are just held: memory, and the restart of a node. Once, whatever the repetitions.
    Held(Held),
    /// More acquires than can be served: what is served all the same, and how the rest is refused.
    Overload(Overload),
}

impl Work {
    /// On the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uncontended { .. } => "uncontended",
            Self::Contended { .. } => "contended",
            Self::Read { .. } => "read",
            Self::KeepAlive(_) => "keepalive",
            Self::Failover => "failover",
            Self::Held(_) => "held",
            Self::Overload(_) => "overload",
        }
    }

    /// What an operation is, and what its latency.
    pub fn meaning(&self) -> &'static str {
        match self {
            Self::Uncontended { .. } => {
                "an operation is a pair: acquire, then release, of a lock that nobody else wants"
            }
            Self::Contended { .. } => {
                "an operation is a hand-over of one lock that all want; its latency is the wait for it"
            }
            Self::Read { .. } => "an operation is a linearizable read of a lock that is held",
            Self::KeepAlive(_) => "an operation is a renewal of a session",
            Self::Failover => "from the kill of the leader to the next acquire and release that is done",
            Self::Held(_) => "an operation is an acquire; the locks stay held",
            Self::Overload(_) => "an operation is a pair: acquire, then release, of a lock that nobody else wants",
        }
    }
}

/// How long to measure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// Before anything counts.
    pub warm_up: Duration,
    /// Of each repetition.
    pub duration: Duration,
    /// How many.
    pub repetitions: usize,
}

/// All that there is to say about a measurement beforehand.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to measure.
    pub work: Work,
    /// What is in the table meanwhile, one case after the other: each more than the one before. With `Uncontended`, `Contended` and `Read`
    /// only; none is one case, with nothing.
    pub beside: Vec<Beside>,
    /// Of which cluster.
    pub place: Where,
    /// How long.
    pub timing: Timing,
}

/// Why there are no figures. A cluster of our own does not run any more after any of them.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// It was asked for what cannot be. Nothing was started.
    #[error("{0}")]
    Invalid(String),
    /// The cluster of our own did not start, or a node of it ended.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The cluster could not be used.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A node did not answer as it should.
    #[error("{}", .0.message())]
    Call(#[from] tonic::Status),
    /// Only a cluster of our own is killed.
    #[error("failover kills nodes: it is measured with a cluster of its own only, so leave --endpoints out")]
    OwnOnly,
    /// In all repetitions together nothing succeeded.
    #[error("no operation succeeded ({errors} failed): {first}")]
    Nothing {
        /// How many failed.
        errors: u64,
        /// Why the first did.
        first: String,
    },
    /// The sessions may expire before they are first renewed.
    #[error(
        "to open {sessions} sessions took {took:.1?}, too much of a TTL of {ttl:?}: choose fewer, or a longer --ttl"
    )]
    SlowToOpen {
        /// How many.
        sessions: usize,
        /// How long that took.
        took: Duration,
        /// Their TTL.
        ttl: Duration,
    },
    /// More is sent than goes through.
    #[error("renewals do not go through as fast as they are due: choose a lower --rate, or fewer --workers")]
    TooFast,
    /// By the node.
    #[error("the node ended a stream of renewals: it may no longer lead")]
    StreamEnded,
    /// In the time that there was.
    #[error("no node led, or no lock was to be had, within {0:?}")]
    NoFailover(Duration),
    /// In the time that there was.
    #[error("the node that was started again did not catch up within {0:?}")]
    NotRestarted(Duration),
    /// Somebody asked for it.
    #[error("stopped")]
    Stopped,
}

/// Hears how far it is, in a line at a time.
pub type Tell = dyn Fn(&str) + Send + Sync;

/// Measures. Fails when there is no figure to show; what fails now and then is a figure.
///
/// Cancel `stop` to end it early, in good order: with [`BenchError::Stopped`]. Dropped, it leaves nothing running; sessions in a cluster that
/// is not its own expire.
pub async fn run(options: Options, stop: CancellationToken, tell: &Tell) -> Result<Report, BenchError> {
    options.check()?;
    let Options { work, beside, place, timing } = &options;
    if let Where::Own { nodes, .. } = place {
        tell(&format!("starting a cluster of {nodes} on this machine"));
    }
    let started = stop.run_until_cancelled(Target::start(place)).await;
    let mut target = started.ok_or(BenchError::Stopped)??;
    let mut series = Vec::new();
    match work {
        Work::Uncontended { workers } => {
            series = closed_loops(&target, Loop::Uncontended, workers, beside, timing, &stop, tell).await?;
        }
        Work::Contended { workers } => {
            series = closed_loops(&target, Loop::Contended, workers, beside, timing, &stop, tell).await?;
        }
        Work::Read { workers } => {
            series = closed_loops(&target, Loop::Read, workers, beside, timing, &stop, tell).await?;
        }
        Work::KeepAlive(keep_alive) => {
            for case in keep_alive.cases() {
                series.push(told(keep_alive.measure(case, &target, timing, &stop).await?, tell));
            }
        }
        Work::Failover => series.push(failover::failover(&mut target, timing, &stop, tell).await?),
        Work::Held(held) => series.push(held.measure(&mut target, &stop, tell).await?),
        Work::Overload(overload) => series = overload.measure(&target, timing, &stop, tell).await?,
    }
    Ok(Report { options, series })
}

/// What workers do again and again.
#[derive(Clone, Copy)]
enum Loop {
    Uncontended,
    Contended,
    Read,
}

/// Each number of workers beside each crowd.
async fn closed_loops(
    target: &Target,
    work: Loop,
    workers: &[usize],
    beside: &[Beside],
    timing: &Timing,
    stop: &CancellationToken,
    tell: &Tell,
) -> Result<Vec<Series>, BenchError> {
    let mut crowd = Crowd::default();
    let cases = if beside.is_empty() { &[Beside::Nothing][..] } else { beside };
    let measured = async {
        let mut all = Vec::new();
        for &beside in cases {
            stop.run_until_cancelled(crowd.grow(target, beside)).await.ok_or(BenchError::Stopped)??;
            for &workers in workers {
                let mut series = match work {
                    Loop::Contended => pairs::contended(target, workers, timing, stop).await?,
                    Loop::Read => read::read(target, workers, timing, stop).await?,
                    Loop::Uncontended => pairs::uncontended(target, workers, timing, stop).await?,
                };
                if beside != Beside::Nothing {
                    series.conditions.push(("beside", Condition::Word(beside.to_string())));
                }
                all.push(told(series, tell));
            }
        }
        Ok(all)
    };
    let measured = measured.await;
    crowd.close().await;
    measured
}

/// Says what came out of one series, for those who wait for the next.
fn told(series: Series, tell: &Tell) -> Series {
    if let Some(rate) = series.spread(Figure::PerSecond) {
        tell(&format!("{}: {:.0} a second", series.label(), rate.median));
    }
    series
}

/// So many workers, or sessions, and no more: beyond that, it is this program that is measured.
const WORKERS_MAX: usize = 10_000;
/// See above.
const SESSIONS_MAX: usize = 100_000;

impl Options {
    /// Refuses what cannot be measured.
    fn check(&self) -> Result<(), BenchError> {
        let problem = match &self.work {
            Work::Uncontended { workers } | Work::Contended { workers } | Work::Read { workers } => problem_of(workers),
            Work::KeepAlive(keep_alive) if keep_alive.sessions > SESSIONS_MAX => {
                Some(format!("{} sessions are too many: at most {SESSIONS_MAX}", keep_alive.sessions))
            }
            Work::KeepAlive(keep_alive) => keep_alive.problem().or_else(|| problem_of(&keep_alive.in_flight)),
            Work::Held(held) if held.locks == 0 => Some("no locks: at least one must be held".to_owned()),
            Work::Held(held) => problem_of(&[held.workers]),
            Work::Overload(overload) => overload.problem().or_else(|| problem_of(&[overload.workers])),
            Work::Failover => match &self.place {
                Where::Endpoints(_) => return Err(BenchError::OwnOnly),
                Where::Own { nodes, .. } if *nodes < 3 => Some(format!("{nodes} nodes survive no kill: at least 3 do")),
                Where::Own { .. } => None,
            },
        };
        let sizes = self.beside.iter().map(|beside| match beside {
            Beside::Nothing => 0,
            Beside::Locks(locks) => *locks,
            Beside::Sessions(sessions) => *sessions,
        });
        let problem = problem
            .or_else(|| (!sizes.is_sorted()).then(|| "what is beside only grows: let the numbers rise".to_owned()));
        let problem = problem.or_else(|| {
            let too_many = self.beside.iter().any(|beside| matches!(beside, Beside::Sessions(n) if *n > SESSIONS_MAX));
            too_many.then(|| format!("too many sessions beside: at most {SESSIONS_MAX}"))
        });
        let timeless = self.timing.repetitions == 0 || self.timing.duration.is_zero();
        let problem = problem.or_else(|| timeless.then(|| "no time to measure in".to_owned()));
        problem.map_or(Ok(()), |problem| Err(BenchError::Invalid(problem)))
    }
}

fn problem_of(workers: &[usize]) -> Option<String> {
    let wrong = workers.iter().find(|&&workers| workers == 0 || workers > WORKERS_MAX);
    wrong.map(|wrong| format!("{wrong} workers: there are 1 to {WORKERS_MAX}"))
}
