//! The interface of a lock service under measurement. To add a service, add a module that implements [`Peer`].

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A worker's client of the service, not shared.
#[tonic::async_trait]
pub(crate) trait Hand: Send {
    /// Waits for the lock; returns the grant's identifier.
    async fn acquire(&mut self, name: &str) -> Result<Vec<u8>>;
    /// Releases it.
    async fn release(&mut self, name: &str, grant: Vec<u8>) -> Result<()>;
    /// Whether it is held; linearizable.
    async fn is_held(&mut self, name: &str) -> Result<bool>;
}

/// A session: etcd's lease, Redis's key with a TTL.
#[tonic::async_trait]
pub(crate) trait Lease: Send {
    /// Renews it, and waits for the reply.
    async fn renew(&mut self) -> Result<()>;
}

/// A key with watchers.
#[tonic::async_trait]
pub(crate) trait Watched: Send {
    /// Changes the key, and waits until each watcher was told.
    async fn change(&mut self) -> Result<()>;
}

/// A lock service that runs on this machine.
#[tonic::async_trait]
pub(crate) trait Peer: Send + Sync {
    /// A hand on one of `CONNECTIONS` connections to the leader.
    async fn hand(&self, worker: usize) -> Result<Box<dyn Hand>>;
    /// A hand with a new connection to this node (from 0).
    async fn hand_at(&self, node: usize) -> Result<Box<dyn Hand>>;
    /// Sessions at the leader or, if `spread`, at all nodes.
    async fn leases(&self, count: usize, ttl: Duration, spread: bool) -> Result<Vec<Box<dyn Lease>>>;
    /// A key that so many watchers of all nodes watch, each on a stream of its own.
    async fn watched(&self, _name: &str, _watchers: usize) -> Result<Box<dyn Watched>> {
        bail!("watches of this service are not measured");
    }
    /// Watches of so many keys that nobody changes, at all nodes, each on a stream of its own. They last as long as this program.
    async fn watch_others(&self, watches: usize) -> Result<()> {
        ensure!(watches == 0, "watches of this service are not measured");
        Ok(())
    }
    /// The leader's node (from 0).
    async fn leader(&self) -> Result<usize>;
    /// Whether a node answers linearizable requests.
    async fn is_ready(&self, node: usize) -> bool;
    /// A lock name of this worker; `number` is random.
    fn own_name(&self, _worker: usize, number: u64) -> String {
        format!("/own/{number:016x}")
    }
    /// Creates the locks' parent nodes, if the service needs them.
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }
}

/// A service's processes, started by scripts/bench-peers.sh. For node N, its directory has `nN.endpoint`, `nN.pid`, and `nN.start`, which
/// restarts the node, unless something else does.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    directory: PathBuf,
    pub(crate) endpoints: Vec<String>,
}

impl Servers {
    pub(crate) fn of(directory: PathBuf) -> Result<Self> {
        let file = |node: usize| directory.join(format!("n{node}.endpoint"));
        let read = |node| fs::read_to_string(file(node)).map(|text| text.trim().to_owned());
        let endpoints: Vec<String> = (1..).map_while(|node| read(node).ok()).collect();
        ensure!(!endpoints.is_empty(), "{}: no file n1.endpoint; start the servers first", directory.display());
        Ok(Self { directory, endpoints })
    }

    pub(crate) fn pid(&self, node: usize) -> Result<u32> {
        let file = self.directory.join(format!("n{}.pid", node + 1));
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.trim().parse()?)
    }

    pub(crate) fn pids(&self) -> Result<Vec<u32>> {
        (0..self.endpoints.len()).map(|node| self.pid(node)).collect()
    }

    pub(crate) fn kill(&self, node: usize) -> Result<()> {
        let pid = Pid::from_raw(self.pid(node)?.try_into()?).context("pid 0 is not a process")?;
        Ok(kill_process(pid, Signal::KILL)?)
    }

    /// Whether nodes can be started again.
    pub(crate) fn can_start(&self) -> bool {
        self.script(0).exists()
    }

    fn script(&self, node: usize) -> PathBuf {
        self.directory.join(format!("n{}.start", node + 1))
    }

    pub(crate) fn start(&self, node: usize) -> Result<()> {
        let script = self.script(node);
        ensure!(Command::new(&script).status()?.success(), "{} failed", script.display());
        Ok(())
    }
}
