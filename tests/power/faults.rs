//! The disk reports errors, is full, or hangs: the process prints the cause and ends, and acknowledges only durable operations.
//!
//! After a failed sync, the kernel may have dropped the pages, even if the next sync succeeds. So the files are judged twice: as the
//! kernel shows them, and as a power failure might leave them, which treats the failed sync as no sync.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    disk::{read_image, write_image},
    driver,
    history::{History, Phase, Said},
    layer::{self, Ended, Fault},
    recording::Recording,
    support::{scaled, seed, temporary},
    trace::{self, Call},
    trial::{self, Outcome},
};

const OPERATIONS: u64 = 60;
/// One of these calls fails: the minimal number of writes and syncs of `OPERATIONS`.
const CALLS: u64 = 160;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// Simulated power failures after each fault.
const CUTS: u64 = 4;

/// How a driver ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    /// It ended itself and printed the cause.
    Ended,
    /// It ended while opening and printed the cause.
    Refused,
    /// sled panicked while it was being closed: `close` returned an error. All data were flushed by then.
    Unclosed,
    /// It finished before the fault.
    Spared,
}

/// How a driver ended after a fault. An error: it printed no cause, or continued.
fn judge_end(ended: &Ended, recording: &Recording, history: &History) -> Result<End, String> {
    let has_met_it = recording.records.iter().any(|record| matches!(record.call, Call::Fault { .. }));
    let says = |words: &[&str]| words.iter().all(|word| ended.errors.contains(word));
    match () {
        () if !has_met_it && ended.is_success() => Ok(End::Spared),
        () if ended.has_failed() && says(&["lockkeeper: the log in", "failed:", "this process ends"]) => Ok(End::Ended),
        () if ended.has_refused() && says(&["lockkeeper: the log in"]) => Ok(End::Refused),
        () if ended.was_left_alone() && history.phases().contains(&Phase::Closing) => Ok(End::Unclosed),
        () => Err(format!("{ended} (it was {})", faulty_call(recording))),
    }
}

/// The message must not advise to give up a member for a full disk, nor to free space for another error.
fn judge_advice(fault: Fault, end: End, ended: &Ended) -> Result<(), String> {
    let is_full = matches!(fault, Fault::Error(_, ENOSPC) | Fault::Errors(_, ENOSPC));
    let says_so = ended.errors.contains("the disk is full") && ended.errors.contains("free some space");
    let gives_up = ended.errors.contains("replace this node");
    match end {
        End::Ended | End::Refused if is_full != says_so || (is_full && gives_up) => {
            Err(format!("the disk is full: {is_full}; it was told: {ended}"))
        }
        End::Ended | End::Refused | End::Unclosed | End::Spared => Ok(()),
    }
}

/// Names the failed call and its file.
fn faulty_call(recording: &Recording) -> String {
    let mut names = BTreeMap::new();
    for record in &recording.records {
        if let Call::Open { path, .. } = &record.call {
            names.insert(record.file, path.display().to_string());
        }
        if let Call::Fault { call } = record.call {
            let name = names.remove(&record.file);
            return format!("{call} on {}", name.as_deref().unwrap_or("a file without a name"));
        }
    }
    "none".to_owned()
}

/// The history of a recording. An error: an operation begun after the fault was acknowledged. A fault of sled's files does not count,
/// since sled is behind the journal.
fn listen(recording: &Recording) -> Result<History, String> {
    let mut disk = recording.disk(true);
    let mut history = History::new();
    let mut begun = 0;
    let mut at_fault = None;
    let mut files_of_sled = BTreeSet::new();
    for record in &recording.records {
        if let Call::Open { path, .. } = &record.call {
            files_of_sled.remove(&record.file);
            files_of_sled.extend(path.starts_with("log/sled").then_some(record.file));
        }
        if matches!(record.call, Call::Fault { .. }) && !files_of_sled.contains(&record.file) {
            at_fault.get_or_insert(begun);
        }
        let Some(line) = disk.apply(record) else { continue };
        let said = driver::must_parse(&line);
        if let Said::Begin { number, .. } = said {
            begun = number;
        }
        if let (Said::Done { number }, Some(last)) = (&said, at_fault)
            && *number > last
        {
            return Err(format!("operation {number} is acknowledged, but the disk failed at operation {last}"));
        }
        history.hear(&said)?;
    }
    Ok(history)
}

/// Runs a driver with a fault. Returns how it ended, and the number of later power failures after which the log does not open.
fn meet(fault: Fault, seed: u64) -> Result<(End, u64), String> {
    let directory = temporary();
    let aside = temporary();
    let root = directory.path();
    let trace = aside.path().join("trace");
    let ended = layer::run(root, &trace, seed, OPERATIONS, Some(fault));
    let recording = Recording::read(&trace, root);
    recording.must_tell_all();
    let history = listen(&recording)?;
    let end = judge_end(&ended, &recording, &history)?;
    judge_advice(fault, end, &ended)?;

    let disk = recording.disk_at_end();
    match trial::open_image(&disk.now(), &history) {
        Outcome::Whole(_) => {}
        outcome @ (Outcome::Refused(_) | Outcome::Lost(_)) => return Err(format!("afterwards: {outcome:?}")),
    }
    let mut refused = 0;
    for seed in (0..CUTS).map(|cut| seed ^ cut) {
        match trial::open_image(&disk.after_power_failure(seed), &history) {
            Outcome::Whole(_) => {}
            // See `disk`: sled is vulnerable while it opens, which some of these faults interrupt.
            Outcome::Refused(_) => refused += 1,
            Outcome::Lost(why) => {
                let kept = recording.keep("fault.trace");
                let point = recording.records.len();
                return Err(format!("after a power failure, {}:{point}:{seed}: {why}", kept.display()));
            }
        }
    }
    Ok((end, refused))
}

