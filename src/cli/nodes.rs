//! The nodes of the cluster, each asked for its status, and what their answers say together.
//!
//! `status`, `top` and `doctor` show it, and a command that got no answer ends with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::future::join_all;

use super::{exit::Exit, show};
use crate::{
    client::{Client, Error, Member, NodeStatus, Role},
    transport::{SPEAKS_NO_TLS, SPEAKS_TLS},
};

/// A node and its answer.
#[derive(Clone, Debug)]
pub(super) struct AskedNode {
    pub(super) address: String,
    /// The id that the node reports, or that the other nodes know.
    pub(super) node_id: Option<u64>,
    pub(super) answer: Result<NodeStatus, Error>,
}

/// Asks the endpoints first, then the members that they name. `limit` is how long to wait for each node.
pub(super) async fn ask_all(client: &Client, hash: bool, limit: Duration) -> Vec<AskedNode> {
    let mut nodes = ask(client, client.endpoints(), hash, limit).await;

    let known: BTreeSet<u64> = nodes.iter().filter_map(|node| Some(node.answer.as_ref().ok()?.node_id)).collect();
    let mut others = BTreeMap::new();
    for status in answered(&nodes) {
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

async fn ask(client: &Client, addresses: Vec<String>, hash: bool, limit: Duration) -> Vec<AskedNode> {
    let ask = |address: String| async {
        let answer =
            if hash { client.status_with_hash(&address, limit).await } else { client.status(&address, limit).await };
        let node_id = answer.as_ref().ok().map(|status| status.node_id);
        AskedNode { address, node_id, answer }
    };
    join_all(addresses.into_iter().map(ask)).await
}

/// The exit code of a command that looks on. A partitioned former leader does not matter if another leader serves.
pub(super) fn exit(nodes: &[AskedNode]) -> Exit {
    let leaders: Vec<_> = answered(nodes).filter(|status| status.role == Role::Leader).collect();
    if leaders.iter().any(|status| status.serving) {
        Exit::Success
    } else if leaders.is_empty() {
        Exit::NoCluster
    } else {
        Exit::Error
    }
}

pub(super) fn answered(nodes: &[AskedNode]) -> impl Iterator<Item = &NodeStatus> {
    nodes.iter().filter_map(|node| node.answer.as_ref().ok())
}

/// The leader that serves, as far as it answers.
pub(super) fn leader(nodes: &[AskedNode]) -> Option<&NodeStatus> {
    answered(nodes).filter(|status| status.role == Role::Leader && status.serving).max_by_key(|status| status.term)
}

/// The newest membership that is known. The leader of the newest term has it.
fn members(nodes: &[AskedNode]) -> &[Member] {
    let newest = answered(nodes).max_by_key(|status| (status.term, status.role == Role::Leader));
    newest.map_or(&[], |status| &status.members)
}

/// The problem of the node; empty if there is none.
pub(super) fn trouble(node: &AskedNode) -> String {
    match &node.answer {
        Ok(status) if status.serving => String::new(),
        Ok(status) => status.trouble.clone().unwrap_or_else(|| "it gives no reason".into()),
        Err(Error::NoCluster { why } | Error::Unknown { why }) => why.clone(),
        Err(error) => error.to_string(),
    }
}

/// Whether the node speaks TLS and was asked in plain text.
fn needs_tls(node: &AskedNode) -> bool {
    node.answer.is_err() && trouble(node).contains(SPEAKS_TLS)
}

/// Whether the node was asked by TLS and speaks none.
fn speaks_no_tls(node: &AskedNode) -> bool {
    node.answer.is_err() && trouble(node).contains(SPEAKS_NO_TLS)
}

/// What the leader says of a member that does not catch up: it may not know so itself.
fn lag<'a>(node: &AskedNode, leader: Option<&'a NodeStatus>) -> Option<&'a str> {
    leader?.members.iter().find(|member| node.node_id == Some(member.node_id))?.trouble.as_deref()
}

/// How the node is, for a table. With the leader's status it also says that a node lags.
pub(super) fn health(node: &AskedNode, leader: Option<&NodeStatus>) -> String {
    match &node.answer {
        Ok(status) if status.serving => match lag(node, leader) {
            None => "ok".into(),
            Some(_) => "behind: see below".into(),
        },
        Ok(_) => format!("does not serve: {}", show::text(&trouble(node))),
        // A node that answers in another language is not down.
        Err(_) if needs_tls(node) => "no TLS: the node speaks TLS, and no --ca is given".to_owned(),
        Err(_) if speaks_no_tls(node) => "no TLS: the node speaks none, and --ca is given".to_owned(),
        Err(_) => format!("down: {}", show::text(&trouble(node))),
    }
}

/// The voters of the cluster, and those of them that answer.
struct Quorum<'a> {
    voters: usize,
    answering: usize,
    down: Vec<&'a Member>,
}

