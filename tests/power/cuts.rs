//! Power failures at random points: the log keeps all acknowledged operations, or the node does not start.

use std::{collections::BTreeMap, env, path::Path, sync::Mutex, thread};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    driver,
    history::{History, Phase},
    recording::{GENERATIONS, Recording, record},
    support::{points, seed},
    trial::{self, Outcome},
};

/// Results of many power failures.
#[derive(Default, Debug)]
struct Tally {
    tried: u64,
    while_doing: BTreeMap<Phase, u64>,
    /// `POINT:SEED: why`, as in `lost`.
    refused: Vec<String>,
    lost: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        let Self { tried, while_doing, refused, lost } = other;
        self.tried += tried;
        while_doing.into_iter().for_each(|(phase, count)| *self.while_doing.entry(phase).or_default() += count);
        self.refused.extend(refused);
        self.lost.extend(lost);
    }
}

/// The number of trace records before the power failure, and the seed that decides about unsynced changes.
type Point = (usize, u64);

/// Tries `count` random points of a recording, on all of the machine's cores.
fn try_points(recording: &Recording, count: u64, seed: u64, obeys_datasync: bool) -> Tally {
    let mut random = StdRng::seed_from_u64(seed);
    let mut points: Vec<Point> =
        (0..count).map(|_| (random.random_range(1..=recording.records.len()), random.random())).collect();
    points.sort_unstable();
    let threads = thread::available_parallelism().map_or(2, |threads| threads.get());
    let tally = Mutex::new(Tally::default());
    thread::scope(|scope| {
        for first in 0..threads {
            let points: Vec<Point> = points.iter().skip(first).step_by(threads).copied().collect();
            let tally = &tally;
            let recording = &recording;
            scope.spawn(move || {
                let some = try_in_order(recording, &points, obeys_datasync);
                tally.lock().expect("no thread panics while it holds it").add(some);
            });
        }
    });
    tally.into_inner().expect("no thread panicked")
}

fn try_in_order(recording: &Recording, points: &[Point], obeys_datasync: bool) -> Tally {
    let mut tally = Tally::default();
    let mut disk = recording.disk(obeys_datasync);
    let mut history = History::new();
    let mut points = points.iter().copied().peekable();
    for (at, record) in recording.records.iter().enumerate() {
        if let Some(line) = disk.apply(record) {
            history.hear(&driver::must_parse(&line)).expect("the driver's own log lost nothing");
        }
        while let Some((_, seed)) = points.next_if(|(point, _)| *point == at + 1) {
            tally.tried += 1;
            for phase in history.phases() {
                *tally.while_doing.entry(phase).or_default() += 1;
            }
            match trial::open_image(&disk.after_power_failure(seed), &history) {
                Outcome::Whole(_) => {}
                Outcome::Refused(why) => tally.refused.push(format!("{}:{seed}: {why}", at + 1)),
                Outcome::Lost(why) => tally.lost.push(format!("{}:{seed}: {why}", at + 1)),
            }
        }
    }
    tally
}

#[test]
fn a_power_failure_loses_nothing_that_was_acknowledged() {
    const RECORDINGS: u64 = 4;
    let mut tally = Tally::default();
    for number in 0..RECORDINGS {
        let seed = seed() + number;
        let recording = record(seed, GENERATIONS);
        let some = try_points(&recording, points().div_ceil(RECORDINGS), seed, true);
        if !some.lost.is_empty() {
            let kept = recording.keep(&format!("lost-{seed}.trace"));
            let first = some.lost.iter().take(5).map(|lost| format!("\n{}:{lost}", kept.display())).collect::<String>();
            panic!("seed {seed}: {} of {} lost something; FILE:POINT:SEED: why{first}", some.lost.len(), some.tried);
        }
        if !some.refused.is_empty() {
            println!("refused are points of {}", recording.keep(&format!("refused-{seed}.trace")).display());
        }
        tally.add(some);
    }
    println!("seed {}: {} power failures, {:?}, refused: {:?}", seed(), tally.tried, tally.while_doing, tally.refused);
    assert!(tally.while_doing.len() >= 6, "too few phases were interrupted: {:?}", tally.while_doing);
    assert!(
        tally.refused.len() as u64 * 100 <= tally.tried,
        "more than 1 % of the logs do not open: {:?}",
        tally.refused
    );
}

/// The control: plain sled, whose `sync_file_range` is no barrier. It shows that the tests can fail.
#[test]
fn without_the_barrier_logs_are_lost() {
    let recording = record(seed(), 1);
    let tally = try_points(&recording, points().div_ceil(10).max(100), seed(), false);
    let tried = tally.tried;
    let lost = tally.lost.len();
    let refused = tally.refused.len();
    println!("seed {}: {tried} power failures, {lost} lost something, {refused} refused", seed());
    // Nearly all are detected: by the high-water mark, and by the journal, whose sectors identify their predecessors.
    assert!((lost + refused) as u64 > tried / 4, "{lost} of {tried} lost something, {refused} refused");
}

/// Replays a disk of a failed test, if the environment names one.
#[test]
fn replay() {
    let Ok(what) = env::var("LOCKKEEPER_CRASH_REPLAY") else { return };
    let mut parts = what.rsplitn(3, ':');
    let mut part = || parts.next().expect("FILE:POINT:SEED");
    let seed = part();
    let point = part();
    let file = part();
    let recording = Recording::kept(Path::new(file));
    let point = (point.parse().expect("a number"), seed.parse().expect("a number"));
    let tally = try_in_order(&recording, &[point], true);
    assert!(tally.lost.is_empty() && tally.refused.is_empty(), "{tally:?}");
}
