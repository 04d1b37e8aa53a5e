//! Corruption of closed files: such a log opens whole, or not at all.
//!
//! `log_store` flips single bits and truncates files of a small log. Here the log has been written, purged and reopened for a
//! while, so that sled has reused segments and old pages remain. The damage is typical of disks and copies: sectors of
//! zeros or noise, a misplaced sector, an old version of one, several flipped bits, a lost tail. The end of the journal has its own test:
//! damage there looks like a torn write after a crash. A log that opens must also work: entries are appended, and it is opened
//! once more.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

use lockkeeper::raft::{log::LogStore, types::TypeConfig};
use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    disk::{Image, write_image},
    driver,
    history::{History, Said, State},
    recording::{GENERATIONS, record},
    support::{self, PATIENCE, entry, log_id, scaled, seed, temporary},
    trace::Call,
    trial::{self, Outcome},
};

const SECTOR_BYTES: usize = 512;

/// Damage to a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Damage {
    Bits,
    Zeros,
    Noise,
    Misplaced,
    /// Earlier contents.
    Old,
    Cut,
    Missing,
}

const DAMAGES: [Damage; 7] =
    [Damage::Bits, Damage::Zeros, Damage::Noise, Damage::Misplaced, Damage::Old, Damage::Cut, Damage::Missing];

/// A cleanly closed log: its files, an earlier version of them, and its history.
struct Original {
    files: Image,
    older: Image,
    history: History,
}

impl Original {
    fn new() -> Self {
        let recording = record(seed(), GENERATIONS);
        let mut disk = recording.disk(true);
        let mut history = History::new();
        let mut older = Image::new();
        for (at, record) in recording.records.iter().enumerate() {
            if at == recording.records.len() * 9 / 10 {
                older = disk.now();
            }
            if let Some(line) = disk.apply(record) {
                history.hear(&driver::must_parse(&line)).expect("the driver's own log lost nothing");
            }
        }
        Self { files: disk.now(), older, history }
    }

    /// Whether a log holds all acknowledged data. It may hold more: if sled's last write is lost, entries purged or truncated just
    /// before reappear, intact, as if the power had failed earlier.
    fn judge(&self, found: &State) -> Result<(), String> {
        let must = self.history.acknowledged();
        let holds_all = found.first() <= must.first() && {
            let from = (must.first() - found.first()) as usize;
            must.terms.iter().eq(found.terms.iter().skip(from).take(must.terms.len()))
        };
        if found.vote == must.vote && holds_all {
            Ok(())
        } else {
            Err(format!("it holds {found} ({:?}), but held {must} ({:?})", found.terms, must.terms))
        }
    }

    /// The files with damage to one of them; the kind of damage and its description.
    fn damaged(&self, random: &mut StdRng) -> (Image, Damage, String) {
        let mut files = self.files.clone();
        let mut names: Vec<PathBuf> = files
            .iter()
            .filter(|(_, bytes)| bytes.as_ref().is_some_and(|bytes| !bytes.is_empty()))
            .map(|(name, _)| name.clone())
            .collect();
        // Nearly all data are in sled's file.
        names.extend(std::iter::repeat_n(PathBuf::from("log/sled/db"), 2 * names.len()));
        let name = &names[random.random_range(0..names.len())];
        let damage = DAMAGES[random.random_range(0..DAMAGES.len())];
        let older = self.older.get(name).cloned().flatten();
        let bytes = files.get_mut(name).and_then(Option::as_mut).expect("it is a file");
        let what = format!("{} {damage:?}", name.display());
        match damage {
            Damage::Missing => drop(files.remove(name)),
            Damage::Cut => bytes.truncate(random.random_range(0..bytes.len())),
            Damage::Bits => {
                for _ in 0..random.random_range(1..=16) {
                    let at = random.random_range(0..bytes.len());
                    bytes[at] ^= 1 << random.random_range(0..8);
                }
            }
            Damage::Zeros | Damage::Noise | Damage::Misplaced | Damage::Old => {
                let count = SECTOR_BYTES * random.random_range(1..=16);
                let from = random.random_range(0..bytes.len()) / SECTOR_BYTES * SECTOR_BYTES;
                let length = count.min(bytes.len() - from);
                let other = random.random_range(0..=bytes.len() - length) / SECTOR_BYTES * SECTOR_BYTES;
                let whole = bytes.clone();
                for (at, byte) in bytes[from..from + length].iter_mut().enumerate() {
                    *byte = match damage {
                        Damage::Noise => random.random(),
                        Damage::Misplaced => whole[other + at],
                        Damage::Old => older.as_ref().and_then(|older| older.get(from + at).copied()).unwrap_or(0),
                        Damage::Zeros | Damage::Bits | Damage::Cut | Damage::Missing => 0,
                    };
                }
            }
        }
        (files, damage, what)
    }
}

