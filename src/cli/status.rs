//! `status`: the status of each node.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::{Args, ValueEnum};
use futures::future::join_all;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    Cluster, Exit, Failure, complain,
    output::{Format, Output, Table, print, print_document},
    show,
};
use crate::client::{Client, EarlierCluster, Error, NodeStatus, Role};

/// Seconds of a day.
const DAY: i64 = 86_400;
/// From when on `status` says that a certificate expires, seconds before.
const EXPIRES_SOON: i64 = 30 * DAY;

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
    wait: Option<Condition>,
    /// How long to wait with --wait
    #[arg(long, value_parser = super::arguments::duration, default_value = "5m", value_name = "TIME", requires = "wait")]
    within: Duration,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

/// What `--wait` waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Condition {
    Healthy,
}

/// Between two looks with `--wait`.
const PAUSE: Duration = Duration::from_millis(250);

/// A node and its answer.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) address: String,
    /// As the node says, or as the other nodes know it.
    pub(super) node_id: Option<u64>,
    pub(super) answer: Result<NodeStatus, Error>,
}

impl Status {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let nodes = match self.wait {
            Some(Condition::Healthy) => self.until_healthy(&client).await,
            None => self.ask_all(&client).await,
        };
        let tip = nodes.iter().filter_map(|node| Some(node.answer.as_ref().ok()?.last_log_index)).max().unwrap_or(0);
        match self.output.output {
            Format::Text => print(&text(&nodes, tip, self.hash))?,
            Format::Json => print_document(&Document::new(&nodes, tip))?,
        }
        match (self.wait, ailment(&nodes)) {
            (Some(Condition::Healthy), Some(ailment)) => {
                let message = format!("not healthy within {}: {ailment}", show::duration(self.within));
                Err(Failure::new(Exit::Error, message))
            }
            _ => Ok(exit(&nodes)),
        }
    }

    /// The last answers: of a healthy cluster, or at the end of the time.
    async fn until_healthy(&self, client: &Client) -> Vec<Node> {
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

    async fn ask_all(&self, client: &Client) -> Vec<Node> {
        ask_all(client, self.hash, self.node_timeout).await
    }
}

/// The endpoints first, then the members that they name. `limit`: how long to wait for each node.
pub(super) async fn ask_all(client: &Client, hash: bool, limit: Duration) -> Vec<Node> {
    let mut nodes = ask(client, client.endpoints(), hash, limit).await;
    let known: BTreeSet<u64> = nodes.iter().filter_map(|node| Some(node.answer.as_ref().ok()?.node_id)).collect();
    let mut others = BTreeMap::new();
    for status in nodes.iter().filter_map(|node| node.answer.as_ref().ok()) {
        let unknown = status.members.iter().filter(|member| !known.contains(&member.node_id));
        others.extend(unknown.map(|member| (member.client_address.clone(), member.node_id)));
    }
    let asked: BTreeSet<String> = nodes.iter().map(|node| node.address.clone()).collect();
    let unasked = others.keys().filter(|address| !asked.contains(*address)).cloned().collect();
    nodes.extend(ask(client, unasked, hash, limit).await);
    for node in &mut nodes {
        node.node_id = node.node_id.or_else(|| others.get(&node.address).copied());
    }
    nodes.sort_by_key(|node| node.node_id.unwrap_or(u64::MAX));
    nodes
}

async fn ask(client: &Client, addresses: Vec<String>, hash: bool, limit: Duration) -> Vec<Node> {
    let ask = |address: String| async {
        let answer = match hash {
            true => client.status_with_hash(&address, limit).await,
            false => client.status(&address, limit).await,
        };
        let node_id = answer.as_ref().ok().map(|status| status.node_id);
        Node { address, node_id, answer }
    };
    join_all(addresses.into_iter().map(ask)).await
}

/// A partitioned former leader does not matter if another leader serves.
pub(super) fn exit(nodes: &[Node]) -> Exit {
    let leaders: Vec<_> = answered(nodes).filter(|status| status.role == Role::Leader).collect();
    match leaders.iter().any(|status| status.serving) {
        true => Exit::Success,
        false if leaders.is_empty() => Exit::NoCluster,
        false => Exit::Error,
    }
}

