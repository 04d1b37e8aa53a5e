//! What the certificate of a node is good for, at each port.
//!
//! * **Clients' port:** joining. A node that joins asks any node of the cluster for its status and to be added, and has no other
//!   certificate. Whatever else it needs goes to the peers' port. So a node's key that is stolen does not make a client.
//! * **Peers' port:** everything, for members of the present membership. A request that a member forwards for its clients is believed, with
//!   whatever it says of them; so this layer refuses it from others. A node that is no member may join, and ask for the status. A node that
//!   was removed has a certificate that stays valid until it expires, and is good for nothing but to learn of the removal: Raft's own calls
//!   are refused by [`lockkeeper_raft::network`], which also answers the node's question whether it was removed.
//!
//! Joining means: to ask for itself. Whom a node that is no member may add is checked where the message is known ([`may_add`]).

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use futures::future::{Either, Ready, ready};
use tonic::{
    Status,
    body::Body,
    codegen::http::{Request, Response},
};
use tower::Service;

use lockkeeper_raft::Replica;
use lockkeeper_transport::Remote;
use openraft::async_runtime::WatchReceiver as _;

/// What a node may call at the clients' port, and a node that is no member at the peers' port.
const JOINING: [&str; 2] = ["/lockkeeper.v1.Cluster/Status", "/lockkeeper.v1.Cluster/AddMember"];
/// The service of Raft.
const RAFT: &str = "/lockkeeper.internal.v1.Peer/";

/// A port.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    /// That of clients.
    Clients,
    /// That of peers; who is a member is known as far as this node has its log, and who was removed as far as it has applied it.
    Peers(Box<Replica>),
}

impl Port {
    /// Why a node may not make this call. `None`: it may.
    fn refuses(&self, node: u64, path: &str) -> Option<String> {
        match self {
            Self::Clients => (!JOINING.contains(&path))
                .then(|| format!("this is the port of clients, and the certificate is node {node}'s: use a client's")),
            Self::Peers(_) if path.starts_with(RAFT) => None,
            Self::Peers(replica) if replica.table().has_removed(node) => {
                Some(format!("node {node} was removed from this cluster: its certificate counts no more"))
            }
            Self::Peers(replica) => (!JOINING.contains(&path) && !is_member(replica, node)).then(|| {
                format!("node {node} is no member of this cluster, and only a member forwards calls: add it with `lockkeeper member add`")
            }),
        }
    }
}

/// Whether the membership has this node: in its log, committed or not.
fn is_member(replica: &Replica, node: u64) -> bool {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.membership().get_node(&node).is_some()
}

/// Refuses that a node which is no member adds another one, or changes its addresses.
pub(crate) fn may_add<T>(replica: &Replica, request: &tonic::Request<T>, added: u64) -> Result<(), Status> {
    let asks = request.extensions().get::<Remote>().and_then(Remote::node);
    let Some(node) = asks.filter(|node| *node != added && !is_member(replica, *node)) else { return Ok(()) };
    let why = format!(
        "the certificate is node {node}'s, which is no member: it may ask to be added itself, and not for node {added}"
    );
    Err(Status::permission_denied(why))
}

/// A service that refuses calls of nodes for which their certificates are not good.
#[derive(Clone, Debug)]
pub(crate) struct NodeCalls<S> {
    pub(crate) port: Port,
    pub(crate) service: S,
}

impl<S> Service<Request<Body>> for NodeCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let node = request.extensions().get::<Remote>().and_then(Remote::node);
        match node.and_then(|node| self.port.refuses(node, request.uri().path())) {
            Some(why) => Either::Right(ready(Ok(Status::permission_denied(why).into_http()))),
            None => Either::Left(self.service.call(request)),
        }
    }
}
