//! The metadata of every call between peers, and how it is checked.
//!
//! It identifies both ends: the cluster, the ids, and the data directories by their incarnations. It also shows whether both continue
//! from their earlier state: the caller's start, the callee's start that the caller remembers, and the last entry that the callee
//! acknowledged to it. A node whose data lacks something that it is known to have done has an older copy of its data, and ends
//! ([`NodeIdentity::outdated`]); see [`crate::identity`].

use std::{fmt, future::Future, str::FromStr};

use tonic::{
    Request, Response, Status,
    metadata::{AsciiMetadataValue, MetadataMap},
};

use crate::identity::{AcknowledgedEntry, IdentityError, Incarnation, NodeIdentity, Start};
use crate::types::LogId;
use lockkeeper_planted::Planted;

const CLUSTER: &str = "lockkeeper-cluster";
const FROM: &str = "lockkeeper-from";
const FROM_INCARNATION: &str = "lockkeeper-from-incarnation";
const TO: &str = "lockkeeper-to";
const TO_INCARNATION: &str = "lockkeeper-to-incarnation";
/// The caller's start; and an earlier one of its starts, which the callee remembers.
const FROM_START: &str = "lockkeeper-from-start";
const FROM_EARLIER_START: &str = "lockkeeper-from-earlier-start";
/// The callee's start and the last acknowledged entry that the caller remembers.
const TO_START: &str = "lockkeeper-to-start";
const TO_ACKNOWLEDGED: &str = "lockkeeper-to-acknowledged";
/// In an answer: the start of the node that gave it. In a refusal: the caller's start that is remembered.
const ANSWER_START: &str = "lockkeeper-start";
const REMEMBERED_START: &str = "lockkeeper-remembered-start";
/// In a refusal: the caller was a member, and was removed.
const REMOVED: &str = "lockkeeper-removed";

/// The metadata of the calls from one node to another.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    cluster: AsciiMetadataValue,
    from: u64,
    from_incarnation: AsciiMetadataValue,
    to: u64,
    to_incarnation: AsciiMetadataValue,
    starts: Vec<(&'static str, AsciiMetadataValue)>,
}

impl Envelope {
    /// Shows the sender's start: waits until it is recorded that peers may know of it.
    pub(super) async fn new(
        sender: &NodeIdentity,
        to: u64,
        to_incarnation: Incarnation,
        acknowledged: Option<AcknowledgedEntry>,
    ) -> Result<Self, Status> {
        sender.show_start().await.map_err(refusal)?;
        let ascii = |text: String| text.parse().expect("ids, incarnations and numbers are plain ASCII");
        let remembered = sender.remembered(to);
        let acknowledged = acknowledged.max(remembered.and_then(|peer| peer.acknowledged));

        let starts = [
            Some((FROM_START, ascii(sender.start().to_string()))),
            sender.earlier_start_for(to).map(|start| (FROM_EARLIER_START, ascii(start.to_string()))),
            remembered.and_then(|peer| peer.start).map(|start| (TO_START, ascii(start.to_string()))),
            acknowledged.map(|acknowledged| (TO_ACKNOWLEDGED, ascii(acknowledged.to_string()))),
        ];

        Ok(Self {
            starts: starts.into_iter().flatten().collect(),
            cluster: ascii(sender.cluster_id().to_string()),
            from: sender.node_id(),
            from_incarnation: ascii(sender.incarnation().to_string()),
            to,
            to_incarnation: ascii(to_incarnation.to_string()),
        })
    }

    /// Adds what the node says of its versions.
    pub(super) fn saying(mut self, said: impl IntoIterator<Item = (&'static str, AsciiMetadataValue)>) -> Self {
        self.starts.extend(said);
        self
    }

    pub(super) fn address<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();

        metadata.insert(CLUSTER, self.cluster.clone());
        metadata.insert(FROM, self.from.into());
        metadata.insert(FROM_INCARNATION, self.from_incarnation.clone());
        metadata.insert(TO, self.to.into());
        metadata.insert(TO_INCARNATION, self.to_incarnation.clone());

        for (name, value) in &self.starts {
            metadata.insert(*name, value.clone());
        }
        request
    }
}

/// The caller of an admitted call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerCaller {
    pub(crate) node_id: u64,
    /// `None` if the log does not name the node, or if its version has no starts.
    start: Option<Start>,
}