impl<'a> Quorum<'a> {
    /// Returns `None` if no node that answers knows the members.
    fn among(nodes: &'a [AskedNode]) -> Option<Self> {
        let up: BTreeSet<u64> = answered(nodes).map(|status| status.node_id).collect();
        let members = members(nodes);
        let down: Vec<_> = members.iter().filter(|member| !up.contains(&member.node_id)).collect();

        let voters = members.iter().filter(|member| member.voter).count();
        let missing = down.iter().filter(|member| member.voter).count();
        (voters > 0).then_some(Self { voters, answering: voters - missing, down })
    }

    fn needed(&self) -> usize {
        self.voters / 2 + 1
    }

    fn suffices(&self) -> bool {
        self.answering >= self.needed()
    }

    fn text(&self) -> String {
        let voters = show::count(self.voters, "voter", "voters");
        let answer = if self.answering == 1 { "answers" } else { "answer" };
        let needed = if self.needed() == 1 { "is" } else { "are" };
        format!("{} of {voters} {answer}, {} {needed} needed", self.answering, self.needed())
    }
}

/// How many voters answer, in words, and whether they are a majority. Nothing while the members are not known.
pub(super) fn quorum(nodes: &[AskedNode]) -> Option<(String, bool)> {
    let quorum = Quorum::among(nodes)?;
    Some((quorum.text(), quorum.suffices()))
}

/// Names the members that do not answer, and says whether the others are a majority.
pub(super) fn down(nodes: &[AskedNode]) -> Option<String> {
    let quorum = Quorum::among(nodes).filter(|quorum| !quorum.down.is_empty())?;
    let name = |member: &&Member| format!("node {} ({})", member.node_id, show::text(&member.client_address));
    let named: Vec<String> = quorum.down.iter().map(name).collect();
    let suffices = if quorum.suffices() { "enough to commit" } else { "too few to commit" };
    Some(format!("down: {}; {}: {suffices}", named.join(", "), quorum.text()))
}

/// The addresses that were asked and are no member's, each in a sentence. Nothing while the members are not known.
pub(super) fn strangers(nodes: &[AskedNode]) -> Vec<String> {
    let members = members(nodes);
    if members.is_empty() {
        return Vec::new();
    }

    let mut strangers = Vec::new();
    for node in nodes {
        let address = show::text(&node.address);
        let is_member = |id: u64| members.iter().any(|member| member.node_id == id);
        match (&node.answer, node.node_id) {
            (Ok(status), _) if !is_member(status.node_id) => {
                strangers.push(format!("node {} at {address} is not a member of this cluster", status.node_id));
            }
            (Err(_), None) if !members.iter().any(|member| member.client_address == node.address) => {
                let known: Vec<String> = members.iter().map(|member| show::text(&member.client_address)).collect();
                strangers.push(format!(
                    "no member has the address {address}: correct the endpoints; the members are at {}",
                    known.join(", ")
                ));
            }
            (Ok(_) | Err(_), _) => {}
        }
    }
    strangers
}

/// Why there is no answer to a request, as far as the nodes show it, and what to do.
pub(super) fn conclusion(nodes: &[AskedNode]) -> String {
    if let Some(leader) = leader(nodes) {
        return format!("node {} leads and serves now: try again", leader.node_id);
    }
    if nodes.iter().all(needs_tls) {
        return "the cluster speaks TLS: name its authority with --ca (LOCKKEEPER_CA)".to_owned();
    }
    if nodes.iter().all(speaks_no_tls) {
        return "the cluster speaks no TLS: leave out --ca (LOCKKEEPER_CA)".to_owned();
    }

    match Quorum::among(nodes) {
        Some(quorum) if !quorum.suffices() => {
            let ids: Vec<String> = quorum
                .down
                .iter()
                .filter(|member| member.voter)
                .map(|member| format!("node {}", member.node_id))
                .collect();
            format!("no quorum: {}: start {}", quorum.text(), ids.join(" or "))
        }
        Some(quorum) => format!(
            "no leader: {}, but none leads: an election takes a second or two; if it lasts, see that they reach each other's peer addresses",
            quorum.text()
        ),
        None => "no node answers: see that the endpoints are right, and that the nodes run".to_owned(),
    }
}

