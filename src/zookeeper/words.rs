//! Words of four letters, which probes and exporters ask on the same port. The server answers text and closes.
//!
//! Each figure is counted or measured. Lines of ZooKeeper for which there is no figure here are left out.

use std::{fmt::Write as _, sync::atomic::Ordering::Relaxed};

use tokio::time::Instant;

use crate::{
    NodeRole, ZookeeperStats, ZookeeperStore,
    node::{CountedZnodes, ZookeeperNode},
    tree::{ALL_FROM, ALL_TO, ZnodePath},
};

/// The version of ZooKeeper whose protocol is spoken, which clients look for, and ours behind it.
const VERSION: &str = concat!("3.8.0-lockkeeper-", env!("CARGO_PKG_VERSION"));
/// Nodes that are counted before others have a turn.
const PAGE: usize = 10_000;
/// How many times as long as a count took, counted from its beginning, its result is told though nodes may have changed.
const PAUSE_FACTOR: u32 = 10;
/// Lines of a list of connections or sessions.
const LINES_MAX: usize = 10_000;

/// Answers a word.
pub(crate) async fn answer<S: ZookeeperStore>(node: &ZookeeperNode<S>, word: [u8; 4], is_known: bool) -> String {
    let word = String::from_utf8_lossy(&word).into_owned();
    if !node.options.words.contains(&word) {
        return format!("{word} is not executed because it is not in the whitelist.\n");
    }
    // Who is connected, and what is watched, is not for strangers where clients must say who they are.
    let names_clients = matches!(word.as_str(), "cons" | "dump" | "stat" | "wchs");
    if names_clients && !is_known && node.store.needs_identity() {
        return format!("{word} is not executed because the client has no certificate.\n");
    }

    let role = node.store.role();
    match word.as_str() {
        "ruok" => "imok".to_owned(),
        "envi" => format!("Environment:\nzookeeper.version={VERSION}\n"),
        "conf" => conf(node),
        _ if role == NodeRole::Looking => "This ZooKeeper instance is not currently serving requests\n".to_owned(),
        "isro" => "rw".to_owned(),
        "srvr" => format!("Zookeeper version: {VERSION}\n{}", state(node, role).await),
        "stat" => {
            format!("Zookeeper version: {VERSION}\nClients:\n{}\n{}", connections(node, false), state(node, role).await)
        }
        "cons" => connections(node, true),
        "mntr" => monitor(node, role).await,
        "wchs" => watches(node),
        "dump" => sessions(node),
        _ => String::new(),
    }
}

fn conf<S: ZookeeperStore>(node: &ZookeeperNode<S>) -> String {
    let options = &node.options;
    format!(
        "minSessionTimeout={}\nmaxSessionTimeout={}\njute.maxbuffer={}\n",
        options.session_timeout_ms_min, options.session_timeout_ms_max, options.frame_bytes_max
    )
}

fn mode(role: NodeRole) -> &'static str {
    match role {
        NodeRole::Leader => "leader",
        NodeRole::Follower => "follower",
        NodeRole::Standalone | NodeRole::Looking => "standalone",
    }
}

/// How many nodes there are. To ask costs nothing, so the nodes are counted only if they may have changed, and then for a part of the time
/// at the most, while all others wait for the same count.
async fn count_nodes<S: ZookeeperStore>(node: &ZookeeperNode<S>) -> CountedZnodes {
    let mut counted = node.counted.lock().await;
    let began = Instant::now();
    let revision = node.store.applied(|applied| applied.revision());
    if let Some(last) = counted.filter(|last| last.revision == revision || began < last.until) {
        return last;
    }

    // The nodes that always exist, beside the root.
    let mut count = CountedZnodes { revision, until: began, nodes: 3, ephemerals: 0 };
    let mut from = ALL_FROM.to_vec();
    while let Some(next) = count_page(node, &from, &mut count) {
        from = next;
        tokio::task::yield_now().await;
    }
    count.until += began.elapsed() * PAUSE_FACTOR;
    *counted = Some(count);
    count
}

