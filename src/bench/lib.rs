//! Benchmarks: throughput, latency and resource use of a cluster.
//!
//! Each [`Workload`] is a workload. Load comes from closed loops: each of a number of workers begins its next operation
//! when the previous one is done. The latencies are therefore those at full load. Latency at a fixed rate is measured
//! by `keepalive`, and behaviour beyond the limit by `overload`.
//!
//! After a warm-up there are several consecutive repetitions. Each figure is shown as the median and the spread over
//! the repetitions, since a single value is unreliable on a shared machine. The CPU use of other processes is shown
//! too.
//!
//! The modules:
//!
//! * `target`: the measured cluster, started by the benchmark or already running;
//! * `pairs`, `read`, `keep_alive`, `failover`, `held`, `overload`: the workloads; `closed_loop` runs workers, `background`
//!   sets up background state;
//! * `recorder`: windows and counts; [`Latencies`], `usage`: the measured quantities;
//! * [`Figure`], [`Series`], [`BenchReport`]: the results; [`picture`]: a plot of latencies.
//!
//! ```no_run
//! # use std::time::Duration;
//! # async fn example() -> Result<(), lockkeeper::bench::BenchError> {
//! use lockkeeper::{
//!     bench::{Figure, Options, Timing, Where, Work, run},
//!     client::Client,
//! };
//!
//! let place = Where::Running(Client::builder("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101"));
//! let timing = Timing { warm_up: Duration::from_secs(2), duration: Duration::from_secs(5), repetitions: 3 };
//! let options = Options { work: Work::Uncontended { workers: vec![1, 64] }, beside: vec![], place, timing };
//! let report = run(options, Default::default(), &|_| ()).await?;
//! for series in &report.series {
//!     println!("{}: {:?} pairs a second", series.label(), series.spread(Figure::PerSecond));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Two things are not measured: load from several machines (start the program on each, with `--endpoints`), and the
//! latency at a fixed rate below the limit, except for renewals.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time, and its locks have names of their own")]

mod background;
mod closed_loop;
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

pub use background::Beside;
pub use closed_loop::{Worker, measure};
pub use failover::LeaderEnd;
pub use figures::{Figure, Figures, Series, SeriesCondition, Spread};
pub use held::Held;
pub use keep_alive::{KeepAliveOptions, Rate};
pub use latencies::Latencies;
pub use overload::Overload;
pub use report::BenchReport;
pub use target::Where;
pub use usage::{cpu_of_process, resident_bytes};

use background::Background;
use lockkeeper_client as client;
use lockkeeper_local::LocalError;
use target::MeasuredCluster;

/// What is measured.
#[derive(Clone, PartialEq, Debug)]
pub enum Workload {
    /// Workers acquire and release uncontended locks.
    Uncontended {
        /// The numbers of concurrent workers. Each is measured on its own.
        workers: Vec<usize>,
    },
    /// All workers acquire and release the same lock, so each operation is a hand-over.
    Contended {
        /// The numbers of concurrent workers. Each is measured on its own.
        workers: Vec<usize>,
    },
    /// Workers read held locks linearizably.
    Read {
        /// The numbers of concurrent workers. Each is measured on its own.
        workers: Vec<usize>,
    },
    /// Sessions are renewed.
    KeepAlive(KeepAliveOptions),
    /// The leader is ended in each repetition, and the time to the next completed pair is measured.
    Failover(LeaderEnd),
    /// Many locks are held, and memory and a restart are measured. There is always one repetition.
    Held(Held),
    /// More acquires are sent than the cluster can serve, to measure goodput and load shedding.
    Overload(Overload),
}

impl Workload {
    /// The name of the workload on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Uncontended { .. } => "uncontended",
            Self::Contended { .. } => "contended",
            Self::Read { .. } => "read",
            Self::KeepAlive(_) => "keepalive",
            Self::Failover(_) => "failover",
            Self::Held(_) => "held",
            Self::Overload(_) => "overload",
        }
    }

    /// What an operation and its latency mean.
    pub fn meaning(&self) -> &'static str {
        match self {
            Self::Uncontended { .. } => "an operation is a pair of acquire and release of an uncontended lock",
            Self::Contended { .. } => {
                "an operation is a hand-over of one contended lock; its latency is the wait for the grant"
            }
            Self::Read { .. } => "an operation is a linearizable read of a held lock",
            Self::KeepAlive(_) => "an operation is a renewal of a session",
            Self::Failover(LeaderEnd::Killed) => {
                "time from the kill of the leader to the next completed acquire and release"
            }
            Self::Failover(LeaderEnd::Silent) => {
                "time from the freeze of the leader to the next completed acquire and release"
            }
            Self::Held(_) => "an operation is an acquire; the locks stay held",
            Self::Overload(_) => "an operation is a pair of acquire and release of an uncontended lock",
        }
    }
}

