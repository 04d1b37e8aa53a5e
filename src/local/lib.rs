//! A whole cluster on this machine: real nodes, each in its own process, on free ports of 127.0.0.1.
//!
//! For demonstrations (`lockkeeper dev`), and for tests that need real processes: kills, pauses and restarts.
//!
//! ```text
//! DIR/lock            locked while the cluster runs
//! DIR/node1/node.toml configuration of the node
//! DIR/node1/node.log  its log since its first start here
//! DIR/node1/data/     its data
//! DIR/node2/…
//! DIR/certs/          with TLS: the certificates, and the authority that signed them
//! ```
//!
//! No node outlives its cluster. Drop kills the nodes. If the process that runs the cluster is killed, the pipes to the
//! nodes' stdin close, and the nodes stop.
//!
//! Dead nodes are not restarted automatically, because that would hide failures.

mod certificates;
mod directory;
mod error;
mod node;
mod ports;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use futures::{StreamExt as _, future, stream::FuturesUnordered};
use tokio::time::{self, Instant};

use directory::Directory;
pub use error::LocalError;
use lockkeeper_config::{
    AuditConfig, AuthConfig, Config, ConfiguredMember, DiskConfig, DynamodbConfig, EtcdConfig, HttpConfig, RaftConfig,
    RedisConfig, TracesConfig, ZookeeperConfig,
};
use lockkeeper_proto::v1 as pb;
use lockkeeper_transport::tls::TlsFiles;
pub use node::{LocalNode, NodeProgram, Signal};
pub use ports::any_free as free_port;

/// The exit code of a node that finds one of its addresses in use.
pub const EXIT_ADDRESS_IN_USE: u8 = 21;
/// The exit code of a node that its cluster has removed, or does not admit.
pub const EXIT_REMOVED: u8 = 24;
/// The default number of nodes.
pub const NODES_DEFAULT: usize = 3;
/// How long a node may take to exit after SIGTERM before it is killed.
pub const STOP_GRACE: Duration = Duration::from_secs(10);

/// The directory of the certificates.
const CERTIFICATES: &str = "certs";
/// The interval of the readiness checks.
const READY_POLL: Duration = Duration::from_millis(50);
/// How often new ports are tried. A free port can be taken before its node binds it.
const PORT_ATTEMPTS: usize = 5;

/// The options of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The program `lockkeeper`.
    pub program: PathBuf,
    /// Environment variables of the nodes, beside those of this process.
    pub environment: Vec<(OsString, OsString)>,
    /// The number of nodes. `None` means the number in the directory, or [`NODES_DEFAULT`] for a new cluster.
    pub nodes: Option<usize>,
    /// The directory of a persistent cluster. `None` means a temporary directory that is removed at the end.
    pub directory: Option<PathBuf>,
    /// The Raft configuration of a new cluster.
    pub raft: RaftConfig,
    /// The disk settings of a new cluster.
    pub disk: DiskConfig,
    /// Whether each node serves DynamoDB's API. A cluster that has it keeps it.
    pub dynamodb: bool,
    /// Whether each node serves etcd's API. A cluster that has it keeps it.
    pub etcd: bool,
    /// Whether each node serves Redis' protocol. A cluster that has it keeps it.
    pub redis: bool,
    /// Whether each node serves ZooKeeper's protocol. A cluster that has it keeps it.
    pub zookeeper: bool,
    /// Whether each node has a port for probes and metrics. A cluster that has it keeps it.
    pub http: bool,
    /// Whether all connections use TLS, with certificates by the cluster's own authority. A cluster that has it keeps it.
    pub tls: bool,
    /// The audit files of a new cluster. Each node writes to its own directory, `node-N`, below the given one.
    pub audit: AuditConfig,
    /// Who may call and do what, in a new cluster.
    pub auth: AuthConfig,
    /// The traces of a new cluster.
    pub traces: TracesConfig,
    /// The log filter of the nodes. `None` means that of [`Config::default`].
    pub log: Option<String>,
    /// How long the cluster may take to serve.
    pub timeout: Duration,
}