/// Appends entries to a log that was opened on damaged files, and opens it again. Returns whether both succeeded. An error: the log
/// silently lost entries.
async fn serve(log: &Path, history: &History, mut state: State) -> Result<bool, String> {
    let mut store = support::open(log, history.snapshot).map_err(|error| format!("it opened only once: {error}"))?;
    let term = state.vote.0;
    for _ in 0..60 {
        let (flushed, answer) = TypeConfig::oneshot();
        let next = entry(term, state.next());
        let appended = store.append([next], IOFlushed::<TypeConfig>::signal(flushed)).await;
        // In production, a failure ends the process.
        if appended.is_err() || answer.await.is_ok_and(|answer| answer.is_err()) {
            return Ok(false);
        }
        state.terms.push_back(term);
    }
    if store.close().await.is_err() {
        return Ok(false);
    }
    match support::open(log, history.snapshot) {
        Err(_) => Ok(false),
        Ok(mut store) => {
            let found = support::state(&mut store).await?;
            store.close().await.map_err(|error| error.to_string())?;
            if found == state { Ok(true) } else { Err(format!("it took entries up to {state}, and holds {found}")) }
        }
    }
}

#[test]
fn damage_is_noticed_or_does_no_harm() {
    let original = Original::new();
    let mut random = StdRng::seed_from_u64(seed());
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    // Numbers of logs that opened whole, were refused, and failed later.
    let mut counts = BTreeMap::<Damage, [u64; 3]>::new();
    for round in 0..scaled(600) {
        let (files, damage, what) = original.damaged(&mut random);
        let what = format!("seed {}, round {round}, {what}", seed());
        let directory = temporary();
        write_image(&files, directory.path());
        let counts = counts.entry(damage).or_default();
        match trial::open(directory.path(), original.history.snapshot, |found| original.judge(found)) {
            Outcome::Refused(_) => counts[1] += 1,
            Outcome::Lost(why) => panic!("{what}: {why}"),
            Outcome::Whole(state) => {
                let log = directory.path().join(driver::LOG);
                let served = runtime.block_on(serve(&log, &original.history, state));
                if served.unwrap_or_else(|why| panic!("{what}: {why}")) {
                    counts[0] += 1;
                } else {
                    counts[2] += 1;
                }
            }
        }
    }
    println!("seed {}: opened whole, refused, failed later: {counts:?}", seed());
    let sum = |which: usize| counts.values().map(|counts| counts[which]).sum::<u64>();
    assert!(sum(0) > 0 && sum(1) > 0, "too little was tried: {counts:?}");
}

/// Damage to the end of the journal.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Bit,
    Zeros,
    Noise,
}

