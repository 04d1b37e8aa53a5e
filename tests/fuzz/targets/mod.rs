//! The parsers of bytes from outside, each as a function of bytes that panics where the parser breaks a promise.
//!
//! Every parser promises: no panic on any input; an error that says what is wrong; no more memory than the input's own length asks for,
//! whatever lengths the input states. A parser with an encoder promises too that decoded values have an encoding which stands for them.
//!
//! `tests/fuzz/main.rs` replays the corpus with mutations of it; `tests/fuzz/guided` explores with coverage as its guide. Both use
//! [`TARGETS`].

#![expect(clippy::ptr_arg, reason = "all repairs have one type, and some change the length of the input")]

mod audit;
mod dynamodb;
mod etcd;
mod files;
mod journal;
mod peers;
mod redis;
mod table;
mod texts;
mod wires;
mod zookeeper;

use std::{cell::OnceCell, fs, path::Path};

use tempfile::TempDir;

/// A parser.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// Its name, also that of its corpus.
    pub(crate) name: &'static str,
    /// Gives it bytes, and checks what it makes of them.
    pub(crate) run: fn(&[u8]),
    /// Valid inputs from the real encoders; the files in `corpus/` are the others.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Computes checksums anew after a mutation: otherwise no mutation would get past them.
    pub(crate) repair: Option<fn(&mut Vec<u8>)>,
}

impl Target {
    /// A parser of a format without checksums.
    const fn new(name: &'static str, run: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Self {
        Self { name, run, seeds, repair: None }
    }

    const fn repaired_by(self, repair: fn(&mut Vec<u8>)) -> Self {
        Self { repair: Some(repair), ..self }
    }
}

/// All parsers.
pub(crate) const TARGETS: &[Target] = &[
    // In the log and in snapshots.
    Target::new("batch", table::batch, table::batch_seeds),
    Target::new("record", table::record, table::record_seeds),
    Target::new("log-entry", table::log_entry, table::log_entry_seeds).repaired_by(table::repair_log_entry),
    Target::new("journal", journal::journal, journal::seeds).repaired_by(journal::repair),
    Target::new("first-journal", journal::first, journal::first_seeds).repaired_by(journal::repair_first),
    Target::new("snapshot", files::snapshot, files::snapshot_seeds).repaired_by(files::repair_snapshot),
    Target::new("backup", files::backup, files::backup_seeds).repaired_by(files::repair_backup),
    // From peers.
    Target::new("peer-message", peers::message, peers::message_seeds),
    Target::new("peer-metadata", peers::metadata, peers::metadata_seeds),
    // From clients, and what the leader answers to a follower.
    Target::new("wire", wires::wire, wires::wire_seeds),
    Target::new("error-status", wires::error, wires::error_seeds),
    Target::new("certificate", texts::certificate, texts::certificate_seeds),
    Target::new("dynamodb-operation", dynamodb::operation, dynamodb::operation_seeds),
    Target::new("dynamodb-expression", dynamodb::expression, dynamodb::expression_seeds),
    Target::new("dynamodb-item", dynamodb::item, dynamodb::item_seeds),
    Target::new("dynamodb-number", dynamodb::number, dynamodb::number_seeds),
    Target::new("dynamodb-http", dynamodb::http, dynamodb::http_seeds).repaired_by(dynamodb::repair_http),
    Target::new("etcd-message", etcd::message, etcd::message_seeds),
    Target::new("etcd-json", etcd::json, etcd::json_seeds),
    Target::new("redis-requests", redis::requests, redis::request_seeds),
    Target::new("redis-commands", redis::commands, redis::command_seeds),
    Target::new("redis-script", redis::script, redis::script_seeds),
    Target::new("redis-entry", redis::entry, redis::entry_seeds),
    Target::new("redis-unit", redis::unit, redis::unit_seeds),
    Target::new("zookeeper-frames", zookeeper::frames, zookeeper::frame_seeds),
    Target::new("zookeeper-value", zookeeper::value, zookeeper::value_seeds),
    Target::new("zookeeper-path", zookeeper::path, zookeeper::path_seeds),
    // Files and arguments of operators.
    Target::new("audit", audit::audit, audit::seeds).repaired_by(audit::repair),
    Target::new("tokens", texts::tokens, texts::tokens_seeds),
    Target::new("policy", texts::policy, texts::policy_seeds),
    Target::new("config", texts::config, texts::config_seeds),
    Target::new("value", texts::value, texts::value_seeds),
    Target::new("argument", texts::argument, texts::argument_seeds),
    Target::new("history", texts::history, texts::history_seeds),
];

/// An error says something.
#[track_caller]
fn says<E: std::fmt::Display>(error: &E) {
    assert!(error.to_string().len() > 3, "an error that says nothing: {:?}", error.to_string());
}

thread_local! {
    static DIRECTORY: OnceCell<TempDir> = const { OnceCell::new() };
}

/// Calls `read` with the path of a file of these bytes, for parsers that open files.
fn with_file<T>(bytes: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    DIRECTORY.with(|directory| {
        let directory = directory.get_or_init(|| tempfile::tempdir().expect("a place for temporary files"));
        let path = directory.path().join("input");
        fs::write(&path, bytes).expect("written");
        read(&path)
    })
}