impl ClusterOptions {
    /// Options with this program and defaults for the rest.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            environment: Vec::new(),
            nodes: None,
            directory: None,
            raft: RaftConfig::default(),
            disk: DiskConfig::default(),
            dynamodb: false,
            etcd: false,
            redis: false,
            zookeeper: false,
            http: false,
            tls: false,
            audit: AuditConfig::default(),
            auth: AuthConfig::default(),
            traces: TracesConfig::default(),
            log: None,
            timeout: Duration::from_secs(30),
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub struct LocalCluster {
    // The nodes come before the directory: they are dropped first, and so are dead when it is removed.
    nodes: BTreeMap<u64, LocalNode>,
    directory: Directory,
}

impl LocalCluster {
    /// Starts all nodes, and waits until the cluster serves. On failure no node is left running, but the logs are kept.
    pub async fn start(options: ClusterOptions) -> Result<Self, LocalError> {
        let deadline = Instant::now() + options.timeout;
        let mut cluster = Self::lay_out(&options)?;

        let mut attempts_left = PORT_ATTEMPTS;
        loop {
            attempts_left -= 1;
            let error = match cluster.start_all(deadline).await {
                Ok(()) => return Ok(cluster),
                Err(error) => error,
            };

            cluster.stop().await;
            if !error.is_address_in_use() || attempts_left == 0 {
                cluster.directory.keep();
                return Err(error);
            }

            cluster.move_to_new_ports()?;
        }
    }

    /// Writes the configurations of the nodes, without starting any.
    fn lay_out(options: &ClusterOptions) -> Result<Self, LocalError> {
        let directory = match &options.directory {
            Some(path) => Directory::open(path)?,
            None => Directory::temporary()?,
        };

        let mut configs = directory.configs()?;
        match options.nodes {
            Some(asked) if !configs.is_empty() && configs.len() != asked => {
                return Err(LocalError::OtherSize { path: directory.path().into(), has: configs.len(), asked });
            }
            nodes if configs.is_empty() => {
                configs = new_configs(&directory, nodes.unwrap_or(NODES_DEFAULT), options)?;
            }
            Some(_) | None => {}
        }

        // What a cluster serves once it keeps, so both the options and the configuration can ask for it.
        for config in &mut configs {
            config.log = options.log.clone().unwrap_or_else(|| config.log.clone());

            if options.tls || config.tls.is_some() {
                certificates::issue_for_node(&directory.path().join(CERTIFICATES), config)?;
            }
            if options.dynamodb || !config.dynamodb.listen.is_empty() {
                config.dynamodb.listen = ports::address()?;
                // With TLS, callers must be able to prove who they are.
                if config.tls.is_some() && config.dynamodb.secrets.as_os_str().is_empty() {
                    config.dynamodb.secrets = certificates::dynamodb_secrets(&directory.path().join(CERTIFICATES))?;
                }
            }
            if options.etcd || !config.etcd.listen.is_empty() {
                config.etcd.listen = ports::address()?;
            }
            if options.redis || !config.redis.listen.is_empty() {
                config.redis.listen = ports::address()?;
            }
            if options.zookeeper || !config.zookeeper.listen.is_empty() {
                config.zookeeper.listen = ports::address()?;
            }
            if options.http || !config.http.listen.is_empty() {
                config.http.listen = ports::address()?;
            }

            directory.write(config)?;
        }

        let program = NodeProgram { path: options.program.clone(), environment: options.environment.clone() };
        let nodes = configs.into_iter().map(|config| {
            let folder = directory.node(config.node_id);
            (config.node_id, LocalNode::new(program.clone(), config, folder))
        });

        let mut cluster = Self { nodes: nodes.collect(), directory };
        if !ports::all_free(cluster.nodes().filter_map(|node| node.config().this_member())) {
            cluster.move_to_new_ports()?;
        }
        Ok(cluster)
    }

    async fn start_all(&mut self, deadline: Instant) -> Result<(), LocalError> {
        self.nodes.values_mut().try_for_each(LocalNode::spawn)?;
        self.ready_by(deadline).await
    }

    fn move_to_new_ports(&mut self) -> Result<(), LocalError> {
        let members = ports::members(self.nodes.keys().copied())?;
        for (node, member) in self.nodes.values_mut().zip(&members) {
            node.move_to(member, &members);
            node.move_others()?;
            self.directory.write(node.config())?;
        }
        Ok(())
    }

    /// Lays out one more node, which joins the cluster once it is started. Panics if this cluster has a node with this id.
    pub fn add(&mut self, node_id: u64) -> Result<&mut LocalNode, LocalError> {
        let member = ports::members([node_id].into_iter())?.remove(0);
        let join = self.nodes().map(|node| node.config().client_listen.clone()).collect();
        self.add_at(&member, Vec::new(), join)
    }

