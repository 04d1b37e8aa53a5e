//! `lockkeeper recover` makes a new cluster from the data directory of one node, when most members are lost for good.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use serde::Serialize;

use super::{
    Exit, Failure, logging,
    output::{Format, Output, print, print_document},
    show,
    snapshot::{
        founding::{self, FoundedCluster, FoundingMember, Terms},
        inspect::{TableDocument, line, term},
    },
};
use crate::raft::{
    backup::{StoppedNodeData, StoppedNodeError},
    identity::{ClusterId, RememberedPeer},
    types::LogId,
};

/// Makes a new cluster from the data directory of one stopped node, when most members are lost for good. The directory is not changed.
///
/// First compare what is left: --inspect shows how far the copy of each remaining node reaches. Choose the one with the highest log term,
/// and of these the one with the highest log index. Entries that only the lost members had are lost: grants, releases and sessions that
/// were acknowledged. So tokens go on far above any that can have been issued, no client keeps its session, and no lock is granted for
/// some time, as with `snapshot restore`.
#[derive(Args, Debug)]
pub(super) struct Recover {
    /// The data directory of the stopped node
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Show what the directory holds, and make nothing
    #[arg(long, conflicts_with = "force_new_cluster", required_unless_present = "force_new_cluster")]
    inspect: bool,
    /// Make the new cluster. Every other node of the old one must be stopped, and never be started again
    #[arg(long, requires_all = ["into", "cluster_id"])]
    force_new_cluster: bool,
    /// Make it although acknowledged entries are known to be missing in this copy, as --inspect says: they are lost then
    #[arg(long, requires = "force_new_cluster")]
    accept_loss: bool,
    /// The data directory to make. With several members, they get DIR/node-ID each
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
    /// A member of the new cluster; repeat it for each [default: the stopped node alone]
    #[arg(long = "member", value_name = "ID[=PEER,CLIENT]", value_parser = founding::member)]
    members: Vec<FoundingMember>,
    /// The new cluster's id, another one than the old: 1 to 64 of a-z, 0-9 and -
    #[arg(long, value_name = "ID", value_parser = founding::cluster_id)]
    cluster_id: Option<ClusterId>,
    /// The last entry of the log that is applied: those after it are left out. For a log that has an entry which no member can apply: give
    /// the index before it
    #[arg(long, value_name = "INDEX")]
    through: Option<u64>,
    #[command(flatten)]
    terms: Terms,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct StoppedNodeReport {
    data_dir: String,
    cluster_id: String,
    node_id: u64,
    incarnation: String,
    /// The term of the last vote: the node knew of elections up to this term.
    vote_term: u64,
    /// The last entry that the node knew to be committed. Later ones may be committed too.
    committed_index: u64,
    snapshot_index: u64,
    /// The latest start of the directory; `null` if there was none.
    start: Option<String>,
    /// What this node remembers of the others.
    remembered: Vec<RememberedDocument>,
    /// The last entry of the log; the table may be of an earlier one, by --through.
    last_index: u64,
    /// Why acknowledged entries are known to be missing here.
    shortfall: Option<String>,
    #[serde(flatten)]
    table: TableDocument,
}

/// What a copy says of another member. A copy of that member which lacks the start, or ends before the entry, is an older one.
#[derive(Serialize)]
struct RememberedDocument {
    node_id: u64,
    start: Option<String>,
    /// The last entry that it acknowledged to this node, and the term of this node's leadership then.
    acknowledged_index: Option<u64>,
    acknowledged_term: Option<u64>,
}

impl Recover {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let aside = tempfile::Builder::new().prefix("lockkeeper-recover-").tempdir()?;
        // An entry that cannot be applied ends the command as it ends a node, with the entry's index.
        logging::abort_on_panic();
        let remains = StoppedNodeData::read(&self.data_dir, aside.path(), self.through).await.map_err(failure)?;
        drop(aside);

        // Clap has refused a new cluster without these two.
        let wanted = self.into.zip(self.cluster_id).filter(|_| !self.inspect);
        let Some((into, cluster_id)) = wanted else {
            match self.output.output {
                Format::Json => print_document(&document(&self.data_dir, &remains))?,
                Format::Text => print_remains(&self.data_dir, &remains)?,
            }
            return Ok(Exit::Success);
        };

        if let Some(missing) = missing(&remains).filter(|_| !self.accept_loss) {
            let directory = self.data_dir.display();
            return Err(Failure::new(
                Exit::Error,
                format!(
                    "acknowledged entries are missing in {directory}: {missing}; compare the copies of other nodes by --inspect, and use \
                     the newest, or make the new cluster without these entries by --accept-loss; nothing was made"
                ),
            ));
        }

        warn(&remains);
        let target = FoundedCluster { cluster_id, terms: self.terms };
        let itself = [founding::member(&remains.identity.node_id.to_string())
            .map_err(|error| Failure::new(Exit::Error, error))?];

