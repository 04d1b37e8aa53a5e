//! What the tests share.

use std::{path::PathBuf, time::Duration};

use lockkeeper::{
    client::{Client, Session, SessionOptions},
    local::{LocalCluster, Options},
    proto::v1::Role,
};
use tokio::time::{Instant, sleep};

/// Longer than anything takes on a busy machine; a test that waits that long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_lockkeeper").into()
}

/// Three nodes that serve.
pub(crate) async fn cluster() -> LocalCluster {
    cluster_with(|_| {}).await
}

/// Three nodes that serve, configured otherwise.
pub(crate) async fn cluster_with(change: impl FnOnce(&mut Options)) -> LocalCluster {
    let mut options = Options::new(program());
    options.timeout = LONG;
    change(&mut options);
    LocalCluster::start(options).await.expect("three nodes come up")
}

/// A client of all nodes.
pub(crate) fn client(cluster: &LocalCluster) -> Client {
    Client::builder(&cluster.endpoints().join(",")).call_limit(LONG).build().expect("the endpoints are valid")
}

/// A session that outlives any test.
pub(crate) async fn long_session(client: &Client) -> Session {
    let options = SessionOptions { ttl: Duration::from_secs(600), label: "test".to_string() };
    client.open(options).await.expect("a session")
}

/// The node that leads.
pub(crate) async fn leader(cluster: &LocalCluster) -> u64 {
    until("a leader", async || {
        let statuses = cluster.statuses().await;
        statuses.values().find(|status| status.role() == Role::Leader && status.serving).map(|status| status.node_id)
    })
    .await
}

/// Waits until `condition` gives something. Panics after [`LONG`].
pub(crate) async fn until<T>(what: &str, mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = condition().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited {LONG:?} in vain for {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
