//! A node of a cluster on this machine: a process.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    thread,
    time::Duration,
};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use tokio::{
    process::{Child, ChildStdin, Command},
    time,
};
use tonic::transport::{Channel, Endpoint};

use lockkeeper_config::{Config, ConfiguredMember};
use lockkeeper_proto::v1 as pb;
use lockkeeper_transport::{
    TcpConnector,
    tls::{Tls, TlsConnector, TlsFiles},
};

use super::{STOP_GRACE, certificates, directory::config_file, error::LocalError, ports};

/// The timeout of a status request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);
/// How many lines of the log are shown when a node exits by itself.
const TAIL_LINES: usize = 20;
const TAIL_BYTES: u64 = 16 * 1024;
/// Environment variables for a single node. They must not reach all nodes.
const NOT_INHERITED: [&str; 14] = [
    "LOCKKEEPER_CONFIG",
    "LOCKKEEPER_CLUSTER_ID",
    "LOCKKEEPER_NODE_ID",
    "LOCKKEEPER_DATA_DIR",
    "LOCKKEEPER_CLIENT_LISTEN",
    "LOCKKEEPER_PEER_LISTEN",
    "LOCKKEEPER_BOOTSTRAP",
    "LOCKKEEPER_INSECURE",
    "LOCKKEEPER_CERTS",
    "LOCKKEEPER_JOIN",
    "LOCKKEEPER_CLIENT_ADDRESS",
    "LOCKKEEPER_PEER_ADDRESS",
    "LOCKKEEPER_LOG_FORMAT",
    "LOCKKEEPER_PRETENDED_VERSION",
];

/// Interval of the checks whether a paused node has stopped.
const STANDSTILL_LOOK: Duration = Duration::from_millis(1);

/// A program `lockkeeper`, with environment variables of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeProgram {
    /// The file of the program.
    pub path: PathBuf,
    /// Environment variables, beside those of this process.
    pub environment: Vec<(OsString, OsString)>,
}

impl NodeProgram {
    /// A command of this program, without the environment variables that are for a single node.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        NOT_INHERITED.iter().for_each(|name| _ = command.env_remove(name));
        command.envs(self.environment.iter().cloned());
        command
    }
}

/// A node, running or not.
#[derive(Debug)]
pub struct LocalNode {
    program: NodeProgram,
    config: Config,
    config_file: PathBuf,
    log_file: PathBuf,
    environment: Vec<(OsString, OsString)>,
    process: Option<NodeProcess>,
}

#[derive(Debug)]
struct NodeProcess {
    child: Child,
    /// Kept open and never written. The node stops when it closes.
    _stdin: Option<ChildStdin>,
}

impl LocalNode {
    pub(super) fn new(program: NodeProgram, config: Config, folder: PathBuf) -> Self {
        let config_file = config_file(&folder);
        Self { program, config, config_file, log_file: folder.join("node.log"), environment: Vec::new(), process: None }
    }

    pub(super) fn move_to(&mut self, member: &ConfiguredMember, members: &[ConfiguredMember]) {
        self.config.client_listen.clone_from(&member.client_address);
        self.config.peer_listen.clone_from(&member.peer_address);
        self.config.members = members.to_vec();
    }

    /// Gives the node new ports for its other services.
    pub(super) fn move_others(&mut self) -> Result<(), LocalError> {
        let Config { dynamodb, etcd, redis, zookeeper, http, .. } = &mut self.config;
        let others =
            [&mut dynamodb.listen, &mut etcd.listen, &mut redis.listen, &mut zookeeper.listen, &mut http.listen];
        others.into_iter().filter(|listen| !listen.is_empty()).try_for_each(|listen| {
            *listen = ports::address()?;
            Ok(())
        })
    }

    pub(super) fn set_cluster_id(&mut self, cluster_id: &str) {
        cluster_id.clone_into(&mut self.config.cluster_id);
    }

    pub(super) fn foresee(&mut self, spares: &[ConfiguredMember]) {
        self.config.members.extend_from_slice(spares);
    }

