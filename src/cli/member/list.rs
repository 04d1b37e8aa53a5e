//! `member list`: the members, as the leader sees them.

use clap::Args;
use serde::Serialize;

use super::view;
use crate::{
    cli::{
        Cluster, Exit, Failure,
        output::{Format, Output, Table, print, print_document},
        show,
    },
    proto::v1::{Member, StatusResponse},
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

fn document(member: &Member, leader: &StatusResponse) -> Document {
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
        silent_ms: member.silent_ms,
        safe_to_stop: member.safe_to_stop,
        unsafe_reason: Some(member.unsafe_reason.clone()).filter(|reason| !reason.is_empty()),
    }
}

fn text(leader: &StatusResponse) -> String {
    let mut table = Table::new(&["NODE", "ROLE", "PEERS", "CLIENTS", "LAG", "ANSWERED", "MAY STOP"]);
    for member in &leader.members {
        let Document { node_id, role, lag, silent_ms, is_leader, safe_to_stop, unsafe_reason, .. } =
            document(member, leader);
        let answered = match silent_ms {
            _ if is_leader => "-".to_owned(),
            Some(ms) => format!("{} ago", show::duration(ms)),
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
        let member = |node_id| Member {
            node_id,
            client_address: format!("h{node_id}:1"),
            peer_address: format!("h{node_id}:2"),
            voter: node_id < 4,
            matched_index: 90,
            ..Member::default()
        };
        let leader = StatusResponse {
            node_id: 1,
            last_log_index: 100,
            members: vec![
                Member { safe_to_stop: true, ..member(1) },
                Member { is_leaving: true, unsafe_reason: "it is needed".into(), ..member(2) },
                Member { silent_ms: Some(2500), safe_to_stop: true, ..member(4) },
            ],
            ..StatusResponse::default()
        };
        let expected = "\
NODE  ROLE                   PEERS  CLIENTS  LAG  ANSWERED   MAY STOP
1     leader                 h1:2   h1:1     0    -          yes
2     voter, to be replaced  h2:2   h2:1     10   never      no: it is needed
4     learner, catching up   h4:2   h4:1     10   2.5 s ago  yes
";
        assert_eq!(text(&leader), expected);
    }
}
