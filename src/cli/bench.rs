//! `lockkeeper bench` measures the throughput, latency and resource use of a cluster.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueHint};
use tokio_util::sync::CancellationToken;

use super::{
    CredentialOptions, Exit, Failure, Profile, complain,
    output::{Format, Output, print, print_document},
    signals::Signals,
    table::{TableLayout, TextColumn, TextTable},
};
use crate::{
    bench::{
        BenchError, BenchOptions, BenchReport, Beside, Held, KeepAliveOptions, LeaderEnd, Overload, Rate, Timing,
        Where, Workload, picture, run,
    },
    client::Client,
};

/// Measures the throughput, latency and resource use of a cluster.
///
/// Without --endpoints, it starts a cluster on this machine with default settings and its data in a temporary directory
/// (under TMPDIR), and removes it afterwards; --ca, --cert, --key and --bearer-token-file have no effect then. Prints
/// medians and, in brackets, the spread of the repetitions. Ctrl-C stops it early.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper bench uncontended --workers 1,64 --svg latency.svg")]
pub(super) struct Bench {
    #[command(subcommand)]
    work: WorkWanted,
}

#[derive(Subcommand, Debug)]
enum WorkWanted {
    /// Acquire and release, each worker its own locks: no contention
    Uncontended(Loops),
    /// Acquire and release of one lock by all workers: hand-overs and fairness
    Contended(Loops),
    /// Linearizable reads of held locks
    Read(Loops),
    /// Renewals of sessions
    #[command(name = "keepalive")]
    KeepAlive(KeepAliveWanted),
    /// Kills or freezes the leader and measures the time to the next completed acquire and release
    Failover(FailoverWanted),
    /// Holds many locks and measures memory and restart time
    Held(HeldWanted),
    /// Sends more acquires than the cluster can serve and measures goodput and load shedding
    Overload(OverloadWanted),
}

#[derive(Args, Debug)]
struct Loops {
    /// Concurrent workers, each with its own session; one measurement per number
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "1,16,64,256")]
    workers: Vec<usize>,
    /// Number of locks that are held during the measurements, in rising order; all measurements are made for each number
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with = "beside_sessions")]
    beside_locks: Vec<usize>,
    /// Number of sessions that are renewed during the measurements, in rising order; all measurements are made for each number
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    beside_sessions: Vec<usize>,
    #[command(flatten)]
    timing: MeasurementWindows,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct OverloadWanted {
    /// Workers that find the highest rate
    #[arg(short, long, value_name = "N", default_value_t = 256)]
    workers: usize,
    /// Factor of the highest rate to send
    #[arg(long, value_name = "N", default_value_t = 10)]
    factor: u32,
    #[command(flatten)]
    timing: MeasurementWindows,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct KeepAliveWanted {
    /// Number of sessions
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    sessions: usize,
    /// TTL of each session
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = super::arguments::duration)]
    ttl: Duration,
    /// Streams that the sessions share. With as many streams as sessions, each has its own, as in the client library
    #[arg(long, value_name = "N", default_value_t = 16)]
    streams: usize,
    /// Renewals per second, or `max` for as many as possible; one measurement per rate
    #[arg(long, value_name = "N|max,…", value_delimiter = ',', default_value = "3000,max")]
    rate: Vec<Rate>,
    /// With `max`: renewals in flight
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "8192")]
    workers: Vec<usize>,
    #[command(flatten)]
    timing: MeasurementWindows,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct FailoverWanted {
    /// Leaders to kill, one after another
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = repetitions)]
    repetitions: usize,
    /// Freezes the leader (SIGSTOP) instead: it answers nothing, and its connections stay open, as after a power failure. It is killed
    /// after each measurement
    #[arg(long)]
    silent: bool,
    /// Load before each kill
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::arguments::duration)]
    warm_up: Duration,
    #[command(flatten)]
    common: Common,
}

#[derive(Args, Debug)]
struct HeldWanted {
    /// Locks to hold
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000)]
    locks: usize,
    /// Workers that acquire them
    #[arg(short, long, value_name = "N", default_value_t = 256)]
    workers: usize,
    #[command(flatten)]
    common: Common,
}

/// The measurement windows.
#[derive(Args, Debug)]
struct MeasurementWindows {
    /// Warm-up time that is not measured
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::arguments::duration)]
    warm_up: Duration,
    /// Duration of each repetition
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = super::arguments::duration)]
    duration: Duration,
    /// Number of repetitions
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = repetitions)]
    repetitions: usize,
}

