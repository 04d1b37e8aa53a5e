//! Restarts a node and waits until it has caught up.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use lockkeeper_local::LocalCluster;

use super::{BenchError, target::leader};

const LIMIT: Duration = Duration::from_secs(300);
/// The interval of the status requests.
const POLL: Duration = Duration::from_millis(10);

/// Starts a stopped node and waits until it serves and has applied all entries that were committed at its start.
/// Returns how long that took.
pub(super) async fn restart(cluster: &mut LocalCluster, node: u64) -> Result<Duration, BenchError> {
    let leader = leader(cluster).await?;
    let committed = cluster.node(leader).status().await?.committed_index;

    let began = Instant::now();
    cluster.node_mut(node).spawn()?;

    loop {
        let node = cluster.node_mut(node);
        if let Some(died) = node.has_died() {
            return Err(died.into());
        }

        match node.status().await {
            Ok(status) if status.serving && status.applied_index >= committed => return Ok(began.elapsed()),
            _ if began.elapsed() > LIMIT => return Err(BenchError::NotRestarted(LIMIT)),
            _ => sleep(POLL).await,
        }
    }
}