    /// Free addresses for nodes that may join later.
    pub fn spare(&self, ids: impl Iterator<Item = u64>) -> Result<Vec<ConfiguredMember>, LocalError> {
        ports::members(ids)
    }

    /// Names nodes that may join later in the configurations of all nodes, for [`LocalCluster::route`]. Only for a cluster
    /// that was started before.
    pub fn foresee(&mut self, spares: &[ConfiguredMember]) -> Result<(), LocalError> {
        for node in self.nodes.values_mut() {
            node.foresee(spares);
            self.directory.write(node.config())?;
        }
        Ok(())
    }

    /// As [`LocalCluster::add`], with addresses of the caller's choice. `listens` are those at which the node listens,
    /// `members` those at which it reaches all members including itself, and `join` those of the nodes that it asks to be
    /// added.
    pub fn add_at(
        &mut self,
        listens: &ConfiguredMember,
        members: Vec<ConfiguredMember>,
        join: Vec<String>,
    ) -> Result<&mut LocalNode, LocalError> {
        let example = self.nodes.values().next().expect("a cluster has a node");
        let known = example.config();
        let program = example.program().clone();

        let node_id = listens.node_id;
        let mut config = Config {
            node_id,
            data_dir: self.directory.node(node_id).join("data"),
            client_listen: listens.client_address.clone(),
            peer_listen: listens.peer_address.clone(),
            bootstrap: false,
            join,
            members,
            audit: audit_for_node(&common_audit(&known.audit), node_id),
            dynamodb: DynamodbConfig { listen: on_another_port(&known.dynamodb.listen)?, ..known.dynamodb.clone() },
            etcd: EtcdConfig { listen: on_another_port(&known.etcd.listen)?, ..known.etcd.clone() },
            redis: RedisConfig { listen: on_another_port(&known.redis.listen)?, ..known.redis.clone() },
            zookeeper: ZookeeperConfig { listen: on_another_port(&known.zookeeper.listen)?, ..known.zookeeper.clone() },
            http: HttpConfig { listen: on_another_port(&known.http.listen)?, ..known.http.clone() },
            ..known.clone()
        };

        if config.tls.is_some() {
            certificates::issue_for_node(&self.directory.path().join(CERTIFICATES), &mut config)?;
        }

        self.directory.write(&config)?;

        let node = LocalNode::new(program, config, self.directory.node(node_id));
        assert!(self.nodes.insert(node_id, node).is_none(), "node {node_id} exists");

        Ok(self.node_mut(node_id))
    }

    /// Gives new addresses to a node that does not run. Only its own configuration names them.
    pub fn relocate(&mut self, node_id: u64) -> Result<(), LocalError> {
        let member = ports::members([node_id].into_iter())?.remove(0);
        let mut members = self.node(node_id).config().members.clone();
        members.iter_mut().filter(|known| known.node_id == node_id).for_each(|known| known.clone_from(&member));
        self.node_mut(node_id).move_to(&member, &members);
        self.directory.write(self.node(node_id).config())
    }

    /// Changes the cluster's id in the configurations of all nodes. Call it while no node runs, for data of another cluster.
    ///
    /// # Errors
    ///
    /// A configuration file cannot be written; those of earlier nodes have the new id.
    pub fn set_cluster_id(&mut self, cluster_id: &str) -> Result<(), LocalError> {
        for node in self.nodes.values_mut() {
            node.set_cluster_id(cluster_id);
            self.directory.write(node.config())?;
        }
        Ok(())
    }

    /// Kills a node, and deletes its data and its configuration.
    pub async fn discard(&mut self, node_id: u64) -> Result<(), LocalError> {
        if let Some(mut node) = self.nodes.remove(&node_id) {
            node.kill().await;
            self.directory.delete(node_id)?;
        }
        Ok(())
    }

    /// Kills a node if it runs, and forgets it. Its files stay.
    pub async fn forget(&mut self, node_id: u64) {
        if let Some(mut node) = self.nodes.remove(&node_id) {
            node.kill().await;
        }
    }

    /// The directory of the cluster.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The nodes, sorted by id.
    pub fn nodes(&self) -> impl Iterator<Item = &LocalNode> {
        self.nodes.values()
    }