/// The cluster to measure, and the outputs.
#[derive(Args, Debug)]
struct Common {
    /// A running cluster: host:port, separated by commas. CPU and memory of its nodes are then unknown
    // The environment is not read: only a cluster that is named explicitly gets load.
    #[arg(long, value_name = "HOST:PORT,…")]
    endpoints: Option<String>,
    /// Nodes of the cluster that this command starts
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "endpoints", value_parser = clap::value_parser!(u8).range(1..=7))]
    nodes: u8,
    /// TLS for the cluster that this command starts
    #[arg(long, conflicts_with = "endpoints")]
    tls: bool,
    #[command(flatten)]
    credentials: CredentialOptions,
    /// File for a plot of the latencies by quantile
    #[arg(long, value_name = "FILE.svg", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

const REPETITIONS_MAX: usize = 1_000;

fn repetitions(text: &str) -> Result<usize, String> {
    let wrong = || format!("it is not between 1 and {REPETITIONS_MAX}");
    text.parse().ok().filter(|count| (1..=REPETITIONS_MAX).contains(count)).ok_or_else(wrong)
}

impl Bench {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let beside = self.work.beside();
        let (work, timing, common) = self.work.split();
        let place = match common.endpoints {
            Some(endpoints) => {
                let credentials = common.credentials.or(&Profile::read()?);
                Where::Running(credentials.apply(Client::builder(&endpoints))?)
            }
            None => Where::Own { program: env::current_exe()?, nodes: common.nodes.into(), tls: common.tls },
        };
        if let Some(file) = &common.svg {
            // Before the measurement: an unwritable file must not waste minutes.
            write(file, "")?;
        }
        let report = watched(BenchOptions { work, beside, place, timing }).await?;
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

    fn split(self) -> (Workload, Timing, Common) {
        match self {
            Self::Uncontended(Loops { workers, timing, common, .. }) => {
                (Workload::Uncontended { workers }, timing.into(), common)
            }
            Self::Contended(Loops { workers, timing, common, .. }) => {
                (Workload::Contended { workers }, timing.into(), common)
            }
            Self::Read(Loops { workers, timing, common, .. }) => (Workload::Read { workers }, timing.into(), common),
            Self::Overload(OverloadWanted { workers, factor, timing, common }) => {
                (Workload::Overload(Overload { workers, factor }), timing.into(), common)
            }
            Self::KeepAlive(KeepAliveWanted { sessions, ttl, streams, rate, workers, timing, common }) => {
                let work = KeepAliveOptions { sessions, ttl, streams, rates: rate, in_flight: workers };
                (Workload::KeepAlive(work), timing.into(), common)
            }
            Self::Failover(FailoverWanted { repetitions, silent, warm_up, common }) => {
                // A failover has no fixed duration.
                let end = if silent { LeaderEnd::Silent } else { LeaderEnd::Killed };
                (Workload::Failover(end), Timing { warm_up, duration: Duration::MAX, repetitions }, common)
            }
            Self::Held(HeldWanted { locks, workers, common }) => {
                let timing = Timing { warm_up: Duration::ZERO, duration: Duration::MAX, repetitions: 1 };
                (Workload::Held(Held { locks, workers }), timing, common)
            }
        }
    }
}

impl From<MeasurementWindows> for Timing {
    fn from(MeasurementWindows { warm_up, duration, repetitions }: MeasurementWindows) -> Self {
        Self { warm_up, duration, repetitions }
    }
}

/// Measures until the end or the first signal.
async fn watched(options: BenchOptions) -> Result<BenchReport, Failure> {
    let mut signals = Signals::listen()?;
    let stop = CancellationToken::new();
    let measuring = run(options, stop.clone(), &complain);
    tokio::pin!(measuring);

    let ending = tokio::select! {
        measured = &mut measuring => return Ok(measured?),
        ending = signals.next() => ending,
    };

    stop.cancel();
    let broken_off = Failure::new(Exit::Code(ending.exit_code()), format!("{}: interrupted", ending.name()));

    tokio::select! {
        _ = measuring => {}
        // At the second signal, running processes are killed, and sessions expire.
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
            BenchError::Tls(_)
            | BenchError::Call(_)
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

fn text(report: &BenchReport) -> String {
    let mut rows = report.table().into_iter();
    let titles = rows.next().unwrap_or_default();

    // The titles depend on what was measured, so they are the first row of a table without titles of its own.
    let columns = vec![TextColumn::exact(""); titles.len()];
    let mut table = TextTable::new(TableLayout { without_titles: true, ..TableLayout::default() }, &columns);
    table.row(titles);
    rows.for_each(|row| table.row(row));
    format!("{}\n{}", report.heading(), table.take())
}
