//! etcd: a put if absent with a lease, or its Lock API.
//!
//! The messages that are used are declared here, so a build needs neither etcd's sources nor `protoc`.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::{
    sync::{OnceCell, mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::{
    CONNECTIONS,
    peer::{Hand, Lease, Peer, Servers, Watched},
};

/// How long a watcher may take to be told of a change.
const WATCH_LIMIT: Duration = Duration::from_secs(10);
/// TTL of leases that must not expire.
const LONG_S: i64 = 3_600;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The usual pattern: a transaction that puts a key if absent.
    Transaction,
    /// etcd's lock service: fair.
    LockApi,
}

pub(crate) struct Etcd {
    servers: Servers,
    way: Way,
    pool: OnceCell<Vec<Client>>,
}

impl Etcd {
    pub(crate) fn new(servers: Servers, way: Way) -> Self {
        Self { servers, way, pool: OnceCell::new() }
    }

    async fn connect(&self, node: usize) -> Result<Client> {
        Client::connect(&self.servers.endpoints[node]).await
    }

    async fn pool(&self) -> Result<&Vec<Client>> {
        let connect = || async {
            let leader = self.leader().await?;
            try_join_all((0..CONNECTIONS).map(|_| self.connect(leader))).await
        };
        self.pool.get_or_try_init(connect).await
    }

    async fn to_all_nodes(&self) -> Result<Vec<Client>> {
        let nodes = self.servers.endpoints.len();
        try_join_all((0..CONNECTIONS).map(|place| self.connect(place % nodes))).await
    }

    async fn hand_of(&self, mut client: Client) -> Result<Box<dyn Hand>> {
        let lease = client.lease(LONG_S).await?;
        Ok(Box::new(EtcdHand { client, lease, way: self.way }))
    }
}

/// A connection to one node.
#[derive(Clone)]
struct Client(Grpc<Channel>);

impl Client {
    async fn connect(endpoint: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{endpoint}"))?;
        Ok(Self(Grpc::new(endpoint.tcp_nodelay(true).connect().await?)))
    }