#[test]
fn a_failing_disk_ends_the_process_and_loses_nothing() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut ends = BTreeMap::<End, u64>::new();
    let mut refused = 0;
    for round in 0..scaled(120) {
        let at = random.random_range(1..=CALLS);
        let errno = [EIO, ENOSPC][random.random_range(0..2)];
        let fault = if random.random() { Fault::Error(at, errno) } else { Fault::Errors(at, errno) };
        let end = meet(fault, random.random());
        let end = end.unwrap_or_else(|why| panic!("seed {}, round {round}, {fault:?}: {why}", seed()));
        *ends.entry(end.0).or_default() += 1;
        refused += end.1;
    }
    println!("seed {}: {ends:?}, {refused} refused after {} power failures", seed(), scaled(120) * CUTS);
    assert!(refused * 100 <= scaled(120) * CUTS, "{refused} do not open");
    assert!(ends.contains_key(&End::Ended) && ends.contains_key(&End::Refused), "too little was tried: {ends:?}");
}

/// A sync fails; the next process reads the unwritten data from the cache and continues; then the power fails. Returns whether a sync
/// failed, and why logs did not open.
fn meet_stale_cache(fault: Fault, seed: u64) -> Result<(bool, Vec<String>), String> {
    let directory = temporary();
    let aside = temporary();
    let on_disk = temporary();
    let root = directory.path();
    let trace = aside.path().join("trace");
    layer::run(root, &trace, seed, OPERATIONS, Some(fault));
    let recording = Recording::read(&trace, root);
    let mut disk = recording.disk(true).with_stale_cache();
    recording.records.iter().for_each(|record| drop(disk.apply(record)));
    let behind = disk.behind_cache();
    if behind.values().all(Option::is_none) {
        return Ok((false, Vec::new()));
    }
    write_image(&behind, on_disk.path());
    trace::append_restart(&trace);
    let ended = layer::run_behind_cache(root, &trace, !seed, OPERATIONS, on_disk.path());
    if ended.has_refused() {
        return Ok((true, vec![format!("at once ({}): {}", faulty_call(&recording), ended.errors)]));
    }
    assert!(ended.is_success(), "{ended}");

    let recording = Recording::read(&trace, root);
    let mut disk = recording.disk(true).with_stale_cache();
    let mut history = History::new();
    for record in &recording.records {
        if let Some(line) = disk.apply(record) {
            history.hear(&driver::must_parse(&line))?;
        }
    }
    assert!(disk.now() == read_image(root), "the trace does not match the files");
    let mut refused = Vec::new();
    for seed in (0..CUTS).map(|cut| seed ^ cut) {
        match trial::open_image(&disk.after_power_failure(seed), &history) {
            Outcome::Whole(_) => {}
            Outcome::Refused(why) => refused.push(why),
            Outcome::Lost(why) => return Err(why),
        }
    }
    Ok((true, refused))
}

#[test]
fn what_a_failed_sync_left_in_memory_is_not_counted_on() {
    let mut random = StdRng::seed_from_u64(seed());
    let (mut round, mut failed) = (0, 0);
    let mut refused = Vec::new();
    // Which call the fault is, a sync or not, depends on what threads are doing then.
    while round < scaled(120) || failed < scaled(120) / 4 {
        assert!(round < scaled(120) * 10, "too little was tried: {failed} failed syncs in {round} rounds");
        let fault = Fault::Error(random.random_range(1..=CALLS), EIO);
        let met = meet_stale_cache(fault, random.random());
        let met = met.unwrap_or_else(|why| panic!("seed {}, round {round}, {fault:?}: {why}", seed()));
        failed += u64::from(met.0);
        refused.extend(met.1);
        round += 1;
    }
    println!("seed {}: {failed} failed syncs, refused after {} power failures: {refused:#?}", seed(), failed * CUTS);
    assert!(refused.len() as u64 * 50 <= failed * CUTS, "too many do not open");
}

#[test]
fn a_disk_that_hangs_ends_the_process() {
    let mut random = StdRng::seed_from_u64(seed());
    // In parallel: most of the time is waiting.
    let faults: Vec<(Fault, u64)> =
        (0..8).map(|round| (Fault::Hang(1 + round * 19 + random.random_range(0..5)), random.random())).collect();
    let ends: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = faults.iter().map(|(fault, seed)| scope.spawn(|| meet(*fault, *seed))).collect();
        running.into_iter().map(|it| it.join().expect("no thread panics")).collect()
    });
    for ((fault, _), end) in faults.iter().zip(&ends) {
        assert!(end.is_ok(), "seed {}, {fault:?}: {end:?}", seed());
    }
    println!("seed {}: {ends:?}", seed());
    assert!(ends.iter().flatten().any(|(end, _)| *end == End::Ended), "too little was tried: {ends:?}");
}