/// Why the cluster is not healthy; `None`: it is.
fn ailment(nodes: &[Node]) -> Option<String> {
    let Some(leader) = leader(nodes) else { return Some("no leader serves".to_owned()) };
    for member in &leader.members {
        let id = member.node_id;
        match nodes.iter().find(|node| node.node_id == Some(id)).map(trouble) {
            Some(trouble) if trouble.is_empty() && member.trouble.is_none() => {}
            Some(trouble) if trouble.is_empty() => {
                return Some(format!("node {id}: {}", member.trouble.as_deref().unwrap_or_default()));
            }
            Some(trouble) => return Some(format!("node {id}: {trouble}")),
            None => return Some(format!("node {id} was not found")),
        }
        if member.is_leaving {
            return Some(format!("node {id} is being replaced"));
        }
        if !member.voter && !member.stays_learner {
            return Some(format!("node {id} is catching up, to become a voter"));
        }
    }
    // Of one or two voters none can ever be spared.
    if leader.members.iter().filter(|member| member.voter).count() < 3 {
        return None;
    }
    let kept = leader.members.iter().find_map(|member| Some((member.node_id, member.may_stop.clone()?.err()?)));
    kept.map(|(id, reason)| format!("node {id} may not be taken down: {reason}"))
}

/// Names the members that do not answer, and says whether the others are a majority.
pub(super) fn down(nodes: &[Node]) -> Option<String> {
    let up: BTreeSet<u64> = answered(nodes).map(|status| status.node_id).collect();
    // The leader of the newest term has the newest membership.
    let knows = answered(nodes).max_by_key(|status| (status.term, status.role == Role::Leader))?;
    let down: Vec<_> = knows.members.iter().filter(|member| !up.contains(&member.node_id)).collect();
    if down.is_empty() {
        return None;
    }
    let named: Vec<String> =
        down.iter().map(|member| format!("node {} ({})", member.node_id, show::text(&member.client_address))).collect();
    let voters = knows.members.iter().filter(|member| member.voter).count();
    let missing = down.iter().filter(|member| member.voter).count();
    let (left, majority) = (voters - missing, voters / 2 + 1);
    let suffices = if left >= majority { "enough to commit" } else { "too few to commit" };
    let named = named.join(", ");
    let voters = show::count(voters, "voter", "voters");
    let answer = if left == 1 { "answers" } else { "answer" };
    let needed = if majority == 1 { "is" } else { "are" };
    Some(format!("down: {named}; {left} of {voters} {answer}, {majority} {needed} needed: {suffices}"))
}

pub(super) fn answered(nodes: &[Node]) -> impl Iterator<Item = &NodeStatus> {
    nodes.iter().filter_map(|node| node.answer.as_ref().ok())
}

pub(super) fn role(status: &NodeStatus) -> &'static str {
    match status.role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
        Role::Other(_) | _ => "unknown",
    }
}

/// What the leader says of a member that does not catch up: it may not know so itself.
fn lag<'a>(node: &Node, leader: Option<&'a NodeStatus>) -> Option<&'a str> {
    leader?.members.iter().find(|member| node.node_id == Some(member.node_id))?.trouble.as_deref()
}

/// Nodes whose tables differ though they have applied the same entries. Only where the hashes were asked for.
fn differing(nodes: &[Node]) -> Option<String> {
    // The nodes with each hash, by the index.
    let mut seen: BTreeMap<u64, BTreeMap<u64, Vec<u64>>> = BTreeMap::new();
    for status in answered(nodes) {
        if let Some(hash) = status.table_hash {
            seen.entry(status.applied_index).or_default().entry(hash).or_default().push(status.node_id);
        }
    }
    let (index, tables) = seen.into_iter().find(|(_, tables)| tables.len() > 1)?;
    let voters = leader(nodes).map_or(0, |leader| leader.members.iter().filter(|member| member.voter).count());
    let names = |ids: &[u64]| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
    let majority = tables.values().find(|ids| voters > 0 && ids.len() > voters / 2);
    let Some(majority) = majority else {
        let all: Vec<u64> = tables.into_values().flatten().collect();
        return Some(format!(
            "nodes {} have different tables at index {index}, and no majority shows which one is right: start the members that are down; then \
             compare the copies with `lockkeeper recover --data-dir DIR --inspect`",
            names(&all)
        ));
    };
    let odd: Vec<u64> = tables.values().filter(|ids| *ids != majority).flatten().copied().collect();
    Some(format!(
        "node {} has another table at index {index} than nodes {}, which are a majority: stop it, see what its copy has with `lockkeeper \
         recover --data-dir DIR --inspect`, and replace it with `lockkeeper member replace`",
        names(&odd),
        names(majority)
    ))
}

