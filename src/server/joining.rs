//! How a node becomes a member, tells its cluster new addresses, and learns that it was removed.
//!
//! A node that starts with `join` asks the nodes there to be added: any node forwards the request to the leader, which asks this node, at
//! its peer address, who it is. From then on the leader sends it the table and the log ([`lockkeeper_raft::members`]). The request is
//! repeated until the log names this node with its addresses; so a leader that fails meanwhile costs a repetition.
//!
//! A member that restarts with other addresses sends the same request, to the members that it knows.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use openraft::async_runtime::WatchReceiver;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use lockkeeper_config::ConfiguredMember;
use lockkeeper_proto::v1::{self, cluster_client::ClusterClient};
use lockkeeper_raft::{
    Replica,
    identity::{NodeIdentity, Stage},
    network::hello,
};
use lockkeeper_table::MemberNode;
use lockkeeper_transport::{Connector, channel};

/// Time limit of a request to be added: the leader needs some for the change itself.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of a question about the cluster.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(500);
/// While nothing changes, the reason for waiting is logged again after this many requests.
const REQUESTS_PER_REMINDER: u64 = 40;
/// How often a node looks whether it hears a leader; without one it asks whether it was removed, or forgotten.
const ALONE_PAUSE: Duration = Duration::from_secs(1);

/// The cluster refuses this node as a member, for good: the reason lies in the node.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the cluster does not admit this node, as {endpoint} says: {reason}")]
pub struct NotAdmitted {
    /// The node that was asked.
    pub endpoint: String,
    /// The cluster's reason, and what to do.
    pub reason: String,
}

/// Has this node added to the cluster of `endpoints`, or has its addresses brought up to date there. Returns only when the cluster refuses
/// this node.
pub(super) async fn join<C: Connector>(
    identity: Arc<NodeIdentity>,
    replica: Replica,
    own: ConfiguredMember,
    endpoints: Vec<String>,
    connector: C,
) -> NotAdmitted {
    let mut changes = replica.raft().server_metrics();
    let joins = !endpoints.is_empty();
    loop {
        if needs_request(&identity, &replica, &own, joins).await
            && let Err(refused) = request(&identity, &replica, &own, &endpoints, &connector).await
        {
            return refused;
        }

        tokio::select! {
            changed = changes.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
            // Losing the leader sends no notification, so poll.
            () = sleep(ALONE_PAUSE), if joins => {}
        }
    }
}

/// Whether the node must send a request: the log lacks this node, or has other addresses for it. A founder is not in the log until the
/// cluster is founded, and a member that was removed must not ask again.
async fn needs_request(identity: &NodeIdentity, replica: &Replica, own: &ConfiguredMember, joins: bool) -> bool {
    match in_log(replica, own.node_id) {
        Some(node) if node.peer_address == own.peer_address && node.client_address == own.client_address => {
            joins && may_be_forgotten(replica).await
        }
        Some(_) => true,
        None if !joins => false,
        None => match identity.stage() {
            Stage::New => true,
            // The leader that added this node called it, and was replaced before the log arrived.
            Stage::Member => !replica.table().has_removed(own.node_id) && is_alone(replica).await,
            Stage::Founding | Stage::Removed => false,
        },
    }
}

/// Whether no leader may know of this node. The entry that makes it a member is not committed, as far as this node knows, and it hears no
/// leader: the leader that wrote the entry may have been replaced by one that never received it.
async fn may_be_forgotten(replica: &Replica) -> bool {
    let is_committed = {
        let metrics = replica.raft().metrics();
        let metrics = metrics.borrow_watched();
        *metrics.membership_config.log_id() <= metrics.last_applied
    };
    !is_committed && is_alone(replica).await
}

fn in_log(replica: &Replica, node_id: u64) -> Option<MemberNode> {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.membership().get_node(&node_id).cloned()
}