/// The term of a node's vote, and the end of its log.
pub(crate) type LogProgress = (u64, Option<LogId>);

/// Checks that a call is for this node, and that its caller has the expected incarnation and start. `named` returns the incarnation by
/// which this node's log names a member, `was_removed` whether a node is a former member, `progress` this node's own term and end of log,
/// `certified` the node that the caller's certificate names.
///
/// A call that names the incarnation of a new node comes from a cluster that has added it: the node joins. A caller that the log does not
/// name is admitted: its membership may be newer than this node's log, and Raft needs the two to communicate (§4.1 of Ongaro's thesis).
/// Such a caller cannot have lost its data: a node without data has no membership and calls nobody, and calls *to* it name its previous
/// incarnation.
pub(crate) async fn admit(
    identity: &NodeIdentity,
    named: impl Fn(u64) -> Option<Incarnation>,
    was_removed: impl Fn(u64) -> bool,
    progress: impl Future<Output = Result<LogProgress, Status>>,
    certified: Option<u64>,
    metadata: &MetadataMap,
) -> Result<PeerCaller, Status> {
    let cluster = field(metadata, CLUSTER)?;
    if cluster != identity.cluster_id().as_str() {
        let text = format!("this node belongs to cluster {}, not {cluster}", identity.cluster_id());
        return Err(Status::failed_precondition(text));
    }

    let to: u64 = parse(metadata, TO)?;
    if to != identity.node_id() {
        let own = identity.node_id();
        let text = format!(
            "this is node {own}, not {to}: the address for node {to} leads to node {own}; if the data directories or ids of two nodes are \
             swapped, put them back, or correct the addresses of these nodes in the configurations"
        );
        return Err(Status::failed_precondition(text));
    }

    let known: Incarnation = parse(metadata, TO_INCARNATION)?;
    if known != identity.incarnation() && !Planted::LostDataTakenIn.is_on() {
        return Err(refusal(IdentityError::OtherIncarnation { node_id: to, known, found: identity.incarnation() }));
    }

    let from = parse(metadata, FROM)?;
    if certified.is_some_and(|certified| certified != from) {
        return Err(certified_as_another(from));
    }

    if was_removed(from) {
        let mut status = Status::failed_precondition(format!("node {from} was removed from this cluster"));
        status.metadata_mut().insert(REMOVED, from.into());
        return Err(status);
    }

    let found: Incarnation = parse(metadata, FROM_INCARNATION)?;
    let known = named(from);
    if let Some(known) = known
        && known != found
        && !Planted::LostDataTakenIn.is_on()
    {
        return Err(refusal(IdentityError::OtherIncarnation { node_id: from, known, found }));
    }

    // A statement about this node can end it, so only members are believed.
    if known.is_some() && !Planted::OlderCopyTakenIn.is_on() {
        check_own_progress(identity, from, progress, metadata).await?;
    }

    let start = check_caller_start(identity, from, metadata)?;
    identity.join().await.map_err(refusal)?;
    // Nodes that are not members are not remembered: their number is unbounded.
    Ok(PeerCaller { node_id: from, start: start.filter(|_| known.is_some()) })
}

/// The refusal of a call whose caller's certificate names another node.
pub(super) fn certified_as_another(claimed: u64) -> Status {
    Status::permission_denied(format!("the certificate of this connection is not node {claimed}'s"))
}

/// Checks that this node has on its disk what the caller remembers of it.
async fn check_own_progress(
    identity: &NodeIdentity,
    from: u64,
    progress: impl Future<Output = Result<LogProgress, Status>>,
    metadata: &MetadataMap,
) -> Result<(), Status> {
    if let Some(start) = optional(metadata, TO_START)? {
        identity.check_start(from, start).map_err(refusal)?;
    }

    let acknowledged: Option<AcknowledgedEntry> = optional(metadata, TO_ACKNOWLEDGED)?;
    if let Some(acknowledged) = acknowledged {
        let (term, last) = progress.await?;
        if !acknowledged.is_kept_by(term, last) {
            let AcknowledgedEntry { term: voted, index, .. } = acknowledged;
            let end = last.map_or("nowhere".to_owned(), |last| format!("at entry {}", last.index));
            let what =
                format!("that it had entry {index} in term {voted}; its log ends {end}, its vote is of term {term}");
            return Err(refusal(identity.mark_outdated(from, what)));
        }
    }
    Ok(())
}

