//! Calls of clients are refused by their headers if their callers are not known or not served: before the first byte of a message is read.
//!
//! A message is decoded into many objects, and tonic does that before it calls a service. So a caller without an identity, at a node where
//! one is needed, gets no further than here. The caller that was found is in the extensions of the request from here on.
//!
//! Health and reflection are for everybody. Their calls count for an identity that they show: [`Access::count_probe`].
//!
//! [`Access::count_probe`]: crate::access::Access::count_probe

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::{Either, Ready, ready};
use http::{Request, Response};
use tonic::{Status, body::Body};
use tower::Service as CallService;

use super::shown_caller;
use crate::{
    api::{Caller, Error},
    service::Service,
};
use lockkeeper_transport::Remote;

/// What the paths of the API's calls begin with.
const API: &str = "/lockkeeper.v1.";

/// Tells who makes a call, by its headers.
pub(crate) trait Identify: Clone {
    /// The caller. Fails if it is not served.
    fn identify<T>(&self, request: &Request<T>) -> Result<Caller, Error>;

    /// Counts a call that is for everybody. Fails if its caller makes too many.
    fn count_probe<T>(&self, request: &Request<T>) -> Result<(), Error>;
}

impl Identify for Arc<Service> {
    fn identify<T>(&self, request: &Request<T>) -> Result<Caller, Error> {
        let caller = shown_caller(self, request.extensions(), request.headers())?;
        self.admit(&caller)?;
        Ok(caller)
    }

    fn count_probe<T>(&self, request: &Request<T>) -> Result<(), Error> {
        let remote = request.extensions().get::<Remote>();
        let certificate = remote.and_then(|remote| remote.certificate.as_ref());
        self.access().count_probe(request.headers(), certificate)
    }
}

/// A service whose callers are known.
#[derive(Clone, Debug)]
pub(crate) struct Identified<I, S> {
    pub(crate) callers: I,
    pub(crate) service: S,
}

impl<I, S> CallService<Request<Body>> for Identified<I, S>
where
    I: Identify,
    S: CallService<Request<Body>, Response = Response<Body>, Error = Infallible>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let known = if request.uri().path().starts_with(API) {
            self.callers.identify(&request).map(|caller| _ = request.extensions_mut().insert(caller))
        } else {
            self.callers.count_probe(&request)
        };
        match known {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(error) => Either::Right(ready(Ok(Status::from(error).into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use tower::{ServiceExt as _, service_fn};

    use super::*;
    use lockkeeper_machine::Identity;

    /// Serves those who send a token, whatever it is.
    #[derive(Clone)]
    struct AnyToken;

    impl Identify for AnyToken {
        fn identify<T>(&self, request: &Request<T>) -> Result<Caller, Error> {
            let token = request.headers().get("authorization").ok_or_else(|| Error::unauthenticated("no token"))?;
            Ok(Caller { identity: token.to_str().ok().and_then(|name| Identity::new(name).ok()), ..Caller::default() })
        }

        /// Whoever says that it is busy has made too many.
        fn count_probe<T>(&self, request: &Request<T>) -> Result<(), Error> {
            let is_busy = request.headers().get("authorization").is_some_and(|token| token == "busy");
            let who = Identity::new("busy").expect("a name");
            if is_busy { Err(Error::over_limit(&who, "calls-per-second", 1, 1, true)) } else { Ok(()) }
        }
    }

    /// What becomes of a call: the name of the caller that the service sees, or the code of the refusal.
    async fn outcome(path: &str, token: Option<&str>) -> Result<Option<String>, Code> {
        let service = service_fn(async |request: Request<Body>| {
            let caller = request.extensions().get::<Caller>().and_then(|caller| caller.identity.as_ref());
            let name = caller.map(ToString::to_string).unwrap_or_default();
            let answer = Response::builder().header("seen", name).body(request.into_body());
            Ok::<_, Infallible>(answer.expect("an answer"))
        });

        let mut request = Request::post(path);
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let identified = Identified { callers: AnyToken, service };
        let answer = identified.oneshot(request.body(Body::default()).expect("a request")).await;
        let Ok(answer) = answer;

        match answer.headers().get("seen") {
            Some(name) => Ok(Some(name.to_str().expect("a name").to_owned()).filter(|name| !name.is_empty())),
            None => Err(Status::from_header_map(answer.headers()).expect("a status").code()),
        }
    }

    #[tokio::test]
    async fn a_service_sees_no_call_of_the_api_whose_caller_is_unknown() {
        for path in ["/lockkeeper.v1.Locks/Acquire", "/lockkeeper.v1.Locks/Pipeline", "/lockkeeper.v1.Cluster/Status"] {
            assert_eq!(outcome(path, None).await, Err(Code::Unauthenticated), "{path}");
            assert_eq!(outcome(path, Some("ann")).await, Ok(Some("ann".to_owned())), "{path}");
        }
        assert_eq!(outcome("/grpc.health.v1.Health/Check", None).await, Ok(None), "it is for everybody");
    }

    #[tokio::test]
    async fn calls_for_everybody_count_for_their_callers() {
        for path in ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"] {
            assert_eq!(outcome(path, Some("ann")).await, Ok(None), "{path}");
            assert_eq!(outcome(path, Some("busy")).await, Err(Code::ResourceExhausted), "{path}");
        }
        assert_eq!(outcome("/lockkeeper.v1.Locks/Get", Some("busy")).await, Ok(Some("busy".to_owned())));
    }
}
