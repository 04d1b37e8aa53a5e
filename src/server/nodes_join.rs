//! The certificate of a node at the port of clients: it is good for joining, and for no lock.
//!
//! A node that joins asks any node of the cluster for its status and to be added, and has no other certificate. Whatever else it needs
//! goes to the port of peers. So a node's key that is stolen does not make a client.

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

use lockkeeper_transport::Remote;

/// What a node may call.
const ALLOWED: [&str; 2] = ["/lockkeeper.v1.Cluster/Status", "/lockkeeper.v1.Cluster/AddMember"];

/// A service that refuses other calls of nodes.
#[derive(Clone, Debug)]
pub(crate) struct NodesJoin<S>(pub(crate) S);

impl<S> Service<Request<Body>> for NodesJoin<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let node = request.extensions().get::<Remote>().and_then(Remote::node);
        match node {
            Some(id) if !ALLOWED.contains(&request.uri().path()) => {
                let what = format!("this is the port of clients, and the certificate is node {id}'s: use a client's");
                Either::Right(ready(Ok(Status::permission_denied(what).into_http())))
            }
            _ => Either::Left(self.0.call(request)),
        }
    }
}
