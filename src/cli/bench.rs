//! `bench`: how fast a cluster is, and what it costs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueHint};
use tokio_util::sync::CancellationToken;

use super::{
    Exit, Failure, complain,
    output::{Format, Output, Table, print, print_document},
    signals::Signals,
};
use crate::bench::{
    BenchError, Beside, Held, KeepAlive, Options, Overload, Rate, Report, Timing, Where, Work, picture, run,
};

/// Measures how fast a cluster is, and what it costs.
///
/// Without --endpoints, a cluster of its own on this machine, with its default settings, in a temporary directory (TMPDIR says
/// where): ended and removed afterwards. Shows medians and, in brackets, how far the repetitions lie apart. Ctrl-C ends it early.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper bench uncontended --workers 1,64 --svg latency.svg")]
pub(super) struct Bench {
    #[command(subcommand)]
    work: WorkWanted,
}

#[derive(Subcommand, Debug)]
enum WorkWanted {
    /// Acquires and releases, each worker its own locks.
    Uncontended(Loops),
    /// Acquires and releases of one lock that all want: hand-overs, and how fair they are.
    Contended(Loops),
    /// Linearizable reads of locks that are held.
    Read(Loops),
    /// Renewals of sessions.
    #[command(name = "keepalive")]
    KeepAlive(KeepAliveWanted),
    /// Kills the leader: how long until the next lock is acquired and released.
    Failover(FailoverWanted),
    /// Many locks that are just held: what memory they take, and how long a restart.
    Held(HeldWanted),
    /// Sends more acquires than can be served: what is served all the same, and how the rest is refused.
    Overload(OverloadWanted),
}

#[derive(Args, Debug)]
struct Loops {
    /// How many work at a time, each with a session of its own; one measurement for each number.
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "1,16,64,256")]
    workers: Vec<usize>,
    /// Locks that are held meanwhile, rising; all of that for each number.
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with = "beside_sessions")]
    beside_locks: Vec<usize>,
    /// Sessions that are renewed meanwhile, rising; all of that for each number.
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    beside_sessions: Vec<usize>,
    #[command(flatten)]
    timing: Windows,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct OverloadWanted {
    /// Workers that find the best rate.
    #[arg(short, long, value_name = "N", default_value_t = 256)]
    workers: usize,
    /// How many times the best rate to send.
    #[arg(long, value_name = "N", default_value_t = 10)]
    factor: u32,
    #[command(flatten)]
    timing: Windows,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct KeepAliveWanted {
    /// How many sessions.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    sessions: usize,
    /// How long each lives without a renewal.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::arguments::duration)]
    ttl: Duration,
    /// Streams that the sessions share. As many as sessions: each its own, as the client library has it.
    #[arg(long, value_name = "N", default_value_t = 16)]
    streams: usize,
    /// Renewals a second, or `max`: as many as go; one measurement for each.
    #[arg(long, value_name = "N|max,…", value_delimiter = ',', default_value = "3000,max")]
    rate: Vec<Rate>,
    /// With `max`: renewals under way at a time.
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "8192")]
    workers: Vec<usize>,
    #[command(flatten)]
    timing: Windows,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct FailoverWanted {
    /// How many leaders to kill, one after the other.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = repetitions)]
    repetitions: usize,
    /// How long to work before each kill.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::arguments::duration)]
    warm_up: Duration,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct HeldWanted {
    /// How many locks to hold.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000)]
    locks: usize,
    /// How many acquire them.
    #[arg(short, long, value_name = "N", default_value_t = 256)]
    workers: usize,
    #[command(flatten)]
    common: Common,
}

/// When to measure.
#[derive(Args, Debug)]
struct Windows {
    /// How long to work before anything counts.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::arguments::duration)]
    warm_up: Duration,
    /// How long each repetition lasts.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = super::arguments::duration)]
    duration: Duration,
    /// How often to measure.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = repetitions)]
    repetitions: usize,
}

/// Where to measure, and where to put what comes out.
#[derive(Args, Debug)]
struct Common {
    /// A cluster that runs: host:port, with commas between. CPU and memory of its nodes are then not known.
    // Not from the environment: load is for clusters that are named on purpose.
    #[arg(long, value_name = "HOST:PORT,…")]
    endpoints: Option<String>,
    /// Nodes of the cluster of its own.
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "endpoints", value_parser = clap::value_parser!(u8).range(1..=7))]
    nodes: u8,
    /// Where to draw the latencies, by quantile.
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

const REPETITIONS_MAX: usize = 1_000;

