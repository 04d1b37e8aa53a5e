//! Whole clusters in simulation: the real server and the real client, on one thread, on a network, on disks and by clocks that a seed
//! decides. Faults come at a rate that real processes never see, and whatever happens happens again from the same number.
//!
//! * `system`: chance and time of a simulated process; `network`, `log`: in the place of TCP and of sled;
//! * `node`, `clients`: the server and the workload, put on those;
//! * `plan`, `faults`, `holders`: what a seed chooses; `director`: what happens when;
//! * `run`: a run from its beginning to its judgement, by the checker of all runs;
//! * `trace`: what happened, line by line; `child`: a run in a process of its own; `batch`: many of them;
//! * `planted`: whether bugs that are put in on purpose are found.
//!
//! `scripts/simulate.sh` replays a seed, or runs as many fresh ones as it is told to.
//!
//! What is deliberately absent: sled, and with it what a disk does to files (`tests/power` has that); and clocks that run at different
//! rates: in here, all go at the same.

#![cfg(target_os = "linux")]

mod batch;
mod child;
mod clients;
mod director;
mod faults;
mod holders;
mod log;
#[path = "../log_store/machine.rs"]
mod machine;
mod network;
mod node;
mod plan;
#[cfg(feature = "planted-bugs")]
mod planted;
mod run;
mod suite;
mod system;
mod trace;

use std::{env, fs, str::FromStr, thread, time::Duration};

use batch::Until;
use child::Asked;
use tempfile::TempDir;

/// Seeds that found something once, each with a line on what.
const PAST: &str = include_str!("seeds.txt");

/// For how long fresh seeds are run, seconds; or how many; from which on; and one to replay.
const SECONDS: &str = "LOCKKEEPER_SIMULATION_SECONDS";
const SEEDS: &str = "LOCKKEEPER_SIMULATION_SEEDS";
const FIRST: &str = "LOCKKEEPER_SIMULATION_FIRST";
const REPLAYED: &str = "LOCKKEEPER_SIMULATION_REPLAY";
const SECONDS_USUALLY: u64 = 90;
/// How long the run is that is made more than once, simulated seconds: some faults and what follows, also without optimizations.
const META_SECONDS: u64 = 20;

fn number<T: FromStr>(variable: &str) -> Option<T> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {value:?}")))
}

/// Before all else: without it, a failure could not be found again. Nor if a run that is looked at were another one.
#[test]
fn the_same_seed_gives_the_same_run() {
    let seed = number(FIRST).unwrap_or_else(|| rand::random::<u32>().into());
    let [one, other, unseen] = [(); 3].map(|()| tempfile::tempdir().expect("a temporary directory"));
    thread::scope(|scope| {
        for (directory, traced) in [(&one, true), (&other, true), (&unseen, false)] {
            let asked = Asked { traced, seconds: Some(META_SECONDS), bug: None };
            scope.spawn(move || child::run(seed, directory.path(), asked).expect("this program can be run again"));
        }
    });
    let same = |name: &str, one: &TempDir, other: &TempDir, least: u64| {
        let files = [one, other].map(|directory| directory.path().join(name));
        let difference = batch::first_difference(&files[0], &files[1]).expect("both runs wrote their files");
        let size = fs::metadata(&files[0]).expect("it was just read").len();
        assert!(size > least, "{name} of seed {seed} has {size} bytes: it cannot be that of a whole run");
        assert!(
            difference.is_none(),
            "seed {seed} gave two different {name}s, from {}",
            difference.unwrap_or_default()
        );
    };
    same(child::TRACE, &one, &other, 1_000_000);
    same(child::HISTORY, &one, &unseen, 100_000);
}

#[test]
fn seeds_that_found_something_once_find_nothing_now() {
    let seeds: Vec<u64> = PAST
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            line.split_whitespace().next().and_then(|seed| seed.parse().ok()).expect("a line begins with its seed")
        })
        .collect();
    if !seeds.is_empty() {
        batch::run(|place| seeds.get(place as usize).copied(), Until::Runs(seeds.len() as u64)).conclude();
    }
}

#[test]
fn fresh_seeds_find_nothing() {
    let first: u64 = number(FIRST).unwrap_or_else(|| rand::random::<u32>().into());
    let until = match number(SEEDS) {
        Some(seeds) => Until::Runs(seeds),
        None => Until::Elapsed(Duration::from_secs(number(SECONDS).unwrap_or(SECONDS_USUALLY))),
    };
    println!("fresh seeds, from {first} on");
    batch::run(|place| Some(first + place), until).conclude();
}

/// For `scripts/simulate.sh`.
#[test]
#[ignore = "replays the one seed that it is told"]
fn replay() {
    let seed = number(REPLAYED).unwrap_or_else(|| panic!("{REPLAYED} names no seed"));
    let (place, asked) = (batch::place_of(seed), Asked { traced: true, ..Asked::default() });
    fs::create_dir_all(&place).expect("the directory can be made");
    let report = child::run(seed, &place, asked).expect("this program can be run again");
    let file = |name| place.join(name).display().to_string();
    println!("trace: {}\nhistory: {}", file(child::TRACE), file(child::HISTORY));
    println!("{:?}\nmissing: {:?}", report.counts, report.missing);
    assert!(report.troubles.is_empty(), "{}", batch::failure(seed, &report, &file(child::HISTORY)));
}
