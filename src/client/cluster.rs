//! The client: a connection to a cluster, and the calls that need no session.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use tokio::time::sleep;
use tonic::transport::Endpoint;

use super::{
    AskBusiest, BootClock, Busiest, CheckAnswer, Clock, Connect, Error, LockAnswer, LockPage, NodeStatus, SessionPage,
    call::{self, SharedCaller, with},
    contact::{Answered, ClusterContact, Silence},
    credentials::{Authorized, Credentials, TraceOf},
    nodes::KnownNodes,
};
use lockkeeper_proto::v1::{
    self, cluster_client::ClusterClient, locks_client::LocksClient, sessions_client::SessionsClient,
};
#[cfg(feature = "tls")]
use lockkeeper_transport::{
    TcpConnector, channel_of,
    tls::{Tls, TlsConnector},
};
use lockkeeper_types::{LockName, Token};

/// The endpoints of the cluster that `lockkeeper dev` starts on this machine.
pub const DEFAULT_ENDPOINTS: &str = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103";

/// Interval at which [`Client::silent_for`] checks whether a node has answered.
const SILENCE_POLL: Duration = Duration::from_millis(50);

/// A client of a cluster. Cheap to clone; connects on first use.
///
/// A call asks one node after the other until one answers, the leader first if it is known. Calls fail with
///
/// * [`Error::Invalid`] if an argument is out of range; nothing was sent;
/// * [`Error::Refused`] if the cluster refuses the request;
/// * [`Error::NoCluster`] if no node answered within [`Builder::call_limit`]; nothing was changed;
/// * [`Error::Unknown`] if no node answered and the request may have taken effect. Read-only calls never fail with it;
/// * [`Error::Malformed`] if the reply has a value that this client does not understand.
///
/// Read-only calls are cancel safe: a dropped future leaves nothing behind.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) caller: Arc<SharedCaller>,
    /// Whether any node may answer reads from its own table.
    stale: bool,
}

/// Builds a [`Client`] with options of its own.
///
/// ```no_run
/// # use std::time::Duration;
/// # fn example() -> Result<(), lockkeeper_client::Error> {
/// use lockkeeper_client::Client;
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
    credentials: Result<Credentials, Error>,
    trace_of: Option<TraceOf>,
    is_secure: bool,
    seed: Option<u64>,
}

impl Client {
    /// A client of the cluster with these nodes: `host:port`, separated by commas. One node that answers is enough,
    /// since it names the leader; further endpoints help when that node is down. Fails with [`Error::Endpoint`]. Needs
    /// a tokio runtime.
    pub fn new(endpoints: &str) -> Result<Self, Error> {
        Self::builder(endpoints).build()
    }

    /// As [`Client::new`], with more options.
    pub fn builder(endpoints: &str) -> Builder {
        Builder {
            endpoints: endpoints.to_owned(),
            call_limit: Duration::from_secs(10),
            attempt_limit: Duration::from_secs(2),
            clock: Arc::new(BootClock),
            connect: Arc::new(|endpoint: Endpoint| endpoint.connect_lazy()),
            credentials: Ok(Credentials::default()),
            trace_of: None,
            is_secure: false,
            seed: None,
        }
    }