fn repetitions(text: &str) -> Result<usize, String> {
    let wrong = || format!("neither of 1 to {REPETITIONS_MAX}");
    text.parse().ok().filter(|count| (1..=REPETITIONS_MAX).contains(count)).ok_or_else(wrong)
}

impl Bench {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let beside = self.work.beside();
        let (work, timing, common) = self.work.split();
        let place = match common.endpoints {
            Some(endpoints) => Where::Endpoints(endpoints),
            None => Where::Own { program: env::current_exe()?, nodes: common.nodes.into() },
        };
        if let Some(file) = &common.svg {
            // Before minutes are spent on what could then not be kept.
            write(file, "")?;
        }
        let report = watched(Options { work, beside, place, timing }).await?;
        if let Some(file) = &common.svg {
            write(file, &picture::svg(&report))?;
        }
        match common.output.output {
            Format::Text => print(&text(&report))?,
            Format::Json => print_document(&report.document())?,
        }
        Ok(Exit::Success)
    }
}

impl WorkWanted {
    fn beside(&self) -> Vec<Beside> {
        let (Self::Uncontended(loops) | Self::Contended(loops) | Self::Read(loops)) = self else { return Vec::new() };
        let locks = loops.beside_locks.iter().map(|&locks| Beside::Locks(locks));
        locks.chain(loops.beside_sessions.iter().map(|&sessions| Beside::Sessions(sessions))).collect()
    }

    fn split(self) -> (Work, Timing, Common) {
        match self {
            Self::Uncontended(Loops { workers, timing, common, .. }) => {
                (Work::Uncontended { workers }, timing.into(), common)
            }
            Self::Contended(Loops { workers, timing, common, .. }) => {
                (Work::Contended { workers }, timing.into(), common)
            }
            Self::Read(Loops { workers, timing, common, .. }) => (Work::Read { workers }, timing.into(), common),
            Self::Overload(OverloadWanted { workers, factor, timing, common }) => {
                (Work::Overload(Overload { workers, factor }), timing.into(), common)
            }
            Self::KeepAlive(KeepAliveWanted { sessions, ttl, streams, rate, workers, timing, common }) => {
                let work = KeepAlive { sessions, ttl, streams, rates: rate, in_flight: workers };
                (Work::KeepAlive(work), timing.into(), common)
            }
            Self::Failover(FailoverWanted { repetitions, warm_up, common }) => {
                // Each failover lasts as long as it does.
                (Work::Failover, Timing { warm_up, duration: Duration::MAX, repetitions }, common)
            }
            Self::Held(HeldWanted { locks, workers, common }) => {
                let timing = Timing { warm_up: Duration::ZERO, duration: Duration::MAX, repetitions: 1 };
                (Work::Held(Held { locks, workers }), timing, common)
            }
        }
    }
}

impl From<Windows> for Timing {
    fn from(Windows { warm_up, duration, repetitions }: Windows) -> Self {
        Self { warm_up, duration, repetitions }
    }
}

/// Measures, until somebody asks for an end.
async fn watched(options: Options) -> Result<Report, Failure> {
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let measuring = run(options, stop.clone(), &complain);
    tokio::pin!(measuring);
    let ending = tokio::select! {
        measured = &mut measuring => return Ok(measured?),
        ending = signals.next() => ending,
    };
    stop.cancel();
    let broken_off = Failure::new(Exit::Code(ending.exit_code()), format!("{}: broken off", ending.name()));
    tokio::select! {
        _ = measuring => {}
        // At the second one, whatever runs is killed, and sessions expire.
        _ = signals.next() => {}
    }
    Err(broken_off)
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Client(error) => error.into(),
            BenchError::Invalid(_) | BenchError::OwnOnly => Self::new(Exit::Usage, error),
            BenchError::Local(_) => Self::new(Exit::NoCluster, error),
            BenchError::Call(_)
            | BenchError::Nothing { .. }
            | BenchError::SlowToOpen { .. }
            | BenchError::TooFast
            | BenchError::StreamEnded
            | BenchError::NoFailover(_)
            | BenchError::NotRestarted(_)
            | BenchError::Stopped => Self::new(Exit::Error, error),
        }
    }
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| Failure::new(Exit::Error, format_args!("{}: {error}", file.display())))
}

fn text(report: &Report) -> String {
    let mut rows = report.table().into_iter();
    let head = rows.next().unwrap_or_default();
    let mut table = Table::new(&head.iter().map(String::as_str).collect::<Vec<_>>());
    rows.for_each(|row| table.row(row));
    format!("{}\n{}", report.heading(), table.take())
}
