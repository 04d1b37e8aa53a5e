//! The node that a forwarded request is for.
//!
//! An address proves nothing: a leader that is gone for good is still the last one that a follower knows, and its address may be another
//! cluster's by then. Its leader would execute the request: a client would hold a lock, and a token, of a cluster that it never called.
//! So a forwarded request names the cluster and the node that it is for, as Raft's calls do, and any other node refuses it unread.
//!
//! A node of an earlier version names nothing, and is believed.

use tonic::{
    Status,
    codegen::http::HeaderMap,
    metadata::{AsciiMetadataValue, MetadataMap},
};

use crate::api::Error;

/// The metadata keys of the cluster and of the node, as in Raft's calls.
const CLUSTER: &str = "lockkeeper-cluster";
const TO: &str = "lockkeeper-to";
/// The key in the refusal by another node.
const MISDIRECTED: &str = "lockkeeper-misdirected";

/// A node of a cluster, as it is named in metadata. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    cluster: AsciiMetadataValue,
    node: AsciiMetadataValue,
}

impl Destination {
    pub(crate) fn new(cluster_id: &str, node_id: u64) -> Self {
        Self { cluster: cluster_id.parse().expect("a cluster's id is plain ASCII"), node: node_id.into() }
    }

    /// Names this node as the one that a request is for.
    pub(crate) fn name(&self, metadata: &mut MetadataMap) {
        metadata.insert(CLUSTER, self.cluster.clone());
        metadata.insert(TO, self.node.clone());
    }

    /// As this node: refuses a request for another one.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let differs = |key: &str, own: &AsciiMetadataValue| {
            headers.get(key).is_some_and(|named| named.as_bytes() != own.as_encoded_bytes())
        };
        if !differs(CLUSTER, &self.cluster) && !differs(TO, &self.node) {
            return Ok(());
        }

        let named = |key: &str| headers.get(key).and_then(|named| named.to_str().ok()).unwrap_or("?").to_owned();
        let own = |value: &AsciiMetadataValue| value.to_str().unwrap_or("?").to_owned();
        let error = Error::misdirected((&own(&self.node), &own(&self.cluster)), (&named(TO), &named(CLUSTER)));
        let mut status = Status::from(error);
        status.metadata_mut().insert(MISDIRECTED, AsciiMetadataValue::from_static("true"));
        Err(status)
    }
}

/// Whether another node than the one that was meant has refused a request.
pub(crate) fn is_misdirected(status: &Status) -> bool {
    status.metadata().contains_key(MISDIRECTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{FailureReason, Retry},
        wire::status::error_of,
    };

    #[test]
    fn a_request_for_another_node_or_cluster_is_refused_and_has_done_nothing() {
        let here = Destination::new("shop", 1);
        let named = |by: Option<Destination>| {
            let mut metadata = MetadataMap::new();
            by.inspect(|destination| destination.name(&mut metadata));
            here.check(&metadata.into_headers())
        };

        assert!(named(Some(here.clone())).is_ok());
        assert!(named(None).is_ok(), "a node of an earlier version");
        for (cluster, node) in [("shop", 2), ("shop-2", 1)] {
            let status = named(Some(Destination::new(cluster, node))).expect_err("it is for another node");
            assert!(is_misdirected(&status));
            // A node that does not know of the refusal takes it for a leader that is not there.
            let error = error_of(&status).expect("an error of the service");
            assert_eq!((error.reason, error.retry), (FailureReason::NoLeader, Retry::Safe));
            let text =
                format!("this is node 1 of cluster shop, and the request is for node {node} of cluster {cluster}");
            assert!(error.message.starts_with(&text), "{}", error.message);
        }
    }
}