/// Counts some nodes. Returns the key to go on from.
fn count_page<S: ZookeeperStore>(node: &ZookeeperNode<S>, from: &[u8], count: &mut CountedZnodes) -> Option<Vec<u8>> {
    let mut seen = 0;
    let mut next = None;

    node.store.applied(|applied| {
        applied.range(from, ALL_TO, &mut |key, stored| {
            if seen == PAGE {
                next = Some(key.to_vec());
                return false;
            }
            seen += 1;
            count.nodes += 1;
            count.ephemerals += u64::from(stored.owner.is_some());
            true
        });
    });
    next
}

/// The mean time of a request, in milliseconds.
fn mean_ms(stats: &ZookeeperStats) -> f64 {
    let requests: u64 = stats.requests.iter().map(|(_, count)| *count).sum();
    #[expect(clippy::cast_precision_loss, reason = "a mean that people read")]
    let mean_us = stats.latency_us_sum as f64 / requests.max(1) as f64;
    mean_us / 1000.0
}

async fn state<S: ZookeeperStore>(node: &ZookeeperNode<S>, role: NodeRole) -> String {
    let stats = node.stats();
    let CountedZnodes { nodes, .. } = count_nodes(node).await;
    let revision = node.store.applied(|applied| applied.revision());

    format!(
        "Latency min/avg/max: {}/{:.4}/{}\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: {}\nZxid: 0x{revision:x}\nMode: {}\nNode \
         count: {nodes}\n",
        stats.latency_us_min / 1000,
        mean_ms(&stats),
        stats.latency_us_max / 1000,
        stats.received,
        stats.sent,
        stats.connections,
        stats.outstanding,
        mode(role),
    )
}

fn connections<S: ZookeeperStore>(node: &ZookeeperNode<S>, has_session: bool) -> String {
    let mut text = String::new();
    for (attached, outbox) in node.hub.connections().into_iter().take(LINES_MAX) {
        let received = outbox.received.load(Relaxed);
        let sent = outbox.sent.load(Relaxed);
        let session = if has_session { format!(",sid=0x{:x}", attached.session) } else { String::new() };
        let client = outbox.address;
        // What waits here for a client is in its socket, or soon is: nothing is queued by number.
        let _ = writeln!(text, " /{client}[1](queued=0,recved={received},sent={sent}{session})");
    }
    text
}

async fn monitor<S: ZookeeperStore>(node: &ZookeeperNode<S>, role: NodeRole) -> String {
    let stats = node.stats();
    let CountedZnodes { nodes, ephemerals, .. } = count_nodes(node).await;
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn std::fmt::Display| text.push_str(&format!("zk_{name}\t{value}\n"));

    line("version", &VERSION);
    line("server_state", &mode(role));

    line("min_latency", &(stats.latency_us_min / 1000));
    line("avg_latency", &format!("{:.4}", mean_ms(&stats)));
    line("max_latency", &(stats.latency_us_max / 1000));

    line("packets_received", &stats.received);
    line("packets_sent", &stats.sent);
    line("num_alive_connections", &stats.connections);
    line("outstanding_requests", &stats.outstanding);

    line("znode_count", &nodes);
    line("watch_count", &stats.watches);
    line("ephemerals_count", &ephemerals);
    line("local_sessions", &stats.sessions);
    text
}

fn watches<S: ZookeeperStore>(node: &ZookeeperNode<S>) -> String {
    let (watches, paths, connections) = node.hub.with_watches(|watches| watches.counts());
    format!("{connections} connections watching {paths} paths\nTotal watches:{watches}\n")
}

/// The sessions that are connected here, with the nodes that end with them.
fn sessions<S: ZookeeperStore>(node: &ZookeeperNode<S>) -> String {
    let mut lines = Vec::new();
    let mut owners = 0;

    for attached in node.hub.sessions() {
        let keys = node.store.applied(|applied| applied.owned_by(attached.session));
        let paths: Vec<_> = keys.iter().filter_map(|key| ZnodePath::from_key(key)).collect();
        if paths.is_empty() || lines.len() >= LINES_MAX {
            continue;
        }
        owners += 1;
        lines.push(format!("0x{:x}:", attached.session));
        lines.extend(paths.iter().map(|path| format!("\t{}", path.as_str())));
    }
    format!("Sessions with Ephemerals ({owners}):\n{}\n", lines.join("\n"))
}
