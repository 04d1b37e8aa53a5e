//! Changes of the leader, told to subscribers of `+switch-master` as Sentinel tells them.
//!
//! Each node tells its own subscribers what it knows itself, so nothing of it is in the log. A client that is told twice, by two nodes,
//! finds the master that it has already.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{SharedSignals, steps::WorkSteps};
use crate::{NodeAddress, RedisStore};

const CHANNEL: &[u8] = b"+switch-master";
/// Pause between two looks at who leads.
const LOOK: Duration = Duration::from_millis(200);

/// Tells subscribers of each leader that is another one than the last. Never returns.
pub(super) async fn follow<S: RedisStore>(store: S, shared: Arc<SharedSignals>, master_names: Vec<String>) {
    let mut known: Option<NodeAddress> = None;
    loop {
        // While there is no leader, clients know the last one.
        if let Some(leader) = store.nodes().into_iter().find(|node| node.leads) {
            let before = known.replace(leader.clone());
            if let Some(before) = before.filter(|before| *before != leader) {
                for name in &master_names {
                    let NodeAddress { host, port, .. } = &leader;
                    let message = format!("{name} {} {} {host} {port}", before.host, before.port);
                    shared.topics.deliver(CHANNEL, message.as_bytes(), &mut WorkSteps::default()).await;
                }
            }
        }
        sleep(LOOK).await;
    }
}
