//! What a data directory holds, as text.

use std::{fmt::Write as _, fs, path::Path};

use lockkeeper::{
    machine::{Machine, Record},
    raft::{
        log::{LogOptions, LogStore},
        snapshot::SnapshotStore,
        types::EntryPayload,
    },
    table::codec::{commands, records},
};
use openraft::{RaftLogReader, storage::RaftLogStorage};
use tokio::runtime::Builder;

use super::node;

/// The identity, the vote, the ends of log and snapshot, and the table that follows from snapshot and log.
pub(crate) fn of(directory: &Path) -> String {
    let identity = fs::read_to_string(directory.join("identity.toml")).expect("it has an identity");
    let kept = ["format", "cluster_id", "node_id", "incarnation", "stage"];
    let own = identity.lines().take_while(|line| !line.starts_with("[["));
    let kept = own.filter(|line| kept.iter().any(|key| line.starts_with(&format!("{key} ="))));
    let mut text = kept.collect::<Vec<_>>().join("\n");
    let snapshots = SnapshotStore::open(&directory.join("snapshots")).expect("its snapshots are whole");
    let snapshot = snapshots.latest().expect("it has a snapshot");
    let last = snapshot.meta().last_log_id.expect("it covers entries");
    let voters: Vec<_> = snapshot.meta().last_membership.voter_ids().collect();
    let restored: Vec<Record> =
        snapshot.records().expect("readable").map(|record| decoded(&record.expect("whole"))).collect();
    writeln!(text, "\nsnapshot {last}, {} records, voters {voters:?}", restored.len()).expect("writing to a string");
    let mut machine = Machine::from_records(restored).expect("records that agree");

    let options = LogOptions { snapshot: Some(last), ..node::log_options() };
    let mut log = LogStore::open(&directory.join("log"), options).expect("its log is whole");
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let state = log.get_log_state().await.expect("readable");
        let mut reader = log.get_log_reader().await;
        let vote = reader.read_vote().await.expect("readable").expect("it voted");
        let end = state.last_log_id.expect("it has entries");
        let committed = log.read_committed().await.expect("readable").map_or(0, |committed| committed.index);
        let term = vote.leader_id.term;
        let voted_for = vote.leader_id.voted_for;
        writeln!(text, "vote in term {term} for node {voted_for}, log ends at {end}, committed {committed}")
            .expect("writing to a string");
        let entries = reader.try_get_log_entries(last.index + 1..=end.index).await.expect("readable");
        assert_eq!(entries.len() as u64, end.index - last.index, "no entry is missing");
        for entry in entries {
            let EntryPayload::Normal(payload) = entry.payload else { continue };
            let (time, limits, commands) = commands::decode(&payload.0).expect("a batch");
            writeln!(text, "entry {}: {} commands at {} ms", entry.log_id, commands.len(), time.stamp.0)
                .expect("writing");
            machine.apply_batch(time, limits, commands, &mut Vec::new());
        }
        log.close().await.expect("closed");
    });
    let counts = machine.counts();
    writeln!(
        text,
        "table at {} ms: {} sessions, {} locks, {} waiters, last token {}, hash {:016x}",
        machine.now().0,
        counts.sessions,
        counts.locks,
        counts.waiters,
        machine.last_token().0,
        machine.hash()
    )
    .expect("writing to a string");
    text
}

fn decoded(bytes: &[u8]) -> Record {
    records::decode(bytes).expect("a record")
}

/// The last token, from the file `content.txt`.
pub(crate) fn last_token(file: &Path) -> u64 {
    let text = fs::read_to_string(file).expect("a set has it");
    let (_, rest) = text.split_once("last token ").expect("its table");
    rest.split(',').next().and_then(|token| token.parse().ok()).expect("a number")
}