/// How long is measured, and how often.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Timing {
    /// The duration of the warm-up.
    pub warm_up: Duration,
    /// The duration of each repetition.
    pub duration: Duration,
    /// The number of repetitions.
    pub repetitions: usize,
}

/// The options of a measurement.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The workload.
    pub work: Workload,
    /// The background states, each larger than the one before. They apply only to `Uncontended`, `Contended` and `Read`.
    /// An empty list means one case without background state.
    pub beside: Vec<Beside>,
    /// The cluster that is measured.
    pub place: Where,
    /// How long is measured, and how often.
    pub timing: Timing,
}

/// Why a measurement failed. A cluster that the benchmark started is stopped after any of these errors.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option is invalid. Nothing was started.
    #[error("{0}")]
    Invalid(String),
    /// The benchmark's own cluster did not start, or one of its nodes exited.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// The certificates of the benchmark's own cluster cannot be used.
    #[error(transparent)]
    Tls(#[from] client::TlsError),
    /// The client could not use the cluster.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A node refused a call.
    #[error("{}", .0.message())]
    Call(#[from] tonic::Status),
    /// Only a cluster that the benchmark started may be killed.
    #[error("failover kills nodes, so it runs only on a cluster of its own: leave out --endpoints")]
    OwnOnly,
    /// No operation succeeded in any repetition.
    #[error("no operation succeeded ({errors} failed): {first}")]
    Nothing {
        /// The number of failures.
        errors: u64,
        /// The first error.
        first: String,
    },
    /// The sessions could expire before their first renewal.
    #[error(
        "opening {sessions} sessions took {took:.1?}, more than half of their TTL of {ttl:?}: choose fewer --sessions or a longer --ttl"
    )]
    SlowToOpen {
        /// The number of sessions.
        sessions: usize,
        /// How long it took to open them.
        took: Duration,
        /// The TTL of the sessions.
        ttl: Duration,
    },
    /// Renewals are sent faster than the server takes them.
    #[error("renewals are due faster than the server takes them: choose a lower --rate or fewer --workers")]
    TooFast,
    /// The node ended a stream.
    #[error("the node ended a stream of renewals: it may no longer lead")]
    StreamEnded,
    /// There was no success within the limit.
    #[error("no leader, or no successful acquire, within {0:?}")]
    NoFailover(Duration),
    /// The restarted node did not catch up within the limit.
    #[error("the restarted node did not catch up within {0:?}")]
    NotRestarted(Duration),
    /// The measurement was stopped by a request.
    #[error("stopped")]
    Stopped,
}

/// Receives progress messages, one line each.
pub type Tell = dyn Fn(&str) + Send + Sync;

/// Runs a measurement. It fails if there is no figure at all; single failed operations are counted as a figure.
///
/// Cancel `stop` to end it early, with [`BenchError::Stopped`]. A dropped future leaves nothing running. Sessions in a
/// cluster that was already running expire.
pub async fn run(options: BenchOptions, stop: CancellationToken, tell: &Tell) -> Result<BenchReport, BenchError> {
    options.check()?;

    let BenchOptions { work, beside, place, timing } = &options;
    if let Where::Own { nodes, .. } = place {
        tell(&format!("starting a cluster of {nodes} on this machine"));
    }

    let started = stop.run_until_cancelled(MeasuredCluster::start(place)).await;
    let mut target = started.ok_or(BenchError::Stopped)??;

    let mut series = Vec::new();
    match work {
        Workload::Uncontended { workers } => {
            series = closed_loops(&target, Loop::Uncontended, workers, beside, timing, &stop, tell).await?;
        }
        Workload::Contended { workers } => {
            series = closed_loops(&target, Loop::Contended, workers, beside, timing, &stop, tell).await?;
        }
        Workload::Read { workers } => {
            series = closed_loops(&target, Loop::Read, workers, beside, timing, &stop, tell).await?;
        }
        Workload::KeepAlive(keep_alive) => {
            for case in keep_alive.cases() {
                series.push(told(keep_alive.measure(case, &target, timing, &stop).await?, tell));
            }
        }
        Workload::Failover(end) => series.push(failover::failover(&mut target, *end, timing, &stop, tell).await?),
        Workload::Held(held) => series.push(held.measure(&mut target, &stop, tell).await?),
        Workload::Overload(overload) => series = overload.measure(&target, timing, &stop, tell).await?,
    }

    Ok(BenchReport { options, series })
}

