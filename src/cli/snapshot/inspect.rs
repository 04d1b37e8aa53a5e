//! `lockkeeper snapshot inspect` checks a backup and shows what is in it.

use std::{io, path::PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::{
    Exit, Failure,
    output::{Format, Output, print, print_document},
    show,
};
use crate::{
    raft::{backup::BackupFile, types::LogId},
    table::{Applied, AppliedMembership, MemberNode},
};

/// Checks a backup and shows what is in it. Exit code 1: it is damaged; 2: it is not a backup.
///
/// Also reads a snapshot in the data directory of a node, snapshots/snapshot-….
#[derive(Args, Debug)]
pub(super) struct InspectBackup {
    /// The file
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// The table of a copy.
#[derive(Serialize)]
pub(in super::super) struct TableDocument {
    pub(in super::super) log_index: u64,
    pub(in super::super) log_term: u64,
    pub(in super::super) sessions: usize,
    pub(in super::super) locks: usize,
    pub(in super::super) grants: usize,
    pub(in super::super) waiters: usize,
    pub(in super::super) last_token: u64,
    /// As text: JSON numbers are not exact beyond 2^53.
    pub(in super::super) table_hash: String,
    pub(in super::super) members: Vec<MemberDocument>,
}

#[derive(Serialize)]
pub(in super::super) struct MemberDocument {
    pub(in super::super) node_id: u64,
    pub(in super::super) client_address: String,
    pub(in super::super) peer_address: String,
    pub(in super::super) voter: bool,
}

#[derive(Serialize)]
struct BackupReport {
    file: String,
    /// `null`, and so are the next four: the file is a node's own snapshot, which does not say.
    cluster_id: Option<String>,
    node_id: Option<u64>,
    version: Option<String>,
    created_unix_ms: Option<u64>,
    stale: Option<bool>,
    bytes: u64,
    #[serde(flatten)]
    table: TableDocument,
}

impl InspectBackup {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let backup = BackupFile::read(&self.file)?;
        match self.output.output {
            Format::Json => print_document(&self.document(&backup))?,
            Format::Text => self.print(&backup)?,
        }
        Ok(Exit::Success)
    }

    fn document(&self, backup: &BackupFile) -> BackupReport {
        let header = backup.header.as_ref();
        BackupReport {
            file: self.file.to_string_lossy().into_owned(),
            cluster_id: header.map(|header| header.cluster_id.to_string()),
            node_id: header.map(|header| header.node_id),
            version: header.map(|header| header.version.clone()),
            created_unix_ms: header.map(|header| header.created.0),
            stale: header.map(|header| header.is_stale),
            bytes: backup.bytes,
            table: TableDocument::new(&backup.applied),
        }
    }

    fn print(&self, backup: &BackupFile) -> io::Result<()> {
        let mut text = String::new();
        if let Some(header) = &backup.header {
            text += &line("cluster", &header.cluster_id);
            text += &line("saved", show::since(header.created));
            let stale = if header.is_stale { ", stale: the node may have lagged behind" } else { "" };
            text +=
                &line("by", format_args!("node {}, version {}{stale}", header.node_id, show::text(&header.version)));
        } else {
            text += &line("file", "a node's own snapshot: it does not say of which cluster");
        }

        text += &line("bytes", backup.bytes);
        text += &TableDocument::new(&backup.applied).text();
        print(&text)
    }
}

impl TableDocument {
    pub(in super::super) fn new(applied: &Applied) -> Self {
        let counts = applied.machine.counts();
        Self {
            log_index: applied.index(),
            log_term: applied.last_entry.map_or(0, |entry| entry.term),
            sessions: counts.sessions,
            locks: counts.locks,
            grants: counts.grants,
            waiters: counts.waiters,
            last_token: applied.machine.last_token().0,
            table_hash: format!("{:016x}", applied.machine.hash()),
            members: members(&applied.membership),
        }
    }

    /// Lines of a name and a value.
    pub(in super::super) fn text(&self) -> String {
        let mut text = line("log index", format_args!("{}, term {}", self.log_index, self.log_term));
        text += &line("sessions", self.sessions);
        text += &line("locks", self.locks);
        text += &line("grants", self.grants);
        text += &line("waiters", self.waiters);
        text += &line("last token", self.last_token);
        text += &line("table hash", &self.table_hash);

        for MemberDocument { node_id, client_address, peer_address, voter } in &self.members {
            let clients = show::text(client_address);
            let peers = show::text(peer_address);
            let role = if *voter { "" } else { ", learner" };

            text += &line("member", format_args!("node {node_id}: clients {clients}, peers {peers}{role}"));
        }
        text
    }
}

fn members(membership: &AppliedMembership) -> Vec<MemberDocument> {
    let member = |(id, node): (&u64, &MemberNode)| MemberDocument {
        node_id: *id,
        client_address: node.client_address.clone(),
        peer_address: node.peer_address.clone(),
        voter: membership.is_voter(*id),
    };
    membership.nodes.iter().map(member).collect()
}

pub(in super::super) fn term(log_id: Option<LogId>) -> u64 {
    log_id.map_or(0, |id| id.leader_id.term)
}

/// A line of a name and a value.
pub(in super::super) fn line(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name:<11} {value}\n")
}
