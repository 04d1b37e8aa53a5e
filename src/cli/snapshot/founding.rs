//! Makes the data directories of a new cluster, for `snapshot restore` and `recover`.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use serde::Serialize;

use super::super::{
    Exit, Failure, arguments,
    output::{Format, print, print_document},
    progress::{Unit, WorkUnderWay},
    show,
};
use crate::{
    config::is_cluster_id,
    environment::Environment,
    machine::{Machine, Record, Restore, TTL_MS_MAX, Token, WallTime},
    raft::{
        backup::{self, FoundingError, NewCluster},
        identity::ClusterId,
        types::log_id,
    },
    table::{Applied, MemberNode},
};

/// The new cluster.
#[derive(Args, Debug)]
pub(in super::super) struct FoundedCluster {
    /// The new cluster's id, another one than that of the copy: 1 to 64 of a-z, 0-9 and -
    #[arg(long, value_name = "ID", value_parser = cluster_id)]
    pub(in super::super) cluster_id: ClusterId,
    #[command(flatten)]
    pub(in super::super) terms: Terms,
}

/// What the new cluster grants, and when.
#[derive(Args, Debug)]
pub(in super::super) struct Terms {
    /// The token of the first grant [default: one that belongs to this moment, 2^12 for each millisecond since 2020]
    #[arg(long, value_name = "TOKEN", value_parser = arguments::token)]
    first_token: Option<Token>,
    /// How long no lock is granted, from the first leader on, so that no holder of the old cluster still trusts its grant. At least the
    /// longest TTL in the copy [default: 24h, the longest TTL that a session can have]
    #[arg(long, value_name = "DURATION", value_parser = arguments::duration, conflicts_with = "now")]
    closed_for: Option<Duration>,
    /// Grant free locks at once: every client of the old cluster has stopped, or has passed its deadline
    #[arg(long)]
    now: bool,
}

impl Terms {
    fn closed_ms(&self) -> Option<u64> {
        let longest = Duration::from_millis(TTL_MS_MAX.into());
        let closed_for = self.closed_for.unwrap_or(longest);
        (!self.now).then(|| u64::try_from(closed_for.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A member of the new cluster, as on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in super::super) struct FoundingMember {
    pub(in super::super) node_id: u64,
    /// Where peers and clients reach it. Without them, it has the addresses that the member of this id had in the copy.
    addresses: Option<(String, String)>,
}

/// Parses `ID` or `ID=PEER_ADDRESS,CLIENT_ADDRESS`.
pub(in super::super) fn member(text: &str) -> Result<FoundingMember, String> {
    let (id, addresses) = match text.split_once('=') {
        Some((id, addresses)) => (id, Some(addresses)),
        None => (text, None),
    };

    let node_id = id.parse().ok().filter(|id| (1..=i64::MAX.unsigned_abs()).contains(id));
    let node_id = node_id.ok_or_else(|| format!("invalid node id {id:?}: give a whole number from 1 on"))?;

    let Some(addresses) = addresses else { return Ok(FoundingMember { node_id, addresses: None }) };
    let (peer, client) = addresses.split_once(',').ok_or(
        "give the address for peers, a comma, and the address for clients, as in 1=10.0.0.1:7201,10.0.0.1:7101",
    )?;

    for address in [peer, client] {
        let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(1..))) {
            return Err(format!("invalid address {address:?}: give host:port, as other nodes and clients reach it"));
        }
    }

    if peer == client {
        return Err(format!("{peer:?} is the address for peers and for clients: give each its own port"));
    }
    Ok(FoundingMember { node_id, addresses: Some((peer.into(), client.into())) })
}

/// The id of a cluster to be made: one that a configuration takes.
pub(in super::super) fn cluster_id(text: &str) -> Result<ClusterId, String> {
    if !is_cluster_id(text) {
        return Err("a cluster id is 1 to 64 of a-z, 0-9 and -".to_owned());
    }
    text.parse().map_err(|invalid| format!("{invalid}"))
}

/// The report on the cluster that was made.
#[derive(Serialize)]
struct FoundingReport<'a> {
    cluster_id: &'a str,
    copied_cluster_id: Option<&'a str>,
    first_token: u64,
    copied_last_token: u64,
    /// The last entry of the log of the new cluster.
    log_index: u64,
    /// For how long no lock is granted, milliseconds after the first leader is elected.
    closed_ms: u64,
    /// Sessions whose locks stay closed for their TTL. No client keeps one.
    sessions: usize,
    grants: usize,
    /// When the last of those sessions expires, milliseconds after the first leader is elected.
    ttl_ms_max: u64,
    nodes: Vec<FoundedNode<'a>>,
}