    async fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        self.0.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = self.0.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await?;
        Ok(answer.into_inner())
    }

    async fn lease(&mut self, ttl_s: i64) -> Result<i64> {
        let granted: LeaseGranted = self.call("/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl_s }).await?;
        Ok(granted.id)
    }

    /// Begins a watch. From then on its task sends a word for each event, until the watch ends or nobody listens.
    async fn watch(mut self, name: &str, told: mpsc::Sender<()>) -> Result<()> {
        self.0.ready().await?;
        let (requests, receiver) = mpsc::channel(1);
        let create = WatchCreate { key: name.into() };
        requests.send(Watch { create: Some(create) }).await?;
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let request = tonic::Request::new(ReceiverStream::new(receiver));
        let answers = self.0.streaming(request, path, ProstCodec::<Watch, Seen>::default()).await?;
        let mut answers = answers.into_inner();
        let first = answers.message().await?.context("the watch ended at once")?;
        ensure!(first.created, "the first answer of a watch is {first:?}");
        tokio::spawn(async move {
            // The watch lives as long as its requests.
            let _requests = requests;
            while let Ok(Some(seen)) = answers.message().await {
                for _ in &seen.events {
                    if told.send(()).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(())
    }

    async fn get(&mut self, name: &str) -> Result<Found> {
        self.call("/etcdserverpb.KV/Range", Key { key: name.into() }).await
    }
}

struct EtcdHand {
    client: Client,
    lease: i64,
    way: Way,
}

#[tonic::async_trait]
impl Hand for EtcdHand {
    async fn acquire(&mut self, name: &str) -> Result<Vec<u8>> {
        if self.way == Way::LockApi {
            let lock = Lock { name: name.into(), lease: self.lease };
            let locked: Locked = self.client.call("/v3lockpb.Lock/Lock", lock).await?;
            return Ok(locked.key);
        }
        let done: Done = self.client.call("/etcdserverpb.KV/Txn", Transaction::put_if_absent(name, self.lease)).await?;
        match done.succeeded {
            true => Ok(name.into()),
            false => bail!("key {name} exists"),
        }
    }

    async fn release(&mut self, _name: &str, grant: Vec<u8>) -> Result<()> {
        let path = match self.way {
            Way::LockApi => "/v3lockpb.Lock/Unlock",
            Way::Transaction => "/etcdserverpb.KV/DeleteRange",
        };
        let Ignored {} = self.client.call(path, Key { key: grant }).await?;
        Ok(())
    }

    async fn is_held(&mut self, name: &str) -> Result<bool> {
        // Linearizable by default.
        Ok(self.client.get(name).await?.count > 0)
    }
}

#[tonic::async_trait]
impl Peer for Etcd {
    async fn hand(&self, worker: usize) -> Result<Box<dyn Hand>> {
        self.hand_of(self.pool().await?[worker % CONNECTIONS].clone()).await
    }

    async fn hand_at(&self, node: usize) -> Result<Box<dyn Hand>> {
        self.hand_of(self.connect(node).await?).await
    }

    async fn leases(&self, count: usize, ttl: Duration, spread: bool) -> Result<Vec<Box<dyn Lease>>> {
        let pool = self.pool().await?;
        let leader = self.leader().await?;
        let node = |place: usize| if spread { place % self.servers.endpoints.len() } else { leader };
        let open = |place| Stream::open(&self.servers.endpoints[node(place)]);
        let streams = try_join_all((0..CONNECTIONS).map(open)).await?;
        let grant = |place: usize| {
            let mut client = pool[place].clone();
            async move {
                let mut ids = Vec::new();
                for _ in (place..count).step_by(CONNECTIONS) {
                    ids.push(client.lease(ttl.as_secs().try_into()?).await?);
                }
                Ok::<_, anyhow::Error>(ids)
            }
        };
        let ids = try_join_all((0..CONNECTIONS).map(grant)).await?;
        let leases = ids.into_iter().zip(streams).flat_map(|(ids, stream)| {
            ids.into_iter().map(move |id| Box::new(EtcdLease { id, stream: stream.clone() }) as Box<dyn Lease>)
        });
        Ok(leases.collect())
    }

    async fn watched(&self, name: &str, watchers: usize) -> Result<Box<dyn Watched>> {
        let connections = self.to_all_nodes().await?;
        let (told, tells) = mpsc::channel(watchers);
        let begin = |place: usize| connections[place % CONNECTIONS].clone().watch(name, told.clone());
        try_join_all((0..watchers).map(begin)).await?;
        let client = self.pool().await?[0].clone();
        Ok(Box::new(EtcdWatched { client, name: name.to_owned(), watchers, tells, changes: 0 }))
    }

    async fn watch_others(&self, watches: usize) -> Result<()> {
        if watches == 0 {
            return Ok(());
        }
        let connections = self.to_all_nodes().await?;
        let (told, _) = mpsc::channel(1);
        let begin = |number: usize| {
            let (client, told) = (connections[number % CONNECTIONS].clone(), told.clone());
            async move { client.watch(&format!("/others/{number:08}"), told).await }
        };
        // Not all at once: a connection has a limit of calls that are being opened.
        for first in (0..watches).step_by(CONNECTIONS) {
            try_join_all((first..watches.min(first + CONNECTIONS)).map(begin)).await?;
        }
        Ok(())
    }

    async fn leader(&self) -> Result<usize> {
        for _ in 0..100 {
            for node in 0..self.servers.endpoints.len() {
                let status = async {
                    let mut client = self.connect(node).await?;
                    client.call::<_, Status>("/etcdserverpb.Maintenance/Status", Ignored {}).await
                };
                if let Ok(Ok(status)) = timeout(Duration::from_millis(500), status).await
                    && status.leader != 0
                    && status.header.is_some_and(|header| header.member == status.leader)
                {
                    return Ok(node);
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!("no etcd node leads")
    }

    async fn is_ready(&self, node: usize) -> bool {
        let read = async { self.connect(node).await?.get("ready").await };
        matches!(timeout(Duration::from_millis(500), read).await, Ok(Ok(_)))
    }
}

/// A keep-alive stream for many leases, as in etcd's own client.
#[derive(Clone)]
struct Stream {
    requests: mpsc::Sender<KeepAlive>,
    waiting: Arc<Mutex<HashMap<i64, oneshot::Sender<i64>>>>,
}

struct EtcdLease {
    id: i64,
    stream: Stream,
}

impl Stream {
    async fn open(endpoint: &str) -> Result<Self> {
        let Client(mut grpc) = Client::connect(endpoint).await?;
        grpc.ready().await?;
        let (requests, receiver) = mpsc::channel(1_024);
        let waiting: Arc<Mutex<HashMap<i64, oneshot::Sender<i64>>>> = Arc::default();
        let stream = Self { requests, waiting: waiting.clone() };
        tokio::spawn(async move {
            let codec = ProstCodec::<KeepAlive, KeptAlive>::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive");
            let request = tonic::Request::new(ReceiverStream::new(receiver));
            if let Ok(answers) = grpc.streaming(request, path, codec).await {
                let mut answers = answers.into_inner();
                while let Ok(Some(answer)) = answers.message().await {
                    let waits = waiting.lock().expect("no holder of the mutex panics").remove(&answer.id);
                    // The caller may be gone.
                    let _ = waits.map(|waits| waits.send(answer.ttl_s));
                }
            }
            waiting.lock().expect("no holder of the mutex panics").clear();
        });
        Ok(stream)
    }
}

#[tonic::async_trait]
impl Lease for EtcdLease {
    async fn renew(&mut self) -> Result<()> {
        let (sender, answer) = oneshot::channel();
        self.stream.waiting.lock().expect("no holder of the mutex panics").insert(self.id, sender);
        self.stream.requests.send(KeepAlive { id: self.id }).await?;
        match answer.await.context("the keep-alive stream ended")? {
            ..=0 => bail!("lease {} has expired", self.id),
            1.. => Ok(()),
        }
    }
}

struct EtcdWatched {
    client: Client,
    name: String,
    watchers: usize,
    /// A word for each event of each watcher.
    tells: mpsc::Receiver<()>,
    changes: u64,
}

#[tonic::async_trait]
impl Watched for EtcdWatched {
    async fn change(&mut self) -> Result<()> {
        self.changes += 1;
        let put = Put { key: self.name.clone().into(), value: self.changes.to_string().into(), lease: 0 };
        let Ignored {} = self.client.call("/etcdserverpb.KV/Put", put).await?;
        for told in 0..self.watchers {
            let next = timeout(WATCH_LIMIT, self.tells.recv()).await;
            next.with_context(|| format!("{told} of {} watchers were told within {WATCH_LIMIT:?}", self.watchers))?
                .context("all watches ended")?;
        }
        Ok(())
    }
}

// The etcd messages that are used.

#[derive(Clone, PartialEq, Message)]
struct Ignored {}

#[derive(Clone, PartialEq, Message)]
struct Key {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Found {
    #[prost(int64, tag = "4")]
    count: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "1")]
    result: i32,
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Transaction {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
struct Done {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrant {
    #[prost(int64, tag = "1")]
    ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGranted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeepAlive {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct KeptAlive {
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Watch {
    #[prost(message, optional, tag = "1")]
    create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
struct Seen {
    #[prost(bool, tag = "3")]
    created: bool,
    #[prost(message, repeated, tag = "11")]
    events: Vec<Ignored>,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = "2")]
    member: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

impl Transaction {
    fn put_if_absent(name: &str, lease: i64) -> Self {
        const EQUAL: i32 = 0;
        const CREATE: i32 = 1;
        let key: Vec<u8> = name.into();
        let put = Put { key: key.clone(), value: b"me".to_vec(), lease };
        Self {
            compare: vec![Compare { result: EQUAL, target: CREATE, key, create_revision: Some(0) }],
            success: vec![Operation { put: Some(put) }],
        }
    }
}
