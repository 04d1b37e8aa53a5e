//! What every call says about its two ends, and how it is checked.
//!
//! Who the two are: the cluster, ids, and data directories by their incarnations. And whether both go on from where they were: the
//! caller's start, what the caller remembers of the callee's starts, and what the callee acknowledged to it. A node that does not know of
//! something that it did has an older copy of its data, and ends ([`Identity::outdated`]); see [`crate::raft::identity`].

use std::{fmt, future::Future, str::FromStr};

use tonic::{
    Request, Response, Status,
    metadata::{AsciiMetadataValue, MetadataMap},
};

use crate::{
    planted::Planted,
    raft::{
        identity::{Acknowledged, Identity, IdentityError, Incarnation, Start},
        types::LogId,
    },
};

const CLUSTER: &str = "lockkeeper-cluster";
const FROM: &str = "lockkeeper-from";
const FROM_INCARNATION: &str = "lockkeeper-from-incarnation";
const TO: &str = "lockkeeper-to";
const TO_INCARNATION: &str = "lockkeeper-to-incarnation";
/// The caller's start; and an earlier one of it, which the callee remembers.
const FROM_START: &str = "lockkeeper-from-start";
const FROM_EARLIER_START: &str = "lockkeeper-from-earlier-start";
/// What the caller remembers of the callee.
const TO_START: &str = "lockkeeper-to-start";
const TO_ACKNOWLEDGED: &str = "lockkeeper-to-acknowledged";
/// In an answer: who gave it. In a refusal: what is remembered of the caller.
const ANSWER_START: &str = "lockkeeper-start";
const REMEMBERED_START: &str = "lockkeeper-remembered-start";

/// The ends of the calls from one node to another.
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
    pub(super) fn new(
        sender: &Identity,
        to: u64,
        to_incarnation: Incarnation,
        acknowledged: Option<Acknowledged>,
    ) -> Self {
        let ascii = |text: String| text.parse().expect("ids, incarnations and numbers are plain ASCII");
        let remembered = sender.remembered(to);
        let acknowledged = acknowledged.max(remembered.and_then(|peer| peer.acknowledged));
        let starts = [
            Some((FROM_START, ascii(sender.start().to_string()))),
            sender.shown_to(to).map(|start| (FROM_EARLIER_START, ascii(start.to_string()))),
            remembered.and_then(|peer| peer.start).map(|start| (TO_START, ascii(start.to_string()))),
            acknowledged.map(|acknowledged| (TO_ACKNOWLEDGED, ascii(acknowledged.to_string()))),
        ];
        Self {
            starts: starts.into_iter().flatten().collect(),
            cluster: ascii(sender.cluster_id().to_string()),
            from: sender.node_id(),
            from_incarnation: ascii(sender.incarnation().to_string()),
            to,
            to_incarnation: ascii(to_incarnation.to_string()),
        }
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

/// A call that is for this node, and from one that is who it was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) node_id: u64,
    /// `None`: nothing to remember, of a node that the log does not name, or one of before there were starts.
    start: Option<Start>,
}

/// How far a node has come: the term of its vote, and the end of its log.
pub(super) type Progress = (u64, Option<LogId>);

/// Checks that a call is for this node and from one that is who it was. `named` says by which incarnation this node's log names a member,
/// `progress` how far this node has come.
///
/// A call that names the incarnation of a new node comes from a cluster that has taken it in: the node joins. A caller that the log does
/// not name is let in: its membership may be newer than this node's log, and Raft needs the two to talk (§4.1 of Ongaro's thesis). It
/// cannot be one that lost its data: such a node has no membership, and so nobody to call; and whoever calls *it*
/// names the incarnation of before.
pub(super) async fn admit(
    identity: &Identity,
    named: impl Fn(u64) -> Option<Incarnation>,
    progress: impl Future<Output = Result<Progress, Status>>,
    metadata: &MetadataMap,
) -> Result<Caller, Status> {
    let cluster = field(metadata, CLUSTER)?;
    if cluster != identity.cluster_id().as_str() {
        let text = format!("this node belongs to cluster {}, not {cluster}", identity.cluster_id());
        return Err(Status::failed_precondition(text));
    }
    let to: u64 = parse(metadata, TO)?;
    if to != identity.node_id() {
        let text = format!("this is node {}, not {to}: check the peer addresses", identity.node_id());
        return Err(Status::failed_precondition(text));
    }
    let known: Incarnation = parse(metadata, TO_INCARNATION)?;
    if known != identity.incarnation() && !Planted::LostDataTakenIn.is_on() {
        return Err(refusal(IdentityError::OtherIncarnation { node_id: to, known, found: identity.incarnation() }));
    }
    let from = parse(metadata, FROM)?;
    let found: Incarnation = parse(metadata, FROM_INCARNATION)?;
    let known = named(from);
    if let Some(known) = known
        && known != found
        && !Planted::LostDataTakenIn.is_on()
    {
        return Err(refusal(IdentityError::OtherIncarnation { node_id: from, known, found }));
    }
    // What others say of this node can end it: the word of a member counts, not that of a passer-by.
    if known.is_some() && !Planted::OlderCopyTakenIn.is_on() {
        goes_on(identity, from, progress, metadata).await?;
    }
    let start = caller_goes_on(identity, from, metadata)?;
    identity.join().await.map_err(refusal)?;
    // Strangers are not remembered: there is no end of them.
    Ok(Caller { node_id: from, start: start.filter(|_| known.is_some()) })
}

