//! The nodes of the cluster and the current leader.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;
use tonic::{
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use super::{
    Error,
    credentials::{Authorized, Credentials},
    pipeline::Pipeline,
};
use lockkeeper_proto::LEADER_KEY;
use lockkeeper_transport::Windows;

/// Makes a channel to a node. A parameter, so that a simulation can replace the network.
pub type Connect = Arc<dyn Fn(Endpoint) -> Channel + Send + Sync>;

/// The prefix of an endpoint that is reached by TLS.
const HTTPS: &str = "https://";

/// Remembered leaders that are not among the configured endpoints. Far more than a cluster has nodes.
const LEARNED_MAX: usize = 32;

/// A node, by its address. Connects on first use and again after each broken connection.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) address: Arc<str>,
    pub(crate) channel: Authorized,
    /// Uses `channel`.
    pub(crate) pipeline: Pipeline,
}

/// The configured nodes, and those learned from answers.
///
/// While no leader is known, the configured ones are asked in turn, and then the members that the cluster last named: all that were
/// configured may have been replaced since.
pub(crate) struct KnownNodes {
    configured: Vec<Node>,
    /// The members that the cluster last named, without the configured ones.
    members: Mutex<Vec<Node>>,
    learned: Mutex<BTreeMap<Arc<str>, Node>>,
    leader: watch::Sender<Option<Node>>,
    /// Index of the node to ask next while no leader is known: among the configured ones and the members.
    next: AtomicUsize,
    connect: Connect,
    credentials: Credentials,
}

impl KnownNodes {
    /// `first` selects the node to ask first, so that clients spread over the nodes.
    pub(crate) fn new(
        endpoints: &str,
        connect: Connect,
        credentials: Credentials,
        is_secure: bool,
        first: usize,
    ) -> Result<Self, Error> {
        let mut configured: Vec<Node> = Vec::new();
        for address in endpoints.split(',').map(str::trim).filter(|address| !address.is_empty()) {
            let says_tls = address.starts_with(HTTPS);
            if says_tls && !is_secure {
                return Err(Error::NoAuthorities(address.to_owned()));
            }
            let node = node(address, &connect, &credentials)?;
            if !configured.iter().any(|known| known.address == node.address) {
                configured.push(node);
            }
        }
        if configured.is_empty() {
            return Err(Error::Endpoint(endpoints.to_owned()));
        }

        Ok(Self {
            next: AtomicUsize::new(first % configured.len()),
            configured,
            members: Mutex::default(),
            learned: Mutex::default(),
            leader: watch::Sender::new(None),
            connect,
            credentials,
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.configured.len() + self.members().len()
    }

    fn members(&self) -> MutexGuard<'_, Vec<Node>> {
        self.members.lock().expect("no code panics while it holds this lock")
    }

    /// Records the members that the cluster names.
    pub(crate) fn note_members(&self, addresses: &[String]) {
        let is_new = |address: &&String| !self.configured.iter().any(|node| *node.address == **address);
        // An invalid address is a fault of the server; the client keeps using its other nodes.
        let members = addresses.iter().take(LEARNED_MAX).filter(is_new).filter_map(|address| self.get(address).ok());
        let members = members.collect();
        *self.members() = members;
    }

    pub(crate) fn configured(&self) -> impl Iterator<Item = &Node> {
        self.configured.iter()
    }

    /// The node to ask now: the leader, or the next node while no leader is known.
    pub(crate) fn preferred(&self) -> Node {
        if let Some(leader) = &*self.leader.borrow() {
            return leader.clone();
        }
        let members = self.members();
        let next = self.next.load(Ordering::Relaxed) % (self.configured.len() + members.len());
        self.configured.get(next).unwrap_or_else(|| &members[next - self.configured.len()]).clone()
    }

    /// A node by its address, configured or not.
    pub(crate) fn get(&self, address: &str) -> Result<Node, Error> {
        let address = bare(address);
        if let Some(node) = self.configured.iter().find(|node| *node.address == *address) {
            return Ok(node.clone());
        }

        let mut learned = self.learned.lock().expect("no code panics while it holds this lock");
        if let Some(node) = learned.get(address) {
            return Ok(node.clone());
        }

        let node = node(address, &self.connect, &self.credentials)?;
        if learned.len() >= LEARNED_MAX {
            learned.clear();
        }
        learned.insert(node.address.clone(), node.clone());
        Ok(node)
    }

    /// Records the leader that an answer names.
    pub(crate) fn note_leader(&self, metadata: &MetadataMap) {
        let Some(address) = metadata.get(LEADER_KEY).and_then(|address| address.to_str().ok()) else { return };
        if self.leader.borrow().as_ref().is_some_and(|leader| *leader.address == *bare(address)) {
            return;
        }
        // An invalid address is a fault of the server; the client keeps using its other nodes.
        let Ok(leader) = self.get(address) else { return };
        self.leader.send_replace(Some(leader));
    }

    /// Skips a node that did not answer or knows no leader.
    pub(crate) fn pass_over(&self, node: &Node) {
        self.leader.send_if_modified(|leader| match leader {
            Some(known) if known.address == node.address => leader.take().is_some(),
            _ => false,
        });
        let members = self.members();
        let mut known = self.configured.iter().chain(members.iter());
        if let Some(place) = known.position(|known| known.address == node.address) {
            self.next.store((place + 1) % (self.configured.len() + members.len()), Ordering::Relaxed);
        }
    }

    /// Whether a node other than `node` is known to lead.
    pub(crate) fn led_by_other_than(&self, node: &Node) -> bool {
        self.leader.borrow().as_ref().is_some_and(|leader| leader.address != node.address)
    }

    /// Waits until a node other than `node` is known to lead.
    pub(crate) async fn leader_moved(&self, node: &Node) {
        let moved = |leader: &Option<Node>| leader.as_ref().is_some_and(|leader| leader.address != node.address);
        let mut leader = self.leader.subscribe();
        if leader.wait_for(moved).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

fn bare(address: &str) -> &str {
    let bare = address.strip_prefix("http://").or_else(|| address.strip_prefix(HTTPS));
    bare.unwrap_or(address).trim_end_matches('/')
}

fn node(address: &str, connect: &Connect, credentials: &Credentials) -> Result<Node, Error> {
    let invalid = || Error::Endpoint(address.to_owned());
    let address = bare(address);
    let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
    if host.is_empty() || host.contains('/') || port.parse::<u16>().is_err() {
        return Err(invalid());
    }
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| invalid())?;
    let channel = credentials.on(connect(configure(endpoint)));
    Ok(Node { address: address.into(), pipeline: Pipeline::on(channel.clone(), credentials.clone()), channel })
}

/// A waiting call can be idle for long. HTTP/2 pings detect a dead connection early enough to repeat the wait before a
/// new leader gives up its place (`GRACE` of the server).
fn configure(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(Duration::from_secs(2))
        .tcp_nodelay(true)
        .initial_stream_window_size(Windows::WIDE.stream)
        .initial_connection_window_size(Windows::WIDE.connection)
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(2))
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl fmt::Debug for KnownNodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").field("configured", &self.configured).field("leader", &*self.leader.borrow()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(endpoints: &str) -> Result<KnownNodes, Error> {
        KnownNodes::new(
            endpoints,
            Arc::new(|endpoint: Endpoint| endpoint.connect_lazy()),
            Credentials::default(),
            false,
            0,
        )
    }