#[derive(Serialize)]
struct FoundedNode<'a> {
    node_id: u64,
    data_dir: String,
    peer_address: &'a str,
    client_address: &'a str,
}

/// Makes the directories and reports them. `copied` is the copy's cluster, if it is known; `directory` that of the only member, and several
/// members get one each below it.
pub(in super::super) async fn found(
    target: FoundedCluster,
    wanted: &[FoundingMember],
    directory: &Path,
    copied: Option<&ClusterId>,
    applied: &Applied,
    format: Format,
) -> Result<Exit, Failure> {
    if copied == Some(&target.cluster_id) {
        let id = &target.cluster_id;
        let message = format_args!(
            "{id} is the id of the copied cluster: a node or client of that cluster would take the new one for it; choose another --cluster-id"
        );
        return Err(Failure::new(Exit::Usage, message));
    }

    let members = members(wanted, directory, applied)?;
    let environment = Environment::system();
    let at = WallTime(environment.clock.wall_ms());
    let draw = environment.random.bits();

    let terms = &target.terms;
    let restore = Restore { at, draw, first_token: terms.first_token, closed_ms: terms.closed_ms() };
    let machine = applied.machine.restored(&restore).map_err(|error| Failure::new(Exit::Usage, error))?;

    let cluster = NewCluster {
        cluster_id: target.cluster_id,
        members,
        machine,
        trail: applied.trail,
        copied: applied.last_entry.map(log_id),
        at,
    };

    let making = format!("making the data of {}", show::count(cluster.members.len() as u64, "node", "nodes"));
    let progress = WorkUnderWay::begin(&making, Unit::Records, None);
    let made = backup::found(&cluster, &mut environment.generator(), progress.count()).await;
    drop(progress);
    let last = made.map_err(failure)?;

    let document = FoundingReport {
        cluster_id: cluster.cluster_id.as_str(),
        copied_cluster_id: copied.map(ClusterId::as_str),
        first_token: cluster.machine.last_token().0 + 1,
        copied_last_token: applied.machine.last_token().0,
        log_index: last.index,
        closed_ms: cluster.machine.closed_for_ms().unwrap_or_default(),
        sessions: cluster.machine.counts().sessions,
        grants: cluster.machine.counts().grants,
        ttl_ms_max: longest(&cluster.machine),
        nodes: cluster.members.iter().map(node).collect(),
    };

    report(&document, format)?;
    Ok(Exit::Success)
}

fn members(
    wanted: &[FoundingMember],
    directory: &Path,
    applied: &Applied,
) -> Result<BTreeMap<u64, (MemberNode, PathBuf)>, Failure> {
    let usage = |message: String| Failure::new(Exit::Usage, message);
    let mut members = BTreeMap::new();
    for FoundingMember { node_id, addresses } in wanted {
        let (peer_address, client_address) = match addresses {
            Some(addresses) => addresses.clone(),
            None => {
                let then = applied.membership.nodes.get(node_id).ok_or_else(|| {
                    usage(format!(
                        "the copy has no member {node_id}: give its addresses, as in --member {node_id}=10.0.0.1:7201,10.0.0.1:7101"
                    ))
                })?;
                (then.peer_address.clone(), then.client_address.clone())
            }
        };

        let directory = match wanted.len() {
            1 => directory.to_owned(),
            _ => directory.join(format!("node-{node_id}")),
        };

        let node = MemberNode { peer_address, client_address, ..MemberNode::default() };
        if members.insert(*node_id, (node, directory)).is_some() {
            return Err(usage(format!("member {node_id} is named twice: give each node an id of its own")));
        }
    }

    let mut addresses = BTreeMap::new();
    for (id, (node, _)) in &members {
        for address in [&node.peer_address, &node.client_address] {
            if let Some(other) = addresses.insert(address, id).filter(|other| *other != id) {
                return Err(usage(format!("members {other} and {id} have one address, {address}: give each its own")));
            }
        }
    }

    Ok(members)
}

/// How long the longest TTL keeps locks closed, milliseconds.
fn longest(machine: &Machine) -> u64 {
    let now = machine.now().0;
    let deadlines = machine.records().filter_map(|record| {
        let Record::Session { deadline, .. } = record else { return None };
        Some(deadline.0.saturating_sub(now))
    });
    deadlines.max().unwrap_or(0)
}

