//! `member list`: the members, as the leader sees them.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::view;
use crate::{
    cli::{
        Cluster, Exit, Failure,
        output::{Format, Output, Table, print, print_document},
        show,
    },
    client::{Member, NodeStatus},
};

/// Shows the members of the cluster, as the leader sees them.
#[derive(Args, Debug)]
pub(super) struct List {
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
    node_id: u64,
    role: &'static str,
    voter: bool,
    is_leader: bool,
    is_leaving: bool,
    stays_learner: bool,
    peer_address: String,
    client_address: String,
    /// Entries that it lacks.
    lag: u64,
    /// Since its last answer; absent for the leader itself, and if it never answered this leader.
    silent_ms: Option<u64>,
    safe_to_stop: bool,
    unsafe_reason: Option<String>,
}

impl List {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let leader = view::leader(&self.cluster.client()?).await?;
        match self.output.output {
            Format::Text => print(&text(&leader))?,
            Format::Json => {
                let documents: Vec<_> = leader.members.iter().map(|member| document(member, &leader)).collect();
                print_document(&documents)?;
            }
        }
        Ok(Exit::Success)
    }
}

fn document(member: &Member, leader: &NodeStatus) -> Document {
    let is_leader = member.node_id == leader.node_id;
    Document {
        node_id: member.node_id,
        role: view::role(member, leader.node_id),
        voter: member.voter,
        is_leader,
        is_leaving: member.is_leaving,
        stays_learner: member.stays_learner,
        peer_address: member.peer_address.clone(),
        client_address: member.client_address.clone(),
        lag: if is_leader { 0 } else { leader.last_log_index.saturating_sub(member.matched_index) },
        silent_ms: member.silent_for.map(show::millis),
        safe_to_stop: member.may_stop == Some(Ok(())),
        unsafe_reason: member.may_stop.clone().and_then(Result::err),
    }
}

fn text(leader: &NodeStatus) -> String {
    let mut table = Table::new(&["NODE", "ROLE", "PEERS", "CLIENTS", "LAG", "ANSWERED", "MAY STOP"]);
    for member in &leader.members {
        let Document { node_id, role, lag, silent_ms, is_leader, safe_to_stop, unsafe_reason, .. } =
            document(member, leader);
        let answered = match silent_ms {
            _ if is_leader => "-".to_owned(),
            Some(ms) => format!("{} ago", show::duration(Duration::from_millis(ms))),
            None => "never".to_owned(),
        };
        let may_stop = match safe_to_stop {
            true => "yes".to_owned(),
            false => format!("no: {}", unsafe_reason.unwrap_or_default()),
        };
        let (peers, clients) = (show::cell(&member.peer_address), show::cell(&member.client_address));
        table.row(vec![node_id.to_string(), role.to_owned(), peers, clients, lag.to_string(), answered, may_stop]);
    }
    table.take()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_member_is_a_row() {
        let member = |node_id| {
            let mut member = Member::default();
            (member.node_id, member.voter, member.matched_index) = (node_id, node_id < 4, 90);
            (member.client_address, member.peer_address) = (format!("h{node_id}:1"), format!("h{node_id}:2"));
            member.may_stop = Some(Ok(()));
            member
        };
        let (mut leaving, mut silent) = (member(2), member(4));
        (leaving.is_leaving, leaving.may_stop) = (true, Some(Err("it is needed".to_owned())));
        silent.silent_for = Some(Duration::from_millis(2500));
        let mut leader = NodeStatus::default();
        (leader.node_id, leader.last_log_index, leader.members) = (1, 100, vec![member(1), leaving, silent]);
        let expected = "\
NODE  ROLE                   PEERS  CLIENTS  LAG  ANSWERED   MAY STOP
1     leader                 h1:2   h1:1     0    -          yes
2     voter, to be replaced  h2:2   h2:1     10   never      no: it is needed
4     learner, catching up   h4:2   h4:1     10   2.5 s ago  yes
";
        assert_eq!(text(&leader), expected);
    }
}