/// Whether this node has on its disk what the caller remembers of it.
async fn goes_on(
    identity: &Identity,
    from: u64,
    progress: impl Future<Output = Result<Progress, Status>>,
    metadata: &MetadataMap,
) -> Result<(), Status> {
    if let Some(start) = optional(metadata, TO_START)? {
        identity.goes_on_from(from, start).map_err(refusal)?;
    }
    let acknowledged: Option<Acknowledged> = optional(metadata, TO_ACKNOWLEDGED)?;
    if let Some(acknowledged) = acknowledged {
        let (term, last) = progress.await?;
        if !acknowledged.is_kept_by(term, last) {
            let Acknowledged { term: voted, index, .. } = acknowledged;
            let end = last.map_or("nowhere".to_owned(), |last| format!("at entry {}", last.index));
            let what =
                format!("that it had entry {index} in term {voted}; its log ends {end}, its vote is of term {term}");
            return Err(refusal(identity.is_outdated(from, what)));
        }
    }
    Ok(())
}

/// The caller's start, which is the one that this node remembers, or goes on from it.
fn caller_goes_on(identity: &Identity, from: u64, metadata: &MetadataMap) -> Result<Option<Start>, Status> {
    let start: Option<Start> = optional(metadata, FROM_START)?;
    let Some(remembered) = identity.remembered(from).and_then(|peer| peer.start) else { return Ok(start) };
    let earlier: Option<Start> = optional(metadata, FROM_EARLIER_START)?;
    if [start, earlier].contains(&Some(remembered)) || start.is_none() || Planted::OlderCopyTakenIn.is_on() {
        return Ok(start);
    }
    let text = format!("node {from} is remembered by start {remembered}: show that this one goes on from there");
    let mut status = Status::unavailable(text);
    let remembered = remembered.to_string().parse().expect("digits are plain ASCII");
    status.metadata_mut().insert(REMEMBERED_START, remembered);
    Err(status)
}

impl Caller {
    /// Before this node promises something to the caller, or takes entries from it: it will remember whom it was.
    pub(super) async fn count_on(self, identity: &Identity) -> Result<(), Status> {
        match self.start {
            Some(start) => identity.remember_start(self.node_id, start).await.map_err(refusal),
            None => Ok(()),
        }
    }
}

/// An answer, with the start of the node that gives it.
pub(super) fn signed<T>(identity: &Identity, answer: T) -> Response<T> {
    let mut response = Response::new(answer);
    let start = identity.start().to_string().parse().expect("digits are plain ASCII");
    response.metadata_mut().insert(ANSWER_START, start);
    response
}

/// The start of the node that gave an answer.
pub(super) fn answered_by(metadata: &MetadataMap) -> Result<Option<Start>, Status> {
    optional(metadata, ANSWER_START)
}

/// A refusal may say what the other node remembers of this one. The next call shows that this one goes on from there; if it does not, it
/// ends.
pub(super) fn heed(identity: &Identity, target: u64, metadata: &MetadataMap) {
    if let Ok(Some(remembered)) = optional(metadata, REMEMBERED_START)
        && let Err(error) = identity.goes_on_from(target, remembered)
    {
        tracing::error!("{error}");
    }
}

fn refusal(error: IdentityError) -> Status {
    match error {
        IdentityError::Io { .. } => Status::internal(error.to_string()),
        IdentityError::OtherCluster { .. }
        | IdentityError::OtherNode { .. }
        | IdentityError::Foreign { .. }
        | IdentityError::Damaged { .. }
        | IdentityError::LogLost { .. }
        | IdentityError::Outdated { .. }
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
