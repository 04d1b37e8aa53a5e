//! The standard gRPC health service: SERVING only while this node can serve.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tonic_health::{ServingStatus, server::HealthReporter};

use super::{cluster::Cluster, progress::Progress};

/// How often the node checks whether it can serve.
const INTERVAL: Duration = Duration::from_millis(250);

/// The services whose health is reported, the whole node (the empty name) first.
const SERVICES: [&str; 4] = ["", "lockkeeper.v1.Sessions", "lockkeeper.v1.Locks", "lockkeeper.v1.Cluster"];

/// Keeps the health service up to date, for as long as it is polled. Logs each change, and each member that falls behind or does not
/// answer.
pub(super) async fn report(cluster: Cluster, reporter: HealthReporter) {
    let mut known = None;
    let mut lagging = BTreeMap::new();
    let mut silent = BTreeSet::new();
    let leading = Progress::default();
    loop {
        let trouble = cluster.trouble().await;
        if known != Some(trouble) {
            match trouble {
                None => tracing::info!("this node can serve"),
                Some(why) => tracing::warn!(why, "this node cannot serve"),
            }
            set(&reporter, trouble.is_none()).await;
            known = Some(trouble);
        }

        let laggards: BTreeMap<u64, String> = cluster.laggards().into_iter().collect();
        for (node_id, trouble) in laggards.iter().filter(|(node_id, _)| !lagging.contains_key(*node_id)) {
            tracing::warn!("member {node_id} {trouble}");
        }
        for node_id in lagging.keys().filter(|node_id| !laggards.contains_key(*node_id)) {
            tracing::info!("member {node_id} catches up, or this node no longer leads");
        }
        lagging = laggards;

        let now_silent = cluster.silent(&leading);
        for node_id in now_silent.difference(&silent) {
            tracing::warn!("member {node_id} does not answer");
        }
        for node_id in silent.difference(&now_silent) {
            tracing::info!("member {node_id} answers, or this node no longer leads");
        }
        silent = now_silent;

        tokio::time::sleep(INTERVAL).await;
    }
}

/// Reports at once that this node no longer serves.
pub(super) async fn retire(reporter: &HealthReporter) {
    set(reporter, false).await;
}

async fn set(reporter: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in SERVICES {
        reporter.set_service_status(service, status).await;
    }
}
