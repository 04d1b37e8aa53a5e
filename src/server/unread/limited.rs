//! The layer around all services of a port: what a call is told whose answers are not read.

use std::task::{Context, Poll};

use futures::{
    TryFutureExt,
    future::{Either, MapOk, Ready, ready},
};
use tonic::{
    Status,
    body::Body,
    codegen::http::{Request, Response, Version},
};
use tower::{Layer, Service};

use super::UnreadLayer;
use crate::{api::Error, v1::deadlines};
use lockkeeper_transport::Remote;

/// The changes whose answers may be large: 64 names of locks, or values. Of these, only a transaction may give back what others wait for,
/// and a client can repeat it once it has read some answers.
const LARGE: [&str; 3] = ["/lockkeeper.v1.Locks/Acquire", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"];
/// The stream whose requests change something. Its end breaks them off.
const PIPELINE: &str = "/lockkeeper.v1.Locks/Pipeline";

/// What an answer is to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnsweredCall {
    /// A call that changes nothing.
    Read,
    /// A call that may have changed something.
    Change,
}

impl AnsweredCall {
    fn to(path: &str) -> Self {
        let changes =
            deadlines::changes_something(path) || lockkeeper_etcd::changes_something(path) || path == PIPELINE;
        if changes { Self::Change } else { Self::Read }
    }

    /// How many times each budget may be used for it.
    pub(super) fn share(self) -> usize {
        match self {
            Self::Read => 1,
            Self::Change => 2,
        }
    }
}

impl<S> Layer<S> for UnreadLayer {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, unread: self.clone() }
    }
}

/// A service whose unread answers are limited.
#[derive(Clone, Debug)]
pub(crate) struct Limited<S> {
    inner: S,
    unread: UnreadLayer,
}

type Wrap = Box<dyn FnOnce(Response<Body>) -> Response<Body> + Send>;

impl<S> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<MapOk<S::Future, Wrap>, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let remote = request.extensions().get::<Remote>();
        let account = remote.map(|remote| self.unread.limiter.account(remote.address, Some(remote)));
        let path = request.uri().path();
        let answers = AnsweredCall::to(path);

        let exhausted = account.as_ref().and_then(|account| account.exhausted());
        if let Some(budget) = exhausted.filter(|_| LARGE.contains(&path)) {
            let refused = Error::unread(&budget.full());
            return Either::Right(ready(Ok(Status::from(refused).into_http())));
        }

        let unread = self.unread.clone();
        let has_trailers = request.version() == Version::HTTP_2;
        let wrap: Wrap = Box::new(move |response| {
            // Only tests call without a connection.
            let Some(account) = account else { return response };
            response.map(|body| unread.hold(account, body, answers, has_trailers))
        });

        Either::Left(self.inner.call(request).map_ok(wrap))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tonic::Code;
    use tonic_types::StatusExt as _;

    use super::*;
    use crate::unread::UnreadAnswerLimits;
    use lockkeeper_transport::Connection;

    /// The status with which a call is answered, by a service that answers each call well.
    async fn called(limited: &mut Limited<impl Wanted>, remote: &Remote, path: &str) -> Status {
        let mut request = Request::builder().uri(path).body(Body::empty()).expect("a request");
        request.extensions_mut().insert(remote.clone());
        let response = limited.call(request).await.expect("it cannot fail");
        Status::from_header_map(response.headers()).expect("a status")
    }

    /// A service of the test.
    trait Wanted: Service<Request<Body>, Response = Response<Body>, Error = Infallible> {}
    impl<S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>> Wanted for S {}

    #[tokio::test]
    async fn a_change_with_a_large_answer_is_not_begun_while_answers_are_unread() {
        let unread = UnreadLayer::new(UnreadAnswerLimits::CLIENTS);
        let service = tower::service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Status::ok("").into_http()));
        let mut limited = unread.layer(service);
        let connection = Connection::for_test(tokio::io::empty());
        let remote = connection.remote();
        let account = unread.limiter.account(remote.address, Some(&remote));
        for path in LARGE {
            assert_eq!(called(&mut limited, &remote, path).await.code(), Code::Ok, "{path}");
        }

        account.take_anyway(UnreadAnswerLimits::CLIENTS.connection);
        for path in LARGE {
            let status = called(&mut limited, &remote, path).await;
            assert_eq!(status.code(), Code::ResourceExhausted, "{path}");
            assert_eq!(status.get_details_error_info().expect("a reason").metadata["retry"], "safe");
        }
        for path in ["/lockkeeper.v1.Locks/Release", "/lockkeeper.v1.Locks/Get", "/etcdserverpb.KV/DeleteRange"] {
            assert_eq!(called(&mut limited, &remote, path).await.code(), Code::Ok, "{path}");
        }
        account.give_back(UnreadAnswerLimits::CLIENTS.connection);
        assert_eq!(called(&mut limited, &remote, LARGE[0]).await.code(), Code::Ok);
    }

    #[test]
    fn the_end_of_a_pipeline_breaks_off_changes() {
        assert_eq!(AnsweredCall::to(PIPELINE), AnsweredCall::Change);
        assert_eq!(AnsweredCall::to("/lockkeeper.v1.Locks/Watch"), AnsweredCall::Read);
    }
}
