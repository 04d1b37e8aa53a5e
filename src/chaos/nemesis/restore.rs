//! The loss of the whole cluster, and a new one from a backup that was taken shortly before: see [`Fault::Restore`](super::Fault::Restore)
//! and [`Fault::RestoreAgain`](super::Fault::RestoreAgain).
//!
//! The new cluster grants nothing for the longest TTL of the run. This time belongs to the fault, so the bounds of waits do not count it.

use std::{fs, io, path::Path, process::Stdio, time::Duration};

use tokio::time::{Instant, timeout};

use super::inject::World;
use crate::{history::Fact, trail::TrailFiles, workload::TTLS};

/// Time limit of saving, and of restoring.
const BOUND: Duration = Duration::from_secs(30);
/// The longest TTL of the run's sessions, for which a restored cluster grants nothing.
const CLOSED_FOR: Duration = {
    let mut longest = TTLS[0];
    let mut place = 1;
    while place < TTLS.len() {
        if TTLS[place].as_millis() > longest.as_millis() {
            longest = TTLS[place];
        }
        place += 1;
    }
    longest
};
/// What the program reports about the cluster that it made.
#[derive(serde::Deserialize)]
struct RestoreReport {
    /// The time for which the cluster grants nothing. It is longer than requested if a session of the backup has a longer TTL.
    closed_ms: u64,
}

/// Time limit until a restored cluster has elected a leader.
const ELECTED_WITHIN: Duration = Duration::from_secs(30);

impl World {
    /// Saves a backup under load, lets the clients go on for a while, destroys all nodes with their data, and makes a cluster from the
    /// backup with the same nodes; this so many times, from the same backup. The last cluster's nodes are started by [`World::heal`].
    pub(super) async fn lose_and_restore(&mut self, times: usize) -> io::Result<()> {
        let directory = tempfile::tempdir_in(self.cluster.path())?;
        let file = directory.path().join("backup");

        let saved = self.operator.save_backup(Instant::now() + BOUND).await;
        fs::write(&file, saved.map_err(|error| io::Error::other(format!("no backup could be saved: {error}")))?)?;
        for time in 0..times {
            if time > 0 {
                self.start_all()?;
                self.opens().await.map_err(io::Error::other)?;
            }

            // The backup lacks what is done now.
            self.rest(300..1_500).await;
            self.kill_all().await;
            self.make_anew(&file, &directory.path().join(format!("made-{time}"))).await?;
        }
        Ok(())
    }

    /// Waits until a restored cluster grants locks.
    pub(crate) async fn opens(&mut self) -> Result<(), String> {
        self.cluster.ready(ELECTED_WITHIN).await.map_err(|error| error.to_string())?;
        self.rest_until(Instant::now() + self.closed_for).await;
        Ok(())
    }

    async fn make_anew(&mut self, file: &Path, made: &Path) -> io::Result<()> {
        let cluster_id = format!("restored-{:08x}", rand::Rng::random::<u32>(&mut self.random));
        self.restore(file, made, &cluster_id).await?;
        for node in self.cluster.nodes() {
            let data_dir = &node.config().data_dir;
            fs::remove_dir_all(data_dir)?;
            fs::rename(made.join(format!("node-{}", node.id())), data_dir)?;
        }

        // The new cluster has another id, and audit files of its own.
        self.trail.as_mut().map(TrailFiles::set_aside).transpose()?;
        self.cluster.set_cluster_id(&cluster_id).map_err(io::Error::other)?;
        self.observer.forget_terms();
        self.recorder.fact(Fact::Restored);
        Ok(())
    }

    /// Makes a cluster from the backup by the program, as an operator does.
    async fn restore(&mut self, file: &Path, made: &Path, cluster_id: &str) -> io::Result<()> {
        let mut command = self.node_programs.newest().command();
        command.args(["snapshot", "restore", "-o", "json", "--cluster-id", cluster_id, "--data-dir"]).arg(made);
        command.arg("--closed-for").arg(format!("{}ms", CLOSED_FOR.as_millis()));
        for node in self.cluster.nodes() {
            let config = node.config();
            command.arg("--member").arg(format!("{}={},{}", node.id(), config.peer_listen, config.client_listen));
        }
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let output = timeout(BOUND, command.output()).await.map_err(io::Error::other)??;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("snapshot restore ended with {}: {said}", output.status)));
        }

        let made: RestoreReport = serde_json::from_slice(&output.stdout)?;
        self.closed_for = Duration::from_millis(made.closed_ms);
        Ok(())
    }
}
