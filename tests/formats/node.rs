//! A cluster of one node, in this process, on a data directory.

use std::{future::Future, path::Path, time::Duration};

use lockkeeper::{
    config::{Config, RaftConfig},
    proto::v1::{self, locks_client::LocksClient, sessions_client::SessionsClient},
    raft::log,
};
use tokio::{
    runtime::Builder,
    sync::oneshot,
    time::{sleep, timeout},
};
use tonic::transport::Channel;

use crate::in_process::{self, NodeData, Seat};

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
        let seat = Seat::new(1).await;
        let url = format!("http://{}", seat.member.client_address);
        let config = Config {
            raft: RaftConfig { snapshot_entries: SNAPSHOT_ENTRIES, keep_entries: 4, ..RaftConfig::default() },
            ..in_process::config(CLUSTER, 1, std::slice::from_ref(&seat.member))
        };
        let data = NodeData::open(directory, &config, log_options());
        let log = data.log.clone();
        let parts = in_process::parts(config, seat, data, log.clone());

        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(in_process::serve(parts, log, async { stopped.await.unwrap_or(()) }));
        timeout(LONG, work(url)).await.expect("done in time");
        stop.send(()).expect("it still runs");
        running.await.expect("no panic").expect("it served until it was stopped");
    });
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
