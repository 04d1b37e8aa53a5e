//! What all calls share: who asks, whether there is a leader, and what is said of a method that there is none of.

use std::sync::{Arc, atomic::AtomicU64};

use http::{Extensions, HeaderMap};
use tonic::{Request, Status};

use crate::{Store, error::Error};

/// A request with this header set to `true` is refused, and a stream ended, while no leader is known.
const REQUIRE_LEADER: &str = "hasleader";

/// Serves etcd's API over a store: one type for all services.
#[derive(Clone, Debug)]
pub struct Etcd<S> {
    pub(crate) store: S,
    /// The highest revision that an answer had: see `header`.
    pub(crate) shown: Arc<AtomicU64>,
}

impl<S: Store> Etcd<S> {
    /// Who sends a request. Fails if the caller may not ask anything, or asks for a leader and none is known.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Result<S::Caller, Status> {
        self.caller_of(request.extensions(), request.metadata().as_ref())
    }

    /// As [`caller`](Self::caller), for a request that is not gRPC's.
    pub(crate) fn caller_of(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<S::Caller, Status> {
        if requires_leader(headers) && self.store.leader().is_none() {
            return Err(Error::NoLeader.into());
        }
        Ok(self.store.caller(extensions, headers)?)
    }
}

/// Whether a request is only good while there is a leader.
pub(crate) fn requires_leader(headers: &HeaderMap) -> bool {
    headers.get(REQUIRE_LEADER).is_some_and(|value| value == "true")
}

/// A method that a service does not have. The name of a service ends with the last slash.
pub(crate) fn unknown_method(path: &str) -> Status {
    match parts(path) {
        (service, _) if service.contains('/') => unknown_service(path),
        (service, method) => Status::unimplemented(format!("unknown method {method} for service {service}")),
    }
}

/// A path whose service there is none of.
pub(crate) fn unknown_service(path: &str) -> Status {
    Status::unimplemented(format!("unknown service {}", parts(path).0))
}

/// The service and the method of a call.
fn parts(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.rsplit_once('/').unwrap_or((path, ""))
}
