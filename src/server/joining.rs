//! How a node becomes a member, tells its cluster new addresses, and learns that it was removed.
//!
//! A node that starts with `join` asks the nodes there to be added: any node forwards the request to the leader, which asks this node, at
//! its peer address, who it is. From then on the leader sends it the table and the log ([`lockkeeper_raft::members`]). The request is
//! repeated until the log names this node with its addresses; so a leader that fails meanwhile costs a repetition.
//!
//! A member that restarts with other addresses sends the same request, to the members that it knows. If it comes to lead, it makes the
//! change itself: a node that passes the request on to the leader would look for it at its old address.

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
    members::{MemberError, Members},
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

/// A node that has itself added to its cluster, or has its addresses brought up to date there.
pub(super) struct JoiningNode<C> {
    pub(super) identity: Arc<NodeIdentity>,
    pub(super) replica: Replica,
    pub(super) members: Members,
    /// This node, where its configuration says.
    pub(super) own: ConfiguredMember,
    /// The nodes that it asks to be added. Empty: it is a founder, or was added by an operator.
    pub(super) endpoints: Vec<String>,
    pub(super) connector: C,
}

/// Why a request is not done. A reason is logged once, and again now and then while it lasts.
#[derive(Default)]
struct LoggedReason {
    text: String,
    attempts: u64,
}

impl LoggedReason {
    /// Logs a reason. One that says only that a node was not reached follows no other: the next node may be reached.
    fn note(&mut self, what: &str, reason: String, is_unreached: bool) {
        let is_news = reason != self.text && (self.text.is_empty() || !is_unreached);
        if is_news || self.attempts % REQUESTS_PER_REMINDER == REQUESTS_PER_REMINDER - 1 {
            tracing::info!("waiting {what}: {reason}");
            self.text = reason;
        }
    }
}

impl<C: Connector> JoiningNode<C> {
    /// Sends requests whenever they are needed. Returns only when the cluster refuses this node.
    pub(super) async fn join(self) -> NotAdmitted {
        let mut changes = self.replica.raft().server_metrics();
        loop {
            if self.needs_request().await
                && let Err(refused) = self.request().await
            {
                return refused;
            }

            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return std::future::pending().await;
                },
                // Losing the leader sends no notification, so poll.
                () = sleep(ALONE_PAUSE), if self.joins() => {}
            }
        }
    }

    fn joins(&self) -> bool {
        !self.endpoints.is_empty()
    }

    /// Whether the node must send a request: the log lacks this node, or has other addresses for it. A founder is not in the log until the
    /// cluster is founded, and a member that was removed must not ask again.
    async fn needs_request(&self) -> bool {
        let Self { identity, replica, own, .. } = self;
        match in_log(replica, own.node_id) {
            Some(node) if node.peer_address == own.peer_address && node.client_address == own.client_address => {
                self.joins() && may_be_forgotten(replica).await
            }
            Some(_) => true,
            None if !self.joins() => false,
            None => match identity.stage() {
                Stage::New => true,
                // The leader that added this node called it, and was replaced before the log arrived.
                Stage::Member => !replica.table().has_removed(own.node_id) && is_alone(replica).await,
                Stage::Founding | Stage::Removed => false,
            },
        }
    }

    /// Sends the request until the log shows its effect.
    async fn request(&self) -> Result<(), NotAdmitted> {
        let mut logged = LoggedReason::default();
        while self.needs_request().await {
            // Nobody else can do it: the others would look for this node at its old address.
            if self.replica.leads() {
                if let Err(error) = self.change_addresses().await {
                    logged.note("to change this node's addresses, as the leader", error.to_string(), false);
                }
            } else {
                self.ask_others(&mut logged).await?;
            }

            logged.attempts += 1;
            // The leader's first entries show the effect of a request that was accepted.
            sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn comes_to_lead(&self) {
        let mut led = self.replica.led();
        // The sender is gone when Raft has stopped; then it does not matter.
        let _ = led.wait_for(Option::is_some).await;
    }

    /// As the leader, gives this node its present addresses. It must answer there, as any member must.
    async fn change_addresses(&self) -> Result<(), MemberError> {
        let ConfiguredMember { node_id, peer_address, client_address } = self.own.clone();
        let incarnation = Some(self.identity.incarnation());
        self.members.add(node_id, incarnation, (peer_address, client_address), false).await
    }

    /// Asks one node after the other, until one accepts the request or the log shows its effect. Fails if the cluster refuses this node.
    async fn ask_others(&self, logged: &mut LoggedReason) -> Result<(), NotAdmitted> {
        let message = v1::AddMemberRequest {
            node_id: self.own.node_id,
            client_address: self.own.client_address.clone(),
            peer_address: self.own.peer_address.clone(),
            incarnation: self.identity.incarnation().as_bytes().to_vec(),
            stays_learner: false,
        };

        let asked = if self.joins() { self.endpoints.clone() } else { members(&self.replica, self.own.node_id) };
        for endpoint in asked {
            if !self.needs_request().await || self.replica.leads() {
                return Ok(());
            }

            let mut client = ClusterClient::new(channel(self.connector.clone(), &endpoint));
            let answer = tokio::select! {
                answer = timeout(REQUEST_TIMEOUT, client.add_member(message.clone())) => answer,
                () = self.comes_to_lead() => return Ok(()),
            };
            let refusal = match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))) {
                // Look whether the log shows the effect of the accepted request.
                Ok(_) => return Ok(()),
                Err(refusal) => refusal,
            };

            if is_final(&refusal, self.identity.stage()) {
                return Err(NotAdmitted { endpoint, reason: refusal.message().to_owned() });
            }
            let reason = format!("{endpoint}: {}", refusal.message());
            logged.note("to be added to the cluster", reason, transport_only(&refusal));
        }
        Ok(())
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
