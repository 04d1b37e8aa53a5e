//! The client: a way into a cluster, and what can be asked of it without a session.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tonic::transport::Endpoint;

use super::{
    BootClock, Clock, Connect, Election, Error, ForceRelease, Session, SessionOptions, Watch,
    call::{self, Caller, with},
    contact::{Answered, Contact, Silence},
    nodes::Nodes,
};
use crate::{
    machine::{LockName, Token},
    proto::v1::{self, cluster_client::ClusterClient, locks_client::LocksClient, sessions_client::SessionsClient},
};

/// The nodes of a cluster that `lockkeeper dev` starts on this machine.
pub const DEFAULT_ENDPOINTS: &str = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103";

/// Between two looks whether a node has answered.
const SILENCE_POLL: Duration = Duration::from_millis(50);

/// A way into a cluster. Cheap to clone; connects when it is used.
///
/// Its calls ask one node after the other until one answers, the leader first where it is known. They fail with
///
/// * [`Error::Invalid`] if an argument cannot be right, and nothing was sent;
/// * [`Error::Refused`] if the cluster says no;
/// * [`Error::NoCluster`] if nobody answered within [`Builder::call_limit`], and nothing was changed;
/// * [`Error::Unknown`] if nobody answered, and the request may have taken effect. Those that only read never do.
///
/// Those that only read are cancel safe: dropped, they leave nothing behind.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) caller: Arc<Caller>,
    /// Whether reads may be answered from any node's table.
    stale: bool,
}

/// Makes a [`Client`] that differs from the usual one.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn example() -> Result<(), lockkeeper::client::Error> {
/// use lockkeeper::client::Client;
///
/// let builder = Client::builder("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101");
/// let client = builder.call_limit(Duration::from_secs(3)).attempt_limit(Duration::from_secs(1)).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Builder {
    endpoints: String,
    call_limit: Duration,
    attempt_limit: Duration,
    clock: Arc<dyn Clock>,
    connect: Connect,
    seed: Option<u64>,
}

impl Client {
    /// To the cluster of these nodes: `host:port`, with commas between. One that answers is enough, it names the leader; more of them
    /// help when that one is down. Fails with [`Error::Endpoint`]. Needs a tokio runtime.
    pub fn new(endpoints: &str) -> Result<Self, Error> {
        Self::builder(endpoints).build()
    }

    /// The same, with more to choose.
    pub fn builder(endpoints: &str) -> Builder {
        Builder {
            endpoints: endpoints.to_owned(),
            call_limit: Duration::from_secs(10),
            attempt_limit: Duration::from_secs(2),
            clock: Arc::new(BootClock),
            connect: Arc::new(|endpoint: Endpoint| endpoint.connect_lazy()),
            seed: None,
        }
    }

