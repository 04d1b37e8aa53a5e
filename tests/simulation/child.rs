//! Runs a seed in its own process: this test program again, with only the test `child::run_one`.
//!
//! Tokio counts the runtimes of a process and seeds each by its number: a second run in one process would differ from the first. A
//! separate process also contains a run that panics or hangs.

use std::{
    env, fs, io, panic,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use lockkeeper::{bench::cpu_of_process, planted::Planted};
use serde::{Deserialize, Serialize};

use crate::{plan::Plan, run, system, trace};

const SEED: &str = "LOCKKEEPER_SIMULATED_SEED";
const DIRECTORY: &str = "LOCKKEEPER_SIMULATED_DIRECTORY";
const TRACED: &str = "LOCKKEEPER_SIMULATED_TRACE";
/// Simulated seconds of a run.
pub(crate) const SECONDS: &str = "LOCKKEEPER_SIMULATED_SECONDS";
const BUG: &str = "LOCKKEEPER_PLANTED_BUG";

/// Files that a run writes to its directory.
pub(crate) const HISTORY: &str = "history.jsonl";
pub(crate) const TRACE: &str = "trace.txt";
const REPORT: &str = "report.json";

/// Async code nests deeply without optimizations.
const STACK_BYTES: usize = 64 << 20;
/// A run that computes for longer hangs: processor time, of which a busy machine gives it little in a second.
const LIMIT: Duration = Duration::from_secs(1_200);
/// One that computes nothing for this time hangs too.
const STILL: Duration = Duration::from_secs(300);

/// The result of a seed.
#[derive(Clone, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Failures.
    pub(crate) troubles: Vec<String>,
    /// Names of the violated properties.
    pub(crate) violated: Vec<String>,
    /// Why the run is vacuous.
    pub(crate) missing: Vec<String>,
    pub(crate) simulated_ms: u64,
    /// Numbers of operations, faults and other events, by name.
    pub(crate) counts: Vec<(String, u64)>,
}

/// How to run a seed.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Asked {
    /// With a trace.
    pub(crate) traced: bool,
    /// Simulated seconds, instead of the seed's own duration.
    pub(crate) seconds: Option<u64>,
    /// The planted bug, instead of the environment's, if any.
    pub(crate) bug: Option<Planted>,
}

/// Runs a seed and writes its results to this directory.
pub(crate) fn run(seed: u64, directory: &Path, asked: Asked) -> io::Result<Report> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args(["child::run_one", "--exact", "--nocapture", "--ignored"])
        .env(SEED, seed.to_string())
        .env(DIRECTORY, directory);
    if asked.traced {
        command.env(TRACED, "1");
    }
    if let Some(seconds) = asked.seconds {
        command.env(SECONDS, seconds.to_string());
    }
    if let Some(bug) = asked.bug {
        command.env(BUG, bug.name());
    }
    let said = fs::File::create(directory.join("stderr.txt"))?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said).spawn()?;
    let ended = wait(&mut child)?;
    match fs::read(directory.join(REPORT)) {
        Ok(report) => Ok(serde_json::from_slice(&report)?),
        Err(_) => {
            let said = fs::read_to_string(directory.join("stderr.txt"))?;
            let trouble = format!("the run broke off ({ended}): {}", said.trim_end());
            Ok(Report { troubles: vec![trouble], ..Report::default() })
        }
    }
}

fn wait(child: &mut Child) -> io::Result<String> {
    let mut computed = Duration::ZERO;
    let mut moved_at = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.to_string());
        }

        // It was not waited for yet, so it is still there.
        let now = cpu_of_process(child.id()).unwrap_or_default();
        if now > computed {
            computed = now;
            moved_at = Instant::now();
        }
        if computed > LIMIT || moved_at.elapsed() > STILL {
            child.kill()?;
            child.wait()?;
            return Ok(format!(
                "it did not end: {} s of processor time, none in the last {} s",
                computed.as_secs(),
                moved_at.elapsed().as_secs()
            ));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Does one run, of the seed that the environment names.
#[test]
#[ignore = "the entry point of a child process"]
fn run_one() {
    let Some(seed) = env::var(SEED).ok().and_then(|seed| seed.parse().ok()) else { return };
    let directory = PathBuf::from(env::var_os(DIRECTORY).expect("a seed comes with a directory"));
    let seconds = env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
    let asked = Asked { traced: env::var_os(TRACED).is_some(), seconds, bug: None };
    end_on_panic();
    // Created before the simulation starts: retries on names in use would draw random numbers from its seed.
    let files = tempfile::tempdir_in(fast_directory()).expect("a temporary directory");
    // The nodes name their files in log lines, which a trace has: two runs of a seed must not differ by a directory's name.
    env::set_current_dir(files.path()).expect("it was just made");
    let place = PathBuf::from(".");
    // A fresh thread: this one has already drawn random numbers.
    let simulate = move || simulate(seed, &place, &directory, asked);
    let simulation = thread::Builder::new().stack_size(STACK_BYTES).spawn(simulate);
    let outcome = simulation.expect("there is room for a thread").join();
    outcome.expect("a panic ends the process").expect("the run's directory can be written");
}

/// In memory if possible, unless `TMPDIR` is set: the nodes' files are few, but each is synced.
fn fast_directory() -> PathBuf {
    let memory = PathBuf::from("/dev/shm");
    if memory.is_dir() && env::var_os("TMPDIR").is_none() { memory } else { env::temp_dir() }
}

/// Aborts even where a panic would be caught: a task that panics must not look like one that ended.
fn end_on_panic() {
    let show = panic::take_hook();
    let shown = Mutex::new(());
    panic::set_hook(Box::new(move |panic| {
        let _one_at_a_time = shown.lock();
        show(panic);
        process::abort();
    }));
}

fn simulate(seed: u64, files: &Path, directory: &Path, asked: Asked) -> io::Result<()> {
    system::enter(seed);
    let tracing = if asked.traced { Some(trace::begin(&directory.join(TRACE))?) } else { None };
    let mut plan = Plan::of(seed);
    plan.duration = asked.seconds.map_or(plan.duration, Duration::from_secs);
    let outcome = run::run(plan, files)?;
    tracing.map_or(Ok(()), trace::Tracing::end)?;
    fs::write(directory.join(HISTORY), &outcome.history)?;
    fs::write(directory.join(REPORT), serde_json::to_vec(&outcome.report())?)
}
