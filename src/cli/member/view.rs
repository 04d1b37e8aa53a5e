//! The members, as the leader sees them.

use std::{collections::BTreeSet, time::Duration};

use futures::future::join_all;

use crate::{
    cli::{Exit, Failure},
    client::{Client, Member, NodeStatus, Role},
};

/// How long one node may take to answer.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);

/// The status of the leader that serves. Asks the endpoints, and the members that they name.
pub(in crate::cli) async fn leader(client: &Client) -> Result<NodeStatus, Failure> {
    let mut asked = BTreeSet::new();
    let mut addresses = client.endpoints();
    while !addresses.is_empty() {
        let answers = join_all(addresses.iter().map(|address| client.status(address, NODE_TIMEOUT))).await;
        asked.extend(addresses);

        let answers: Vec<NodeStatus> = answers.into_iter().filter_map(Result::ok).collect();
        let named = answers.iter().flat_map(|status| &status.members).map(|member| member.client_address.clone());
        let named: BTreeSet<String> = named.filter(|address| !asked.contains(address)).collect();

        let leaders = answers.into_iter().filter(|status| status.role == Role::Leader && status.serving);
        if let Some(leader) = leaders.max_by_key(|status| status.term) {
            return Ok(leader);
        }

        addresses = named.into_iter().collect();
    }
    let message = "no leader serves: `lockkeeper status` shows what each node says";
    Err(Failure::unanswered(Exit::NoCluster, message, "no leader serves"))
}

/// What a member is to the cluster.
pub(super) fn role(member: &Member, leader_id: u64) -> &'static str {
    match (member.voter, member.is_leaving, member.stays_learner) {
        (true, _, _) if member.node_id == leader_id => "leader",
        (true, true, _) => "voter, to be replaced",
        (true, false, _) => "voter",
        (false, _, true) => "learner",
        (false, _, false) => "learner, catching up",
    }
}
