//! Calls of clients are refused by their headers if their callers are not known or not served: before the first byte of a message is read.
//!
//! A message is decoded into many objects, and tonic does that before it calls a service. So a caller without an identity, at a node where
//! one is needed, gets no further than here. The caller that was found is in the extensions of the request from here on.
//!
//! Health and reflection are for everybody.

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

/// What the paths of the API's calls begin with.
const API: &str = "/lockkeeper.v1.";

/// Tells who makes a call, by its headers.
pub(crate) trait Identify: Clone {
    /// The caller. Fails if it is not served.
    fn identify<T>(&self, request: &Request<T>) -> Result<Caller, Error>;
}

impl Identify for Arc<Service> {
    fn identify<T>(&self, request: &Request<T>) -> Result<Caller, Error> {
        let caller = shown_caller(self, request.extensions(), request.headers())?;
        self.admit(&caller)?;
        Ok(caller)
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
        if request.uri().path().starts_with(API) {
            match self.callers.identify(&request) {
                Ok(caller) => _ = request.extensions_mut().insert(caller),
                Err(error) => return Either::Right(ready(Ok(Status::from(error).into_http()))),
            }
        }
        Either::Left(self.service.call(request))
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
}
