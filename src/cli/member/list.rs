//! `lockkeeper member list` shows the members, as the leader sees them.

use clap::Args;
use serde::Serialize;

use super::view;
use crate::{
    cli::{
        ClusterArguments, Exit, Failure,
        output::{Printed, TableOutput, print, print_document},
        show,
        table::{TableLayout, TextColumn, TextTable},
    },
    client::{Member, NodeStatus},
};

/// Shows the members of the cluster, as the leader sees them.
#[derive(Args, Debug)]
pub(super) struct MemberList {
    #[command(flatten)]
    output: TableOutput,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// A member as the client shows it, and what the leader's own place among them says of it.
#[derive(Serialize)]
struct MemberReport {
    role: &'static str,
    is_leader: bool,
    /// Entries that it lacks.
    lag: u64,
    #[serde(flatten)]
    member: Member,
}

impl MemberList {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let leader = view::leader(&self.cluster.client()?).await?;

        match self.output.printed() {
            Printed::Table(layout) => print(&text(&leader, layout))?,
            Printed::Names => {
                let ids = leader.members.iter().map(|member| format!("{}\n", member.node_id));
                print(&ids.collect::<String>())?;
            }
            Printed::Json => {
                let documents: Vec<_> = leader.members.iter().map(|member| document(member, &leader)).collect();
                print_document(&documents)?;
            }
        }
        Ok(Exit::Success)
    }
}

fn document(member: &Member, leader: &NodeStatus) -> MemberReport {
    let is_leader = member.node_id == leader.node_id;

    MemberReport {
        role: view::role(member, leader.node_id),
        is_leader,
        lag: if is_leader { 0 } else { leader.last_log_index.saturating_sub(member.matched_index) },
        member: member.clone(),
    }
}

const COLUMNS: [TextColumn; 7] = [
    TextColumn::exact("NODE"),
    TextColumn::exact("ROLE"),
    TextColumn::text("PEERS"),
    TextColumn::text("CLIENTS"),
    TextColumn::exact("LAG"),
    TextColumn::exact("ANSWERED"),
    TextColumn::text("MAY STOP"),
];

fn text(leader: &NodeStatus, layout: TableLayout) -> String {
    let mut table = TextTable::new(layout, &COLUMNS);
    let mut reasons = String::new();
    for member in &leader.members {
        let report = document(member, leader);
        let answered = match member.silent_for {
            _ if report.is_leader => "-".to_owned(),
            Some(silence) => format!("{} ago", show::duration(silence)),
            None => "never".to_owned(),
        };

        let reason =
            member.may_stop.clone().and_then(Result::err).map_or_else(String::new, |reason| show::text(&reason));
        let may_stop = if member.may_stop == Some(Ok(())) { "yes".to_owned() } else { format!("no: {reason}") };
        // A terminal cuts the reason in the table.
        if layout.width.is_some() && !reason.is_empty() {
            reasons += &format!("\nnode {} may not be taken down now: {reason}\n", member.node_id);
        }

        table.row(vec![
            member.node_id.to_string(),
            report.role.to_owned(),
            show::text(&member.peer_address),
            show::text(&member.client_address),
            report.lag.to_string(),
            answered,
            may_stop,
        ]);
    }
    table.take() + &reasons
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let mut leaving = member(2);
        let mut silent = member(4);
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
        assert_eq!(text(&leader, TableLayout::default()), expected);

        let terminal = TableLayout { width: Some(70), ..TableLayout::default() };
        let said = text(&leader, terminal);
        assert!(said.ends_with("\n\nnode 2 may not be taken down now: it is needed\n"), "{said}");
    }
}
