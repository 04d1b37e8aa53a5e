//! `lockkeeper audit verify` checks the chain of hashes, and that each event was allowed by those before it.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::{
    super::{
        Exit, Failure,
        output::{Format, Output, print, print_document},
    },
    files,
};
use lockkeeper_audit::{Hash, MissingLines, SoundFiles, verify};

/// Checks audit files: the hash chain, exclusion, the order of tokens, and first come first served. Exit code 1: a line breaks a rule.
///
/// Files may be of several nodes, in any order: the lines are the same on all, and one node's files fill another's gaps. Gaps that stay
/// are reported, and are no error.
#[derive(Args, Debug)]
pub(super) struct Verify {
    /// Files, or directories with files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The hash that the last line must have, as `lockkeeper status -o json` shows it: otherwise, lines missing at the end are not noticed
    #[arg(long, value_name = "HASH")]
    head: Option<Hash>,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct AuditReport {
    cluster_id: String,
    first_line: u64,
    last_line: u64,
    head: String,
    log_index: u64,
    sessions: usize,
    held_locks: usize,
    waiters: usize,
    gaps: Vec<AuditGapReport>,
}

#[derive(Serialize)]
struct AuditGapReport {
    from: u64,
    to: u64,
}

impl Verify {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let report = verify(&files(&self.files)?, self.head, |_| {})?;
        match self.output.output {
            Format::Text => print(&text(&report))?,
            Format::Json => print_document(&document(&report))?,
        }
        Ok(Exit::Success)
    }
}

fn text(report: &SoundFiles) -> String {
    let SoundFiles { cluster, first, head, index, gaps, open: (sessions, held, waiters) } = report;
    let mut text = format!("sound: lines {first} to {} of cluster {cluster}, up to log entry {index}\n", head.lines);
    for MissingLines { from, to } in gaps {
        text += &format!("gap: lines {from} to {to} are in none of the files; those of another node may have them\n");
    }
    text + &format!(
        "head: {}\nat the end: {sessions} sessions, {held} held locks, {waiters} waits that the lines tell of\n",
        head.hash
    )
}

fn document(report: &SoundFiles) -> AuditReport {
    let (sessions, held_locks, waiters) = report.open;
    AuditReport {
        cluster_id: report.cluster.clone(),
        first_line: report.first,
        last_line: report.head.lines,
        head: report.head.hash.to_string(),
        log_index: report.index,
        sessions,
        held_locks,
        waiters,
        gaps: report.gaps.iter().map(|MissingLines { from, to }| AuditGapReport { from: *from, to: *to }).collect(),
    }
}