/// A line for each node: which it is, and how it is.
pub(super) fn lines(nodes: &[AskedNode]) -> String {
    let id = |node: &AskedNode| node.node_id.map_or("node -".to_owned(), |id| format!("node {id}"));
    let widest = nodes.iter().map(|node| node.address.chars().count()).max().unwrap_or(0);
    let line = |node: &AskedNode| {
        let leads =
            if answered(std::slice::from_ref(node)).any(|status| status.role == Role::Leader) { "leads; " } else { "" };
        format!("  {}  {:<widest$}  {leads}{}\n", id(node), show::text(&node.address), health(node, None))
    };
    nodes.iter().map(line).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A member of three that answers; it is the leader with `leads`.
    pub(in crate::cli) fn up(node_id: u64, leads: bool, serving: bool) -> AskedNode {
        let member = |node_id| {
            let mut member = Member::default();
            member.node_id = node_id;
            member.client_address = format!("h{node_id}:1");
            member.voter = true;
            member
        };

        let mut status = NodeStatus::default();
        status.node_id = node_id;
        status.serving = serving;
        status.role = if leads { Role::Leader } else { Role::Follower };
        status.last_log_index = 12;
        status.applied_index = 10;
        status.members = (1..=3).map(member).collect();
        AskedNode { address: format!("h{node_id}:1"), node_id: Some(node_id), answer: Ok(status) }
    }

    pub(in crate::cli) fn silent(address: &str, node_id: Option<u64>) -> AskedNode {
        silent_because(address, node_id, "connection refused")
    }

    fn silent_because(address: &str, node_id: Option<u64>, why: &str) -> AskedNode {
        AskedNode { address: address.into(), node_id, answer: Err(Error::NoCluster { why: why.to_owned() }) }
    }

    #[test]
    fn a_leader_that_cannot_commit_is_told_from_none() {
        assert_eq!(exit(&[up(1, true, true), up(2, true, false)]), Exit::Success);
        assert_eq!(exit(&[up(1, true, false), silent("h2:1", Some(2))]), Exit::Error);
        assert_eq!(exit(&[up(1, false, false), silent("h2:1", Some(2))]), Exit::NoCluster);
        assert_eq!(exit(&[silent("h2:1", None)]), Exit::NoCluster);
    }

    #[test]
    fn members_that_are_down_are_named_and_the_others_counted() {
        let one_down = [up(1, true, true), up(2, false, true), silent("h3:1", Some(3))];
        let said = down(&one_down).unwrap();
        assert_eq!(said, "down: node 3 (h3:1); 2 of 3 voters answer, 2 are needed: enough to commit");
        let two_down = [up(1, true, false), silent("h2:1", Some(2)), silent("h3:1", Some(3))];
        let said = down(&two_down).unwrap();
        assert_eq!(said, "down: node 2 (h2:1), node 3 (h3:1); 1 of 3 voters answers, 2 are needed: too few to commit");
        assert_eq!(down(&[up(1, true, true), up(2, false, true), up(3, false, true)]), None);
    }

    #[test]
    fn an_address_that_is_no_members_is_named() {
        let nodes = [up(1, true, true), silent("h2:1", Some(2)), silent("typo:1", None)];
        let expected = "no member has the address typo:1: correct the endpoints; the members are at h1:1, h2:1, h3:1";
        assert_eq!(strangers(&nodes), [expected]);
        let removed = [up(1, true, true), up(4, false, false)];
        assert_eq!(strangers(&removed), ["node 4 at h4:1 is not a member of this cluster"]);
        assert!(strangers(&[silent("typo:1", None)]).is_empty(), "nobody knows the members");
    }

    #[test]
    fn a_node_that_speaks_tls_is_not_down() {
        let plain = [silent_because("h1:1", None, SPEAKS_TLS), silent_because("h2:1", None, SPEAKS_TLS)];
        assert!(health(&plain[0], None).starts_with("no TLS: "), "{}", health(&plain[0], None));
        assert!(conclusion(&plain).starts_with("the cluster speaks TLS: name its authority with --ca"));
        let other = [silent_because("h1:1", None, &format!("cannot connect to h1:1: {SPEAKS_NO_TLS}"))];
        assert!(health(&other[0], None).starts_with("no TLS: the node speaks none"), "{}", health(&other[0], None));
        assert!(conclusion(&other).starts_with("the cluster speaks no TLS: leave out --ca"));
        assert!(health(&silent("h1:1", None), None).starts_with("down: "));
    }

    #[test]
    fn without_an_answer_the_nodes_are_lines_and_the_reason_is_a_conclusion() {
        let two_down = [up(1, false, false), silent("h2:1", Some(2)), silent("h3:1", Some(3))];
        let expected = [
            "  node 1  h1:1  does not serve: it gives no reason",
            "  node 2  h2:1  down: connection refused",
            "  node 3  h3:1  down: connection refused",
        ];
        assert_eq!(lines(&two_down).lines().collect::<Vec<_>>(), expected);
        let said = conclusion(&two_down);
        assert_eq!(said, "no quorum: 1 of 3 voters answers, 2 are needed: start node 2 or node 3");

        let electing = [up(1, false, false), up(2, false, false), silent("h3:1", Some(3))];
        assert!(conclusion(&electing).starts_with("no leader: 2 of 3 voters answer, 2 are needed, but none leads"));
        assert!(conclusion(&[silent("h1:1", None)]).starts_with("no node answers: "));
        assert_eq!(conclusion(&[up(1, true, true)]), "node 1 leads and serves now: try again");
    }
}
