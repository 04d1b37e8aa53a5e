//! The end of a run with two versions of the program: all nodes get the newest one, and the cluster version rises.

use std::{io, time::Duration};

use tokio::time::{Instant, sleep};

use super::inject::World;
use crate::parties::LIVENESS_BOUND;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(150);

impl World {
    /// Fails if the cluster version has risen although a member runs the earlier program.
    pub(crate) async fn keeps_version(&self) -> Result<(), String> {
        let Some(limit) = self.node_programs.version_max() else { return Ok(()) };
        let statuses = self.cluster.statuses().await;
        match statuses.iter().find(|(_, status)| status.cluster_version > limit) {
            None => Ok(()),
            Some((node, status)) => {
                let version = status.cluster_version;
                Err(format!("node {node} has cluster version {version}, and a member supports at most {limit}"))
            }
        }
    }

    /// Restarts the nodes that run the earlier program with the newest one, one after the other, as an operator upgrades a cluster. Returns
    /// the cluster version, once it has risen.
    pub(crate) async fn upgrade(&mut self) -> io::Result<u32> {
        for id in self.node_programs.end_turns() {
            self.restart(id).await?;
            self.cluster.ready(LIVENESS_BOUND).await.map_err(io::Error::other)?;
        }

        let by = Instant::now() + LIVENESS_BOUND;
        loop {
            let statuses = self.cluster.statuses().await;
            let reached = statuses.values().map(|status| status.cluster_version).min().unwrap_or_default();
            let wanted = statuses.values().map(|status| status.cluster_version_max).max().unwrap_or_default();
            if statuses.len() == self.cluster.nodes().count() && reached == wanted {
                return Ok(reached);
            }

            if Instant::now() >= by {
                let bound = LIVENESS_BOUND.as_secs();
                let error = format!(
                    "all nodes run the newest program, and after {bound} s the cluster version is {reached}, not {wanted}"
                );
                return Err(io::Error::other(error));
            }
            sleep(PAUSE).await;
        }
    }
}