/// The process is killed, and the last record acknowledged as durable is damaged: a bit, a sector, a block. No record follows
/// it, so it looks like a record that a crash has torn.
#[test]
fn a_rotten_end_of_the_journal_is_noticed() {
    const BLOCK_BYTES: usize = 4096;
    let recording = record(seed(), 2);
    let mut random = StdRng::seed_from_u64(seed());
    let mut disk = recording.disk(true);
    let mut history = History::new();
    let mut names = BTreeMap::new();
    let mut last_write = None;
    let mut tried = 0;
    let mut refused = 0;
    for record in &recording.records {
        if let Call::Open { path, .. } = &record.call {
            names.insert(record.file, path.clone());
        }
        if let Call::Write { offset, bytes } = &record.call
            && let Some(name) = names.get(&record.file).filter(|name| name.to_string_lossy().contains("journal"))
        {
            last_write = Some((name.clone(), *offset as usize, bytes.len()));
        }
        let Some(said) = disk.apply(record) else { continue };
        let said = driver::must_parse(&said);
        history.hear(&said).expect("the driver's own log lost nothing");
        let Some((name, from, length)) = last_write.take_if(|_| matches!(said, Said::Done { .. })) else { continue };
        for damage in [Loss::Bit, Loss::Zeros, Loss::Noise] {
            let mut files = disk.now();
            let bytes = files.get_mut(&name).and_then(Option::as_mut).expect("it is a file");
            let unit = [SECTOR_BYTES, BLOCK_BYTES][random.random_range(0..2)];
            let at = random.random_range(from..from + length);
            let lost = at / unit * unit..(at / unit * unit + unit).min(bytes.len());
            match damage {
                Loss::Bit => bytes[at] ^= 1 << random.random_range(0..8),
                Loss::Noise => random.fill(&mut bytes[lost]),
                Loss::Zeros => bytes[lost].fill(0),
            }
            tried += 1;
            match trial::open_image(&files, &history) {
                Outcome::Refused(_) => refused += 1,
                // The record was already moved to sled.
                Outcome::Whole(_) => {}
                Outcome::Lost(why) => {
                    panic!("seed {}: {damage:?} of {unit} at {at} of {}: {why}", seed(), name.display())
                }
            }
        }
    }
    println!("seed {}: {refused} of {tried} refused", seed());
    assert!(tried >= 30 && refused > tried / 2, "{refused} of {tried} refused");
}

/// sled's tree of entries. Waits until sled has released the files, which happens some time after it was closed.
fn entries(log: &Path) -> sled::Tree {
    let begun = Instant::now();
    loop {
        match sled::open(log.join("sled")).and_then(|database| database.open_tree("log")) {
            Ok(tree) => return tree,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        thread::yield_now();
    }
}

/// Opens and closes the log: this moves entries from the journal to sled.
async fn settle(log: &Path) {
    let store = support::open(log, None).expect("it is in order");
    store.close().await.expect("closed");
}

/// Entries that a new leader had replaced reappear, each of them intact, between unchanged entries.
#[tokio::test]
async fn replaced_entries_that_come_back_are_noticed() {
    let directory = temporary();
    let log = directory.path().join(driver::LOG);
    let mut store = support::open(&log, None).expect("a new log opens");
    let keep = log_id((1, 4));
    append(&mut store, 1, 0..10).await;
    store.close().await.expect("closed");
    settle(&log).await;
    let is_swapped =
        |key: &[u8]| (5..7).contains(&u64::from_be_bytes(key[..8].try_into().expect("it begins with an index")));
    let tree = entries(&log);
    let replaced: Vec<_> = tree.iter().map(|pair| pair.expect("readable")).filter(|(key, _)| is_swapped(key)).collect();
    drop(tree);

    let mut store = support::open(&log, None).expect("it is in order");
    store.truncate_after(Some(keep)).await.expect("truncated");
    append(&mut store, 2, 5..12).await;
    store.close().await.expect("closed");
    settle(&log).await;
    let tree = entries(&log);
    for key in tree.iter().keys().map(|key| key.expect("readable")).filter(|key| is_swapped(key)) {
        tree.remove(key).expect("removed");
    }
    for (key, value) in replaced {
        tree.insert(key, value).expect("inserted");
    }
    drop(tree);

    let error = support::open(&log, None).expect_err("entry 7 followed on another").to_string();
    assert!(
        error.contains("entry 7 was written after another entry") && error.contains("replace this node"),
        "{error}"
    );
}

/// Appends entries and waits until they are durable.
async fn append(store: &mut LogStore, term: u64, indexes: Range<u64>) {
    let (flushed, answer) = TypeConfig::oneshot();
    let entries = indexes.map(|index| entry(term, index));
    store.append(entries, IOFlushed::<TypeConfig>::signal(flushed)).await.expect("appended");
    answer.await.expect("answered").expect("flushed");
}
