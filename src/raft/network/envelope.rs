//! What every call says about its two ends, and how it is checked.

use tonic::{
    Request, Status,
    metadata::{AsciiMetadataValue, MetadataMap},
};

use crate::raft::identity::{Identity, IdentityError, Incarnation};

const CLUSTER: &str = "lockkeeper-cluster";
const FROM: &str = "lockkeeper-from";
const FROM_INCARNATION: &str = "lockkeeper-from-incarnation";
const TO: &str = "lockkeeper-to";
const TO_INCARNATION: &str = "lockkeeper-to-incarnation";

/// The ends of the calls from one node to another.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    cluster: AsciiMetadataValue,
    from: u64,
    from_incarnation: AsciiMetadataValue,
    to: u64,
    to_incarnation: AsciiMetadataValue,
}

impl Envelope {
    pub(super) fn new(sender: &Identity, to: u64, to_incarnation: Incarnation) -> Self {
        let ascii = |text: String| text.parse().expect("ids and incarnations are plain ASCII");
        Self {
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
        request
    }
}

/// Checks that a call is for this node and from one that is who it was. Returns the sender's id.
///
/// A call that names the incarnation of a new node comes from a cluster that has taken it in: the node joins.
pub(super) async fn admit(identity: &Identity, metadata: &MetadataMap) -> Result<u64, Status> {
    let cluster = field(metadata, CLUSTER)?;
    if cluster != identity.cluster_id().as_str() {
        let text = format!("this node belongs to cluster {}, not {cluster}", identity.cluster_id());
        return Err(Status::failed_precondition(text));
    }
    let to = node_id(metadata, TO)?;
    if to != identity.node_id() {
        let text = format!("this is node {}, not {to}: check the peer addresses", identity.node_id());
        return Err(Status::failed_precondition(text));
    }
    let to_incarnation = incarnation(metadata, TO_INCARNATION)?;
    if to_incarnation != identity.incarnation() {
        let (found, known) = (identity.incarnation(), to_incarnation);
        return Err(refusal(IdentityError::OtherIncarnation { node_id: to, known, found }));
    }
    let from = node_id(metadata, FROM)?;
    let from_incarnation = incarnation(metadata, FROM_INCARNATION)?;
    identity.join().await.map_err(refusal)?;
    identity.meet(from, from_incarnation).await.map_err(refusal)?;
    Ok(from)
}

fn refusal(error: IdentityError) -> Status {
    match error {
        IdentityError::Io { .. } => Status::internal(error.to_string()),
        IdentityError::OtherCluster { .. }
        | IdentityError::OtherNode { .. }
        | IdentityError::Foreign { .. }
        | IdentityError::Damaged { .. }
        | IdentityError::LogLost { .. }
        | IdentityError::OtherIncarnation { .. } => Status::failed_precondition(error.to_string()),
    }
}

fn field<'m>(metadata: &'m MetadataMap, name: &'static str) -> Result<&'m str, Status> {
    let text = metadata.get(name).and_then(|value| value.to_str().ok());
    text.ok_or_else(|| Status::invalid_argument(format!("a call between peers needs {name} in its metadata")))
}

fn node_id(metadata: &MetadataMap, name: &'static str) -> Result<u64, Status> {
    field(metadata, name)?.parse().map_err(|_| Status::invalid_argument(format!("{name} is not a node id")))
}

fn incarnation(metadata: &MetadataMap, name: &'static str) -> Result<Incarnation, Status> {
    let invalid = |error| Status::invalid_argument(format!("{name}: {error}"));
    field(metadata, name)?.parse().map_err(invalid)
}
