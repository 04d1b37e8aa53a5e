//! The services, as gRPC and as JSON.

use std::sync::{Arc, atomic::AtomicU64};

use axum::{
    extract::Request as HttpRequest,
    middleware::{Next, from_fn},
    response::Response as HttpResponse,
};
use tonic::{Status, service::Routes};

use crate::{
    Store,
    call::{Etcd, unknown_method},
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

/// All services over a store, as gRPC and as JSON. An unknown one is answered with UNIMPLEMENTED.
pub fn routes<S: Store>(store: S) -> Routes {
    // A quarter of all numbers is beyond it: as many leases are never granted.
    let leases = Arc::new(AtomicU64::new(store.random() >> 2));
    let etcd = Etcd { store, shown: Arc::default(), leases };
    let routes = Routes::from(gateway(etcd.clone()))
        .add_service(KvServer::new(etcd.clone()))
        .add_service(LeaseServer::new(etcd.clone()))
        .add_service(WatchServer::new(etcd.clone()))
        .add_service(LockServer::new(etcd.clone()))
        .add_service(ElectionServer::new(etcd.clone()))
        .add_service(MaintenanceServer::new(etcd.clone()))
        .add_service(ClusterServer::new(etcd.clone()))
        .add_service(AuthServer::new(etcd));
    Routes::from(routes.into_axum_router().layer(from_fn(name_unknown_method)))
}

/// The services answer a method that they do not know with a code alone. The text is that of etcd.
async fn name_unknown_method(request: HttpRequest, next: Next) -> HttpResponse {
    let uri = request.uri().clone();
    let response = next.run(request).await;
    let headers = response.headers();
    match headers.get(Status::GRPC_STATUS).is_some_and(|code| code == "12")
        && !headers.contains_key(Status::GRPC_MESSAGE)
    {
        true => unknown_method(uri.path()).into_http(),
        false => response,
    }
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
