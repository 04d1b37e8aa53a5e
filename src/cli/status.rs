//! `status`: how each node sees itself.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use futures::future::join_all;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    output::{Format, Output, Table, print, print_document},
    show,
};
use crate::{
    client::{Client, Error},
    proto::v1::{Role, StatusResponse},
};

/// Asks each node how it sees itself: exit code 0 if a leader serves, 12 if not.
///
/// Members of the cluster that are not among the endpoints are asked too.
#[derive(Args, Debug)]
pub(super) struct Status {
    /// Have each node compute a hash of its table. Equal on all nodes that have applied the log equally far.
    #[arg(long)]
    hash: bool,
    /// How long to wait for a node.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "2s", value_name = "TIME")]
    node_timeout: Duration,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

/// A node, and what it said.
struct Node {
    address: String,
    answer: Result<StatusResponse, Error>,
}

impl Status {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let nodes = self.ask_all(&self.cluster.client()?).await;
        let tip = nodes.iter().filter_map(|node| Some(node.answer.as_ref().ok()?.last_log_index)).max().unwrap_or(0);
        match self.output.output {
            Format::Text => print(&text(&nodes, tip, self.hash))?,
            Format::Json => print_document(&Document::new(&nodes, tip, self.hash))?,
        }
        let leads = |status: &StatusResponse| status.role() == Role::Leader && status.serving;
        let served = nodes.iter().any(|node| node.answer.as_ref().is_ok_and(leads));
        Ok(if served { Exit::Success } else { Exit::NoCluster })
    }

    /// First the endpoints, then the members that they name.
    async fn ask_all(&self, client: &Client) -> Vec<Node> {
        let mut nodes = self.ask(client, client.endpoints()).await;
        let known: BTreeSet<u64> = nodes.iter().filter_map(|node| Some(node.answer.as_ref().ok()?.node_id)).collect();
        let mut others = BTreeSet::new();
        for status in nodes.iter().filter_map(|node| node.answer.as_ref().ok()) {
            let unknown = status.members.iter().filter(|member| !known.contains(&member.node_id));
            others.extend(unknown.map(|member| member.client_address.clone()));
        }
        for node in &nodes {
            others.remove(&node.address);
        }
        nodes.extend(self.ask(client, others.into_iter().collect()).await);
        nodes.sort_by_key(|node| node.answer.as_ref().map_or(u64::MAX, |status| status.node_id));
        nodes
    }

    async fn ask(&self, client: &Client, addresses: Vec<String>) -> Vec<Node> {
        let ask = |address: String| async {
            let answer = client.status(&address, self.hash, self.node_timeout).await;
            Node { address, answer }
        };
        join_all(addresses.into_iter().map(ask)).await
    }
}

fn role(status: &StatusResponse) -> &'static str {
    match status.role() {
        Role::Unspecified => "unknown",
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
    }
}

/// What is wrong; empty if nothing is.
fn trouble(node: &Node) -> String {
    match &node.answer {
        Ok(status) if status.serving => String::new(),
        Ok(status) if status.trouble.is_empty() => "it does not say why".into(),
        Ok(status) => status.trouble.clone(),
        Err(Error::NoCluster { why } | Error::Unknown { why }) => why.clone(),
        Err(error) => error.to_string(),
    }
}

fn health(node: &Node) -> String {
    match &node.answer {
        Ok(status) if status.serving => "ok".into(),
        Ok(_) => format!("does not serve: {}", show::text(&trouble(node))),
        Err(_) => format!("down: {}", show::text(&trouble(node))),
    }
}

fn text(nodes: &[Node], tip: u64, hash: bool) -> String {
    let mut header = vec![
        "NODE",
        "ADDRESS",
        "ROLE",
        "TERM",
        "LAST LOG",
        "COMMITTED",
        "APPLIED",
        "SNAPSHOT",
        "LAG",
        "VERSION",
        "HEALTH",
    ];
    if hash {
        header.push("TABLE");
    }
    let mut table = Table::new(&header);
    nodes.iter().for_each(|node| table.row(row(node, tip, hash)));
    let mut text = table.take();
    for status in nodes.iter().filter_map(|node| node.answer.as_ref().ok()) {
        for member in status.members.iter().filter(|member| !member.trouble.is_empty()) {
            let trouble = show::text(&member.trouble);
            text += &format!("\nnode {} says of node {}: it {trouble}\n", status.node_id, member.node_id);
        }
    }
    if let Some(trouble) = mixed(nodes) {
        text += &format!("\n{trouble}\n");
    }
    text
}

