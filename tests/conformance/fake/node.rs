//! One node: a port, and what happens to the calls that arrive there.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{FutureExt as _, Stream, future::BoxFuture};
use lockkeeper_proto::{
    LEADER_KEY,
    v1::{cluster_server::ClusterServer, locks_server::LocksServer, sessions_server::SessionsServer},
};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status, metadata::MetadataMap, transport::Server};

use super::{
    ClusterState,
    arrivals::{Arrival, Method},
    outbox::Delivery,
    sockets::Socket,
    statements::Effect,
    wire,
};

/// Number of connections that wait to be accepted.
const ACCEPT_QUEUE: u32 = 1_024;

/// The port of a node.
pub(crate) struct Port {
    node: Node,
    address: PortAddress,
    server: Option<JoinHandle<()>>,
    frozen: watch::Sender<bool>,
}

/// A node, as its calls see it.
#[derive(Clone)]
pub(crate) struct Node {
    /// Counted from 1.
    pub(crate) number: usize,
    pub(crate) cluster: Arc<ClusterState>,
    connections: Arc<Connections>,
    is_old: Arc<AtomicBool>,
}

/// The connections of a node, which break together.
#[derive(Default)]
struct Connections(std::sync::Mutex<CancellationToken>);

/// What became of a call.
pub(crate) struct Played<T> {
    pub(crate) answer: Result<T, Status>,
    pub(crate) delivery: Delivery,
}

/// The answer to a call that has arrived.
pub(crate) type Answering<T> = BoxFuture<'static, Result<T, Status>>;

/// An address that is this process' own until it is dropped.
///
/// A socket that is bound and does not listen keeps it: whoever connects meanwhile is refused. Without it the port of a node that is dead
/// could be given to another fake cluster, which would answer the client that it knows no such session.
pub(crate) struct PortAddress {
    address: SocketAddr,
    _bound: TcpSocket,
}

impl PortAddress {
    /// An address of 127.0.0.1 with a port that nobody else has.
    pub(crate) fn choose() -> std::io::Result<Self> {
        let bound = reusable_socket()?;
        bound.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        Ok(Self { address: bound.local_addr()?, _bound: bound })
    }

    /// Listens at it.
    pub(crate) fn listen(&self) -> std::io::Result<TcpListener> {
        let socket = reusable_socket()?;
        socket.bind(self.address)?;
        socket.listen(ACCEPT_QUEUE)
    }
}

impl std::fmt::Display for PortAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(formatter)
    }
}

/// A socket whose address others of this kind may share as long as none of them listens.
fn reusable_socket() -> std::io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    Ok(socket)
}

impl Port {
    /// Serves a node at this address.
    pub(crate) fn open(number: usize, address: PortAddress, cluster: &Arc<ClusterState>) -> Result<Self, String> {
        let node = Node { number, cluster: Arc::clone(cluster), connections: Arc::default(), is_old: Arc::default() };
        let mut port = Self { node, address, server: None, frozen: watch::Sender::new(false) };
        port.listen()?;
        Ok(port)
    }

    fn serve(&mut self, listener: TcpListener) {
        let connections = accepted(listener, Arc::clone(&self.node.connections), self.frozen.subscribe());
        let node = self.node.clone();
        self.server = Some(tokio::spawn(async move {
            let server = Server::builder()
                .add_service(SessionsServer::new(node.clone()))
                .add_service(LocksServer::new(node.clone()))
                .add_service(ClusterServer::new(node));
            // It ends when it is aborted.
            let _ = server.serve_with_incoming(connections).await;
        }));
    }

    /// Listens, unless it does so.
    pub(crate) fn listen(&mut self) -> Result<(), String> {
        if self.server.is_none() {
            let listener = self.address.listen().map_err(|error| format!("{}: {error}", self.address))?;
            self.serve(listener);
        }
        Ok(())
    }

    /// Closes the port and breaks its connections.
    pub(crate) async fn close(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            // The listener is closed once the task is gone.
            let _ = server.await;
        }
        self.cut();
    }

    pub(crate) fn cut(&self) {
        self.node.connections.cut();
    }

    pub(crate) fn freeze(&self) {
        self.frozen.send_replace(true);
    }

    pub(crate) fn thaw(&self) {
        self.frozen.send_replace(false);
    }

    pub(crate) fn make_old(&self) {
        self.node.is_old.store(true, Ordering::Relaxed);
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
        self.cut();
    }
}

impl Connections {
    fn token(&self) -> std::sync::MutexGuard<'_, CancellationToken> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn cut(&self) {
        std::mem::take(&mut *self.token()).cancel();
    }
}

