//! The services, and what they share: who asks, and whether there is a leader.

use std::sync::{Arc, atomic::AtomicU64};

use http::{Extensions, HeaderMap};
use tonic::{Request, Status, service::Routes};

use crate::{
    Store,
    error::Error,
    gateway::{self, gateway},
    proto::{
        etcdserverpb::{
            auth_server::AuthServer, cluster_server::ClusterServer, kv_server::KvServer, lease_server::LeaseServer,
            maintenance_server::MaintenanceServer, watch_server::WatchServer,
        },
        v3electionpb::election_server::ElectionServer,
        v3lockpb::lock_server::LockServer,
    },
};

/// A request with this header set to `true` is refused, and a stream ended, while no leader is known.
const REQUIRE_LEADER: &str = "hasleader";

/// Serves etcd's API over a store: one type for all services.
#[derive(Clone, Debug)]
pub struct Etcd<S> {
    pub(crate) store: S,
    /// The highest revision that an answer had: see `header`.
    pub(crate) shown: Arc<AtomicU64>,
}

/// All services over a store, as gRPC and as JSON. An unknown one is answered with UNIMPLEMENTED.
pub fn routes<S: Store>(store: S) -> Routes {
    let etcd = Etcd { store, shown: Arc::default() };
    Routes::from(gateway(etcd.clone()))
        .add_service(KvServer::new(etcd.clone()))
        .add_service(LeaseServer::new(etcd.clone()))
        .add_service(WatchServer::new(etcd.clone()))
        .add_service(LockServer::new(etcd.clone()))
        .add_service(ElectionServer::new(etcd.clone()))
        .add_service(MaintenanceServer::new(etcd.clone()))
        .add_service(ClusterServer::new(etcd.clone()))
        .add_service(AuthServer::new(etcd))
}

/// The calls that change something.
const CHANGES: [&str; 11] = [
    "/etcdserverpb.KV/Put",
    "/etcdserverpb.KV/DeleteRange",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.KV/Compact",
    "/etcdserverpb.Lease/LeaseGrant",
    "/etcdserverpb.Lease/LeaseRevoke",
    "/v3lockpb.Lock/Lock",
    "/v3lockpb.Lock/Unlock",
    "/v3electionpb.Election/Campaign",
    "/v3electionpb.Election/Proclaim",
    "/v3electionpb.Election/Resign",
];

/// Whether a call to this path changes something, so that its answer must reach the client.
pub fn changes_something(path: &str) -> bool {
    CHANGES.contains(&path) || gateway::changes_something(path)
}

impl<S: Store> Etcd<S> {
    /// Who sends a request. Fails if the caller may not ask anything, or asks for a leader and none is known.
    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Result<S::Caller, Status> {
        self.caller_of(request.extensions(), request.metadata().as_ref())
    }

    /// As [`caller`](Self::caller), for a request that is not gRPC's.
    pub(crate) fn caller_of(&self, extensions: &Extensions, headers: &HeaderMap) -> Result<S::Caller, Status> {
        if requires_leader(headers) && self.store.facts().leader.is_none() {
            return Err(Error::NoLeader.into());
        }
        Ok(self.store.caller(extensions, headers)?)
    }
}

/// Whether a request is only good while there is a leader.
pub(crate) fn requires_leader(headers: &HeaderMap) -> bool {
    headers.get(REQUIRE_LEADER).is_some_and(|value| value == "true")
}
