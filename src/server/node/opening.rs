//! Opens what a node needs of a real machine: certificates, sockets, and the data directory.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{
    net::{TcpListener, TcpSocket, lookup_host},
    task::spawn_blocking,
};

use lockkeeper_config::{Config, TlsConfig};
use lockkeeper_environment::Environment;
use lockkeeper_raft::{
    identity::{ClusterId, NodeIdentity},
    log::{self, LogOpenError, LogStore},
    snapshot::SnapshotStore,
};
use lockkeeper_storage::{
    database::{LockFile, NotLocked},
    files,
};
use lockkeeper_transport::tls::{Subject, Tls, TlsError, TlsFiles};

use super::{ServeError, stopped};

/// Connections of a port that the operating system has made and that are not accepted yet. It takes fewer if its own limit is lower
/// (`net.core.somaxconn`). The clients of a node that has died come to the others all at once, and one that finds the queue full is not
/// told: its system tries again a second later, then three, then seven.
const ACCEPT_QUEUE: u32 = 16_384;

/// Reads the certificates, if the configuration names some.
pub(super) async fn load_certificates(config: &Config) -> Result<Option<Tls>, ServeError> {
    let Some(files) = config.tls.clone() else { return Ok(None) };
    let earlier = config.earlier_cluster.as_ref().map(|earlier| earlier.cluster_id.clone());
    let loaded = spawn_blocking(move || load(&files, earlier)).await;
    Ok(Some(loaded.map_err(stopped)??))
}

/// Reads the certificates of a node that also serves the clients of an earlier cluster, if there is one. Blocks.
fn load(files: &TlsConfig, earlier: Option<String>) -> Result<Tls, TlsError> {
    let TlsConfig { ca, certificate, key } = files.clone();
    let files = TlsFiles { ca, own: Some((certificate, key)) };
    if let Some(warning) = files.warning() {
        tracing::warn!("{warning}");
    }

    Tls::load_accepting(files, earlier)
}

/// Refuses the certificate of another node.
pub(super) fn check_subject(config: &Config, tls: &Tls) -> Result<(), ServeError> {
    let own = Subject::Node { cluster: config.cluster_id.clone(), id: config.node_id };

    match tls.subject() {
        Some(subject) if subject == own => Ok(()),
        Some(Subject::Node { cluster, id }) if id == config.node_id => Err(ServeError::Config(format!(
            "tls.certificate is of cluster {cluster}, and this node is of cluster {own}: name its certificate of {own}; if {own} was \
             restored from {cluster}, `lockkeeper certs successor {own}` makes it, on the machine that holds the authority",
            own = config.cluster_id
        ))),
        Some(subject) => Err(ServeError::Config(format!(
            "tls.certificate names {subject}, and this node is {own}: name its own certificate; \
             `lockkeeper certs node` makes one"
        ))),
        None => Err(ServeError::Config("tls.certificate is missing: name this node's certificate".to_owned())),
    }
}

/// Listens at the address that the configuration has under this key.
pub(super) async fn listen(key: &'static str, address: &str) -> Result<TcpListener, ServeError> {
    bind(address).await.map_err(|source| ServeError::Listen { key, address: address.to_owned(), source })
}

/// Listens at the first address of these that can be had.
async fn bind(address: &str) -> io::Result<TcpListener> {
    let mut refused = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
    for address in lookup_host(address).await? {
        match bind_one(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

fn bind_one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A node that starts again has its port though connections of the process before linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
}

/// Listens at the address under this key, unless it is empty: then the port is not served.
pub(super) async fn listen_if_set(key: &'static str, address: &str) -> Result<Option<TcpListener>, ServeError> {
    if address.is_empty() {
        return Ok(None);
    }
    listen(key, address).await.map(Some)
}

/// A data directory that is open, and whose content belongs to this node.
pub(super) struct DataDirectory {
    /// Keeps other processes out of the directory, so it must live longer than the log.
    pub(super) lock: LockFile,
    pub(super) identity: Arc<NodeIdentity>,
    pub(super) log: LogStore,
    pub(super) snapshots: SnapshotStore,
}

impl DataDirectory {
    /// Opens the data directory of the configuration, and creates it if it is missing. Blocks.
    pub(super) fn open(config: &Config, environment: &Environment) -> Result<Self, ServeError> {
        let directory: &Path = &config.data_dir;
        let refused = |source| ServeError::Directory { directory: directory.to_owned(), source };
        files::create_directory(directory).map_err(refused)?;
        warn_of_other_users(config);

        // The lock comes before anything in the directory is read, or deleted as unfinished: another process may use it.
        let lock = LockFile::take_directory(directory).map_err(|not_locked| match not_locked {
            NotLocked::InUse => ServeError::Log(LogOpenError::Locked { directory: directory.to_owned() }),
            NotLocked::Io(source) => refused(source),
        })?;

        let cluster_id: ClusterId =
            config.cluster_id.parse().map_err(|invalid| ServeError::Config(format!("{invalid}")))?;
        let identity =
            NodeIdentity::open_or_create(directory, &cluster_id, config.node_id, &mut environment.generator())?;
        let snapshots = SnapshotStore::open(&directory.join("snapshots"))?;

        let newest = snapshots.latest().and_then(|file| file.meta().last_log_id);
        let owner = Some(identity.log_owner());
        let metrics = environment.metrics.clone();
        let options = log::LogOptions { snapshot: newest, owner, metrics, ..log::LogOptions::default() };
        let log = LogStore::open(&directory.join("log"), options)?;

        identity.started()?;
        Ok(Self { lock, identity: Arc::new(identity), log, snapshots })
    }
}

/// Warns of files with secrets, and of data, that other users of this machine can read.
fn warn_of_other_users(config: &Config) {
    let optional = [&config.dynamodb.secrets, &config.auth.tokens, &config.audit.directory];
    let named = optional.into_iter().map(PathBuf::as_path).filter(|path| !path.as_os_str().is_empty());
    for warning in [config.data_dir.as_path()].into_iter().chain(named).filter_map(files::warn_of_others) {
        tracing::warn!("{warning}");
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use tokio::{net::TcpStream, time::timeout};

    use super::*;

    /// More than the queue of a listener that asks for no length.
    const CLIENTS: usize = 200;

    #[tokio::test]
    async fn clients_that_come_all_at_once_find_room_in_the_queue() {
        let allowed = fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
        if allowed.trim().parse::<usize>().is_ok_and(|allowed| allowed < CLIENTS) {
            return;
        }

        let listener = listen("client_listen", "127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound");
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let client = timeout(Duration::from_secs(10), TcpStream::connect(port)).await;
            clients.push(client.unwrap_or_else(|_| panic!("the client {number} finds no room")).expect("it listens"));
        }
    }
}
