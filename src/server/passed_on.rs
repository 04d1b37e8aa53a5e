//! Calls that followers pass on run where clients' calls do.
//!
//! They arrive at the peers' port, on the runtime of Raft: the connection itself, with its framing and flow control, is served there. The
//! call (decoding, the proposer's queue, waiting, encoding of a single answer) is a task on the clients' runtime, so that a burst of calls
//! at a follower delays no heartbeat of the leader. What remains on Raft's runtime is the framing and the encoding of streams.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use futures::future::Either;
use tokio_util::task::AbortOnDropHandle;
use tonic::{
    Status,
    body::Body,
    codegen::http::{Request, Response},
    server::NamedService,
};
use tower::Service;

use crate::environment::Tasks;

/// A service whose calls run as tasks.
#[derive(Clone, Debug)]
pub(super) struct PassedOn<S> {
    pub(super) service: S,
    pub(super) tasks: Tasks,
}

impl<S: NamedService> NamedService for PassedOn<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for PassedOn<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = self.service.call(request);
        let Tasks::On(runtime) = &self.tasks else { return Either::Left(answer) };
        // Dropped with its call, as if it ran here: a call that breaks off is a call that breaks off.
        let task = AbortOnDropHandle::new(runtime.spawn(answer));
        Either::Right(Box::pin(async move {
            // It is aborted only with the runtime, at the end of the node; a panic has ended the process.
            task.await.unwrap_or_else(|_| Ok(Status::unavailable("this node stops").into_http()))
        }))
    }
}
