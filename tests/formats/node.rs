//! A cluster of one node, in this process, on a data directory.

use std::{future::Future, path::Path, sync::Arc, time::Duration};

use lockkeeper::{
    config::{Config, ConfiguredMember, RaftConfig},
    environment::Environment,
    machine::Versions,
    proto::v1::{self, locks_client::LocksClient, sessions_client::SessionsClient},
    raft::{
        disk::Space,
        identity::NodeIdentity,
        log::{self, LogStore},
        snapshot::SnapshotStore,
    },
    server::{
        descriptors::Places,
        node::{Parts, run as run_node},
    },
    transport::TcpConnector,
};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    sync::oneshot,
    time::{sleep, timeout},
};
use tonic::transport::Channel;

/// Deadline: longer than any step takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// A cluster of this name, and of one node.
const CLUSTER: &str = "fixtures";
/// Entries between two snapshots.
pub(crate) const SNAPSHOT_ENTRIES: u64 = 8;

/// A small journal: its files are filled in advance, and would be the largest part of a fixture.
pub(crate) fn log_options() -> log::LogOptions {
    log::LogOptions { journal_bytes: 8 << 10, ..log::LogOptions::default() }
}

/// Runs a node on this directory while `work` runs, which gets the node's URL; then stops the node in order.
pub(crate) fn run<F: Future<Output = ()>>(directory: &Path, work: impl FnOnce(String) -> F) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (clients, peers) = (listener().await, listener().await);
        let address = |listener: &TcpListener| listener.local_addr().expect("it is bound").to_string();
        let url = format!("http://{}", address(&clients));
        let member = ConfiguredMember { node_id: 1, client_address: address(&clients), peer_address: address(&peers) };
        let config = Config {
            cluster_id: CLUSTER.to_owned(),
            node_id: 1,
            bootstrap: true,
            raft: RaftConfig { snapshot_entries: SNAPSHOT_ENTRIES, keep_entries: 4, ..RaftConfig::default() },
            members: vec![member],
            ..Config::default()
        };
        let cluster_id = CLUSTER.parse().expect("a cluster id");
        let environment = Environment::system();
        let identity = NodeIdentity::open_or_create(directory, &cluster_id, 1, &mut environment.generator());
        let identity = Arc::new(identity.expect("the directory is this node's"));
        let snapshots = SnapshotStore::open(&directory.join("snapshots")).expect("its snapshots are whole");
        let snapshot = snapshots.latest().and_then(|file| file.meta().last_log_id);
        let options = log::LogOptions { snapshot, owner: Some(identity.log_owner()), ..log_options() };
        let log = LogStore::open(&directory.join("log"), options).expect("its log is whole");
        identity.started().expect("written");
        let parts = Parts {
            config,
            limits: None,
            clients,
            peers,
            connector: TcpConnector,
            dynamodb: None,
            etcd: None,
            redis: None,
            http: None,
            tls: None,
            environment,
            identity,
            log: log.clone(),
            snapshots,
            disk: Arc::new(Space { free: u64::MAX, total: u64::MAX }),
            places: Places::default(),
            inspector: None,
            versions: Versions::OWN,
            replica: None,
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(run_node(parts, async { stopped.await.unwrap_or(()) }));
        timeout(LONG, work(url)).await.expect("done in time");
        stop.send(()).expect("it still runs");
        running.await.expect("no panic").expect("it served until it was stopped");
        log.close().await.expect("closed");
    });
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a free port")
}

pub(crate) async fn locks(url: &str) -> LocksClient<Channel> {
    LocksClient::connect(url.to_owned()).await.expect("the node accepts the connection")
}

/// Opens a session with this id as soon as the node leads, for a year.
pub(crate) async fn open_session(url: &str, id: u8) -> String {
    let open = async {
        loop {
            if let Ok(mut stub) = SessionsClient::connect(url.to_owned()).await {
                let session_id = format!("{id:032x}");
                let label = format!("fixture-{id}");
                let request = v1::OpenSessionRequest { ttl_ms: 86_400_000, label, session_id };
                if let Ok(opened) = stub.open(request).await {
                    return opened.into_inner().session_id;
                }
            }
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, open).await.expect("the session is opened")
}

/// Acquires a lock exclusively. Returns the token.
pub(crate) async fn acquire(url: &str, session: &str, name: &str) -> u64 {
    let want = v1::Want { name: name.to_owned(), ..Default::default() };
    let request = v1::AcquireRequest { session_id: session.to_owned(), locks: vec![want], ..Default::default() };
    let answer = locks(url).await.acquire(request).await.expect("answered").into_inner();
    match answer.outcome {
        Some(v1::acquire_response::Outcome::Granted(grant)) => grant.token,
        other => panic!("{name} was not granted: {other:?}"),
    }
}

/// The labels of a lock's holders.
pub(crate) async fn holders(url: &str, name: &str) -> Vec<String> {
    let request = v1::GetRequest { name: name.to_owned(), ..Default::default() };
    let answer = locks(url).await.get(request).await.expect("answered").into_inner();
    answer.lock.expect("the lock is in use").holders.into_iter().map(|holder| holder.label).collect()
}
