//! A node serves its peers even while clients keep its other threads busy, and its clients even while adapters do.

#![expect(clippy::disallowed_methods, reason = "session ids differ between runs")]

use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use lockkeeper::{
    config::ConfiguredMember,
    environment::{Environment, Tasks},
    proto::v1::{self, cluster_client::ClusterClient, locks_client::LocksClient, sessions_client::SessionsClient},
    raft::{identity::NodeIdentity, log::LogOptions, network::hello, proposals::clock::BEAT},
    table::{Applied, Inspect},
    transport::TcpConnector,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    runtime::{self, Runtime},
    sync::oneshot,
    time::{sleep, timeout},
};
use tonic::{Response, Status};

use crate::in_process::{self, NodeData, Seat};

/// Deadline: longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
const CLUSTER: &str = "runtimes";

/// Blocks the apply of the first entry that grants a lock, until the test releases it.
#[derive(Debug)]
struct Gate {
    came: Mutex<Option<mpsc::Sender<()>>>,
    let_go: Mutex<mpsc::Receiver<()>>,
}

impl Gate {
    /// A gate, the receiver that reports a blocked apply, and the sender that releases it.
    fn new() -> (Arc<Self>, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let ((came, comes), (go_on, let_go)) = (mpsc::channel(), mpsc::channel());
        (Arc::new(Self { came: Mutex::new(Some(came)), let_go: Mutex::new(let_go) }), comes, go_on)
    }
}

impl Inspect for Gate {
    fn look(&self, applied: &Applied, _units: usize) {
        let came = (applied.machine.last_token().0 > 0).then(|| self.came.lock().expect("no panic").take()).flatten();
        if let Some(came) = came {
            came.send(()).expect("the test receives");
            // An error means that the test has failed.
            let _ = self.let_go.lock().expect("no panic").recv_timeout(LONG);
        }
    }
}

/// A cluster of one node, with one thread for Raft and the peer service.
struct Node {
    client_address: String,
    peer_address: String,
    http_address: String,
    stop: oneshot::Sender<()>,
    thread: thread::JoinHandle<()>,
    directory: TempDir,
}

impl Node {
    fn start(inspector: Option<Arc<Gate>>, clients: Tasks, adapters: Tasks) -> Self {
        let directory = tempfile::tempdir().expect("a place for temporary files");
        let own = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut http_address = "127.0.0.1:0".to_owned();
        let (seat, http) = own.block_on(async { (Seat::new(1).await, in_process::listen(&mut http_address).await) });
        let ConfiguredMember { client_address, peer_address, .. } = seat.member.clone();
        let config = in_process::config(CLUSTER, 1, std::slice::from_ref(&seat.member));
        let data = NodeData::open(directory.path(), &config, LogOptions::default());
        let log = data.log.clone();

        let mut parts = in_process::parts(config, seat, data, log.clone());
        parts.environment = Environment { clients, adapters, ..Environment::system() };
        parts.further.http = Some(http);
        parts.further.inspector = inspector.map(|gate| gate as Arc<dyn Inspect>);
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            let stopped = async { stopped.await.unwrap_or(()) };
            own.block_on(in_process::serve(parts, log, stopped)).expect("it serves until it is stopped");
        });
        Self { client_address, peer_address, http_address, stop, thread, directory }
    }

    /// Sends `hello` calls, as a peer does, until 25 are answered. The answers come from Raft's runtime, between the beats of its clock.
    async fn answers_peers(&self) {
        let asks = async {
            let mut answers = 0;
            while answers < 25 {
                let answer = hello(&TcpConnector, &self.peer_address, &identity(2), Vec::new()).await;
                answers += u32::from(answer.is_ok());
                sleep(BEAT / 5).await;
            }
        };
        timeout(LONG / 2, asks).await.expect("a peer is answered");
    }

    fn client_url(&self) -> String {
        format!("http://{}", self.client_address)
    }

    fn end(self) {
        self.stop.send(()).expect("it still runs");
        self.thread.join().expect("it ended without a panic");
        drop(self.directory);
    }
}

fn identity(node_id: u64) -> Arc<NodeIdentity> {
    let cluster_id = CLUSTER.parse().expect("a cluster id");
    Arc::new(NodeIdentity::in_memory(&cluster_id, node_id, &mut rand::rng()))
}

fn threads(workers: usize) -> Runtime {
    runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().expect("a runtime")
}

