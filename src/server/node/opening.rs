//! Opens what a node needs of a real machine: certificates, sockets, and the data directory.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{net::TcpListener, task::spawn_blocking};

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
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { key, address: address.to_owned(), source })
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
