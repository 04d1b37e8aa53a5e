//! A process that is killed at any moment, also while it opens the log: acknowledged entries and votes survive.

use std::{
    collections::BTreeSet,
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Stdio,
};

use lockkeeper::raft::types::Vote;
use openraft::{RaftLogReader, storage::RaftLogStorage};

use super::support::*;
use crate::children;

const ROUNDS: u64 = 30;
const DIRECTORY: &str = "LOCKKEEPER_TEST_LOG_DIRECTORY";

/// The process that is killed.
#[tokio::test]
#[ignore = "the entry point of a child process"]
async fn victim() {
    let Some(directory) = env::var_os(DIRECTORY) else { return };
    write_until_killed(Path::new(&directory)).await;
}

/// Appends, truncates and votes; prints each durable change.
async fn write_until_killed(directory: &Path) {
    let mut store = must_open(directory);
    let state = store.get_log_state().await.expect("known");
    let mut next = state.last_log_id.map_or(0, |last| last.index + 1);
    let vote = store.get_log_reader().await.read_vote().await.expect("known");
    let term = vote.map_or(1, |vote| vote.leader_id.term + 1);
    within(store.save_vote(&Vote::new(term, 1))).await.expect("saved");
    say(&format!("vote {term}"));
    loop {
        let mut flushes = Vec::new();
        for _ in 0..5 {
            let bytes = if next % 7 == 0 { 20_000 } else { 50 };
            flushes.push((next, start_append(&mut store, vec![entry(term, next, bytes)]).await));
            next += 1;
        }
        for (index, flushed) in flushes {
            within(flushed).await.expect("answered").expect("flushed");
            say(&format!("entry {index} {term}"));
        }
        within(store.save_committed(Some(id(term, next - 4)))).await.expect("saved");
        if next.is_multiple_of(3) {
            say(&format!("truncate {}", next - 2));
            within(store.truncate_after(Some(id(term, next - 3)))).await.expect("truncated");
            next -= 2;
        }
    }
}

/// One line is one write, so a line is never torn.
fn say(what: &str) {
    let line = format!("\n@{what}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).expect("the parent reads");
}

/// The changes that the victims reported as durable.
#[derive(Default)]
struct Said {
    term: u64,
    entries: BTreeSet<(u64, u64)>,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let mut words = line.split(' ');
        let what = words.next().expect("a word");
        let numbers: Vec<u64> = words.map(|word| word.parse().expect("a number")).collect();
        match (what, &numbers[..]) {
            ("vote", [term]) => self.term = *term,
            ("entry", [index, term]) => drop(self.entries.insert((*index, *term))),
            ("truncate", [from]) => drop(self.entries.split_off(&(*from, 0))),
            (what, numbers) => panic!("{what} {numbers:?}"),
        }
    }
}

/// Starts a victim and kills it after this number of lines; 0: while it opens.
fn kill_after(directory: &Path, lines: u64, said: &mut Said) {
    let mut victim = children::command(&children::full_name(module_path!(), "victim"))
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let mut output = BufReader::new(victim.stdout.take().expect("piped")).lines();
    let mut heard = 0;
    if lines == 0 {
        // Kill it as soon as the file exists: any moment of the opening will do.
        let begun = std::time::Instant::now();
        while !directory.join("sled/db").exists() && begun.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
    }
    while heard < lines {
        let line = output.next().expect("it runs until it is killed").expect("readable");
        if let Some(what) = line.strip_prefix('@') {
            said.hear(what);
            heard += 1;
        }
    }
    victim.kill().expect("killed");
    victim.wait().expect("gone");
    // Lines that it printed before it died count too: the last may be a truncation.
    output
        .map_while(Result::ok)
        .filter_map(|line| Some(line.strip_prefix('@')?.to_owned()))
        .for_each(|what| said.hear(&what));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: thirty processes, beside those of power::kills"]
async fn acknowledged_entries_and_votes_survive_a_kill() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut said = Said::default();
    for round in 0..ROUNDS {
        kill_after(directory.path(), if round % 5 == 0 { 0 } else { round * 7 }, &mut said);

        let mut store = must_open(directory.path());
        let vote = store.get_log_reader().await.read_vote().await.expect("known");
        let term = vote.map_or(0, |vote| vote.leader_id.term);
        assert!(term >= said.term, "round {round}: vote of term {term}, but {} was given", said.term);
        let found = entries(&mut store).await;
        let ids: BTreeSet<_> = found.iter().map(|entry| (entry.log_id.index, entry.log_id.leader_id.term)).collect();
        let lost: Vec<_> = said.entries.difference(&ids).collect();
        assert!(lost.is_empty(), "round {round}: lost {lost:?}");
        for found in &found {
            let index = found.log_id.index;
            let term = found.log_id.leader_id.term;
            let bytes = if index % 7 == 0 { 20_000 } else { 50 };
            assert!(*found == entry(term, index, bytes), "round {round}: entry {index} is another one");
        }
        close(store).await;
    }
    assert!(said.entries.len() > 100, "only {} entries were ever acknowledged", said.entries.len());
}