/// The connections that a listener accepts.
fn accepted(
    listener: TcpListener,
    connections: Arc<Connections>,
    frozen: watch::Receiver<bool>,
) -> impl Stream<Item = std::io::Result<Socket>> + Send {
    futures::stream::unfold((listener, connections, frozen), async |(listener, connections, frozen)| {
        let accepted = listener.accept().await.map(|(stream, _)| {
            // Answers must not wait for more.
            let _ = stream.set_nodelay(true);
            let cut = connections.token().clone();
            Socket::new(stream, cut, frozen.clone())
        });
        Some((accepted, (listener, connections, frozen)))
    })
}

impl Node {
    pub(crate) fn is_old(&self) -> bool {
        self.is_old.load(Ordering::Relaxed)
    }

    /// Lets a call arrive, as the rules of the scenario have it. `begin` takes effect when it is called; the future that it returns is the
    /// answer.
    pub(crate) async fn play<T: Default + Send + 'static>(
        &self,
        arrival: Arrival,
        begin: impl FnOnce() -> Answering<T> + Send + 'static,
    ) -> Played<T> {
        let method = arrival.method;
        self.cluster.arrivals.note(arrival);
        let once = |answer| Played { answer, delivery: Delivery::Once };
        let Some(effect) = self.cluster.faults.effect(method, self.number) else {
            return once(self.led(begin).await);
        };

        match effect {
            Effect::Lost => std::future::pending().await,
            Effect::Unanswered => {
                let _answer = self.begun(begin);
                std::future::pending().await
            }
            Effect::Slow(hold) => {
                let held = self.cluster.faults.hold(hold);
                let answer = self.led(begin).await;
                held.await;
                once(answer)
            }
            Effect::Late(hold) => {
                let (held, node) = (self.cluster.faults.hold(hold), self.clone());
                // A task: the request is on its way, whatever becomes of its caller.
                let arriving = tokio::spawn(async move {
                    held.await;
                    node.led(begin).await
                });
                once(arriving.await.unwrap_or_else(|error| Err(Status::internal(error.to_string()))))
            }
            Effect::Broken => {
                let _answer = self.begun(begin);
                self.connections.cut();
                std::future::pending().await
            }
            Effect::Refused { code, reason, about } => once(Err(wire::refusal_about(code, &reason, about))),
            Effect::Unknown => {
                let _answer = self.begun(begin);
                once(Err(wire::refusal(Code::DeadlineExceeded, "OUTCOME_UNKNOWN", "same-id")))
            }
            Effect::Status(code) => once(Err(Status::new(code, "spoilt by the scenario"))),
            Effect::Twice => Played { answer: self.led(begin).await, delivery: Delivery::Twice },
            Effect::Swapped => Played { answer: self.led(begin).await, delivery: Delivery::Swapped },
            Effect::Empty => {
                let _answer = self.begun(begin);
                once(Ok(T::default()))
            }
        }
    }

    /// The leader's answer, or the refusal of a node that knows none or does not forward.
    async fn led<T: Send + 'static>(&self, begin: impl FnOnce() -> Answering<T>) -> Result<T, Status> {
        self.refuse_unless_led()?;
        begin().await
    }

    fn begun<T: Send + 'static>(&self, begin: impl FnOnce() -> Answering<T>) -> Answering<T> {
        match self.refuse_unless_led() {
            Ok(()) => begin(),
            Err(why) => std::future::ready(Err(why)).boxed(),
        }
    }

    /// Refuses what needs a leader, if there is none, or if it is another node and followers do not forward.
    pub(crate) fn refuse_unless_led(&self) -> Result<(), Status> {
        let leading = *self.cluster.leading();
        let is_refused = match leading.node {
            None => true,
            Some(leader) => leading.followers_refuse && leader != self.number,
        };
        if is_refused {
            return Err(wire::refusal(Code::Unavailable, "NO_LEADER", "safe"));
        }
        Ok(())
    }

    /// A reply that names the leader.
    pub(crate) fn reply<T>(&self, answer: Result<T, Status>) -> Result<Response<T>, Status> {
        match answer {
            Ok(message) => {
                let mut response = Response::new(message);
                self.name_leader(response.metadata_mut());
                Ok(response)
            }
            Err(mut status) => {
                self.name_leader(status.metadata_mut());
                Err(status)
            }
        }
    }

    pub(crate) fn name_leader(&self, metadata: &mut MetadataMap) {
        if let Some(leader) = self.cluster.leader_address() {
            metadata.insert(LEADER_KEY, leader.parse().expect("an address is a value of a header"));
        }
    }

    /// A call of its own: not on a stream of requests.
    pub(crate) async fn call<T: Default + Send + 'static>(
        &self,
        arrival: Arrival,
        begin: impl FnOnce() -> Answering<T> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let played = self.play(arrival, begin).await;
        self.reply(played.answer)
    }

    /// The opening of a stream. It stands still, or fails, as the rules have it.
    pub(crate) async fn open_stream(&self, method: Method, stream: u64) -> Result<(), Status> {
        let arrival = Arrival::new(method, self.number).on(stream);
        self.play(arrival, || std::future::ready(Ok(())).boxed()).await.answer
    }
}
