//! Kills at any call of the process, also during a write: the log keeps all acknowledged operations.
//!
//! The files of a killed process depend only on its calls. So the layer kills it at a chosen call;
//! `log_store` has kills at random times.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    driver,
    history::{History, Phase},
    layer::{self, Fault},
    support::{scaled, seed, temporary},
    trial::{self, Outcome},
};

/// The calls of an opening: half of the kills are among them.
const CALLS_OF_AN_OPENING: u64 = 40;
const OPERATIONS: u64 = 60;
/// How much longer the test goes on at most, until enough was tried.
const ROUNDS_MAX: u64 = 10;

/// Reads the driver's new reports and opens the log: its state must fit them. Returns the phases that were interrupted.
fn judge(root: &Path, history: &mut History, heard: &mut usize) -> Result<BTreeSet<Phase>, String> {
    let said = driver::said(root);
    said[*heard..].iter().try_for_each(|said| history.hear(said))?;
    *heard = said.len();
    let phases = history.phases();
    match trial::open(root, history.snapshot, |state| history.judge(state)) {
        Outcome::Whole(state) => history.recovered(&state)?,
        Outcome::Refused(why) | Outcome::Lost(why) => return Err(why),
    }
    Ok(phases)
}

#[test]
fn a_kill_loses_nothing_that_was_acknowledged() {
    let directory = temporary();
    let aside = temporary();
    let root = directory.path();
    let mut random = StdRng::seed_from_u64(seed());
    let mut history = History::new();
    let mut heard = 0;
    let mut killed = BTreeMap::<Phase, u64>::new();
    let mut kills = 0;
    let mut acknowledged = 0;
    let rounds = scaled(500);
    for round in 0..ROUNDS_MAX * rounds {
        // Which phase a call falls into depends on how the threads run, so some rounds may meet too few of them.
        if round >= rounds && killed.len() >= 5 && acknowledged > 100 {
            break;
        }
        let calls = if random.random() { CALLS_OF_AN_OPENING } else { 500 };
        let at = random.random_range(1..=calls);
        let fault = if random.random() { Fault::Kill(at) } else { Fault::Tear(at) };
        let trace = aside.path().join(round.to_string());
        let ended = layer::run(root, &trace, random.random(), OPERATIONS, Some(fault));
        std::fs::remove_file(trace).expect("the layer wrote it");
        let what = format!("seed {}, round {round}, {fault:?}", seed());
        assert!(ended.was_killed() || ended.is_success(), "{what}: {ended}");

        let before = history.acknowledgements;
        let judged = judge(root, &mut history, &mut heard);
        let phases = judged.unwrap_or_else(|why| panic!("{what}: {why}"));
        acknowledged += history.acknowledgements - before;
        if ended.was_killed() {
            kills += 1;
            phases.into_iter().for_each(|phase| *killed.entry(phase).or_default() += 1);
        }
    }
    println!("seed {}: {kills} kills while {killed:?}; {acknowledged} acknowledgements", seed());
    assert!(killed.len() >= 5 && acknowledged > 100, "too little was tried: {killed:?}, {acknowledged}");
}