    /// Opens a session and keeps it alive in the background. Dropped before its end, it may leave a session behind, which expires after
    /// its TTL.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// use lockkeeper::client::SessionOptions;
    ///
    /// let options = SessionOptions { ttl: Duration::from_secs(30), ..SessionOptions::default() };
    /// let session = client.open(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(&self, options: SessionOptions) -> Result<Session, Error> {
        Session::open(self, options).await
    }

    /// This client, for reads that need not be the newest: [`Client::get`], [`Client::list`] and [`Client::sessions`] then answer from the
    /// table of whichever node is asked, even if it is behind or cut off. Without it they are linearizable.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// let lock = client.stale().get("reports/nightly").await?.lock;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stale(&self) -> Self {
        Self { stale: true, ..self.clone() }
    }

    /// One lock: its first 1,000 holders and waiters, and its data.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// let lock = client.get("reports/nightly").await?.lock.unwrap_or_default();
    /// for holder in &lock.holders {
    ///     println!("{} holds it by token {}; {} wait", holder.label, holder.token, lock.queue_length);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, name: &str) -> Result<v1::GetResponse, Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let request = v1::GetRequest { name, stale: self.stale, ..v1::GetRequest::default() };
        self.caller.call(self.caller.plan_read(), |node| node.pipeline.get(request.clone())).await
    }

    /// A page of the locks under a prefix, in the order of their names. `page_token`: empty, or `next_page_token` of the page before;
    /// that is empty after the last. Each page is linearizable; all of them together are not of one moment.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// let mut page_token = String::new();
    /// loop {
    ///     let page = client.list("reports/", &page_token).await?;
    ///     page.locks.iter().for_each(|lock| println!("{}", lock.name));
    ///     page_token = page.next_page_token;
    ///     if page_token.is_empty() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn list(&self, prefix: &str, page_token: &str) -> Result<v1::ListResponse, Error> {
        let (prefix, page_token) = (prefix.to_owned(), page_token.to_owned());
        let request = v1::ListRequest { prefix, page_token, page_size: 0, stale: self.stale };
        self.caller.call(self.caller.plan_read(), |node| with!(LocksClient, node, list, request)).await
    }

    /// A page of the sessions. `page_token`: empty, or `next_page_token` of the page before.
    pub async fn sessions(&self, page_token: &str) -> Result<v1::ListSessionsResponse, Error> {
        let request = v1::ListSessionsRequest { page_token: page_token.to_owned(), page_size: 0, stale: self.stale };
        self.caller.call(self.caller.plan_read(), |node| with!(SessionsClient, node, list, request)).await
    }

    /// Whether this token holds this lock now, linearizably. What follows from the answer may come too late: a resource that remembers the
    /// highest token has no such gap (see [`crate::fence`]).
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// use lockkeeper::machine::Token;
    ///
    /// if !client.check("reports/nightly", Token(42)).await?.held {
    ///     println!("somebody else has it, or nobody");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self, name: &str, token: Token) -> Result<v1::CheckResponse, Error> {
        let request = v1::CheckRequest { name: LockName::new(name)?.as_str().to_owned(), token: token.0 };
        self.caller.call(self.caller.plan_read(), |node| node.pipeline.check(request.clone())).await
    }

    /// The locks under a prefix, and every change of them from then on. Nothing is sent before [`Watch::next`].
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::new(self.clone(), prefix)
    }

    /// An election: who leads is who holds the lock of this name. Fails with [`Error::Invalid`]; nothing is sent.
    pub fn election(&self, name: &str) -> Result<Election, Error> {
        Election::new(self.clone(), name)
    }

    /// Revokes the grants of a lock, or one of them: see [`ForceRelease`]. `reason`: for their holders, and for the log.
    pub fn force_release(&self, name: &str, reason: &str) -> ForceRelease {
        ForceRelease::new(self.clone(), name, reason)
    }

    /// How one node sees itself and its cluster. `address`: host:port. Asks this node only, and once; fails with [`Error::NoCluster`] if
    /// it does not answer within `limit`. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// for address in client.endpoints() {
    ///     let status = client.status(&address, Duration::from_secs(1)).await?;
    ///     println!("{address}: term {}, serving: {}", status.term, status.serving);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self, address: &str, limit: Duration) -> Result<v1::StatusResponse, Error> {
        self.ask_for_status(address, false, limit).await
    }

    /// The same, with a hash of its table: equal on all nodes that have applied the log equally far. It takes the node a while to compute.
    pub async fn status_with_hash(&self, address: &str, limit: Duration) -> Result<v1::StatusResponse, Error> {
        self.ask_for_status(address, true, limit).await
    }

    async fn ask_for_status(
        &self,
        address: &str,
        table_hash: bool,
        limit: Duration,
    ) -> Result<v1::StatusResponse, Error> {
        let node = self.caller.nodes.get(address)?;
        let request = v1::StatusRequest { table_hash };
        self.caller.ask_to_read(limit, with!(ClusterClient, node, status, request)).await
    }

    /// Waits until no node has answered for so long, and returns that silence; `None` when one answers.
    pub(crate) async fn silent_for(&self, limit: Duration) -> Option<Silence> {
        loop {
            match self.caller.contact.silence() {
                Ok(Some(silence)) if silence.lasts >= limit => return Some(silence),
                Ok(_) => sleep(SILENCE_POLL).await,
                Err(Answered) => return None,
            }
        }
    }

    /// The nodes that this client was told of: host:port.
    pub fn endpoints(&self) -> Vec<String> {
        self.caller.nodes.configured().map(|node| node.address.to_string()).collect()
    }
}

impl Builder {
    /// How long a call may take in all, repetitions included. 10 s.
    pub fn call_limit(mut self, limit: Duration) -> Self {
        self.call_limit = limit;
        self
    }

    /// How long one node is given to answer before the next is asked. 2 s.
    pub fn attempt_limit(mut self, limit: Duration) -> Self {
        self.attempt_limit = limit;
        self
    }

    /// Another clock, for a simulation.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Another network, for a simulation.
    pub fn connect(mut self, connect: Connect) -> Self {
        self.connect = connect;
        self
    }

    /// Random numbers that repeat, for a simulation. Two clients with the same seed draw the same session ids.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The client. Fails with [`Error::Endpoint`].
    pub fn build(self) -> Result<Client, Error> {
        let mut random = call::random(self.seed);
        let first = rand::Rng::random_range(&mut random, 0..usize::from(u16::MAX));
        let caller = Caller {
            nodes: Nodes::new(&self.endpoints, self.connect, first)?,
            clock: self.clock,
            random: std::sync::Mutex::new(random),
            call_limit: self.call_limit,
            attempt_limit: self.attempt_limit,
            contact: Contact::default(),
        };
        Ok(Client { caller: Arc::new(caller), stale: false })
    }
}
