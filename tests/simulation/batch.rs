//! Runs many seeds, one per processor at a time, and collects the results.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    changes,
    child::{self, Asked, Report},
    hostile,
    keyspace::words::Words,
    node::RECOVERED,
    rights, tally, trail,
};

/// One vacuous run of this number is no failure. More mean that the faults do not hit, or that the clients do nothing.
const RUNS_PER_VACUOUS: u64 = 8;

/// In this many runs, every request is answered, and every word of the keyspace's requests is said.
const RUNS_WITH_ALL_REQUESTS: u64 = 30;
/// In this many runs, every edge of a field is sent, and every limit is reached.
const RUNS_WITH_ALL_LIMITS: u64 = 60;

/// The requests of the keyspace, by their names in the service.
pub(crate) const KEYSPACE_REQUESTS: [&str; 6] =
    ["txn", "get_entries", "list_entries", "select_entries", "compact_entries", "attach_session"];

/// In this many runs, each kind of change of the membership occurs.
const RUNS_WITH_ALL_CHANGES: u64 = 20;

/// In this many runs, a cluster goes on from what the loss of a majority has left.
const RUNS_WITH_A_RECOVERY: u64 = 20;
/// In this many runs, nodes write audit trails.
const RUNS_WITH_A_TRAIL: u64 = 20;

/// Runs per progress line.
const PROGRESS_EVERY: u64 = 20;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Elapsed(Duration),
    Runs(u64),
}

/// Results of many seeds.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub(crate) runs: u64,
    pub(crate) vacuous: Vec<(u64, Vec<String>)>,
    pub(crate) failed: Vec<(u64, Report)>,
    simulated: Duration,
    counts: BTreeMap<String, u64>,
    took: Duration,
}

/// Runs seeds in order, each for this number of simulated seconds or for its own duration. Prints each failure at once.
pub(crate) fn run(seeds: impl Fn(u64) -> Option<u64> + Sync, until: Until, seconds: Option<u64>) -> Results {
    let began = Instant::now();
    let (next, results) = (AtomicU64::new(0), Mutex::new(Results::default()));
    let is_over = |place: u64| match until {
        Until::Elapsed(time) => began.elapsed() >= time,
        Until::Runs(runs) => place >= runs,
    };
    let work = || {
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(seed) = seeds(place).filter(|_| !is_over(place)) else { return };
            let report = one(seed, seconds);
            results.lock().expect("no worker panics while it has the results").add(seed, report);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let results = results.into_inner().expect("no worker panics while it has the results");
    Results { took: began.elapsed(), ..results }
}

fn one(seed: u64, seconds: Option<u64>) -> Report {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let report = child::run(seed, directory.path(), Asked { seconds, ..Asked::default() })
        .expect("this program can be run again");
    if !report.troubles.is_empty() {
        let kept = keep(seed, directory.path());
        println!("{}", failure(seed, seconds, &report, &kept));
    }
    report
}

/// Keeps the history of a run that failed.
fn keep(seed: u64, directory: &Path) -> String {
    let place = place_of(seed);
    let kept =
        fs::create_dir_all(&place).and_then(|()| fs::copy(directory.join(child::HISTORY), place.join(child::HISTORY)));
    kept.map_or_else(|error| format!("not kept: {error}"), |_| place.join(child::HISTORY).display().to_string())
}

/// The directory for the files of a seed.
pub(crate) fn place_of(seed: u64) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulation").join(seed.to_string())
}

/// The failures of a seed, and how to replay it.
pub(crate) fn failure(seed: u64, seconds: Option<u64>, report: &Report, history: &str) -> String {
    let length = seconds.map(|seconds| format!("{}={seconds} ", child::SECONDS)).unwrap_or_default();
    let troubles = report.troubles.join("\n  ");
    format!("seed {seed} failed:\n  {troubles}\n  history: {history}\n  replay: {length}scripts/simulate.sh {seed}")
}

