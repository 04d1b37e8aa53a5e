//! `lockkeeper status` shows the status of each node.

mod document;
mod text;

use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::time::{Instant, sleep};

use self::{document::StatusReport, text::text};
use super::{
    ClusterArguments, Exit, Failure, complain,
    nodes::{self, AskedNode, answered, exit, leader, trouble},
    output::{Printed, TableOutput, print, print_document},
    show,
    table::TableLayout,
};
use crate::client::{Client, Member};

/// Shows the status of each node. Exit code 0: a leader serves; 1: there is a leader that cannot commit; 12: there is
/// no leader; with --wait: 0 once the cluster is healthy, 1 if it is not in time.
///
/// MAY STOP says whether a node may be taken down now: whether a majority of the voters answers and is caught up without
/// it. Members of the cluster that are not among the endpoints are asked too.
#[derive(Args, Debug)]
pub(super) struct Status {
    /// Let each node compute a hash of its table. Equal on all nodes at the same applied index
    #[arg(long)]
    hash: bool,
    /// How long to wait for each node
    #[arg(long, value_parser = super::arguments::duration, default_value = "2s", value_name = "TIME")]
    node_timeout: Duration,
    /// Wait until the cluster is healthy: every member answers, serves and is caught up, no change of the members is
    /// under way, and any one node may be taken down
    #[arg(long, value_enum, value_name = "CONDITION")]
    wait: Option<AwaitedCondition>,
    /// How long to wait with --wait
    #[arg(long, value_parser = super::arguments::duration, default_value = "5m", value_name = "TIME", requires = "wait")]
    within: Duration,
    #[command(flatten)]
    output: TableOutput,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// What `--wait` waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum AwaitedCondition {
    Healthy,
}

/// Between two looks with `--wait`.
const PAUSE: Duration = Duration::from_millis(250);

impl Status {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let nodes = match self.wait {
            Some(AwaitedCondition::Healthy) => self.until_healthy(&client).await,
            None => self.ask_all(&client).await,
        };

        let tip = answered(&nodes).map(|status| status.last_log_index).max().unwrap_or(0);
        match self.output.printed() {
            Printed::Table(layout) => print(&text(&nodes, tip, self.hash, layout))?,
            Printed::Names => print(&names(&nodes))?,
            Printed::Json => print_document(&StatusReport::new(&nodes, tip))?,
        }

        match (self.wait, ailment(&nodes)) {
            (Some(AwaitedCondition::Healthy), Some(ailment)) => {
                let message = format!("not healthy within {}: {ailment}", show::duration(self.within));
                Err(Failure::new(Exit::Error, message))
            }
            (Some(AwaitedCondition::Healthy), None) | (None, _) => Ok(exit(&nodes)),
        }
    }

    /// The last answers: of a healthy cluster, or at the end of the time.
    async fn until_healthy(&self, client: &Client) -> Vec<AskedNode> {
        let deadline = Instant::now() + self.within;
        let mut said = String::new();
        loop {
            let nodes = self.ask_all(client).await;
            let Some(ailment) = ailment(&nodes).filter(|_| Instant::now() < deadline) else { return nodes };

            if ailment != said {
                complain(&format!("waiting: {ailment}"));
                said = ailment;
            }
            sleep(PAUSE).await;
        }
    }

    async fn ask_all(&self, client: &Client) -> Vec<AskedNode> {
        nodes::ask_all(client, self.hash, self.node_timeout).await
    }
}

/// What an operator should know of the cluster, the most urgent first.
pub(super) fn sentences(nodes: &[AskedNode]) -> Vec<String> {
    text::sentences(nodes, TableLayout::default())
}

/// The addresses, one a line.
fn names(nodes: &[AskedNode]) -> String {
    nodes.iter().map(|node| show::text(&node.address) + "\n").collect()
}

/// Why the cluster is not healthy, if it is not.
fn ailment(nodes: &[AskedNode]) -> Option<String> {
    let Some(leader) = leader(nodes) else { return Some("no leader serves".to_owned()) };
    if let Some(ailment) = leader.members.iter().find_map(|member| ailment_of_member(member, nodes)) {
        return Some(ailment);
    }

    // With one or two voters, no node may ever stop, so this is not reported.
    if leader.members.iter().filter(|member| member.voter).count() < 3 {
        return None;
    }
    let kept = leader.members.iter().find_map(|member| Some((member.node_id, member.may_stop.clone()?.err()?)));
    kept.map(|(id, reason)| format!("node {id} may not be taken down: {reason}"))
}

fn ailment_of_member(member: &Member, nodes: &[AskedNode]) -> Option<String> {
    let id = member.node_id;
    let Some(own) = nodes.iter().find(|node| node.node_id == Some(id)).map(trouble) else {
        return Some(format!("node {id} was not found"));
    };

    if !own.is_empty() {
        Some(format!("node {id}: {own}"))
    } else if let Some(trouble) = &member.trouble {
        Some(format!("node {id}: {trouble}"))
    } else if member.is_leaving {
        Some(format!("node {id} is being replaced"))
    } else if !member.voter && !member.stays_learner {
        Some(format!("node {id} is catching up, to become a voter"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