    /// The node with this id. Panics if there is none.
    pub fn node(&self, node_id: u64) -> &LocalNode {
        self.nodes.get(&node_id).expect("the caller knows the ids: they count from 1")
    }

    /// The node with this id, to start and stop it. Panics if there is none.
    pub fn node_mut(&mut self, node_id: u64) -> &mut LocalNode {
        self.nodes.get_mut(&node_id).expect("the caller knows the ids: they count from 1")
    }

    /// The addresses of the nodes for clients, as URLs.
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes().map(LocalNode::endpoint).collect()
    }

    /// The URLs at which the nodes serve DynamoDB's API. The list is empty if they do not.
    pub fn dynamodb_endpoints(&self) -> Vec<String> {
        self.nodes().filter_map(LocalNode::dynamodb_endpoint).collect()
    }

    /// The addresses (host:port) at which the nodes serve etcd's API. The list is empty if they do not.
    pub fn etcd_endpoints(&self) -> Vec<String> {
        self.nodes().filter_map(LocalNode::etcd_endpoint).collect()
    }

    /// The addresses (host:port) at which the nodes serve Redis' protocol. The list is empty if they do not.
    pub fn redis_endpoints(&self) -> Vec<String> {
        self.nodes().filter_map(LocalNode::redis_endpoint).collect()
    }

    /// The addresses (host:port) at which the nodes serve ZooKeeper's protocol. The list is empty if they do not.
    pub fn zookeeper_endpoints(&self) -> Vec<String> {
        self.nodes().filter_map(LocalNode::zookeeper_endpoint).collect()
    }

    /// The URLs at which the nodes serve probes and metrics. The list is empty if they do not.
    pub fn http_endpoints(&self) -> Vec<String> {
        self.nodes().filter_map(LocalNode::http_endpoint).collect()
    }

    /// An access key for DynamoDB's API and its secret, or `None` if signatures are not checked.
    pub fn dynamodb_key(&self) -> Option<(String, String)> {
        certificates::dynamodb_key(&self.nodes().next()?.config().dynamodb.secrets)
    }

    /// The certificates of a client of this cluster, or `None` without TLS.
    pub fn client_files(&self) -> Option<TlsFiles> {
        self.nodes.values().next()?.client_files()
    }

    /// The status of each node that answers.
    pub async fn statuses(&self) -> BTreeMap<u64, pb::StatusResponse> {
        let ask = async |node: &LocalNode| (node.id(), node.status().await);
        let answers = future::join_all(self.nodes().map(ask)).await;
        answers.into_iter().filter_map(|(id, answer)| Some((id, answer.ok()?))).collect()
    }

    /// Routes the traffic between nodes, for example through a proxy. `way` gives the addresses at which a node (by id)
    /// reaches a member. The change takes effect at a node's next start.
    ///
    /// Start the cluster first: nodes can found it only if they agree on their addresses.
    pub fn route(&mut self, way: impl Fn(u64, &ConfiguredMember) -> ConfiguredMember) -> Result<(), LocalError> {
        for node in self.nodes.values_mut() {
            node.route(&way);
            self.directory.write(node.config())?;
        }
        Ok(())
    }

    /// Waits until every started node serves and there is a leader. Fails if a node exits meanwhile.
    pub async fn ready(&mut self, within: Duration) -> Result<(), LocalError> {
        self.ready_by(Instant::now() + within).await
    }

    async fn ready_by(&mut self, deadline: Instant) -> Result<(), LocalError> {
        let began = Instant::now();

        loop {
            if let Some(died) = self.nodes.values_mut().find_map(LocalNode::has_died) {
                return Err(died);
            }

            let statuses = self.statuses().await;
            let missing = self.not_ready(&statuses);
            if missing.is_empty() {
                return Ok(());
            }

            if Instant::now() >= deadline {
                let logs = self.nodes().map(|node| node.log_file().to_owned()).collect();
                return Err(LocalError::NotReady { after: began.elapsed(), missing, logs });
            }

            time::sleep(READY_POLL).await;
        }
    }

