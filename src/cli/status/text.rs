//! The table of `status`, and the sentences below it.

use std::collections::{BTreeMap, BTreeSet};

use super::super::{
    nodes::{self, AskedNode, answered, health, leader},
    show,
    table::{TableLayout, TextColumn, TextTable},
};
use crate::client::{EarlierCluster, NodeStatus, Role};

/// Seconds of a day.
const DAY: i64 = 86_400;
/// The number of seconds before the end of a certificate from which on `status` reports it.
const EXPIRES_SOON: i64 = 30 * DAY;
/// A longer text about a node's health stands below the table on a terminal, where the table may cut it. Characters.
const HEALTH_IN_TABLE_MAX: usize = 20;

const COLUMNS: [TextColumn; 12] = [
    TextColumn::exact("NODE"),
    TextColumn::text("ADDRESS"),
    TextColumn::exact("ROLE"),
    TextColumn::exact("TERM"),
    TextColumn::exact("LAST LOG").if_wide(),
    TextColumn::exact("COMMITTED").if_wide(),
    TextColumn::exact("APPLIED"),
    TextColumn::exact("SNAPSHOT").if_wide(),
    TextColumn::exact("LAG"),
    TextColumn::text("VERSION"),
    TextColumn::exact("MAY STOP"),
    TextColumn::text("HEALTH"),
];
/// Only where the hashes were asked for.
const TABLE_HASH: TextColumn = TextColumn::exact("TABLE");

/// The whole text. `tip` is the last entry that any node has.
pub(super) fn text(nodes: &[AskedNode], tip: u64, hash: bool, layout: TableLayout) -> String {
    let columns: Vec<TextColumn> = COLUMNS.into_iter().chain(hash.then_some(TABLE_HASH)).collect();
    let mut table = TextTable::new(layout, &columns);
    let leader = leader(nodes);
    nodes.iter().for_each(|node| table.row(row(node, leader, tip)));

    let sentences = sentences(nodes, layout);
    let below: String = sentences.into_iter().map(|sentence| format!("\n{sentence}\n")).collect();
    table.take() + &below
}

