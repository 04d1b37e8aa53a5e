//! The end of a run: the upgrade of all nodes, if two versions of the program took turns, and the audit trail.

use tokio_util::sync::CancellationToken;

use lockkeeper_local::LocalCluster;

use super::{ChaosRun, Outcome};
use crate::{
    history::Fact,
    nemesis::turns::NodePrograms,
    trail::{TrailEnd, TrailFiles},
};

/// The name of the upgrade in a history.
const UPGRADE: &str = "upgrade";

impl ChaosRun {
    /// Starts the newest program on all nodes while clients work, and waits until the cluster version has risen. An interrupted run ends
    /// without it.
    pub(super) async fn upgrade(&mut self) {
        self.outcome.starts = self.world.node_programs.starts();
        if self.outcome.starts.is_none() || !self.goes_on() {
            return;
        }

        self.set_phase(UPGRADE);
        let nodes = self.world.cluster.nodes().map(lockkeeper_local::LocalNode::id).collect();
        self.world.recorder.fact(Fact::Fault { name: UPGRADE.to_owned(), nodes, silent: Vec::new() });
        let upgraded = self.world.upgrade().await;
        self.world.recorder.fact(Fact::Heal { name: Some(UPGRADE.to_owned()) });

        match upgraded {
            Ok(version) => self.outcome.raised_to = Some(version),
            Err(error) => self.outcome.troubles.push(format!("upgrade at the end: {error}")),
        }
    }
}

/// Stops all nodes in order, so that they write their last lines, and verifies the audit files.
pub(super) async fn stop_and_verify(
    mut cluster: LocalCluster,
    trail: Option<&TrailFiles>,
    programs: &NodePrograms,
    stop: &CancellationToken,
    outcome: &mut Outcome,
) {
    let statuses = cluster.statuses().await;
    let end = TrailEnd::from_statuses(statuses.values());
    cluster.stop().await;

    let Some(trail) = trail else { return };
    match trail.verify(programs.newest(), end.as_ref()).await {
        // An interrupted run may end before the trail begins.
        Ok(0) if !stop.is_cancelled() => outcome.troubles.push("audit trail: no node has written a line".to_owned()),
        Ok(lines) => outcome.audit_lines = lines,
        Err(error) => outcome.troubles.push(format!("audit trail: {error}")),
    }
}
