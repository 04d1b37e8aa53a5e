//! What a lock service must offer to be measured. A further one is one more module that implements [`Peer`].

use std::{fs, path::PathBuf, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// One worker's way into the service: nobody else uses it.
#[tonic::async_trait]
pub(crate) trait Hand: Send {
    /// Waits until it holds the lock; what names the grant.
    async fn acquire(&mut self, name: &str) -> Result<Vec<u8>>;
    /// Gives it back.
    async fn release(&mut self, name: &str, grant: Vec<u8>) -> Result<()>;
    /// Whether somebody holds it; linearizable.
    async fn is_held(&mut self, name: &str) -> Result<bool>;
}

/// A session, by whatever name.
#[tonic::async_trait]
pub(crate) trait Lease: Send {
    /// Renews it, and waits for the answer.
    async fn renew(&mut self) -> Result<()>;
}

/// A lock service that runs on this machine.
#[tonic::async_trait]
pub(crate) trait Peer: Send + Sync {
    /// A hand whose connection, one of at most 16, leads to the leader.
    async fn hand(&self, worker: usize) -> Result<Box<dyn Hand>>;
    /// A hand with a new connection to this node (from 0).
    async fn hand_at(&self, node: usize) -> Result<Box<dyn Hand>>;
    /// Sessions, to be renewed at the leader or, `spread`, at all nodes.
    async fn leases(&self, count: usize, ttl: Duration, spread: bool) -> Result<Vec<Box<dyn Lease>>>;
    /// Which node leads (from 0).
    async fn leader(&self) -> Result<usize>;
    /// Whether a node answers linearizable requests.
    async fn is_ready(&self, node: usize) -> bool;
    /// The name of a lock of this worker's own; `number` is random.
    fn own_name(&self, _worker: usize, number: u64) -> String {
        format!("/own/{number:016x}")
    }
    /// Makes what must be there before locks of these names are used.
    async fn prepare(&self) -> Result<()> {
        Ok(())
    }
}

/// The processes of a service, as scripts/bench-peers.sh started them: for node N of DIR, `nN.endpoint`, `nN.pid`, and `nN.start`, which
/// starts it again.
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
        ensure!(!endpoints.is_empty(), "{}: no server was started there", directory.display());
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
        let pid = Pid::from_raw(self.pid(node)?.try_into()?).context("0 is no process")?;
        Ok(kill_process(pid, Signal::KILL)?)
    }

    pub(crate) fn start(&self, node: usize) -> Result<()> {
        let script = self.directory.join(format!("n{}.start", node + 1));
        ensure!(Command::new(&script).status()?.success(), "{} failed", script.display());
        Ok(())
    }
}