        let members = if self.members.is_empty() { &itself[..] } else { &self.members };
        let copied = Some(&remains.identity.cluster_id);
        founding::found(target, members, &into, copied, &remains.applied, self.output.output).await
    }
}

fn document(data_dir: &Path, remains: &StoppedNodeData) -> StoppedNodeReport {
    let index = |log_id: Option<LogId>| log_id.map_or(0, |id| id.index);

    StoppedNodeReport {
        data_dir: data_dir.to_string_lossy().into_owned(),
        cluster_id: remains.identity.cluster_id.to_string(),
        node_id: remains.identity.node_id,
        incarnation: remains.identity.incarnation.to_string(),
        vote_term: remains.vote.map_or(0, |vote| vote.leader_id.term),
        committed_index: index(remains.committed),
        snapshot_index: index(remains.snapshot),
        start: remains.identity.start.map(|start| start.to_string()),
        remembered: remains.identity.remembered.iter().map(remembered).collect(),
        last_index: index(remains.last),
        shortfall: missing(remains),
        table: TableDocument::new(&remains.applied),
    }
}

fn remembered(peer: &RememberedPeer) -> RememberedDocument {
    RememberedDocument {
        node_id: peer.node_id,
        start: peer.start.map(|start| start.to_string()),
        acknowledged_index: peer.acknowledged.map(|acknowledged| acknowledged.index),
        acknowledged_term: peer.acknowledged.map(|acknowledged| acknowledged.term),
    }
}

fn print_remains(data_dir: &Path, remains: &StoppedNodeData) -> io::Result<()> {
    let document = document(data_dir, remains);

    let mut text = line("cluster", &document.cluster_id);
    text += &line("node", format_args!("{}, incarnation {}", document.node_id, document.incarnation));
    text += &line("vote", format_args!("term {}", document.vote_term));
    text += &line("committed", format_args!("index {}, as far as the node knew", document.committed_index));
    text += &line("snapshot", format_args!("index {}", document.snapshot_index));
    text += &line("start", document.start.as_deref().unwrap_or("none"));
    text += &document.table.text();

    for RememberedDocument { node_id, start, acknowledged_index, acknowledged_term } in &document.remembered {
        let start = start.as_deref().unwrap_or("unknown");
        let entry = match (acknowledged_index, acknowledged_term) {
            (Some(index), Some(term)) => format!(", acknowledged entry {index} in term {term}"),
            _ => String::new(),
        };
        text += &line("remembers", format_args!("node {node_id}: start {start}{entry}"));
    }

    let left_out = document.last_index.saturating_sub(document.table.log_index);
    if left_out > 0 {
        text += &line("left out", format_args!("{} after it", show::count(left_out, "entry", "entries")));
    }
    if let Some(shortfall) = &document.shortfall {
        text += &line("missing", shortfall);
    }

    print(&text)
}

/// Why acknowledged entries are known to be missing.
fn missing(remains: &StoppedNodeData) -> Option<String> {
    remains.shortfall().or_else(|| remains.copy_with_more())
}

/// What may be lost, on stderr.
fn warn(remains: &StoppedNodeData) {
    let index = |log_id: Option<LogId>| log_id.map_or(0, |id| id.index);
    let last = index(remains.through);
    let known = index(remains.committed);
    let more = last.saturating_sub(known);
    let left_out = index(remains.last).saturating_sub(last);

    super::complain(&format!(
        "the copy ends at index {last}, term {}; entries that were acknowledged after it are lost; of its last {} the node did not know \
         whether they were committed, and they are applied",
        term(remains.through),
        show::count(more, "entry", "entries"),
    ));

    if left_out > 0 {
        super::complain(&format!(
            "{} of its log after index {last} are left out, as --through says; if any member could apply them, they were acknowledged, and are \
             lost",
            show::count(left_out, "entry", "entries"),
        ));
    }
    if let Some(missing) = missing(remains) {
        super::complain(&format!("acknowledged entries are missing, and are lost, as --accept-loss says: {missing}"));
    }
}

fn failure(error: StoppedNodeError) -> Failure {
    let exit = match &error {
        StoppedNodeError::InUse { .. } | StoppedNodeError::Nothing { .. } | StoppedNodeError::Through { .. } => {
            Exit::Usage
        }
        StoppedNodeError::Unapplied { .. } => Exit::Unapplied,
        StoppedNodeError::Io { source, .. } | StoppedNodeError::LogUnread { source, .. } => Exit::for_path(source),
        StoppedNodeError::Identity(_)
        | StoppedNodeError::Snapshot { .. }
        | StoppedNodeError::Log { .. }
        | StoppedNodeError::LogGone { .. } => Exit::Error,
    };
    Failure::new(exit, error)
}
