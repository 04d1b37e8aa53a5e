//! The process is killed at any of its calls, also in the middle of a write: what it had acknowledged is there.
//!
//! What a killed process leaves depends on nothing but the calls it has made. So these kills are aimed, by the layer, at a call;
//! `log_store` has the ones that come at whatever moment the clock says.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    driver,
    history::{History, Phase},
    layer::{self, Fault},
    support::{scaled, seed, temporary},
    trial::{self, Outcome},
};

/// The calls of an opening: half of the kills come so early.
const CALLS_OF_AN_OPENING: u64 = 40;
const OPERATIONS: u64 = 60;

/// Takes in what the driver said since, and opens the log: it must hold what fits. Answers what the driver was about.
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
    let (directory, aside) = (temporary(), temporary());
    let root = directory.path();
    let mut random = StdRng::seed_from_u64(seed());
    let (mut history, mut heard) = (History::new(), 0);
    let (mut killed, mut kills, mut acknowledged) = (BTreeMap::<Phase, u64>::new(), 0, 0);
    for round in 0..scaled(250) {
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