    fn named(leader: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(LEADER_KEY, leader.parse().unwrap());
        metadata
    }

    #[tokio::test]
    async fn endpoints_may_have_a_scheme_and_blanks_and_come_twice() {
        let nodes = nodes(" a:1, http://b:2/,a:1,").unwrap();
        let addresses: Vec<&str> = nodes.configured().map(|node| &*node.address).collect();
        assert_eq!(addresses, ["a:1", "b:2"]);
    }

    #[tokio::test]
    async fn what_is_no_endpoint_is_named() {
        for endpoints in ["", "a", "a:port", ":1", "a:1,ftp://b:2"] {
            assert!(matches!(nodes(endpoints), Err(Error::Endpoint(_))), "{endpoints:?}");
        }
        assert!(matches!(nodes("a:1,https://b:2"), Err(Error::NoAuthorities(_))));
    }

    #[tokio::test]
    async fn the_named_leader_is_preferred_until_it_is_passed_over() {
        let nodes = nodes("a:1,b:2").unwrap();
        assert_eq!(&*nodes.preferred().address, "a:1");
        nodes.note_leader(&named("c:3"));
        assert_eq!(&*nodes.preferred().address, "c:3");
        nodes.pass_over(&nodes.preferred());
        assert_eq!(&*nodes.preferred().address, "a:1");
        nodes.pass_over(&nodes.preferred());
        assert_eq!(&*nodes.preferred().address, "b:2");
    }

    /// All configured nodes may be gone by the time at which the leader is.
    #[tokio::test]
    async fn members_are_asked_after_the_configured_nodes() {
        let nodes = nodes("a:1,b:2").unwrap();
        nodes.note_members(&["c:3", "b:2", "nonsense"].map(str::to_owned));
        assert_eq!(nodes.count(), 3);
        let mut asked = Vec::new();
        for _ in 0..4 {
            let node = nodes.preferred();
            asked.push(node.address.to_string());
            nodes.pass_over(&node);
        }
        assert_eq!(asked, ["a:1", "b:2", "c:3", "a:1"]);
        nodes.note_members(&["d:4".to_owned()]);
        nodes.pass_over(&nodes.get("b:2").unwrap());
        assert_eq!(&*nodes.preferred().address, "d:4");
    }

    #[tokio::test]
    async fn a_leader_without_a_name_changes_nothing() {
        let nodes = nodes("a:1").unwrap();
        nodes.note_leader(&named("nonsense"));
        nodes.note_leader(&MetadataMap::new());
        assert_eq!(&*nodes.preferred().address, "a:1");
    }
}