/// Opens a session as soon as the node leads.
async fn open_session(url: String) -> String {
    let open = async {
        loop {
            if let Ok(mut stub) = SessionsClient::connect(url.clone()).await {
                let request = v1::OpenSessionRequest { ttl_ms: 60_000, ..Default::default() };
                if let Ok(opened) = stub.open(request).await {
                    return opened.into_inner().session_id;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, open).await.expect("the session is opened")
}

/// Acquires 60 locks with about 1 MiB of data: far above the limit for an entry that is applied in place.
async fn acquire_much(url: String, session_id: String) {
    let answer = try_to_acquire_much(url, session_id).await.expect("answered");
    assert!(matches!(answer.outcome, Some(v1::acquire_response::Outcome::Granted(_))), "{answer:?}");
}

async fn try_to_acquire_much(url: String, session_id: String) -> Result<v1::AcquireResponse, Status> {
    let want =
        |number| v1::Want { name: format!("lock-{number}"), data: Some(vec![7; 16 * 1024]), ..Default::default() };
    let request = v1::AcquireRequest { session_id, locks: (0..60).map(want).collect(), ..Default::default() };
    let mut stub = LocksClient::connect(url).await.expect("the kernel accepts the connection");
    stub.acquire(request).await.map(Response::into_inner)
}

#[test]
fn an_apply_that_takes_long_delays_no_peer() {
    let (gate, comes, go_on) = Gate::new();
    let test = threads(1);
    let clients = threads(1);
    let node = Node::start(Some(gate), Tasks::On(clients.handle().clone()), Tasks::Here);
    let session = test.block_on(open_session(node.client_url()));
    let acquired = test.spawn(acquire_much(node.client_url(), session));
    comes.recv_timeout(LONG).expect("the acquire is being applied");
    // Peers are answered during the apply.
    test.block_on(node.answers_peers());
    assert!(!acquired.is_finished(), "it is not applied yet");
    go_on.send(()).expect("the apply waits");
    test.block_on(acquired).expect("no panic");
    node.end();
}

/// What is committed counts as little as what is in the log, if nobody applies it.
#[test]
fn a_node_whose_table_stands_still_says_that_it_cannot_serve() {
    let (gate, comes, go_on) = Gate::new();
    let test = threads(1);
    let clients = threads(1);
    let node = Node::start(Some(gate), Tasks::On(clients.handle().clone()), Tasks::Here);
    let session = test.block_on(open_session(node.client_url()));
    let ready = async |begins: &str| {
        loop {
            let answer = probe(node.http_address.clone(), "/readyz").await;
            if answer.starts_with(begins) {
                break answer;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    test.block_on(async { timeout(LONG, ready("HTTP/1.1 200 ")).await }).expect("it serves");
    // It may be told that its outcome is unknown.
    let acquired = test.spawn(try_to_acquire_much(node.client_url(), session));
    comes.recv_timeout(LONG).expect("the acquire is being applied");
    let answer = test.block_on(async { timeout(LONG / 2, ready("HTTP/1.1 503 ")).await }).expect("it is noticed");
    assert!(answer.contains("it lacks entries that are committed, and does not catch up"), "{answer}");

    go_on.send(()).expect("the apply waits");
    drop(test.block_on(acquired).expect("no panic"));
    test.block_on(async { timeout(LONG, ready("HTTP/1.1 200 ")).await }).expect("it serves again");
    node.end();
}

#[test]
fn clients_that_keep_their_threads_busy_delay_no_peer() {
    let test = threads(1);
    let clients = threads(1);
    let node = Node::start(None, Tasks::On(clients.handle().clone()), Tasks::Here);
    test.block_on(open_session(node.client_url()));
    // Block the only client thread.
    let (go_on, let_go) = mpsc::channel::<()>();
    let (came, comes) = mpsc::channel();
    let busy = clients.spawn(async move {
        came.send(()).expect("the test receives");
        let _ = let_go.recv_timeout(LONG);
    });
    comes.recv_timeout(LONG).expect("the client thread is blocked");
    let url = node.client_url();
    let status = test.spawn(async move {
        let mut stub = ClusterClient::connect(url).await.expect("the kernel accepts the connection");
        stub.status(v1::StatusRequest { table_hash: false }).await.expect("answered")
    });
    test.block_on(node.answers_peers());
    assert!(!status.is_finished(), "the blocked client thread answered a client");
    go_on.send(()).expect("the client thread waits");
    test.block_on(busy).expect("no panic");
    let status = test.block_on(async { timeout(LONG, status).await }).expect("in time").expect("no panic");
    assert!(status.into_inner().serving);
    node.end();
}

/// The answer of a node's HTTP port to a probe.
async fn probe(address: String, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the kernel accepts the connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the kernel takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    answer
}

#[test]
fn adapters_that_keep_their_threads_busy_delay_no_client() {
    let test = threads(1);
    let clients = threads(1);
    let adapters = threads(1);
    let node = Node::start(None, Tasks::On(clients.handle().clone()), Tasks::On(adapters.handle().clone()));
    test.block_on(open_session(node.client_url()));
    // Block the only thread of the adapters.
    let (go_on, let_go) = mpsc::channel::<()>();
    let (came, comes) = mpsc::channel();
    let busy = adapters.spawn(async move {
        came.send(()).expect("the test receives");
        let _ = let_go.recv_timeout(LONG);
    });
    comes.recv_timeout(LONG).expect("the thread of the adapters is blocked");
    let probed = test.spawn(probe(node.http_address.clone(), "/livez"));
    // Clients and peers are served meanwhile.
    let session = test.block_on(open_session(node.client_url()));
    test.block_on(acquire_much(node.client_url(), session));
    test.block_on(node.answers_peers());
    assert!(!probed.is_finished(), "the blocked thread answered a probe");
    go_on.send(()).expect("the thread of the adapters waits");
    test.block_on(busy).expect("no panic");
    let answer = test.block_on(async { timeout(LONG, probed).await }).expect("in time").expect("no panic");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    node.end();
}