    /// This client with stale reads: any node, even one that lags or is cut off, answers [`Client::get`],
    /// [`Client::list`] and [`Client::sessions`] from its own table. Without it these reads are linearizable.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
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
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// let lock = client.get("reports/nightly").await?.lock;
    /// for holder in &lock.holders {
    ///     println!("{} holds it by token {}; {} wait", holder.label, holder.token.0, lock.queue_length);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, name: &str) -> Result<LockAnswer, Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let request = v1::GetRequest { name, stale: self.stale, ..v1::GetRequest::default() };
        let answer = self.caller.call(self.caller.read_policy(), |node| node.pipeline.get(request.clone()));
        LockAnswer::from_wire(answer.await?)
    }

    /// A page of the locks under a prefix, in the order of their names. `page_token` is empty for the first page, then
    /// `next_page_token` of the page before, which is `None` after the last page. Each page is linearizable; several
    /// pages are not one consistent snapshot.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// let mut page_token = String::new();
    /// loop {
    ///     let page = client.list("reports/", &page_token).await?;
    ///     page.locks.iter().for_each(|lock| println!("{}", lock.name));
    ///     match page.next_page_token {
    ///         Some(next) => page_token = next,
    ///         None => return Ok(()),
    ///     }
    /// }
    /// # }
    /// ```
    pub async fn list(&self, prefix: &str, page_token: &str) -> Result<LockPage, Error> {
        let prefix = prefix.to_owned();
        let page_token = page_token.to_owned();
        let request = v1::ListRequest { prefix, page_token, page_size: 0, stale: self.stale };
        let answer = self.caller.call(self.caller.read_policy(), |node| with!(LocksClient, node, list, request));
        LockPage::from_wire(answer.await?)
    }

    /// A page of the sessions. `page_token` is empty for the first page, then `next_page_token` of the page before.
    pub async fn sessions(&self, page_token: &str) -> Result<SessionPage, Error> {
        let page_token = page_token.to_owned();
        let stale = self.stale;
        let request = v1::ListSessionsRequest { page_token, stale, ..v1::ListSessionsRequest::default() };
        let answer = self.caller.call(self.caller.read_policy(), |node| with!(SessionsClient, node, list, request));
        SessionPage::from_wire(answer.await?)
    }

    /// Whether this token holds this lock now, linearizably. The answer can be out of date when the caller acts on it;
    /// a resource that remembers the highest token has no such gap (see `lockkeeper-fence`).
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// use lockkeeper_client::types::Token;
    ///
    /// if !client.check("reports/nightly", Token(42)).await?.held {
    ///     println!("token 42 does not hold the lock");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check(&self, name: &str, token: Token) -> Result<CheckAnswer, Error> {
        let request = v1::CheckRequest { name: LockName::new(name)?.as_str().to_owned(), token: token.0 };
        let answer = self.caller.call(self.caller.read_policy(), |node| node.pipeline.check(request.clone()));
        CheckAnswer::from_wire(answer.await?)
    }

    /// The status of one node and its view of the cluster. `address` is host:port. Asks only this node, once. Fails with
    /// [`Error::NoCluster`] if it does not answer within `limit`. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// for address in client.endpoints() {
    ///     let status = client.status(&address, Duration::from_secs(1)).await?;
    ///     println!("{address}: term {}, serving: {}", status.term, status.serving);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn status(&self, address: &str, limit: Duration) -> Result<NodeStatus, Error> {
        self.ask_for_status(address, false, limit).await
    }

    /// As [`Client::status`], with a hash of the node's table: equal on all nodes at the same applied index. Its cost
    /// grows with the table.
    pub async fn status_with_hash(&self, address: &str, limit: Duration) -> Result<NodeStatus, Error> {
        self.ask_for_status(address, true, limit).await
    }

    /// The busiest locks, the longest waits, and what the table did so far, as one node knows them, even if it lags or is cut off: for
    /// people who look on. Its cost is bounded, whatever the size of the table. Asks only this node, once. Fails with
    /// [`Error::NoCluster`] if it does not answer within `limit`, and with [`Error::Refused`] also if its program is from before this
    /// call. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// use lockkeeper_client::AskBusiest;
    ///
    /// let asked = AskBusiest { prefix: "reports/".to_owned(), ..AskBusiest::default() };
    /// for busy in client.busiest("10.0.0.1:7101", asked, Duration::from_secs(1)).await?.locks {
    ///     println!("{}: {} wait", busy.lock.name, busy.lock.queue_length);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn busiest(&self, address: &str, asked: AskBusiest, limit: Duration) -> Result<Busiest, Error> {
        let node = self.caller.nodes.get(address)?;
        let AskBusiest { prefix, size, after_index } = asked;
        let request = v1::BusiestRequest { prefix, size, after_index };
        Busiest::from_wire(self.caller.ask_to_read(limit, with!(LocksClient, node, busiest, request)).await?)
    }

    async fn ask_for_status(&self, address: &str, table_hash: bool, limit: Duration) -> Result<NodeStatus, Error> {
        let node = self.caller.nodes.get(address)?;
        let request = v1::StatusRequest { table_hash };
        let answer = self.caller.ask_to_read(limit, with!(ClusterClient, node, status, request)).await?;
        Ok(NodeStatus::from_wire(answer, table_hash))
    }

    /// The channel to the node that is asked now: the leader, or the next node while no leader is known.
    // For `lockkeeper bench`, which sends messages of its own making.
    #[doc(hidden)]
    pub fn preferred_channel(&self) -> Authorized {
        self.caller.nodes.preferred().channel
    }

    /// A channel to one node: host:port. With the certificates and the bearer token of this client. Connects on first use. Fails with
    /// [`Error::Endpoint`].
    pub fn channel_to(&self, address: &str) -> Result<Authorized, Error> {
        Ok(self.caller.nodes.get(address)?.channel)
    }

    /// Waits until no node has answered for `limit`, and returns that silence; `None` as soon as a node answers.
    // For the program `lockkeeper`, which says so when it gets no answer. The client itself tells it by its errors.
    #[doc(hidden)]
    pub async fn silent_for(&self, limit: Duration) -> Option<Silence> {
        loop {
            match self.caller.contact.silence() {
                Ok(Some(silence)) if silence.lasts >= limit => return Some(silence),
                Ok(_) => sleep(SILENCE_POLL).await,
                Err(Answered) => return None,
            }
        }
    }

    /// The configured endpoints: host:port.
    pub fn endpoints(&self) -> Vec<String> {
        self.caller.nodes.configured().map(|node| node.address.to_string()).collect()
    }
}

