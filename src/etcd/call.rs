//! What all calls share: who asks, whether there is a leader, and the answers to unknown methods and services.

use std::sync::{Arc, atomic::AtomicU64};

use http::{Extensions, HeaderMap};
use tonic::{Request, Status};

use crate::{EtcdStore, error::Error};

/// A request with this header set to `true` is refused, and a stream ended, while no leader is known.
const REQUIRE_LEADER: &str = "hasleader";

/// Serves etcd's API over a store: one type for all services.
#[derive(Clone, Debug)]
pub struct Etcd<S> {
    pub(crate) store: S,
    /// The highest revision that an answer had: see `header`.
    pub(crate) shown: Arc<AtomicU64>,
    /// The number of the next lease whose id the client leaves to us.
    pub(crate) leases: Arc<AtomicU64>,
}

impl<S: EtcdStore> Etcd<S> {
    /// The caller of a request. Fails if the caller may not send requests, or requires a leader and no leader is known.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Result<S::Caller, Status> {
        // A call of gRPC was asked who makes it before its message was read.
        match request.extensions().get::<S::Caller>() {
            Some(caller) => Ok(caller.clone()),
            None => self.caller_of(request.extensions(), request.metadata().as_ref()),
        }
    }

    /// Like [`caller`](Self::caller), from the extensions and headers of a request whose message is not read yet.
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
    let (service, method) = parts(path);
    if service.contains('/') {
        return unknown_service(path);
    }
    let instead = instead_of(service, method).map(|instead| format!(": {instead}")).unwrap_or_default();
    Status::unimplemented(format!("unknown method {method} for service {service}{instead}"))
}

/// What a user of etcd does here instead of a call that is etcd's, and is not served.
fn instead_of(service: &str, method: &str) -> Option<&'static str> {
    Some(match (service, method) {
        ("etcdserverpb.Cluster", "MemberAdd" | "MemberRemove" | "MemberUpdate" | "MemberPromote") => {
            "Lockkeeper's members are changed by `lockkeeper member`"
        }
        ("etcdserverpb.Maintenance", "Snapshot") => "save a backup by `lockkeeper snapshot save`",
        ("etcdserverpb.Maintenance", "Defragment") => "there is nothing to do, the nodes free the space themselves",
        ("etcdserverpb.Maintenance", "Hash" | "HashKV") => {
            "the nodes compare their tables themselves, see `lockkeeper status`"
        }
        ("etcdserverpb.Maintenance", "MoveLeader") => "move the leadership by `lockkeeper transfer-leader`",
        ("etcdserverpb.Auth", _) => {
            "users are the identities in the nodes' auth.tokens, and roles the rules in their auth.policy"
        }
        _ => return None,
    })
}

/// The answer to a call of an unknown service.
pub(crate) fn unknown_service(path: &str) -> Status {
    Status::unimplemented(format!("unknown service {}", parts(path).0))
}

/// The service and the method of a call.
fn parts(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('/').unwrap_or(path);
    path.rsplit_once('/').unwrap_or((path, ""))
}
