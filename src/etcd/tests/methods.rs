//! Services and methods that are not served.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
};

use bytes::Bytes;
use futures::stream::poll_fn;
use http::{Request as HttpRequest, Response as HttpResponse};
use tonic::{body::Body, codegen::Service as _};

use super::*;

async fn call(path: &str) -> Status {
    let request = HttpRequest::post(path).header("content-type", "application/grpc").body(Body::empty()).unwrap();
    let answer: HttpResponse<Body> = Api::new().routes().call(request).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    Status::from_header_map(answer.headers()).expect("a status")
}

#[tokio::test]
async fn what_is_unknown_is_named_as_etcd_does() {
    for (path, error) in [
        ("/etcdserverpb.KV/NoSuch", "12 unknown method NoSuch for service etcdserverpb.KV"),
        ("/etcdserverpb.Maintenance/NoSuch", "12 unknown method NoSuch for service etcdserverpb.Maintenance"),
        ("/etcdserverpb.Watch/a/b", "12 unknown service etcdserverpb.Watch/a"),
        ("/etcdserverpb.KVs/Range", "12 unknown service etcdserverpb.KVs"),
        ("/grpc.health.v1.Health/Check", "12 unknown service grpc.health.v1.Health"),
        ("/nothing", "12 unknown service nothing"),
    ] {
        assert_eq!(shown(&call(path).await), error, "{path}");
    }
    // What etcd has, and is not served, is told with what to do instead.
    for (path, instead) in [
        ("/etcdserverpb.Maintenance/Snapshot", "`lockkeeper snapshot save`"),
        ("/etcdserverpb.Maintenance/Defragment", "there is nothing to do"),
        ("/etcdserverpb.Maintenance/MoveLeader", "`lockkeeper transfer-leader`"),
        ("/etcdserverpb.Maintenance/HashKV", "`lockkeeper status`"),
        ("/etcdserverpb.Cluster/MemberAdd", "`lockkeeper member`"),
        ("/etcdserverpb.Auth/UserAdd", "auth.tokens"),
    ] {
        let error = shown(&call(path).await);
        assert!(error.starts_with("12 unknown method ") && error.contains(instead), "{path}: {error}");
    }
    // A method that is known keeps its own errors.
    assert_ne!(call("/etcdserverpb.KV/Range").await.code(), tonic::Code::Unimplemented);
}

/// The status of a call with a token that nobody has, and whether its message was read.
async fn call_of_stranger(path: &str) -> (Status, bool) {
    let is_read = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_read);
    let message = poll_fn(move |_| {
        noted.store(true, Relaxed);
        Poll::Ready(None::<Result<Bytes, Infallible>>)
    });

    let request = HttpRequest::post(path).header("content-type", "application/grpc").header("token", "nobody's");
    let request = request.body(Body::new(axum::body::Body::from_stream(message))).unwrap();
    let answer: HttpResponse<Body> = Api::new().routes().call(request).await.expect("an answer");
    (Status::from_header_map(answer.headers()).expect("a status"), is_read.load(Relaxed))
}

#[tokio::test]
async fn the_message_of_a_stranger_is_not_read() {
    for path in
        ["/etcdserverpb.KV/Txn", "/v3lockpb.Lock/Lock", "/etcdserverpb.Lease/LeaseGrant", "/etcdserverpb.Watch/Watch"]
    {
        let (status, is_read) = call_of_stranger(path).await;
        assert_eq!((shown(&status).as_str(), is_read), ("16 etcdserver: invalid auth token", false), "{path}");
    }
    // By these a client makes itself known.
    let (_, is_read) = call_of_stranger("/etcdserverpb.Auth/Authenticate").await;
    assert!(is_read);
}
