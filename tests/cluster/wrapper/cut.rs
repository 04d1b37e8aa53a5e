//! A wrapper that is partitioned from its cluster, while other clients are not.
//!
//! It connects through a proxy that, once cut, reads bytes and forwards none: a black hole, as in a network. The node announces the
//! proxy's address as its own; the other client connects directly.

use std::{
    fs,
    net::{SocketAddr, TcpListener as Std},
    path::Path,
};

use lockkeeper::{
    local::{ClusterOptions, LocalCluster, free_port},
    proto::v1::{
        AcquireRequest, OpenSessionRequest, Want, acquire_request::Wait, acquire_response::Outcome,
        locks_client::LocksClient, sessions_client::SessionsClient,
    },
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::timeout,
};

use super::{
    SHORT_TTL,
    work::{Work, Wrapper},
};
use crate::support::{LONG, program, until};

/// Starts one node, and a proxy in front of it.
async fn one_node(directory: &Path) -> (LocalCluster, Proxy, String) {
    let (direct, through) = addresses();
    configure(directory, direct, through);
    let options = ClusterOptions { timeout: LONG, directory: Some(directory.into()), ..ClusterOptions::new(program()) };
    let cluster = LocalCluster::start(options).await.expect("a node that serves");
    assert_eq!(cluster.endpoints(), [format!("http://{direct}")], "another process took its port");
    (cluster, Proxy::start(through, direct).await, through.to_string())
}

/// The leader is killed before its notice arrives: the next leader, here the same node, must send it.
#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lock_is_forced_as_the_leader_dies_is_stopped() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (mut cluster, proxy, through) = one_node(directory.path()).await;
    let work = Work::obedient();
    let mut wrapper = Wrapper::start_at(&through, "20s", &work).await;

    proxy.cut();
    let operator = crate::support::client(&cluster);
    let forced = operator.force_release("seat", "maintenance").now().await.expect("an operator may");
    assert_eq!(forced.len(), 1);
    cluster.node_mut(1).kill().await;
    assert!(!work.is_over(), "the notice has not arrived yet");
    cluster.node_mut(1).spawn().expect("it starts again");
    proxy.mend();
    let (code, stderr) = wrapper.ended().await;
    assert!(work.is_over(), "alive without its lock: {:?}", work.pids());
    assert_eq!(code, Some(11), "{stderr}");
    assert!(stderr.contains("maintenance"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_command_is_dead_before_another_holder_enters() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (cluster, proxy, through) = one_node(directory.path()).await;

    let work = Work::stubborn();
    let mut wrapper = Wrapper::start_at(&through, SHORT_TTL, &work).await;
    let channel = cluster.node(1).channel().await.expect("it serves");
    let open = OpenSessionRequest { ttl_ms: 600_000, ..OpenSessionRequest::default() };
    let session_id = SessionsClient::new(channel.clone()).open(open).await.expect("opened").into_inner().session_id;
    let acquire = AcquireRequest {
        session_id,
        locks: vec![Want { name: "seat".to_owned(), ..Want::default() }],
        wait: Some(Wait::WaitForever(true)),
        ..AcquireRequest::default()
    };
    let mut locks = LocksClient::new(channel);
    let waiting = tokio::spawn(async move { locks.acquire(acquire).await });
    let client = crate::support::client(&cluster);
    until("the next in the queue", async || (client.get("seat").await.ok()?.lock.queue_length == 1).then_some(()))
        .await;

    proxy.cut();
    let answer = timeout(LONG, waiting).await.expect("granted in time").expect("no panic").expect("granted");
    assert!(work.is_over(), "alive while another session holds the lock: {:?}", work.pids());
    assert!(matches!(answer.into_inner().outcome, Some(Outcome::Granted(_))));
    let (code, stderr) = wrapper.ended().await;
    assert_eq!(code, Some(11), "{stderr}");
    assert!(stderr.contains("no contact with the cluster"), "{stderr}");
}

/// Addresses of the node and of the proxy: the same port of two loopback addresses, which no other process gives.
fn addresses() -> (SocketAddr, SocketAddr) {
    let next = || {
        let direct = free_port().expect("a free port").local_addr().expect("it listens");
        (direct, SocketAddr::from(([127, 0, 0, 2], direct.port())))
    };
    let mut draws = std::iter::repeat_with(next).take(1_000);
    draws.find(|(_, through)| Std::bind(through).is_ok()).expect("a port that is free at both")
}

/// Writes the configuration of a cluster of one node that announces the proxy's address.
fn configure(directory: &Path, direct: SocketAddr, through: SocketAddr) {
    let (peers, _) = addresses();
    let folder = directory.join("node1");
    let data = folder.join("data");
    let text = format!(
        "cluster_id = \"cut\"\nnode_id = 1\nbootstrap = true\ndata_dir = {data:?}\nclient_listen = \"{direct}\"\n\
         [[members]]\nnode_id = 1\nclient_address = \"{through}\"\npeer_address = \"{peers}\"\n"
    );
    fs::create_dir_all(&folder).expect("a new folder");
    fs::write(folder.join("node.toml"), text).expect("a new file");
}

struct Proxy {
    cut: watch::Sender<bool>,
    _task: JoinSet<()>,
}

impl Proxy {
    async fn start(at: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).await.expect("a free port");
        let cut = watch::Sender::new(false);
        let mut task = JoinSet::new();
        let seen = cut.subscribe();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                connections.spawn(carry(near, to, seen.clone()));
            }
        });
        Self { cut, _task: task }
    }

    fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Lets new connections through. Connections that were cut stay cut.
    fn mend(&self) {
        self.cut.send_replace(false);
    }
}

async fn carry(near: TcpStream, to: SocketAddr, cut: watch::Receiver<bool>) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::join!(copy(near_read, far_write, &cut), copy(far_read, near_write, &cut));
}

/// Forwards bytes. Once cut, it forwards nothing and stays open, so that neither side gets an error.
async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, cut: &watch::Receiver<bool>) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if *cut.borrow() {
            std::future::pending::<()>().await;
        }
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
