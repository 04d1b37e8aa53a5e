//! Calls that followers forward are refused unless they are for this node: see [`Destination`].

use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use futures::future::{Either, Ready, ready};
use tonic::{
    body::Body,
    codegen::http::{Request, Response},
    server::NamedService,
};
use tower::Service;

use crate::service::destination::Destination;

/// A service that refuses calls for another node.
#[derive(Clone, Debug)]
pub(crate) struct Addressed<S> {
    pub(crate) here: Destination,
    pub(crate) service: S,
}

impl<S: NamedService> NamedService for Addressed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Addressed<S>
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
        match self.here.check(request.headers()) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(refusal) => Either::Right(ready(Ok(refusal.into_http()))),
        }
    }
}