    /// Says which conditions for readiness these answers do not meet.
    fn not_ready(&self, statuses: &BTreeMap<u64, pb::StatusResponse>) -> Vec<String> {
        let trouble = |node: &LocalNode| match statuses.get(&node.id()) {
            None => Some(format!("node {} does not answer", node.id())),
            Some(status) if !status.serving => Some(format!("node {} does not serve: {}", node.id(), status.trouble)),
            Some(_) => None,
        };

        let mut missing: Vec<_> = self.nodes().filter(|node| node.is_running()).filter_map(trouble).collect();
        if !statuses.values().any(|status| status.role() == pb::Role::Leader && status.serving) {
            missing.push("there is no leader".to_owned());
        }
        // Identities and the keyspace need the newest version. Whoever starts a cluster with them is about to use them, so wait
        // for it: for the highest version that all members support, since a member that runs an earlier program keeps it there.
        let reachable = statuses.values().map(|status| status.cluster_version_max).min().unwrap_or_default();
        let is_low = |status: &pb::StatusResponse| status.cluster_version < reachable;
        if self.nodes().any(|node| needs_version(node.config())) && statuses.values().any(is_low) {
            missing.push("the cluster version is not raised yet".to_owned());
        }

        missing
    }

    /// Waits until a running node exits. Never returns if none runs.
    pub async fn next_death(&mut self) -> (u64, ExitStatus) {
        let running = self.nodes.values_mut().filter(|node| node.is_running());
        let mut deaths: FuturesUnordered<_> =
            running.map(async |node: &mut LocalNode| (node.id(), node.wait().await)).collect();
        match deaths.next().await {
            Some(death) => death,
            None => future::pending().await,
        }
    }

    /// Stops all nodes, and kills those that have not exited within [`STOP_GRACE`].
    pub async fn stop(&mut self) {
        future::join_all(self.nodes.values_mut().map(LocalNode::stop)).await;
    }

    /// Kills all nodes at once, and waits for their exit.
    pub async fn kill(&mut self) {
        self.nodes.values().for_each(|node| node.signal(Signal::KILL));
        future::join_all(self.nodes.values_mut().map(LocalNode::kill)).await;
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        // Kills all at once; the drop of each node then waits for its exit.
        self.nodes.values().for_each(|node| node.signal(Signal::KILL));
    }
}

/// Whether the clients of this node use what a cluster of version 1 refuses.
fn needs_version(config: &Config) -> bool {
    config.tls.is_some()
        || !config.auth.tokens.as_os_str().is_empty()
        || !config.dynamodb.listen.is_empty()
        || !config.etcd.listen.is_empty()
        || !config.redis.listen.is_empty()
        || !config.zookeeper.listen.is_empty()
}

/// The audit configuration of one node, which writes to a directory below the common one.
fn audit_for_node(common: &AuditConfig, node_id: u64) -> AuditConfig {
    if common.directory.as_os_str().is_empty() {
        common.clone()
    } else {
        AuditConfig { directory: common.directory.join(format!("node-{node_id}")), ..common.clone() }
    }
}

/// The common audit configuration, from that of one node. The reverse of [`audit_for_node`].
fn common_audit(of_one: &AuditConfig) -> AuditConfig {
    let directory = of_one.directory.parent().unwrap_or(&of_one.directory).to_owned();
    AuditConfig { directory, ..of_one.clone() }
}

/// A free address for a port that is in use in the given configuration. An empty address stays empty.
fn on_another_port(listen: &str) -> Result<String, LocalError> {
    if listen.is_empty() { Ok(String::new()) } else { ports::address() }
}

/// The configurations of a new cluster.
fn new_configs(directory: &Directory, nodes: usize, options: &ClusterOptions) -> Result<Vec<Config>, LocalError> {
    let members = ports::members(1..=nodes as u64)?;
    // The name is unique, because nodes of two clusters would mix when one reuses the ports of the other.
    #[expect(clippy::disallowed_methods, reason = "clusters that reuse ports need different names")]
    let cluster_id = format!("local-{:08x}", rand::random::<u32>());

    let config = |member: &ConfiguredMember| Config {
        cluster_id: cluster_id.clone(),
        node_id: member.node_id,
        data_dir: directory.node(member.node_id).join("data"),
        client_listen: member.client_address.clone(),
        peer_listen: member.peer_address.clone(),
        bootstrap: true,
        raft: options.raft.clone(),
        disk: options.disk.clone(),
        audit: audit_for_node(&options.audit, member.node_id),
        auth: options.auth.clone(),
        traces: options.traces.clone(),
        members: members.clone(),
        ..Config::default()
    };

    Ok(members.iter().map(config).collect())
}