/// Sends the request until the log shows its effect.
async fn request<C: Connector>(
    identity: &NodeIdentity,
    replica: &Replica,
    own: &ConfiguredMember,
    endpoints: &[String],
    connector: &C,
) -> Result<(), NotAdmitted> {
    let message = v1::AddMemberRequest {
        node_id: own.node_id,
        client_address: own.client_address.clone(),
        peer_address: own.peer_address.clone(),
        incarnation: identity.incarnation().as_bytes().to_vec(),
        stays_learner: false,
    };

    let mut reason = String::new();
    for attempt in 0_u64.. {
        let asked = if endpoints.is_empty() { members(replica, own.node_id) } else { endpoints.to_vec() };
        for endpoint in &asked {
            if !needs_request(identity, replica, own, !endpoints.is_empty()).await {
                return Ok(());
            }

            let mut client = ClusterClient::new(channel(connector.clone(), endpoint));
            let answer = timeout(REQUEST_TIMEOUT, client.add_member(message.clone())).await;
            let refusal = match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))) {
                // Look whether the log shows the effect of the accepted request.
                Ok(_) => break,
                Err(refusal) => refusal,
            };

            if is_final(&refusal, identity.stage()) {
                return Err(NotAdmitted { endpoint: endpoint.clone(), reason: refusal.message().to_owned() });
            }

            let now = format!("{endpoint}: {}", refusal.message());
            if now != reason && (reason.is_empty() || !transport_only(&refusal))
                || attempt % REQUESTS_PER_REMINDER == 39
            {
                tracing::info!("waiting to be added to the cluster: {now}");
                reason = now;
            }
        }
        // The leader's first entries show the effect of a request that was accepted.
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Whether the node was not reached at all. It is one of several, so it may be down.
fn transport_only(status: &Status) -> bool {
    status.code() == Code::Unavailable && status.get_details_error_info().is_none()
}

/// Whether the cluster can never accept this node, because the reason lies in the node. A member that was removed, and whose log does not
/// show it yet, learns of it by [`notice_removal`].
fn is_final(status: &Status, stage: Stage) -> bool {
    let refusal = status.get_details_error_info().and_then(|mut info| info.metadata.remove("refusal"));
    match refusal.as_deref() {
        Some("id-used-before") => stage == Stage::New,
        Some("id-in-use") => true,
        _ => status.code() == Code::InvalidArgument,
    }
}

/// The addresses at which clients reach the other members.
fn members(replica: &Replica, own_id: u64) -> Vec<String> {
    let metrics = replica.raft().server_metrics();
    let metrics = metrics.borrow_watched();
    let others = metrics.membership_config.membership().nodes().filter(|(id, _)| **id != own_id);
    let address =
        |(id, node): (&u64, &MemberNode)| replica.addresses().look(*id, node, |node| node.client_address.clone());
    others.map(address).collect()
}

/// Returns the id of the cluster at these endpoints. Asks until one of them answers.
pub(super) async fn cluster_id<C: Connector>(endpoints: &[String], connector: &C) -> String {
    for attempt in 0_u64.. {
        let ask = async |endpoint: &String| {
            let mut client = ClusterClient::new(channel(connector.clone(), endpoint));
            let answer = timeout(QUESTION_TIMEOUT, client.status(v1::StatusRequest::default())).await;
            Some(answer.ok()?.ok()?.into_inner().cluster_id)
        };

        let answers = join_all(endpoints.iter().map(ask)).await;
        if let Some(cluster_id) = answers.into_iter().flatten().find(|cluster_id| !cluster_id.is_empty()) {
            return cluster_id;
        }
        if attempt % REQUESTS_PER_REMINDER == 0 {
            tracing::info!("waiting for the cluster to join: none of {} answers", endpoints.join(", "));
        }
        sleep(PAUSE).await;
    }
    unreachable!("the attempts do not end")
}

/// Asks the other members, while this node hears no leader, whether the cluster has removed it. A voter that was removed also learns it
/// from refused calls, but a learner calls nobody. Does not return.
pub(super) async fn notice_removal<C: Connector>(identity: Arc<NodeIdentity>, replica: Replica, connector: C) {
    loop {
        sleep(ALONE_PAUSE).await;
        if identity.stage() != Stage::Member || !is_alone(&replica).await {
            continue;
        }

        let peers: Vec<(u64, String)> = {
            let metrics = replica.raft().server_metrics();
            let metrics = metrics.borrow_watched();
            let others = metrics.membership_config.membership().nodes().filter(|(id, _)| **id != identity.node_id());
            others.map(|(id, node)| (*id, replica.addresses().peer_address(*id, node))).collect()
        };

        let ask = async |(id, address): (u64, String)| {
            let answer = hello(&connector.to_node(id), &address, &identity, Vec::new()).await.ok()?;
            (answer.node_id == id && answer.asker_removed).then_some(id)
        };
        if let Some(witness) = join_all(peers.into_iter().map(ask)).await.into_iter().flatten().next() {
            identity.mark_removed(witness);
        }
    }
}

/// Whether this node neither leads nor has heard a leader lately.
async fn is_alone(replica: &Replica) -> bool {
    if replica.leads() {
        return false;
    }
    let heard = replica.raft().with_raft_state(|state| state.vote_last_modified()).await;
    heard.is_ok_and(|at| at.is_none_or(|at| openraft::Instant::elapsed(&at) > replica.silence_max()))
}
