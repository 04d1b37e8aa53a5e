//! The services, as gRPC and as JSON.
//!
//! The calls that lock clients make all the time go to their services at once: a router and the layer around it take a twentieth of the
//! processor time that the node's adapters spend on a read.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll},
};

use axum::{
    extract::Request as HttpRequest,
    middleware::{Next, from_fn},
    response::Response as HttpResponse,
};
use futures::future::{Either, ready};
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service},
    service::Routes,
};

use crate::{
    EtcdStore,
    call::{Etcd, unknown_method},
    gateway::{self, gateway},
    methods::{KEYS_BYTES_MAX, SHORT_BYTES_MAX, WRITE_BYTES_MAX, needs_identity},
    proto::{
        etcdserverpb::{
            auth_server::AuthServer, cluster_server::ClusterServer, kv_server::KvServer, lease_server::LeaseServer,
            maintenance_server::MaintenanceServer, watch_server::WatchServer,
        },
        v3electionpb::election_server::ElectionServer,
        v3lockpb::lock_server::LockServer,
    },
};

/// The calls of [`EtcdServices::kv`].
const KV: [&str; 4] =
    ["/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put", "/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn"];
/// The calls of [`EtcdServices::lock`].
const LOCK: [&str; 2] = ["/v3lockpb.Lock/Lock", "/v3lockpb.Lock/Unlock"];

/// All services over a store, as gRPC and as JSON. An unknown one is answered with UNIMPLEMENTED.
#[derive(Clone, Debug)]
pub struct EtcdServices<S: EtcdStore> {
    etcd: Arc<Etcd<S>>,
    kv: KvServer<Etcd<S>>,
    lock: LockServer<Etcd<S>>,
    /// Serves every call that the other routes do not serve.
    all: Routes,
}

impl<S: EtcdStore> Service<HttpRequest<Body>> for EtcdServices<S> {
    type Response = HttpResponse<Body>;
    type Error = Infallible;
    type Future = Either<BoxFuture<HttpResponse<Body>, Infallible>, <Routes as Service<HttpRequest<Body>>>::Future>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // All services are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: HttpRequest<Body>) -> Self::Future {
        // A message is decoded into many objects before its service is called. Strangers get no further than here, by their headers.
        if needs_identity(request.uri().path()) {
            match self.etcd.caller_of(request.extensions(), request.headers()) {
                Ok(caller) => _ = request.extensions_mut().insert(caller),
                Err(status) => return Either::Left(Box::pin(ready(Ok(status.into_http())))),
            }
        }

        let path = request.uri().path();
        if KV.contains(&path) {
            return Either::Left(self.kv.call(request));
        }
        if LOCK.contains(&path) {
            return Either::Left(self.lock.call(request));
        }
        Either::Right(self.all.call(request))
    }
}

/// All services over a store.
pub fn services<S: EtcdStore>(store: S) -> EtcdServices<S> {
    // A quarter of all numbers is beyond it: as many leases are never granted.
    let leases = Arc::new(AtomicU64::new(store.random() >> 2));
    let etcd = Etcd { store, shown: Arc::default(), leases };

    let known = Arc::new(etcd.clone());
    let kv = KvServer::new(etcd.clone()).max_decoding_message_size(WRITE_BYTES_MAX);
    let lock = LockServer::new(etcd.clone()).max_decoding_message_size(KEYS_BYTES_MAX);

    let routes = Routes::from(gateway(etcd.clone()))
        .add_service(kv.clone())
        .add_service(LeaseServer::new(etcd.clone()).max_decoding_message_size(SHORT_BYTES_MAX))
        .add_service(WatchServer::new(etcd.clone()).max_decoding_message_size(KEYS_BYTES_MAX))
        .add_service(lock.clone())
        .add_service(ElectionServer::new(etcd.clone()))
        .add_service(MaintenanceServer::new(etcd.clone()))
        .add_service(ClusterServer::new(etcd.clone()))
        .add_service(AuthServer::new(etcd));

    let all = Routes::from(routes.into_axum_router().layer(from_fn(name_unknown_method))).prepare();
    EtcdServices { etcd: known, kv, lock, all }
}

/// The services answer a method that they do not know with a code alone. The text is that of etcd.
async fn name_unknown_method(request: HttpRequest, next: Next) -> HttpResponse {
    let uri = request.uri().clone();
    let response = next.run(request).await;
    let headers = response.headers();
    // 12 is UNIMPLEMENTED.
    let is_unimplemented = headers.get(Status::GRPC_STATUS).is_some_and(|code| code == "12");
    if is_unimplemented && !headers.contains_key(Status::GRPC_MESSAGE) {
        return unknown_method(uri.path()).into_http();
    }
    response
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
