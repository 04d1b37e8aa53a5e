//! Calls that followers forward run where those of the leader's own clients do.
//!
//! They arrive at the peers' port, on Raft's runtime, which serves the connection with its framing and flow control. The call itself
//! (decoding, the proposer's queue, waiting, encoding of a single answer) is a task on the clients' runtime, or on that of the adapters if
//! only adapters make such calls, so that a burst of calls at a follower delays no heartbeat of the leader. Only framing and the encoding
//! of streams remain on Raft's runtime.

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

use lockkeeper_environment::Tasks;

/// A service whose calls run as tasks.
#[derive(Clone, Debug)]
pub(crate) struct Forwarded<S> {
    pub(crate) service: S,
    pub(crate) tasks: Tasks,
}

impl<S: NamedService> NamedService for Forwarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Forwarded<S>
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
        // The task is aborted when the call is dropped, as if it ran here: that breaks off a wait.
        let task = AbortOnDropHandle::new(runtime.spawn(answer));
        Either::Right(Box::pin(async move {
            // Only the end of the runtime aborts it, when the node ends; a panic ends the process.
            task.await.unwrap_or_else(|_| Ok(Status::unavailable("this node stops").into_http()))
        }))
    }
}