fn row(node: &Node, tip: u64, hash: bool) -> Vec<String> {
    let Ok(status) = &node.answer else {
        let mut row = vec!["-".to_owned(); 10];
        row[1].clone_from(&node.address);
        row.push(health(node));
        return row;
    };
    let mut row = vec![
        status.node_id.to_string(),
        node.address.clone(),
        role(status).to_owned(),
        status.term.to_string(),
        status.last_log_index.to_string(),
        status.committed_index.to_string(),
        status.applied_index.to_string(),
        status.snapshot_index.to_string(),
        tip.saturating_sub(status.applied_index).to_string(),
        show::text(&status.version),
        health(node),
    ];
    if hash {
        row.push(format!("{:016x} at {}", status.table_hash, status.applied_index));
    }
    row
}

/// Endpoints of different clusters in one list are a mistake that explains everything else.
fn mixed(nodes: &[Node]) -> Option<String> {
    let answered = nodes.iter().filter_map(|node| node.answer.as_ref().ok());
    let clusters: BTreeSet<&str> = answered.map(|status| &*status.cluster_id).filter(|id| !id.is_empty()).collect();
    let names: Vec<&str> = clusters.into_iter().collect();
    (names.len() > 1).then(|| format!("these nodes belong to different clusters: {}", show::text(&names.join(", "))))
}

#[derive(Serialize)]
struct Document {
    nodes: Vec<NodeDocument>,
}

/// A node that did not answer has its address and its trouble only.
#[derive(Serialize)]
struct NodeDocument {
    address: String,
    health: &'static str,
    trouble: Option<String>,
    #[serde(flatten)]
    status: Option<StatusDocument>,
}

#[derive(Serialize)]
struct StatusDocument {
    node_id: u64,
    cluster_id: String,
    version: String,
    role: &'static str,
    term: u64,
    leader_id: Option<u64>,
    last_log_index: u64,
    committed_index: u64,
    applied_index: u64,
    snapshot_index: u64,
    purged_index: u64,
    lag: u64,
    sessions: u64,
    locks: u64,
    waiters: u64,
    last_token: u64,
    table_hash: Option<String>,
    members: Vec<MemberDocument>,
}

#[derive(Serialize)]
struct MemberDocument {
    node_id: u64,
    client_address: String,
    peer_address: String,
    voter: bool,
    matched_index: u64,
    trouble: Option<String>,
}

impl Document {
    fn new(nodes: &[Node], tip: u64, hash: bool) -> Self {
        let node = |node: &Node| NodeDocument {
            address: node.address.clone(),
            health: match &node.answer {
                Ok(status) if status.serving => "ok",
                Ok(_) => "not_serving",
                Err(_) => "down",
            },
            trouble: Some(trouble(node)).filter(|trouble| !trouble.is_empty()),
            status: node.answer.as_ref().ok().map(|status| StatusDocument::new(status, tip, hash)),
        };
        Self { nodes: nodes.iter().map(node).collect() }
    }
}

impl StatusDocument {
    fn new(status: &StatusResponse, tip: u64, hash: bool) -> Self {
        let members = status.members.iter().map(|member| MemberDocument {
            node_id: member.node_id,
            client_address: member.client_address.clone(),
            peer_address: member.peer_address.clone(),
            voter: member.voter,
            matched_index: member.matched_index,
            trouble: Some(member.trouble.clone()).filter(|trouble| !trouble.is_empty()),
        });
        Self {
            node_id: status.node_id,
            cluster_id: status.cluster_id.clone(),
            version: status.version.clone(),
            role: role(status),
            term: status.term,
            leader_id: Some(status.leader_id).filter(|id| *id != 0),
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            purged_index: status.purged_index,
            lag: tip.saturating_sub(status.applied_index),
            sessions: status.sessions,
            locks: status.locks,
            waiters: status.waiters,
            last_token: status.last_token,
            // As digits: JSON's numbers are not exact beyond 2^53.
            table_hash: hash.then(|| format!("{:016x}", status.table_hash)),
            members: members.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_down_is_a_row_that_says_why() {
        let up = StatusResponse {
            node_id: 1,
            serving: true,
            role: Role::Leader.into(),
            last_log_index: 12,
            applied_index: 10,
            ..StatusResponse::default()
        };
        let down = Error::NoCluster { why: "connection refused".into() };
        let nodes = [Node { address: "a:1".into(), answer: Ok(up) }, Node { address: "b:2".into(), answer: Err(down) }];
        let text = text(&nodes, 12, false);
        let cells = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(cells(1), "1 a:1 leader 0 12 0 10 0 2 ok");
        assert_eq!(cells(2), "- b:2 - - - - - - - - down: connection refused");
    }
}
