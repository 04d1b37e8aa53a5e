//! The clients of a simulated run: the same workload as against real processes, with the real library.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use lockkeeper::{
    chaos::{
        record::{HistoryClock, HistorySink, Recorder},
        workload::{
            self, ATTEMPT_LIMIT, CALL_LIMIT, ClientParts,
            resource::{RegisterPlace, Registers},
        },
    },
    client::{self, Client, Connect},
    proto::v1::locks_client::LocksClient,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};

use crate::{network, system::SimulatedClock};

/// The lines of the history, shared by all recorders.
#[derive(Clone)]
pub(crate) struct Book {
    lines: Arc<Mutex<Vec<u8>>>,
}

impl Book {
    pub(crate) fn new() -> Self {
        Self { lines: Arc::default() }
    }

    /// A recorder for a process of this name.
    pub(crate) fn recorder(&self, process: &str) -> Recorder {
        let sink: HistorySink = Arc::new(Mutex::new(Page(Arc::clone(&self.lines))));
        Recorder::new(sink, process, HistoryClock::with_clock(&SimulatedClock))
    }

    /// All lines so far.
    pub(crate) fn lines(&self) -> Vec<u8> {
        self.lines.lock().expect("nothing panics while it has the lines").clone()
    }
}

/// The writer of one process into the book.
struct Page(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("nothing panics while it has the lines").extend_from_slice(bytes);
        crate::trace::say("history", format_args!("{}", String::from_utf8_lossy(bytes).trim_end()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// State shared by the client processes of a run.
pub(crate) struct Clients {
    pub(crate) count: u32,
    /// Number of endpoints.
    pub(crate) nodes: u64,
    pub(crate) seed: u64,
    pub(crate) book: Book,
    pub(crate) registers: Arc<Registers>,
    /// Tells the clients to end.
    pub(crate) finish: CancellationToken,
    /// Number of clients that ended normally.
    pub(crate) finished: AtomicUsize,
}

/// One client process and its successors.
pub(crate) struct Desk {
    pub(crate) number: u32,
    /// Number of starts: each start after a kill is a new process in the history.
    generation: AtomicU32,
    pub(crate) going: watch::Sender<bool>,
}

impl Desk {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, generation: AtomicU32::new(0), going: watch::Sender::new(true) }
    }

    /// The name of its host.
    pub(crate) fn host(&self) -> String {
        format!("client{}", self.number)
    }

    /// The current process's name in the history.
    pub(crate) fn name(&self) -> String {
        match self.generation.load(Ordering::Relaxed) {
            0 | 1 => format!("c{}", self.number),
            generation => format!("c{}.{generation}", self.number),
        }
    }

    /// Runs the workload until `finish`, or until it is killed.
    pub(crate) async fn work(self: Arc<Self>, clients: Arc<Clients>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let name = self.name();
        let seed = clients.seed ^ (u64::from(self.number) << 32) ^ (u64::from(generation) << 16);
        let parts = ClientParts {
            seed,
            clients: clients.count,
            client: client(clients.nodes, seed)?,
            nodes: (1..=clients.nodes).map(|seat| channel(&network::seat_address(seat))).collect(),
            place: RegisterPlace::Here(Arc::clone(&clients.registers)),
            recorder: clients.book.recorder(&name),
            going: self.going.subscribe(),
            name,
        };
        workload::run(parts, clients.finish.clone()).await;
        clients.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The client library, connected to the cluster.
pub(crate) fn client(nodes: u64, seed: u64) -> Result<Client, client::Error> {
    client_with(nodes, seed, Arc::new(network::dial))
}

/// The same with connections of its own kind.
pub(crate) fn client_with(nodes: u64, seed: u64, connect: Connect) -> Result<Client, client::Error> {
    let endpoints: Vec<_> = (1..=nodes).map(network::seat_address).collect();
    let builder = Client::builder(&endpoints.join(",")).call_limit(CALL_LIMIT).attempt_limit(ATTEMPT_LIMIT);
    builder.clock(Arc::new(SimulatedClock)).connect(connect).seed(seed).build()
}

/// A channel to one node, without the client library.
pub(crate) fn channel(address: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a simulated address makes a URL");
    network::dial(endpoint.connect_timeout(ATTEMPT_LIMIT))
}

/// True with this probability in percent.
pub(crate) fn percent(random: &mut StdRng, of_hundred: u32) -> bool {
    random.random_range(0..100) < of_hundred
}

/// What a client draws: its decisions, and the node for each of its calls.
pub(crate) struct Draws {
    pub(crate) random: StdRng,
    channels: Vec<Channel>,
}

impl Draws {
    /// Of a cluster with this number of nodes.
    pub(crate) fn new(nodes: u64, seed: u64) -> Self {
        let channels = (1..=nodes).map(|seat| channel(&network::seat_address(seat))).collect();
        Self { random: StdRng::seed_from_u64(seed), channels }
    }

    /// True with this probability in percent.
    pub(crate) fn percent(&mut self, of_hundred: u32) -> bool {
        percent(&mut self.random, of_hundred)
    }

    pub(crate) fn channel(&mut self) -> Channel {
        self.channels.choose(&mut self.random).expect("there is a node").clone()
    }

    pub(crate) fn locks(&mut self) -> LocksClient<Channel> {
        LocksClient::new(self.channel())
    }
}