/// Checks that the caller's start is the one that this node remembers, or continues from it. Returns it.
fn check_caller_start(identity: &NodeIdentity, from: u64, metadata: &MetadataMap) -> Result<Option<Start>, Status> {
    let start: Option<Start> = optional(metadata, FROM_START)?;
    let Some(remembered) = identity.remembered(from).and_then(|peer| peer.start) else { return Ok(start) };
    let earlier: Option<Start> = optional(metadata, FROM_EARLIER_START)?;
    if [start, earlier].contains(&Some(remembered)) || start.is_none() || Planted::OlderCopyTakenIn.is_on() {
        return Ok(start);
    }

    let text = format!("node {from} is known by start {remembered}; repeat the call with that start as an earlier one");
    let mut status = Status::unavailable(text);
    let remembered = remembered.to_string().parse().expect("digits are plain ASCII");
    status.metadata_mut().insert(REMEMBERED_START, remembered);
    Err(status)
}

impl PeerCaller {
    /// Remembers the caller's start durably, before this node promises something to it or takes entries from it.
    pub(super) async fn rely_on(self, identity: &NodeIdentity) -> Result<(), Status> {
        match self.start {
            Some(start) => identity.remember_start(self.node_id, start).await.map_err(refusal),
            None => Ok(()),
        }
    }
}

/// An answer with the start of the node that gives it. Waits until it is recorded that peers may know of that start.
pub(super) async fn signed<T>(identity: &NodeIdentity, answer: T) -> Result<Response<T>, Status> {
    identity.show_start().await.map_err(refusal)?;
    let mut response = Response::new(answer);
    let start = identity.start().to_string().parse().expect("digits are plain ASCII");
    response.metadata_mut().insert(ANSWER_START, start);
    Ok(response)
}

/// The start of the node that gave an answer.
pub(crate) fn answered_by(metadata: &MetadataMap) -> Result<Option<Start>, Status> {
    optional(metadata, ANSWER_START)
}

/// Evaluates a refusal: this node may have been removed; or the refusal contains the start of this node that the other one remembers. The
/// next call proves that this start
/// continues from it; if it does not, this node ends.
pub(crate) fn handle_refusal(identity: &NodeIdentity, target: u64, metadata: &MetadataMap) {
    if let Ok(Some(removed)) = optional::<u64>(metadata, REMOVED)
        && removed == identity.node_id()
    {
        identity.mark_removed(target);
    }
    if let Ok(Some(remembered)) = optional(metadata, REMEMBERED_START)
        && let Err(error) = identity.check_start(target, remembered)
    {
        tracing::error!("{error}");
    }
}

pub(super) fn refusal(error: IdentityError) -> Status {
    match error {
        IdentityError::Io { .. } => Status::internal(error.to_string()),
        IdentityError::OtherCluster { .. }
        | IdentityError::OtherNode { .. }
        | IdentityError::Foreign { .. }
        | IdentityError::Damaged { .. }
        | IdentityError::Format { .. }
        | IdentityError::LogLost { .. }
        | IdentityError::Outdated { .. }
        | IdentityError::OtherTable { .. }
        | IdentityError::Disagreement { .. }
        | IdentityError::Removed { .. }
        | IdentityError::OtherIncarnation { .. } => Status::failed_precondition(error.to_string()),
    }
}

fn field<'m>(metadata: &'m MetadataMap, name: &'static str) -> Result<&'m str, Status> {
    let text = metadata.get(name).and_then(|value| value.to_str().ok());
    text.ok_or_else(|| Status::invalid_argument(format!("a call between peers needs {name} in its metadata")))
}

fn parse<T: FromStr<Err: fmt::Display>>(metadata: &MetadataMap, name: &'static str) -> Result<T, Status> {
    let invalid = |error| Status::invalid_argument(format!("{name}: {error}"));
    field(metadata, name)?.parse().map_err(invalid)
}

fn optional<T: FromStr<Err: fmt::Display>>(metadata: &MetadataMap, name: &'static str) -> Result<Option<T>, Status> {
    metadata.contains_key(name).then(|| parse(metadata, name)).transpose()
}