    pub(super) fn route(&mut self, way: impl Fn(u64, &ConfiguredMember) -> ConfiguredMember) {
        let node_id = self.id();
        self.config.members.iter_mut().for_each(|member| *member = way(node_id, member));
    }

    /// Sets environment variables. They take effect at the node's next start.
    pub fn set_environment(&mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) {
        self.environment = variables.into_iter().collect();
    }

    /// Sets the program. It takes effect at the node's next start.
    pub fn set_program(&mut self, program: NodeProgram) {
        self.program = program;
    }

    /// The node's id, from 1 on.
    pub fn id(&self) -> u64 {
        self.config.node_id
    }

    /// The program that this node runs.
    pub fn program(&self) -> &NodeProgram {
        &self.program
    }

    /// The node's configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The node's configuration file.
    pub fn config_file(&self) -> &Path {
        &self.config_file
    }

    /// The node's log file.
    pub fn log_file(&self) -> &Path {
        &self.log_file
    }

    /// The node's address for clients, as a URL.
    pub fn endpoint(&self) -> String {
        self.url(&self.config.client_listen).expect("every node has an address for clients")
    }

    /// The URL at which the node serves DynamoDB's API, or `None` if it does not.
    pub fn dynamodb_endpoint(&self) -> Option<String> {
        self.url(&self.config.dynamodb.listen)
    }

    /// The address (host:port) at which the node serves etcd's API, or `None` if it does not.
    pub fn etcd_endpoint(&self) -> Option<String> {
        Some(&self.config.etcd.listen).filter(|listen| !listen.is_empty()).cloned()
    }

    /// The address (host:port) at which the node serves Redis' protocol, or `None` if it does not.
    pub fn redis_endpoint(&self) -> Option<String> {
        Some(&self.config.redis.listen).filter(|listen| !listen.is_empty()).cloned()
    }

    /// The address (host:port) at which the node serves ZooKeeper's protocol, or `None` if it does not.
    pub fn zookeeper_endpoint(&self) -> Option<String> {
        Some(&self.config.zookeeper.listen).filter(|listen| !listen.is_empty()).cloned()
    }

    /// The URL at which the node serves probes and metrics, or `None` if it does not.
    pub fn http_endpoint(&self) -> Option<String> {
        self.url(&self.config.http.listen)
    }

    fn url(&self, listen: &str) -> Option<String> {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        (!listen.is_empty()).then(|| format!("{scheme}://{listen}"))
    }

    /// The certificates of a client, or `None` without TLS.
    pub fn client_files(&self) -> Option<TlsFiles> {
        Some(certificates::client_files(self.config.tls.as_ref()?))
    }

