//! What the certificate of a node is good for, at each port.
//!
//! * **Clients' port:** joining. A node that joins asks any node of the cluster for its status and to be added, and has no other
//!   certificate. Whatever else it needs goes to the peers' port. So a node's key that is stolen does not make a client.
//! * **Peers' port:** everything, until the node is removed. Its certificate stays valid until it expires, and is good for nothing then but
//!   to learn of the removal: Raft's own calls are refused by [`lockkeeper_raft::network`], which also answers the node's question whether
//!   it was removed, and this layer refuses the others: requests that a member forwards for its clients, which are believed.

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

/// What a node may call at the clients' port.
const JOINING: [&str; 2] = ["/lockkeeper.v1.Cluster/Status", "/lockkeeper.v1.Cluster/AddMember"];
/// The service of Raft.
const RAFT: &str = "/lockkeeper.internal.v1.Peer/";

/// A port.
#[derive(Clone, Debug)]
pub(crate) enum Port {
    /// That of clients.
    Clients,
    /// That of peers; which of them were removed is known as far as this node has applied its log.
    Peers(Replica),
}

impl Port {
    /// Why a node may not make this call. `None`: it may.
    fn refuses(&self, node: u64, path: &str) -> Option<String> {
        match self {
            Self::Clients => (!JOINING.contains(&path))
                .then(|| format!("this is the port of clients, and the certificate is node {node}'s: use a client's")),
            Self::Peers(replica) => (!path.starts_with(RAFT) && replica.table().has_removed(node))
                .then(|| format!("node {node} was removed from this cluster: its certificate counts no more")),
        }
    }
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
