//! Deterministic simulation of whole clusters: the real server and client, on one thread. A seed determines the network, the disks and the
//! clocks. The fault rate is higher than with real processes, and the same seed repeats the same run.
//!
//! * `system`: random numbers and time of a simulated process; `network`, `log`: replace TCP and sled;
//! * `process`: a node's runtime and clock, and time that passes while it computes;
//! * `node`, `clients`: the server and the workload on top of them;
//! * `contenders`: what holders are judged by; `protocols`: the client processes of `etcd`, `redis`, `dynamodb` and `zookeeper`, which
//!   contend; `znode_session`: a session of ZooKeeper's;
//! * `keyspace`, `requests`: clients that send everything else; `hostile`: values at the edges of what is documented;
//! * `scarcity`, `greed`: small limits, and a client that reaches them;
//! * `signals`: clients of Redis that wait, for items and for messages;
//! * `rights`: clients with identities, and a policy that says what they may do;
//! * `plan`, `faults`, `holders`, `changes`: the choices of a seed; `director`: the schedule; `restore`, `recover`: losses at its end;
//! * `trail`: the audit trails of the nodes, and their files;
//! * `run`: one run, from set-up to verdict, by the same checker as real runs;
//! * `tally`: what the nodes counted;
//! * `trace`: the events, one a line; `child`: a run in its own process; `batch`: many runs;
//! * `planted`: whether planted bugs are found.
//!
//! `scripts/simulate.sh` replays a seed, or runs a given number of fresh seeds.
//!
//! Deliberately absent: sled, and so the effects of a disk on files (`tests/power` covers them). Only the audit files lose what was not
//! synced.

#![cfg(target_os = "linux")]
// The whole server and its clients in one future, many layers deep.
#![recursion_limit = "256"]
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "what runs simulations runs in real time, draws seeds, and shows figures to people"
)]

mod batch;
mod changes;
mod child;
mod clients;
mod contenders;
mod director;
mod dynamodb;
mod etcd;
mod faults;
mod greed;
mod holders;
mod hostile;
#[expect(dead_code, reason = "contenders send some of the requests that the walk beside ZooKeeper does")]
#[path = "../zookeeper/jute.rs"]
mod jute;
mod keyspace;
mod log;
#[path = "../log_store/machine.rs"]
mod machine;
mod network;
mod node;
mod plan;
mod planted;
mod process;
mod protocols;
mod recover;
mod redis;
mod requests;
mod restore;
mod rights;
mod run;
mod scarcity;
mod signals;
mod suite;
mod system;
mod tally;
mod trace;
mod trail;
mod znode_session;
mod zookeeper;

use std::{env, fs, str::FromStr, thread, time::Duration};

use batch::Until;
use child::Asked;

/// Time limit of fresh seeds in seconds; or their number; the first seed; the seed that is run twice; and the seed to replay.
const SECONDS: &str = "LOCKKEEPER_SIMULATION_SECONDS";
const SEEDS: &str = "LOCKKEEPER_SIMULATION_SEEDS";
const FIRST: &str = "LOCKKEEPER_SIMULATION_FIRST";
const TWICE: &str = "LOCKKEEPER_SIMULATION_TWICE";
const REPLAYED: &str = "LOCKKEEPER_SIMULATION_REPLAY";
const SECONDS_USUALLY: u64 = 45;
/// Length of the repeated run if it is not given, simulated seconds: enough for some faults and recoveries, also in an unoptimized build.
const META_SECONDS: u64 = 12;

fn number<T: FromStr>(variable: &str) -> Option<T> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is a number, not {value:?}")))
}

/// Determinism: without it, a failure could not be replayed. Tracing must not change a run either.
#[test]
fn the_same_seed_gives_the_same_run() {
    is_the_same(child::HISTORY, 100_000, [true, false]);
}

/// The same for all that the nodes do, also what no client sees.
#[test]
#[ignore = "nightly: two traces take minutes"]
fn the_same_seed_gives_the_same_trace() {
    is_the_same(child::TRACE, 1_000_000, [true, true]);
}

/// Two runs of a seed, each with a trace or without one, write the same file, of more than so many bytes.
fn is_the_same(name: &str, least: u64, traced: [bool; 2]) {
    let seed = number(TWICE).unwrap_or_else(|| rand::random::<u32>().into());
    let seconds = Some(number(child::SECONDS).unwrap_or(META_SECONDS));
    let runs = traced.map(|traced| (traced, tempfile::tempdir().expect("a temporary directory")));
    let troubles = thread::scope(|scope| {
        let runs = runs.each_ref().map(|(traced, directory)| {
            let asked = Asked { traced: *traced, seconds, bug: None };
            scope.spawn(move || child::run(seed, directory.path(), asked).expect("this program can be run again"))
        });
        runs.map(|run| run.join().expect("it does not panic").troubles)
    });
    assert_eq!(troubles, [Vec::<String>::new(), Vec::new()], "seed {seed}");

    let files = runs.each_ref().map(|(_, directory)| directory.path().join(name));
    let difference = batch::first_difference(&files[0], &files[1]).expect("both runs wrote their files");
    let size = fs::metadata(&files[0]).expect("it was just read").len();
    assert!(size > least, "{name} of seed {seed} has {size} bytes: too short for a whole run");
    assert!(difference.is_none(), "seed {seed} gave two different {name}s, from {}", difference.unwrap_or_default());
}

#[test]
fn fresh_seeds_find_nothing() {
    let first: u64 = number(FIRST).unwrap_or_else(|| rand::random::<u32>().into());
    let until = match number(SEEDS) {
        Some(seeds) => Until::Runs(seeds),
        None => Until::Elapsed(Duration::from_secs(number(SECONDS).unwrap_or(SECONDS_USUALLY))),
    };
    println!("fresh seeds, from {first} on");
    batch::run(|place| Some(first + place), until, None).conclude();
}

/// Called by `scripts/simulate.sh`.
#[test]
#[ignore = "replays one given seed"]
fn replay() {
    let seed = number(REPLAYED).unwrap_or_else(|| panic!("{REPLAYED} names no seed"));
    let (place, asked) = (batch::place_of(seed), Asked { traced: true, ..Asked::default() });
    fs::create_dir_all(&place).expect("the directory can be made");
    let report = child::run(seed, &place, asked).expect("this program can be run again");
    let file = |name| place.join(name).display().to_string();
    println!("trace: {}\nhistory: {}", file(child::TRACE), file(child::HISTORY));
    println!("{:?}\nmissing: {:?}", report.counts, report.missing);
    assert!(
        report.troubles.is_empty(),
        "{}",
        batch::failure(seed, number(child::SECONDS), &report, &file(child::HISTORY))
    );
}
