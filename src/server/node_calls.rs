//! Which calls the certificate of a node permits, at each port.
//!
//! * **Clients' port:** joining. A node that joins asks any node of the cluster for its status and to be added, and has no other
//!   certificate. Whatever else it needs goes to the peers' port. So a node's key that is stolen does not make a client.
//! * **Peers' port:** everything, for members of the present membership. A request that a member forwards for its clients is believed, with
//!   whatever it says of them; so this layer refuses it from others. A node that is not a member may join, and ask for the status. A node
//!   that was removed has a certificate that stays valid until it expires. It permits one thing: to learn of the removal. Raft's own calls
//!   are refused by [`lockkeeper_raft::network`], which also answers the node's question whether it was removed.
//!
//! A stream that a node opened as a member ends with its membership. Otherwise, what it forwards for its clients would go on for as long as
//! they like. For the same reason it ends, and further calls are refused, once no authority of this node has signed the certificate any
//! more. That refusal is one of the connection, which ends, too: a node that has another certificate goes on with another connection.
//!
//! Joining means that a node asks for itself. [`may_add`] checks which node it asks for, where the message has been decoded.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Either, ready},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderMap, Request, Response},
};
use tower::Service;

use lockkeeper_raft::Replica;
use lockkeeper_transport::{Remote, tls::WithdrawnCertificate};
use openraft::async_runtime::WatchReceiver as _;

/// The calls of any node at the clients' port, and at the peers' port of a node that is not a member.
const JOINING: [&str; 2] = ["/lockkeeper.v1.Cluster/Status", "/lockkeeper.v1.Cluster/AddMember"];
/// The calls that last for as long as their clients like.
const STREAMS: [&str; 4] = [
    "/lockkeeper.v1.Sessions/KeepAlive",
    "/lockkeeper.v1.Locks/Watch",
    "/lockkeeper.v1.Locks/Pipeline",
    "/lockkeeper.internal.v1.Keyspace/Watch",
];
/// The service of Raft.
const RAFT: &str = "/lockkeeper.internal.v1.Peer/";

/// The port at which a call arrives.
#[derive(Clone, Debug)]
pub(crate) enum CallPort {
    /// The port of clients.
    Clients,
    /// The port of peers. This node knows the members as far as its log reaches, and the removed nodes as far as it has applied the log.
    Peers(Box<Replica>),
}

impl CallPort {
    /// Returns why a node may not make this call, or `None` if it may.
    fn refuses(&self, node: u64, path: &str) -> Option<String> {
        match self {
            Self::Clients => (!JOINING.contains(&path))
                .then(|| format!("this is the port of clients, and the certificate is node {node}'s: use a client's")),
            Self::Peers(_) if path.starts_with(RAFT) => None,
            Self::Peers(replica) if replica.table().has_removed(node) => {
                Some(format!("node {node} was removed from this cluster: its certificate is no longer accepted"))
            }
            Self::Peers(replica) => (!JOINING.contains(&path) && !is_member(replica, node)).then(|| {
                format!("node {node} is not a member of this cluster, and only members forward calls: add it with `lockkeeper member add`")
            }),
        }
    }

    /// Waits until this node may no longer make this call, and returns why.
    async fn forbids(self, node: u64, path: String) -> String {
        let Self::Peers(replica) = &self else { return std::future::pending().await };
        let mut changes = replica.raft().server_metrics();
        loop {
            if let Some(why) = self.refuses(node, &path) {
                return why;
            }
            if changes.changed().await.is_err() {
                return "this node stops".to_owned();
            }
        }
    }
}

/// Whether the membership has this node: in its log, committed or not.
fn is_member(replica: &Replica, node: u64) -> bool {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.membership().get_node(&node).is_some()
}

/// Refuses the request of a node that is not a member to add another node, or to change its addresses.
pub(crate) fn may_add<T>(replica: &Replica, request: &tonic::Request<T>, added: u64) -> Result<(), Status> {
    let asks = request.extensions().get::<Remote>().and_then(Remote::node);
    let Some(node) = asks.filter(|node| *node != added && !is_member(replica, *node)) else { return Ok(()) };
    let why = format!(
        "the certificate is node {node}'s, which is not a member: it may ask to be added itself, but not for node {added}"
    );
    Err(Status::permission_denied(why))
}

/// A service that refuses the calls which a node's certificate does not permit.
#[derive(Clone, Debug)]
pub(crate) struct NodeCalls<S> {
    pub(crate) port: CallPort,
    pub(crate) service: S,
}

impl<S> Service<Request<Body>> for NodeCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let remote = request.extensions().get::<Remote>();
        let shown = remote.and_then(|remote| Some((remote.node()?, remote.certificate.as_ref()?)));
        let Some((node, certificate)) = shown else { return Either::Left(self.service.call(request)) };

        if let Err(withdrawn) = certificate.check() {
            return Either::Right(ready(Ok(disconnected(&withdrawn).into_http())).boxed());
        }
        if let Some(why) = self.port.refuses(node, path) {
            return Either::Right(ready(Ok(refusal(why).into_http())).boxed());
        }

        let is_stream = STREAMS.contains(&path);
        if !is_stream {
            return Either::Left(self.service.call(request));
        }

        let forbidden = self.port.clone().forbids(node, path.to_owned());
        let certificate = certificate.clone();
        let mut forbidden = async move {
            tokio::select! {
                why = forbidden => refusal(why),
                withdrawn = certificate.withdrawn() => disconnected(&withdrawn),
            }
        }
        .boxed();
        let answer = self.service.call(request);
        let answer = async move {
            tokio::select! {
                biased;
                answer = answer => answer.map(|answer| answer.map(|body| Body::new(MemberStream { body, forbidden: Some(forbidden) }))),
                why = &mut forbidden => Ok(why.into_http()),
            }
        };
        Either::Right(answer.boxed())
    }
}

fn refusal(why: String) -> Status {
    Status::permission_denied(why)
}

/// It is the connection that ends, so the caller may ask again on another one.
fn disconnected(withdrawn: &WithdrawnCertificate) -> Status {
    Status::unavailable(format!("{withdrawn}: connect again, with a certificate that counts"))
}

/// The body of a stream, which ends with the caller's membership.
struct MemberStream {
    body: Body,
    /// Completes when the caller may no longer make the call, with the reason. It is taken when that has happened.
    forbidden: Option<BoxFuture<'static, Status>>,
}

impl HttpBody for MemberStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(forbidden) = &mut self.forbidden else { return Poll::Ready(None) };
        if let Poll::Ready(why) = forbidden.poll_unpin(context) {
            self.forbidden = None;
            let mut trailers = HeaderMap::new();
            why.add_header(&mut trailers)?;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.forbidden.is_none() || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