impl Results {
    fn add(&mut self, seed: u64, report: Report) {
        self.runs += 1;
        if self.runs.is_multiple_of(PROGRESS_EVERY) {
            println!("{} seeds, {} failed, {} vacuous", self.runs, self.failed.len(), self.vacuous.len());
        }
        self.simulated += Duration::from_millis(report.simulated_ms);
        for (what, count) in &report.counts {
            let known = self.counts.entry(what.clone()).or_default();
            *known = if what.starts_with(tally::LONGEST) { (*known).max(*count) } else { *known + count };
        }
        if !report.troubles.is_empty() {
            self.failed.push((seed, report));
        } else if !report.missing.is_empty() {
            self.vacuous.push((seed, report.missing));
        }
    }

    /// Prints a summary. Panics if a seed failed, or if too many runs were vacuous.
    pub(crate) fn conclude(&self) {
        println!("{}", self.summary());
        assert!(self.runs > 0, "no seed was run");
        let failed: Vec<_> = self.failed.iter().map(|(seed, _)| seed).collect();
        assert!(failed.is_empty(), "these seeds failed, see above: {failed:?}");
        let vacuous = self.vacuous.len() as u64;
        let count = |kind: &str| self.counts.get(kind).copied().unwrap_or_default();
        let never = |all: Vec<String>| all.into_iter().filter(|what| count(what) == 0).collect::<Vec<_>>();
        let kinds = never(changes::KINDS.map(str::to_owned).into());
        assert!(self.runs < RUNS_WITH_ALL_CHANGES || kinds.is_empty(), "no node was {kinds:?} in {} runs", self.runs);

        let is_missing = self.runs >= RUNS_WITH_A_RECOVERY && count(RECOVERED) == 0;
        assert!(!is_missing, "in {} runs there were no {RECOVERED}", self.runs);
        let is_missing = self.runs >= RUNS_WITH_A_TRAIL && count(trail::VERIFIED) == 0;
        assert!(!is_missing, "in {} runs there were no {}", self.runs, trail::VERIFIED);

        let is_drawn = |call: &&&str| !changes::REQUESTS.contains(call);
        let requests = lockkeeper::server::REQUESTS.iter().filter(is_drawn);
        let words = Words::all().map(|word| format!("{}{word}", tally::WORD));
        let unsaid = never(requests.map(|call| format!("{}{call}", tally::ANSWERED)).chain(words).collect());
        assert!(
            self.runs < RUNS_WITH_ALL_REQUESTS || unsaid.is_empty(),
            "in {} runs there was no {unsaid:?}",
            self.runs
        );

        let edges = never(hostile::all().collect());
        assert!(self.runs < RUNS_WITH_ALL_LIMITS || edges.is_empty(), "in {} runs there was no {edges:?}", self.runs);

        let limits = tally::limits().chain(rights::LIMITS_OF_IDENTITIES);
        let limits = never(limits.map(|limit| format!("{}{limit}", tally::LIMIT)).collect());
        assert!(self.runs < RUNS_WITH_ALL_LIMITS || limits.is_empty(), "in {} runs there was no {limits:?}", self.runs);
        assert!(vacuous <= 1 + self.runs / RUNS_PER_VACUOUS, "too many vacuous runs: {:?}", self.vacuous);
    }

    fn summary(&self) -> String {
        let (real, simulated) = (self.took.as_secs_f64(), self.simulated.as_secs_f64());
        let counts: Vec<_> = self.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        format!(
            "{} seeds, of which {} failed and {} were vacuous, in {real:.0} s: {:.1} seeds a minute, {:.1} simulated seconds a \
             second, {:.1} simulated hours\n{}",
            self.runs,
            self.failed.len(),
            self.vacuous.len(),
            self.runs as f64 * 60.0 / real,
            simulated / real,
            simulated / 3600.0,
            counts.join(", "),
        )
    }
}

/// The first line in which two files differ; `None`: they are equal.
pub(crate) fn first_difference(one: &Path, other: &Path) -> io::Result<Option<String>> {
    let (one, other) = (fs::read_to_string(one)?, fs::read_to_string(other)?);
    if one == other {
        return Ok(None);
    }
    let lines = one
        .lines()
        .map(Some)
        .chain(std::iter::repeat(None))
        .zip(other.lines().map(Some).chain(std::iter::repeat(None)));
    let found = lines.enumerate().find(|(_, (one, other))| one != other);
    Ok(found.map(|(place, (one, other))| {
        format!("line {}:\n  {}\n  {}", place + 1, one.unwrap_or("(its end)"), other.unwrap_or("(its end)"))
    }))
}