/// The problem of the node; empty if there is none.
pub(super) fn trouble(node: &Node) -> String {
    match &node.answer {
        Ok(status) if status.serving => String::new(),
        Ok(status) => status.trouble.clone().unwrap_or_else(|| "it gives no reason".into()),
        Err(Error::NoCluster { why } | Error::Unknown { why }) => why.clone(),
        Err(error) => error.to_string(),
    }
}

pub(super) fn health(node: &Node, leader: Option<&NodeStatus>) -> String {
    match &node.answer {
        Ok(status) if status.serving => match lag(node, leader) {
            None => "ok".into(),
            Some(_) => "behind: see below".into(),
        },
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
        "MAY STOP",
        "HEALTH",
    ];
    if hash {
        header.push("TABLE");
    }
    let mut table = Table::new(&header);
    let leader = leader(nodes);
    nodes.iter().for_each(|node| table.row(row(node, leader, tip)));
    let mut text = table.take();
    if let Some(down) = down(nodes) {
        text += &format!("\n{down}\n");
    }
    for status in answered(nodes) {
        for (member, trouble) in status.members.iter().filter_map(|member| Some((member, member.trouble.as_ref()?))) {
            let trouble = show::text(trouble);
            text += &format!("\nnode {} reports about node {}: it {trouble}\n", status.node_id, member.node_id);
        }
    }
    for member in leader.into_iter().flat_map(|leader| &leader.members) {
        if let Some(Err(reason)) = &member.may_stop {
            text += &format!("\nnode {} may not be taken down now: {}\n", member.node_id, show::text(reason));
        }
    }
    if let Some(versions) = versions(nodes) {
        text += &format!("\n{versions}\n");
    }
    for (status, trouble) in answered(nodes).filter_map(|status| Some((status, status.disk_trouble.as_ref()?))) {
        text += &format!("\nnode {} reports about disks: {}\n", status.node_id, show::text(trouble));
    }
    for (status, expiry) in answered(nodes).filter_map(|status| Some((status, expiry(status)?))) {
        text += &format!(
            "\nthe certificate of node {} {expiry}: make another with `lockkeeper certs node`\n",
            status.node_id
        );
    }
    for (status, earlier) in answered(nodes).filter_map(|status| Some((status, status.earlier_cluster.as_ref()?))) {
        text += &format!("\nnode {} {}\n", status.node_id, earlier_clients(earlier, &status.cluster_id));
    }
    if let Some(trouble) = differing(nodes) {
        text += &format!("\n{trouble}\n");
    }
    if let Some(trouble) = mixed(nodes) {
        text += &format!("\n{trouble}\n");
    }
    text
}

/// What is said of a certificate that expires within [`EXPIRES_SOON`].
fn expiry(status: &NodeStatus) -> Option<String> {
    let left = status.certificate_seconds_left.filter(|left| *left < EXPIRES_SOON)?;
    Some(match left / DAY {
        _ if left < 0 => "has expired".to_owned(),
        0 => "expires within a day".to_owned(),
        1 => "expires in 1 day".to_owned(),
        days => format!("expires in {days} days"),
    })
}

/// What is said of the clients of the cluster that this one was restored from.
fn earlier_clients(earlier: &EarlierCluster, cluster: &str) -> String {
    let before = show::text(&earlier.cluster_id);
    if earlier.seconds_left <= 0 {
        return format!(
            "refuses certificates of cluster {before}: the time of [earlier_cluster] is over; take it out of its configuration"
        );
    }
    let left = match earlier.seconds_left / DAY {
        0 => "less than a day".to_owned(),
        days => show::count(days.unsigned_abs(), "day", "days"),
    };
    format!(
        "accepts clients' certificates of cluster {before} for {left} more, and {} came with one: give them certificates of {}",
        show::count(earlier.clients, "client", "clients"),
        show::text(cluster)
    )
}

