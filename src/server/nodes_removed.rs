//! The certificate of a node that was removed from the cluster: it is good for nothing but to learn that.
//!
//! Its certificate stays valid until it expires. Raft's own calls are refused by [`lockkeeper_raft::network`], which also answers the
//! node's question whether it was removed. This layer refuses the others: requests that a member forwards for its clients, which are
//! believed.

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

/// The service of Raft.
const RAFT: &str = "/lockkeeper.internal.v1.Peer/";

/// A service that refuses the calls of nodes that were removed, as far as this node has applied its log.
#[derive(Clone, Debug)]
pub(crate) struct NodesRemoved<S> {
    pub(crate) service: S,
    pub(crate) replica: Replica,
}

impl<S> Service<Request<Body>> for NodesRemoved<S>
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
        match node.filter(|id| self.replica.table().has_removed(*id)) {
            Some(id) if !request.uri().path().starts_with(RAFT) => {
                let what = format!("node {id} was removed from this cluster: its certificate counts no more");
                Either::Right(ready(Ok(Status::permission_denied(what).into_http())))
            }
            _ => Either::Left(self.service.call(request)),
        }
    }
}