fn row(node: &AskedNode, leader: Option<&NodeStatus>, tip: u64) -> Vec<String> {
    let Ok(status) = &node.answer else {
        let mut row = vec!["-".to_owned(); COLUMNS.len() - 2];
        row[0] = node.node_id.map_or("-".to_owned(), |id| id.to_string());
        row[1] = show::text(&node.address);
        row.push(may_stop(node, leader).to_owned());
        row.push(health(node, leader));
        return row;
    };

    let mut row = vec![
        status.node_id.to_string(),
        show::text(&node.address),
        status.role.name().to_owned(),
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

/// Whether the leader says that this node may be taken down.
fn may_stop(node: &AskedNode, leader: Option<&NodeStatus>) -> &'static str {
    let member = leader.and_then(|leader| leader.members.iter().find(|member| node.node_id == Some(member.node_id)));
    match member.and_then(|member| member.may_stop.as_ref()) {
        Some(Ok(())) => "yes",
        Some(Err(_)) => "no",
        None => "-",
    }
}

/// What an operator should know, the most urgent first.
pub(super) fn sentences(nodes: &[AskedNode], layout: TableLayout) -> Vec<String> {
    let mut sentences = Vec::new();
    sentences.extend(cut_health(nodes, layout));
    sentences.extend(nodes::down(nodes));
    sentences.extend(nodes::strangers(nodes));
    sentences.extend(lagging(nodes));
    sentences.extend(needed(nodes));
    sentences.extend(versions(nodes));

    for status in answered(nodes) {
        if let Some(trouble) = &status.disk_trouble {
            sentences.push(format!("node {} reports about disks: {}", status.node_id, show::text(trouble)));
        }
    }
    for status in answered(nodes) {
        if let Some(expiry) = expiry(status) {
            let id = status.node_id;
            sentences.push(format!("the certificate of node {id} {expiry}: make another with `lockkeeper certs node`"));
        }
    }
    for status in answered(nodes) {
        if let Some(earlier) = &status.earlier_cluster {
            sentences.push(format!("node {} {}", status.node_id, earlier_clients(earlier, &status.cluster_id)));
        }
    }

    sentences.extend(differing(nodes));
    sentences.extend(mixed(nodes));
    sentences
}

/// The texts about nodes that a terminal may have cut in the table.
fn cut_health(nodes: &[AskedNode], layout: TableLayout) -> Vec<String> {
    if layout.width.is_none() {
        return Vec::new();
    }
    let leader = leader(nodes);
    let said = nodes.iter().map(|node| (node, health(node, leader)));
    let long = said.filter(|(_, health)| health.chars().count() > HEALTH_IN_TABLE_MAX);
    long.map(|(node, health)| format!("{}: {health}", show::text(&node.address))).collect()
}

/// What nodes report about others that do not keep up.
fn lagging(nodes: &[AskedNode]) -> Vec<String> {
    let reports = answered(nodes).flat_map(|status| status.members.iter().map(move |member| (status.node_id, member)));
    let troubled = reports.filter_map(|(by, member)| {
        let trouble = show::text(member.trouble.as_ref()?);
        Some(format!("node {by} reports about node {}: it {trouble}", member.node_id))
    });
    troubled.collect()
}

/// The members that may not be taken down.
fn needed(nodes: &[AskedNode]) -> Vec<String> {
    let members = leader(nodes).into_iter().flat_map(|leader| &leader.members);
    let kept = members.filter_map(|member| Some((member.node_id, member.may_stop.as_ref()?.as_ref().err()?)));
    kept.map(|(id, reason)| format!("node {id} may not be taken down now: {}", show::text(reason))).collect()
}

/// The sentence about a certificate that expires within [`EXPIRES_SOON`].
fn expiry(status: &NodeStatus) -> Option<String> {
    let left = status.certificate_seconds_left.filter(|left| *left < EXPIRES_SOON)?;
    Some(match left / DAY {
        _ if left < 0 => "has expired".to_owned(),
        0 => "expires within a day".to_owned(),
        1 => "expires in 1 day".to_owned(),
        days => format!("expires in {days} days"),
    })
}

/// The sentence about the clients of the cluster that this one was restored from.
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

/// The cluster version and those of the nodes' programs, if they differ.
fn versions(nodes: &[AskedNode]) -> Option<String> {
    // A program from before versions does not say.
    let range = |status: &NodeStatus| status.cluster_versions.unwrap_or((1, 1));
    let programs: BTreeSet<_> = answered(nodes).map(|status| (status.version.as_str(), range(status))).collect();
    let leader = answered(nodes).find(|status| status.role == Role::Leader);
    let waits = leader.and_then(|leader| leader.cluster_version_waits.as_deref());
    if programs.len() < 2 && waits.is_none() {
        return None;
    }

    let each = answered(nodes).map(|status| {
        let version = show::text(&status.version);
        let (lowest, highest) = range(status);
        let range = if lowest == highest { lowest.to_string() } else { format!("{lowest} to {highest}") };
        format!("node {} runs {version}, which supports {range}", status.node_id)
    });
    let each = each.collect::<Vec<_>>().join("; ");
    let cluster = answered(nodes).filter_map(|status| status.cluster_version).max().unwrap_or(1);
    let waits = waits.map(|waits| format!("; {}", show::text(waits))).unwrap_or_default();
    Some(format!("cluster version {cluster}: {each}{waits}"))
}

/// Nodes whose tables differ though they have applied the same entries. Only where the hashes were asked for.
fn differing(nodes: &[AskedNode]) -> Option<String> {
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

/// Endpoints of different clusters in one list explain all other symptoms.
fn mixed(nodes: &[AskedNode]) -> Option<String> {
    let clusters: BTreeSet<&str> =
        answered(nodes).map(|status| &*status.cluster_id).filter(|id| !id.is_empty()).collect();
    let names: Vec<&str> = clusters.into_iter().collect();
    (names.len() > 1).then(|| format!("these nodes belong to different clusters: {}", show::text(&names.join(", "))))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        super::super::nodes::tests::{silent, up},
        *,
    };
    use crate::client::Error;

    fn plain(nodes: &[AskedNode], tip: u64) -> String {
        text(nodes, tip, false, TableLayout::default())
    }

    #[test]
    fn a_node_that_is_down_is_a_row_that_says_why() {
        let nodes = [up(1, true, true), silent("h2:1", Some(2)), silent("b:2", None)];
        let cells =
            |text: &str, line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let narrow = plain(&nodes, 12);
        assert_eq!(cells(&narrow, 1), "1 h1:1 leader 0 10 2 - ok");
        assert_eq!(cells(&narrow, 2), "2 h2:1 - - - - - - down: connection refused");
        assert_eq!(cells(&narrow, 3), "- b:2 - - - - - - down: connection refused");
        let wide = text(&nodes, 12, false, TableLayout { is_wide: true, ..TableLayout::default() });
        assert_eq!(cells(&wide, 1), "1 h1:1 leader 0 12 0 10 0 2 - ok");
        assert_eq!(cells(&wide, 2), "2 h2:1 - - - - - - - - - down: connection refused");
    }

    #[test]
    fn the_table_fits_a_terminal_and_what_is_cut_stands_below() {
        let why = "cannot connect to h2:1: invalid peer certificate: certificate expired: verification time 1764100000";
        let down = AskedNode {
            address: "h2:1".to_owned(),
            node_id: Some(2),
            answer: Err(Error::NoCluster { why: why.to_owned() }),
        };
        let mut leader = up(1, true, true);
        leader.answer.as_mut().unwrap().version = "0.1.0".to_owned();
        let layout = TableLayout { width: Some(80), ..TableLayout::default() };
        let text = text(&[leader, down], 12, false, layout);
        let (table, below) = text.split_once("\n\n").expect("sentences follow");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(below.contains(&format!("h2:1: down: {why}")), "{below}");
    }

    #[test]
    fn a_table_that_differs_is_told_from_those_of_a_majority() {
        let said = |hashes: [Option<u64>; 3]| {
            let mut nodes = [up(1, true, true), up(2, false, true), up(3, false, true)];
            for (node, hash) in nodes.iter_mut().zip(hashes) {
                node.answer.as_mut().expect("it answers").table_hash = hash;
            }
            differing(&nodes)
        };
        assert_eq!(said([Some(7), Some(7), Some(7)]), None);
        assert_eq!(said([Some(7), None, None]), None);
        let majority = said([Some(8), Some(7), Some(7)]).expect("node 1 differs");
        assert!(majority.starts_with("node 1 has another table at index 10 than nodes 2 and 3"), "{majority}");
        let none = said([Some(8), None, Some(7)]).expect("one of two differs");
        assert!(none.contains("have different tables at index 10, and no majority shows"), "{none}");
    }

    #[test]
    fn a_disk_that_is_nearly_full_is_a_line_below_the_table() {
        let mut nodes = [up(1, true, true), up(2, false, true)];
        assert!(!plain(&nodes, 12).contains("disks"));
        nodes[1].answer.as_mut().unwrap().disk_trouble = Some("its disk is nearly full".to_owned());
        assert!(plain(&nodes, 12).ends_with("\nnode 2 reports about disks: its disk is nearly full\n"));
    }

    #[test]
    fn a_certificate_that_expires_soon_is_a_line_below_the_table() {
        let mut nodes = [up(1, true, true), up(2, false, true)];
        let mut line = |left| {
            nodes[1].answer.as_mut().unwrap().certificate_seconds_left = left;
            plain(&nodes, 12).lines().find(|line| line.contains("certificate")).map(str::to_owned)
        };
        assert_eq!((line(None), line(Some(30 * DAY))), (None, None));
        let advice = ": make another with `lockkeeper certs node`";
        for (left, what) in [
            (30 * DAY - 1, "expires in 29 days"),
            (DAY, "expires in 1 day"),
            (DAY - 1, "expires within a day"),
            (-1, "has expired"),
        ] {
            assert_eq!(line(Some(left)), Some(format!("the certificate of node 2 {what}{advice}")));
        }
    }

    #[test]
    fn clients_of_an_earlier_cluster_are_a_line_below_the_table() {
        let mut nodes = [up(1, true, true), up(2, false, true)];
        let mut line = |seconds_left, clients| {
            let mut earlier = EarlierCluster::default();
            earlier.cluster_id = "shop".to_owned();
            earlier.seconds_left = seconds_left;
            earlier.clients = clients;
            let status = nodes[0].answer.as_mut().unwrap();
            status.cluster_id = "shop-2".to_owned();
            status.earlier_cluster = Some(earlier);
            plain(&nodes, 12).lines().find(|line| line.contains("certificates")).map(str::to_owned).unwrap()
        };
        let accepts = "node 1 accepts clients' certificates of cluster shop for";
        let advice = "give them certificates of shop-2";
        assert_eq!(line(DAY, 1), format!("{accepts} 1 day more, and 1 client came with one: {advice}"));
        assert_eq!(line(1, 0), format!("{accepts} less than a day more, and 0 clients came with one: {advice}"));
        let refuses = "node 1 refuses certificates of cluster shop: the time of [earlier_cluster] is over";
        assert!(line(0, 3).starts_with(refuses));
    }

    #[test]
    fn the_versions_are_one_line_when_they_differ() {
        let node = |node_id, version: &str, max| {
            let mut node = up(node_id, node_id == 1, true);
            let status = node.answer.as_mut().expect("it answers");
            status.version = version.to_owned();
            status.cluster_version = Some(1);
            status.cluster_versions = (max > 0).then_some((1, max));
            status.turn_delay_max = Duration::ZERO;
            node
        };
        assert_eq!(versions(&[node(1, "0.1.0", 2), node(2, "0.1.0", 2)]), None);
        let mut nodes = [node(1, "0.2.0", 2), node(2, "0.1.0", 0)];
        nodes[0].answer.as_mut().expect("it answers").cluster_version_waits = Some("version 2 waits for node 2".into());
        let said = versions(&nodes).unwrap();
        let expected = "cluster version 1: node 1 runs 0.2.0, which supports 1 to 2; node 2 runs 0.1.0, which supports 1; version 2 waits \
                        for node 2";
        assert_eq!(said, expected);
    }
}
