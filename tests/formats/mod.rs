//! Formats of earlier versions: data directories and messages that an earlier build wrote are read by the present build.
//!
//! `tests/fixtures/vN/` is one set, written by the newest build of cluster version N ([`write`]) and never changed:
//!
//! * `data/`: the data directory of a node after a normal stop, one text file for each file ([`archive`]);
//! * `content.txt`: what that directory holds, as the build that wrote it read it ([`content`]);
//! * `messages.txt`: encoded entries, snapshot records and messages between nodes, one a line ([`samples`]).
//!
//! `scripts/fixtures.sh vN` writes a new set; it refuses to replace one.

mod archive;
mod content;
mod node;
pub(crate) mod samples;
mod write;

use std::{
    fs,
    path::{Path, PathBuf},
};

use samples::samples;

/// The directory of all sets.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The directory of each set, sorted.
fn sets() -> Vec<PathBuf> {
    let entries = fs::read_dir(fixtures()).expect("the repository has it").map(|entry| entry.expect("listed").path());
    let mut sets: Vec<_> = entries.filter(|path| path.is_dir()).collect();
    sets.sort();
    assert!(!sets.is_empty(), "there is a set of fixtures");
    sets
}

#[test]
fn data_directories_of_earlier_versions_hold_the_same_content() {
    for set in sets() {
        let directory = tempfile::tempdir().expect("a place for temporary files");
        archive::unpack(&set.join("data"), directory.path());
        let expected = fs::read_to_string(set.join("content.txt")).expect("a set has it");
        assert_eq!(content::of(directory.path()), expected, "{}", set.display());
    }
}

#[test]
fn a_node_starts_on_data_directories_of_earlier_versions_and_serves() {
    for set in sets() {
        let directory = tempfile::tempdir().expect("a place for temporary files");
        archive::unpack(&set.join("data"), directory.path());
        node::run(directory.path(), async |url| {
            let session = node::open_session(&url, 7).await;
            let before = content::last_token(&set.join("content.txt"));
            let token = node::acquire(&url, &session, "after/the/upgrade").await;
            assert!(token > before, "token {token} after token {before}");
            let held = node::holders(&url, "jobs/nightly").await;
            assert_eq!(held.len(), 1, "the grant of the earlier version holds: {held:?}");
        });
    }
}

#[test]
fn messages_of_earlier_versions_have_the_same_meaning() {
    for set in sets() {
        let text = fs::read_to_string(set.join("messages.txt")).expect("a set has it");
        let samples = samples();
        for line in text.lines() {
            let (name, hex) = line.split_once(' ').expect("a name and bytes in hexadecimal");
            let sample = samples.iter().find(|sample| sample.name == name);
            let sample = sample.unwrap_or_else(|| panic!("{}: no sample {name} any more", set.display()));
            (sample.check)(&archive::bytes(hex));
        }
        assert!(text.lines().count() > 10, "{}: few messages", set.display());
    }
}