/// The operation of closed-loop workers.
#[derive(Clone, Copy)]
enum Loop {
    Uncontended,
    Contended,
    Read,
}

/// Measures each number of workers with each background state.
async fn closed_loops(
    target: &MeasuredCluster,
    work: Loop,
    workers: &[usize],
    beside: &[Beside],
    timing: &Timing,
    stop: &CancellationToken,
    tell: &Tell,
) -> Result<Vec<Series>, BenchError> {
    let mut background = Background::default();
    let cases = if beside.is_empty() { &[Beside::Nothing][..] } else { beside };

    let measured = async {
        let mut all = Vec::new();
        for &beside in cases {
            stop.run_until_cancelled(background.grow(target, beside)).await.ok_or(BenchError::Stopped)??;
            for &workers in workers {
                let mut series = match work {
                    Loop::Contended => pairs::contended(target, workers, timing, stop).await?,
                    Loop::Read => read::read(target, workers, timing, stop).await?,
                    Loop::Uncontended => pairs::uncontended(target, workers, timing, stop).await?,
                };
                if beside != Beside::Nothing {
                    series.conditions.push(("beside", SeriesCondition::Word(beside.to_string())));
                }
                all.push(told(series, tell));
            }
        }
        Ok(all)
    };

    let measured = measured.await;

    // The background is taken down also after an error.
    background.close().await;
    measured
}

/// Tells the throughput of a series, and returns the series.
fn told(series: Series, tell: &Tell) -> Series {
    if let Some(rate) = series.spread(Figure::PerSecond) {
        tell(&format!("{}: {:.0} per second", series.label(), rate.median));
    }
    series
}

/// The most workers of a measurement. With more of them, this program would be the bottleneck.
const WORKERS_MAX: usize = 10_000;
/// The most sessions of a measurement, for the same reason.
const SESSIONS_MAX: usize = 100_000;

impl BenchOptions {
    /// Refuses invalid options with a message that says what to choose.
    fn check(&self) -> Result<(), BenchError> {
        let problem = match &self.work {
            Workload::Uncontended { workers } | Workload::Contended { workers } | Workload::Read { workers } => {
                workers_problem(workers)
            }
            Workload::KeepAlive(keep_alive) if keep_alive.sessions > SESSIONS_MAX => {
                Some(format!("{} sessions exceed the maximum of {SESSIONS_MAX}: choose fewer", keep_alive.sessions))
            }
            Workload::KeepAlive(keep_alive) => keep_alive.problem().or_else(|| workers_problem(&keep_alive.in_flight)),
            Workload::Held(held) if held.locks == 0 => Some("0 locks: choose at least 1".to_owned()),
            Workload::Held(held) => workers_problem(&[held.workers]),
            Workload::Overload(overload) => overload.problem().or_else(|| workers_problem(&[overload.workers])),
            Workload::Failover(_) => match &self.place {
                Where::Running(_) => return Err(BenchError::OwnOnly),
                Where::Own { nodes, .. } if *nodes < 3 => {
                    Some(format!("{nodes} nodes have no quorum after a kill: choose at least 3"))
                }
                Where::Own { .. } => None,
            },
        };

        let sizes = self.beside.iter().map(|beside| match beside {
            Beside::Nothing => 0,
            Beside::Locks(locks) => *locks,
            Beside::Sessions(sessions) => *sessions,
        });

        let problem = problem.or_else(|| {
            (!sizes.is_sorted()).then(|| "the background state can only grow: give rising numbers".to_owned())
        });

        let problem = problem.or_else(|| {
            let too_many = self.beside.iter().any(|beside| matches!(beside, Beside::Sessions(n) if *n > SESSIONS_MAX));
            too_many.then(|| format!("background sessions exceed the maximum of {SESSIONS_MAX}: choose fewer"))
        });

        let timeless = self.timing.repetitions == 0 || self.timing.duration.is_zero();
        let problem = problem.or_else(|| {
            timeless.then(|| {
                "the measurement has no duration: choose at least 1 repetition and a duration above 0".to_owned()
            })
        });

        problem.map_or(Ok(()), |problem| Err(BenchError::Invalid(problem)))
    }
}

fn workers_problem(workers: &[usize]) -> Option<String> {
    let wrong = workers.iter().find(|&&workers| workers == 0 || workers > WORKERS_MAX);
    wrong.map(|wrong| format!("{wrong} workers: choose from 1 to {WORKERS_MAX}"))
}