impl Builder {
    /// Limit of a call, retries included. Default: 10 s.
    pub fn call_limit(mut self, limit: Duration) -> Self {
        self.call_limit = limit;
        self
    }

    /// How long one node has to answer before the next one is asked. Default: 2 s.
    pub fn attempt_limit(mut self, limit: Duration) -> Self {
        self.attempt_limit = limit;
        self
    }

    /// Sends this bearer token with each request: the client then has the token's identity, and its sessions belong to it. A token that
    /// no header can carry lets [`Builder::build`] fail.
    pub fn token(mut self, token: &str) -> Self {
        self.credentials = Credentials::bearer(token);
        self
    }

    /// Sends the bearer token that this file has, blanks around it left out: now, and whenever another token was written to it. Within two
    /// seconds the client shows the new token, so the one before must be good for that long. Streams that are open keep the token that
    /// they were opened with, and open again with the new one when the cluster ends them. While the file is missing or has no token, the
    /// last one is shown. A file that cannot be read now lets [`Builder::build`] fail with [`Error::TokenFile`].
    ///
    /// ```no_run
    /// # fn example() -> Result<(), lockkeeper_client::Error> {
    /// let file = "/var/run/secrets/lockkeeper/token";
    /// let client = lockkeeper_client::Client::builder("10.0.0.1:7101").token_file(file).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn token_file(mut self, file: impl AsRef<Path>) -> Self {
        self.credentials = Credentials::in_file(file.as_ref());
        self
    }

    /// Asks before each request, in the task that makes it, for the trace that it belongs to: the value of `traceparent` (W3C Trace
    /// Context). With `None` the nodes may begin a trace by themselves. So the client needs no tracing library: a program that has one
    /// writes the context of its present span.
    ///
    /// ```no_run
    /// # fn present_span() -> Option<String> { None }
    /// # fn example() -> Result<(), lockkeeper_client::Error> {
    /// let client = lockkeeper_client::Client::builder("10.0.0.1:7101").traceparent(present_span).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn traceparent(mut self, present: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.trace_of = Some(Arc::new(present));
        self
    }

    /// The endpoints that it was made with.
    pub fn endpoints(&self) -> &str {
        &self.endpoints
    }

    /// Replaces the clock, for a simulation.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Replaces the network, for a simulation.
    pub fn connect(mut self, connect: Connect) -> Self {
        self.connect = connect;
        self
    }

    /// Connects by TLS, and trusts nodes whose certificates these files vouch for and name the hosts of the endpoints. With a certificate
    /// of its own, the client shows it, and is known to the cluster by the name in it. Before it connects again, it reads renewed files.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use lockkeeper_client::{Client, Tls, TlsFiles};
    ///
    /// let files = TlsFiles { ca: "ca.pem".into(), own: Some(("client-shop.pem".into(), "client-shop-key.pem".into())) };
    /// let client = Client::builder("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101").tls(&Tls::load(files)?).build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: &Tls) -> Self {
        let connector = TlsConnector::for_client(TcpConnector, tls.clone());
        self.is_secure = true;
        self.connect(Arc::new(move |endpoint: Endpoint| {
            let address = endpoint.uri().authority().map(ToString::to_string).unwrap_or_default();
            channel_of(endpoint, connector.clone(), &address)
        }))
    }

    /// Seeds the random numbers, for a simulation. Two clients with the same seed draw the same session ids.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the client. Fails with [`Error::Endpoint`], [`Error::BearerToken`] and [`Error::TokenFile`].
    pub fn build(self) -> Result<Client, Error> {
        let mut random = call::random(self.seed);
        let first = rand::Rng::random_range(&mut random, 0..usize::from(u16::MAX));
        let credentials = self.credentials?.with_trace_of(self.trace_of);
        let nodes = KnownNodes::new(&self.endpoints, self.connect, credentials.clone(), self.is_secure, first)?;
        credentials.follow();

        let caller = SharedCaller {
            nodes,
            clock: self.clock,
            random: std::sync::Mutex::new(random),
            call_limit: self.call_limit,
            attempt_limit: self.attempt_limit,
            contact: ClusterContact::default(),
        };
        Ok(Client { caller: Arc::new(caller), stale: false })
    }
}

impl fmt::Debug for Builder {
    /// Shows no credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoints, call_limit, attempt_limit, is_secure, .. } = self;
        let mut shown = f.debug_struct("Builder");
        shown.field("endpoints", endpoints).field("call_limit", call_limit).field("attempt_limit", attempt_limit);
        shown.field("is_secure", is_secure).finish_non_exhaustive()
    }
}