fn row(node: &Node, leader: Option<&NodeStatus>, tip: u64) -> Vec<String> {
    let Ok(status) = &node.answer else {
        let mut row = vec!["-".to_owned(); 11];
        row[0] = node.node_id.map_or("-".to_owned(), |id| id.to_string());
        row[1].clone_from(&node.address);
        row[10] = may_stop(node, leader).to_owned();
        row.push(health(node, leader));
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
        may_stop(node, leader).to_owned(),
        health(node, leader),
    ];
    if let Some(hash) = status.table_hash {
        row.push(format!("{hash:016x} at {}", status.applied_index));
    }
    row
}

/// The leader that serves, as far as it answers.
pub(super) fn leader(nodes: &[Node]) -> Option<&NodeStatus> {
    answered(nodes).filter(|status| status.role == Role::Leader && status.serving).max_by_key(|status| status.term)
}

/// Whether the leader says that this node may be taken down.
fn may_stop(node: &Node, leader: Option<&NodeStatus>) -> &'static str {
    let member = leader.and_then(|leader| leader.members.iter().find(|member| node.node_id == Some(member.node_id)));
    match member.and_then(|member| member.may_stop.as_ref()) {
        Some(Ok(())) => "yes",
        Some(Err(_)) => "no",
        None => "-",
    }
}

/// The cluster version and those of the nodes' programs, if they differ.
fn versions(nodes: &[Node]) -> Option<String> {
    // A program from before versions does not say.
    let range = |status: &NodeStatus| status.cluster_versions.unwrap_or((1, 1));
    let programs: BTreeSet<_> = answered(nodes).map(|status| (status.version.as_str(), range(status))).collect();
    let leader = answered(nodes).find(|status| status.role == Role::Leader);
    let waits = leader.and_then(|leader| leader.cluster_version_waits.as_deref());
    if programs.len() < 2 && waits.is_none() {
        return None;
    }
    let each = answered(nodes).map(|status| {
        let (version, (lowest, highest)) = (show::text(&status.version), range(status));
        let range = if lowest == highest { lowest.to_string() } else { format!("{lowest} to {highest}") };
        format!("node {} runs {version}, which supports {range}", status.node_id)
    });
    let each = each.collect::<Vec<_>>().join("; ");
    let cluster = answered(nodes).filter_map(|status| status.cluster_version).max().unwrap_or(1);
    let waits = waits.map(|waits| format!("; {}", show::text(waits))).unwrap_or_default();
    Some(format!("cluster version {cluster}: {each}{waits}"))
}

/// Endpoints of different clusters in one list explain all other symptoms.
fn mixed(nodes: &[Node]) -> Option<String> {
    let clusters: BTreeSet<&str> =
        answered(nodes).map(|status| &*status.cluster_id).filter(|id| !id.is_empty()).collect();
    let names: Vec<&str> = clusters.into_iter().collect();
    (names.len() > 1).then(|| format!("these nodes belong to different clusters: {}", show::text(&names.join(", "))))
}

#[derive(Serialize)]
struct Document {
    nodes: Vec<NodeDocument>,
}

/// For a node that did not answer: its address, its problem, and its id if another node knows it.
#[derive(Serialize)]
struct NodeDocument {
    node_id: Option<u64>,
    address: String,
    health: &'static str,
    trouble: Option<String>,
    #[serde(flatten)]
    status: Option<StatusDocument>,
}

#[derive(Serialize)]
struct StatusDocument {
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
    table_bytes: u64,
    table_bytes_max: Option<u64>,
    last_token: u64,
    turn_delay_us_max: u64,
    denied_requests: u64,
    limited_requests: u64,
    disk_free_bytes: Option<u64>,
    disk_total_bytes: Option<u64>,
    disk_reserve_bytes: Option<u64>,
    disk_low: bool,
    disk_trouble: Option<String>,
    certificate_seconds_left: Option<i64>,
    earlier_cluster: Option<EarlierClusterDocument>,
    table_hash: Option<String>,
    audit_lines: u64,
    audit_head: Option<String>,
    cluster_version: Option<u32>,
    cluster_version_min: Option<u32>,
    cluster_version_max: Option<u32>,
    cluster_version_waits: Option<String>,
    start: Option<String>,
    members: Vec<MemberDocument>,
}