    /// The node's process id, or `None` if it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref()?.child.id()
    }

    /// Whether the node was started and is not known to have exited.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Whether the node's process is alive: neither exited nor a zombie.
    pub fn is_alive(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| matches!(process.child.try_wait(), Ok(None)))
    }

    /// Starts the node, unless it runs. Does not wait for readiness: see [`super::LocalCluster::ready`].
    pub fn spawn(&mut self) -> Result<(), LocalError> {
        if self.is_running() {
            return Ok(());
        }

        let log = OpenOptions::new().create(true).append(true).open(&self.log_file);
        let log = log.map_err(|source| LocalError::Directory { path: self.log_file.clone(), source })?;

        let mut command = self.program.command();
        command.args(["serve", "--until-stdin-closes", "--config"]).arg(&self.config_file);
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).kill_on_drop(true);

        // Ctrl-C reaches the whole foreground group of a terminal. In its own group, a node gets signals only from its
        // cluster.
        command.process_group(0);

        let child = command.spawn();
        let mut child = child.map_err(|source| LocalError::Spawn { program: self.program.path.clone(), source })?;

        // `Child::wait` would close stdin and so stop the node. Take it out.
        let stdin = child.stdin.take();
        self.process = Some(NodeProcess { child, _stdin: stdin });
        Ok(())
    }

    /// Sends the node a signal, if it runs.
    pub fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // A process that has just exited is fine. Its pid is not reused before it is waited for.
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops the node's threads (SIGSTOP), and returns when all of them have stopped: a running thread goes on for a moment after the
    /// signal. [`signal`](Self::signal) with [`Signal::CONT`] resumes it.
    pub async fn pause(&self) {
        self.signal(Signal::STOP);
        while self.pid().is_some_and(|pid| !stands_still(pid)) {
            time::sleep(STANDSTILL_LOOK).await;
        }
    }

    /// Waits until the node exits. Call it only for a running node.
    pub(super) async fn wait(&mut self) -> ExitStatus {
        let process = self.process.as_mut().expect("only a node that runs is waited for");
        let status = process.child.wait().await.expect("a child can be waited for until it was");
        self.process = None;
        status
    }

    /// Kills the node (SIGKILL) and waits for its exit. Returns `None` if it did not run.
    pub async fn kill(&mut self) -> Option<ExitStatus> {
        self.process.as_ref()?;
        self.signal(Signal::KILL);
        Some(self.wait().await)
    }

    /// Stops the node (SIGTERM), and kills it if it has not exited within [`STOP_GRACE`]. Returns `None` if it did not run.
    pub async fn stop(&mut self) -> Option<ExitStatus> {
        self.process.as_ref()?;
        self.signal(Signal::TERM);
        match time::timeout(STOP_GRACE, self.wait()).await {
            Ok(status) => Some(status),
            Err(_) => self.kill().await,
        }
    }

    /// Returns the error of a node that exited by itself. Afterwards it counts as not running.
    ///
    /// # Panics
    ///
    /// If the system no longer knows the process, which it does until the exit status was read here.
    pub fn has_died(&mut self) -> Option<LocalError> {
        let status = self.process.as_mut()?.child.try_wait().expect("a child can be waited for until it was")?;
        self.process = None;
        Some(LocalError::Died { node_id: self.id(), status, log: self.log_file.clone(), tail: self.log_tail() })
    }

    /// The last lines of the node's log.
    pub fn log_tail(&self) -> String {
        tail(&self.log_file).unwrap_or_else(|error| format!("(its log cannot be read: {error})"))
    }

    /// The node's status.
    pub async fn status(&self) -> Result<pb::StatusResponse, tonic::Status> {
        let mut client = pb::cluster_client::ClusterClient::new(self.channel().await?);
        let call = client.status(pb::StatusRequest::default());
        match time::timeout(STATUS_TIMEOUT, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(tonic::Status::deadline_exceeded("no answer in time")),
        }
    }

    /// A new connection to the node.
    pub async fn channel(&self) -> Result<Channel, tonic::Status> {
        let address = &self.config.client_listen;
        if let Some(files) = self.client_files() {
            let tls = Tls::load(files).map_err(|error| tonic::Status::unavailable(error.to_string()))?;
            return Ok(lockkeeper_transport::channel(TlsConnector::for_client(TcpConnector, tls), address));
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address of ours makes a URL");
        let connection = endpoint.connect_timeout(STATUS_TIMEOUT).connect().await;
        connection.map_err(|error| tonic::Status::unavailable(error.to_string()))
    }

    /// The command line that starts the node.
    pub fn command_line(&self) -> String {
        format!("{} serve --config {}", self.program.path.display(), self.config_file.display())
    }
}

impl Drop for LocalNode {
    /// Kills the node and waits for its exit. Afterwards there is no process and no changing file.
    fn drop(&mut self) {
        let Some(process) = &mut self.process else { return };
        if process.child.start_kill().is_err() {
            return;
        }
        for _ in 0..1_000 {
            match process.child.try_wait() {
                #[expect(clippy::disallowed_methods, reason = "`drop` cannot await")]
                Ok(None) => thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }
}

/// Whether no thread of the process can run: each is stopped, or has ended. Also where the system does not tell.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let status = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which may contain anything.
        let state = status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| matches!(state, 'T' | 't' | 'Z' | 'X'))
    })
}

fn tail(file: &Path) -> io::Result<String> {
    let length = fs::metadata(file)?.len();
    let mut file = File::open(file)?;
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}