fn node<'a>((id, (node, directory)): (&u64, &'a (MemberNode, PathBuf))) -> FoundedNode<'a> {
    FoundedNode {
        node_id: *id,
        data_dir: directory.to_string_lossy().into_owned(),
        peer_address: &node.peer_address,
        client_address: &node.client_address,
    }
}

fn failure(error: FoundingError) -> Failure {
    let exit = match &error {
        FoundingError::Occupied { .. } | FoundingError::Members(_) => Exit::Usage,
        FoundingError::Io { source, .. } => Exit::for_path(source),
        FoundingError::Identity(_) | FoundingError::Log(_) | FoundingError::Snapshots(_) => Exit::Error,
    };
    Failure::new(exit, error)
}

fn report(document: &FoundingReport<'_>, format: Format) -> io::Result<()> {
    if format == Format::Json {
        return print_document(document);
    }

    let FoundingReport {
        cluster_id,
        first_token,
        copied_last_token,
        log_index,
        closed_ms,
        sessions,
        ttl_ms_max,
        nodes,
        ..
    } = document;

    let mut text = format!("made cluster {cluster_id} of {}:\n", show::count(nodes.len() as u64, "node", "nodes"));
    for FoundedNode { node_id, data_dir, peer_address, client_address } in nodes {
        text += &format!("  node {node_id}: {data_dir} (peers {peer_address}, clients {client_address})\n");
    }
    text += &format!(
        "tokens: the first grant gets {first_token}; the last token of the copy is {copied_last_token}\n\
         log: goes on after index {log_index}\n"
    );

    text += &match closed_ms {
        0 => "locks: free ones are granted at once; each client of the old cluster must have stopped\n".to_owned(),
        _ => format!(
            "locks: none is granted for {}, from the first leader on, while a holder of the old cluster may trust its grant; \
             --closed-for names another time, --now none\n",
            show::duration(Duration::from_millis(*closed_ms))
        ),
    };

    text += &match sessions {
        0 => "sessions: none\n".to_owned(),
        _ => format!(
            "sessions: no client keeps one; the locks of {} stay closed for its TTL, at most {}, from the first leader on\n",
            show::count(*sessions as u64, "session", "sessions"),
            show::duration(Duration::from_millis(*ttl_ms_max))
        ),
    };

    text += &next(cluster_id, nodes);
    print(&text)
}

fn next(cluster_id: &str, nodes: &[FoundedNode<'_>]) -> String {
    let what = match nodes.len() {
        1 => "start the node with this data_dir",
        _ => "bring each directory to its host, and start the nodes with these as data_dir",
    };
    format!(
        "next: {what} and the new cluster_id in the configuration; never start two nodes on copies of one directory\n\
         next, with TLS: make the nodes' certificates of {cluster_id}, by `lockkeeper certs successor {cluster_id}` on the machine that holds \
         the authority; it prints how clients go on with theirs\n\
         next, with audit files: move the old ones out of audit.directory\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_an_id_with_or_without_addresses() {
        assert_eq!(member("3"), Ok(FoundingMember { node_id: 3, addresses: None }));
        let addresses = Some(("h:7201".to_owned(), "h:7101".to_owned()));
        assert_eq!(member("1=h:7201,h:7101"), Ok(FoundingMember { node_id: 1, addresses }));
        for (wrong, says) in [
            ("0", "from 1 on"),
            ("one", "invalid node id \"one\""),
            ("9223372036854775808", "from 1 on"),
            ("1=h:7201", "a comma"),
            ("1=h:7201,h", "invalid address \"h\""),
            ("1=:7201,h:1", "invalid address \":7201\""),
            ("1=h:0,h:1", "invalid address \"h:0\""),
            ("1=h:1,h:1", "each its own port"),
        ] {
            let said = member(wrong).unwrap_err();
            assert!(said.contains(says), "{wrong}: {said}");
        }
    }

    #[test]
    fn members_without_addresses_must_be_in_the_copy_and_share_none() {
        let applied = Applied::default();
        let refused = |wanted: &[&str]| {
            let wanted: Vec<_> = wanted.iter().map(|text| member(text).unwrap()).collect();
            members(&wanted, Path::new("d"), &applied).unwrap_err().message
        };
        assert!(refused(&["4"]).contains("the copy has no member 4: give its addresses, as in --member 4=10."));
        assert!(refused(&["1=a:1,a:2", "1=b:1,b:2"]).contains("member 1 is named twice"));
        assert!(refused(&["1=a:1,a:2", "2=a:2,b:2"]).contains("members 1 and 2 have one address, a:2"));
    }
}