/// The cluster before a restore, whose clients the node accepts.
#[derive(Serialize)]
struct EarlierClusterDocument {
    cluster_id: String,
    seconds_left: i64,
    clients: u64,
}

#[derive(Serialize)]
struct MemberDocument {
    node_id: u64,
    client_address: String,
    peer_address: String,
    voter: bool,
    matched_index: u64,
    disk_free_bytes: Option<u64>,
    disk_low: bool,
    trouble: Option<String>,
    stays_learner: bool,
    is_leaving: bool,
    /// On the leader: since its last answer.
    silent_ms: Option<u64>,
    /// On the leader: whether it may be taken down now, and if not, why.
    safe_to_stop: Option<bool>,
    unsafe_reason: Option<String>,
    version: Option<String>,
    cluster_version_min: Option<u32>,
    cluster_version_max: Option<u32>,
}

impl Document {
    fn new(nodes: &[Node], tip: u64) -> Self {
        let node = |node: &Node| NodeDocument {
            node_id: node.node_id,
            address: node.address.clone(),
            health: match &node.answer {
                Ok(status) if status.serving => "ok",
                Ok(_) => "not_serving",
                Err(_) => "down",
            },
            trouble: Some(trouble(node)).filter(|trouble| !trouble.is_empty()),
            status: node.answer.as_ref().ok().map(|status| StatusDocument::new(status, tip)),
        };
        Self { nodes: nodes.iter().map(node).collect() }
    }
}

impl StatusDocument {
    fn new(status: &NodeStatus, tip: u64) -> Self {
        let members = status.members.iter().map(|member| MemberDocument {
            node_id: member.node_id,
            client_address: member.client_address.clone(),
            peer_address: member.peer_address.clone(),
            voter: member.voter,
            matched_index: member.matched_index,
            trouble: member.trouble.clone(),
            stays_learner: member.stays_learner,
            is_leaving: member.is_leaving,
            silent_ms: member.silent_for.map(show::millis),
            safe_to_stop: member.may_stop.as_ref().map(Result::is_ok),
            unsafe_reason: member.may_stop.clone().and_then(Result::err),
            version: member.version.clone(),
            cluster_version_min: member.cluster_versions.map(|(lowest, _)| lowest),
            cluster_version_max: member.cluster_versions.map(|(_, highest)| highest),
            disk_free_bytes: member.disk_free_bytes,
            disk_low: member.disk_low,
        });
        Self {
            cluster_id: status.cluster_id.clone(),
            version: status.version.clone(),
            role: role(status),
            term: status.term,
            leader_id: status.leader_id,
            last_log_index: status.last_log_index,
            committed_index: status.committed_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            purged_index: status.purged_index,
            lag: tip.saturating_sub(status.applied_index),
            sessions: status.sessions,
            locks: status.locks,
            waiters: status.waiters,
            table_bytes: status.table_bytes,
            table_bytes_max: status.table_bytes_max,
            last_token: status.last_token.map_or(0, |token| token.0),
            turn_delay_us_max: u64::try_from(status.turn_delay_max.as_micros()).unwrap_or(u64::MAX),
            denied_requests: status.denied_requests,
            limited_requests: status.limited_requests,
            disk_free_bytes: status.disk_free_bytes,
            disk_total_bytes: status.disk_total_bytes,
            disk_reserve_bytes: status.disk_reserve_bytes,
            disk_low: status.disk_low,
            disk_trouble: status.disk_trouble.clone(),
            certificate_seconds_left: status.certificate_seconds_left,
            earlier_cluster: status.earlier_cluster.as_ref().map(|earlier| EarlierClusterDocument {
                cluster_id: earlier.cluster_id.clone(),
                seconds_left: earlier.seconds_left,
                clients: earlier.clients,
            }),
            // As text: JSON numbers are not exact beyond 2^53.
            table_hash: status.table_hash.map(|hash| format!("{hash:016x}")),
            audit_lines: status.audit_lines,
            audit_head: status.audit_head.clone(),
            cluster_version: status.cluster_version,
            cluster_version_min: status.cluster_versions.map(|(lowest, _)| lowest),
            cluster_version_max: status.cluster_versions.map(|(_, highest)| highest),
            cluster_version_waits: status.cluster_version_waits.clone(),
            start: status.start.clone(),
            members: members.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
