//! A client process that takes until it is refused: the limits of the table are reached in every run, and those of the nodes for what is
//! under way ([`crowd`]) in some.
//!
//! It takes while faults strike, when the director lets it. Then it gives all back, or its sessions expire, so that the run can ask whether
//! the cluster serves everybody.

mod crowd;
mod refusals;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::{
    machine::{
        AtLeaseEnd, Compare, Key, KeyRange, Label, Lease, NewSession, Operand, Put, PutLease, Relation, Select,
        SessionId, Shows, TXN_BYTES_MAX, TXN_OPERATIONS_MAX, TXN_READS_MAX, Ttl, Txn, TxnOperation, Value,
    },
    proto::v1::{
        AcquireRequest, CloseSessionRequest, ForceReleaseRequest, OpenSessionRequest, RequestId, Want, acquire_request,
        locks_client::LocksClient, sessions_client::SessionsClient,
    },
    raft::messages::keyspace_client::KeyspaceClient,
    table::codec::transactions::write_txn,
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};

use crate::{clients, contenders::Contention, network};

use crowd::Crowd;
pub(crate) use refusals::RefusalJudge;

const LIMIT: Duration = Duration::from_millis(900);
/// The TTL of its sessions. If they cannot be closed, they expire this soon.
const TTL_MS: u32 = 1_200;
/// Sessions of one feast.
const SESSIONS_PER_FEAST: u32 = 6;
/// Requests at a time, and their rounds with one session at the most.
const BITES: u64 = 8;
const BITES_MAX: u64 = 40;
/// Transactions of a rush that put as much as they may, and those that look at it.
const RUSH_PUTS: usize = 4;
const RUSH_LOOKS: usize = 200;
/// Transactions that look at everything at once, and how often each does: 64 entries make the most that one may read.
const WIDE_LOOKS: usize = 16;
const LOOKS_AT_ALL: usize = 255;
/// Probability that a feast is about the work of one entry of the log, percent: it takes more luck than other limits.
const WORK: u32 = 25;
/// Probability that it is about what is under way at one moment, percent.
const CROWDS: u32 = 35;
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of a message to a node.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// What it takes more and more of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Appetite {
    Sessions,
    Entries,
    TemporaryEntries,
    /// Bytes of one session and of the table, by values of entries.
    Values,
    /// Bytes of one session and of the table, by data of locks.
    Data,
    Grants,
    Waits,
    /// Replies that the session must remember, since it never says that it has them.
    Replies,
    /// Grants that an operator takes, and that are not released.
    Taken,
    /// Entries in the ranges that one transaction deletes.
    Writes,
    /// Entries in the ranges that one transaction compares.
    Reads,
    /// Bytes that one transaction shows.
    Shown,
    /// Work of one entry of the log: ranges that have few entries when they are judged, and many when they are applied.
    Rush,
    /// Work of one entry of the log: many transactions of a few bytes, each of which visits as much as it may.
    WideLooks,
}

impl Appetite {
    /// What they take is the work of one entry of the log.
    const WORK: [Self; 2] = [Self::Rush, Self::WideLooks];

    const ALL: [Self; 14] = [
        Self::Sessions,
        Self::Entries,
        Self::TemporaryEntries,
        Self::Values,
        Self::Data,
        Self::Grants,
        Self::Waits,
        Self::Replies,
        Self::Taken,
        Self::Writes,
        Self::Reads,
        Self::Shown,
        Self::Rush,
        Self::WideLooks,
    ];
}

/// The client process of a run.
pub(crate) struct GreedyClientProcess {
    seats: u64,
    seed: u64,
    finish: CancellationToken,
    hungry: watch::Receiver<bool>,
    refusals: Arc<RefusalJudge>,
    /// What ZooKeeper's sessions complain to.
    contention: Arc<Contention>,
    generation: AtomicU32,
}

impl GreedyClientProcess {
    /// The name of its host.
    pub(crate) const HOST: &'static str = "greedy";

    pub(crate) fn new(
        seats: u64,
        seed: u64,
        finish: CancellationToken,
        hungry: watch::Receiver<bool>,
        refusals: Arc<RefusalJudge>,
        contention: Arc<Contention>,
    ) -> Self {
        Self { seats, seed, finish, hungry, refusals, contention, generation: AtomicU32::new(0) }
    }

    /// Takes, and gives back, until the run is over.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        let mut random = StdRng::seed_from_u64(self.seed ^ (u64::from(generation) << 20));
        let seats = 1..=self.seats;
        let clients = seats.clone().map(|seat| clients::channel(&network::seat_address(seat))).collect();
        let peers = seats.map(|seat| clients::channel(&network::peer_seat_address(seat))).collect();
        let mut guest = Guest {
            clients,
            peers,
            sessions: Vec::new(),
            has_rushed: false,
            hungry: self.hungry.clone(),
            refusals: Arc::clone(&self.refusals),
            contention: Arc::clone(&self.contention),
        };

        while !self.finish.is_cancelled() {
            if !guest.is_hungry() {
                guest.give_back().await;
                sleep(PAUSE).await;
                continue;
            }
            let luck = random.random_range(0..100);
            if luck < CROWDS {
                let crowd = *Crowd::ALL.choose(&mut random).expect("it is not empty");
                guest.crowd(crowd, &mut random).await;
            } else {
                let is_about_work = luck < CROWDS + WORK;
                let appetites = if is_about_work { &Appetite::WORK[..] } else { &Appetite::ALL[..] };
                let appetite = *appetites.choose(&mut random).expect("it is not empty");
                guest.feast(appetite, &mut random).await;
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

struct Guest {
    clients: Vec<Channel>,
    peers: Vec<Channel>,
    /// Its sessions.
    sessions: Vec<String>,
    /// Whether entries of a rush may be left.
    has_rushed: bool,
    hungry: watch::Receiver<bool>,
    refusals: Arc<RefusalJudge>,
    contention: Arc<Contention>,
}

impl Guest {
    fn is_hungry(&self) -> bool {
        *self.hungry.borrow()
    }

    fn channel(&self, place: u64) -> Channel {
        self.clients[place as usize % self.clients.len()].clone()
    }

    async fn give_back(&mut self) {
        let sessions = std::mem::take(&mut self.sessions);
        let closed = sessions.iter().zip(0..).map(async |(session, place)| {
            let message = CloseSessionRequest { session_id: session.clone(), reason: String::new() };
            timeout(LIMIT, SessionsClient::new(self.channel(place)).close_session(message)).await
        });
        join_all(closed).await;
        self.has_rushed = self.has_rushed && !self.end_rush().await;
    }

    /// Deletes what a rush has put. Returns whether nothing is left of it.
    async fn end_rush(&self) -> bool {
        for round in 0..RUSH_PUTS {
            // A transaction deletes no more than one has put.
            let [from, to] =
                [round, round + 1].map(|round| Key::new(rush_key(round * TXN_OPERATIONS_MAX).as_bytes()).ok());
            if self.commit(&txn(vec![TxnOperation::DeleteRange(KeyRange { from, to })])).await.is_err() {
                return false;
            }
        }
        true
    }

    async fn open(&self, place: u64) -> Result<String, Status> {
        let message = OpenSessionRequest { session_id: String::new(), ttl_ms: TTL_MS, label: String::new() };
        Ok(timed(SessionsClient::new(self.channel(place)).open(message)).await?.session_id)
    }

    /// Takes until a limit refuses it, with one session after the other: most limits are those of a session, others are the table's.
    async fn feast(&mut self, appetite: Appetite, random: &mut StdRng) {
        for _ in 0..SESSIONS_PER_FEAST {
            let Ok(session) = self.open(random.random_range(0..8)).await else { return };
            self.sessions.push(session.clone());
            if self.eat(appetite, &session, random).await {
                return;
            }
        }
    }

    /// Takes with this session. Returns whether the feast is over.
    async fn eat(&mut self, appetite: Appetite, session: &str, random: &mut StdRng) -> bool {
        if appetite == Appetite::Rush {
            self.has_rushed = true;
            self.rush().await;
            return true;
        }
        if appetite == Appetite::WideLooks {
            self.look_widely().await;
            return true;
        }
        let first: u64 = random.random_range(0..1_000_000);
        for round in 0..BITES_MAX {
            if !self.is_hungry() {
                return true;
            }
            if appetite == Appetite::Sessions {
                let opened = join_all((0..BITES).map(|place| self.open(place))).await;
                let is_over = opened.iter().any(|opened| opened.as_ref().is_err_and(is_limit));
                self.sessions.extend(opened.into_iter().flatten());
                if is_over {
                    return true;
                }
                continue;
            }
            let ids: Vec<u128> = (0..BITES).map(|_| random.random()).collect();
            let bites = (0..BITES).zip(ids).map(|(place, id)| {
                let number = first + round * BITES + place;
                self.bite(appetite, session, number, id)
            });
            let bitten = join_all(bites).await;
            if bitten.iter().any(|bitten| bitten.as_ref().is_err_and(is_limit)) {
                return false;
            }
        }
        false
    }

    async fn bite(&self, appetite: Appetite, session: &str, number: u64, id: u128) -> Result<(), Status> {
        let lease = u128::from_str_radix(session, 16).map_or(SessionId(id), SessionId);
        match appetite {
            Appetite::Sessions | Appetite::Rush | Appetite::WideLooks => Ok(()),
            Appetite::Entries => self.put(number, 0, lease).await,
            Appetite::Values => self.put(number, 4_000 << (number % 4), lease).await,
            Appetite::TemporaryEntries => self.commit(&temporary(number, SessionId(id))).await,
            Appetite::Grants => self.acquire(session, number, &format!("greedy/{number}"), None, false).await,
            Appetite::Data => self.acquire(session, number, &format!("greedy/{number}"), Some(15_000), false).await,
            Appetite::Waits => self.acquire(session, number, "greedy/awaited", None, true).await,
            Appetite::Replies => self.acquire(session, number, &format!("greedy/{}", number % 3), None, false).await,
            Appetite::Taken => {
                let name = format!("greedy/{number}");
                self.acquire(session, number, &name, None, false).await?;
                let message =
                    ForceReleaseRequest { name, reason: "it is taken".to_owned(), ..ForceReleaseRequest::default() };
                timed(LocksClient::new(self.channel(number)).force_release(message)).await.map(drop)
            }
            Appetite::Writes => {
                self.put_some(8, 0, lease).await?;
                let deletions = vec![TxnOperation::DeleteRange(under_h()); TXN_OPERATIONS_MAX];
                self.commit(&txn(deletions)).await
            }
            Appetite::Reads => {
                self.put_some(TXN_READS_MAX / TXN_OPERATIONS_MAX + 1, 0, lease).await?;
                self.commit(&compares_much()).await
            }
            Appetite::Shown => {
                let key = Key::new(b"h/shown").expect("it is short");
                let bytes = TXN_BYTES_MAX / TXN_OPERATIONS_MAX + 1;
                self.commit(&txn(vec![TxnOperation::Put(put("h/shown", bytes, lease))])).await?;
                self.commit(&txn(vec![TxnOperation::Get(key); TXN_OPERATIONS_MAX])).await
            }
        }
    }

    /// Puts many entries, and at the same moment looks at all of them many times. All of it reaches the leader, in this order.
    async fn rush(&self) {
        let put = |number| {
            let put = Put { lease: PutLease::None, ..put(&rush_key(number), 0, SessionId(0)) };
            TxnOperation::Put(put)
        };
        let puts = (0..RUSH_PUTS).map(|round| {
            let first = round * TXN_OPERATIONS_MAX;
            txn((first..first + TXN_OPERATIONS_MAX).map(put).collect())
        });
        let looks = (0..RUSH_LOOKS).map(|_| {
            let select = Select { range: under_i(), limit: 1, ..Select::default() };
            txn(vec![TxnOperation::Select(select)])
        });
        self.commit_all(puts.chain(looks)).await;
    }

    /// Looks at all entries that there are, as often as transactions may, at one moment.
    async fn look_widely(&self) {
        let select = Select { limit: 1, shows: Shows::Keys, ..Select::default() };
        let looks = txn(vec![TxnOperation::Select(select); LOOKS_AT_ALL]);
        self.commit_all(std::iter::repeat_n(looks, WIDE_LOOKS)).await;
    }

    /// Sends all of them to the leader at one moment, in this order.
    async fn commit_all(&self, txns: impl Iterator<Item = Txn>) {
        let Some(channel) = self.leader().await else { return };
        let sent = txns.map(|txn| {
            let mut client = KeyspaceClient::new(channel.clone()).max_encoding_message_size(MESSAGE_BYTES_MAX);
            async move { timed(client.commit(write_txn(&txn))).await.map(drop) }
        });
        join_all(sent).await;
    }

    /// The channel to the node that takes transactions.
    async fn leader(&self) -> Option<&Channel> {
        let probe = write_txn(&txn(vec![TxnOperation::Get(Key::new(b"i/").ok()?)]));
        for channel in &self.peers {
            if timed(KeyspaceClient::new(channel.clone()).commit(probe.clone())).await.is_ok() {
                return Some(channel);
            }
        }
        None
    }

    async fn put_some(&self, count: usize, bytes: usize, lease: SessionId) -> Result<(), Status> {
        let puts = (0..count).map(|place| TxnOperation::Put(put(&format!("h/some/{place}"), bytes, lease)));
        self.commit(&txn(puts.collect())).await
    }

    async fn put(&self, number: u64, bytes: usize, lease: SessionId) -> Result<(), Status> {
        self.commit(&txn(vec![TxnOperation::Put(put(&format!("h/{number}"), bytes, lease))])).await
    }

    /// Sends it to one node after the other, until one takes it.
    async fn commit(&self, txn: &Txn) -> Result<(), Status> {
        let mut answer = Err(Status::unavailable("there is no node"));
        for channel in &self.peers {
            let mut client = KeyspaceClient::new(channel.clone()).max_encoding_message_size(MESSAGE_BYTES_MAX);
            answer = timed(client.commit(write_txn(txn))).await.map(drop);
            match &answer {
                Err(status) if status.code() == Code::Unavailable => {}
                _ => break,
            }
        }
        answer
    }

    async fn acquire(
        &self,
        session: &str,
        number: u64,
        name: &str,
        data: Option<usize>,
        waits: bool,
    ) -> Result<(), Status> {
        let want = Want { name: name.to_owned(), data: data.map(|bytes| vec![3; bytes]), ..Want::default() };
        let message = AcquireRequest {
            session_id: session.to_owned(),
            request: Some(RequestId { id: number + 1, lowest: 1, kept: Vec::new() }),
            locks: vec![want],
            wait: waits.then_some(acquire_request::Wait::WaitMs(2_000)),
            lock_delay_ms: 0,
        };
        // An acquire that waits has no answer for now.
        let limit = if waits { PAUSE * 3 } else { LIMIT };
        let mut client = LocksClient::new(self.channel(number));
        match timeout(limit, client.acquire(message)).await {
            Ok(answer) => answer.map(drop),
            Err(_) if waits => Ok(()),
            Err(_) => Err(Status::deadline_exceeded("no answer")),
        }
    }
}

async fn timed<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Status> {
    let answer = timeout(LIMIT, call).await.map_err(|_| Status::deadline_exceeded("no answer"))?;
    answer.map(tonic::Response::into_inner)
}

fn is_limit(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted
}

fn put(key: &str, bytes: usize, session: SessionId) -> Put {
    let key = Key::new(key.as_bytes()).expect("it is short");
    let lease = PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete });
    Put { key, value: Value::from_log(&vec![4; bytes]), lease, claims: None }
}

/// The range of its entries.
fn under_h() -> KeyRange {
    let key = |key: &str| Some(Key::new(key.as_bytes()).expect("it is short"));
    KeyRange { from: key("h/"), to: key("h0") }
}

fn rush_key(number: usize) -> String {
    format!("i/{number:04}")
}

/// The range of the entries of a rush.
fn under_i() -> KeyRange {
    KeyRange { from: Key::new(b"i/").ok(), to: Key::new(b"i0").ok() }
}

fn txn(operations: Vec<TxnOperation>) -> Txn {
    Txn::from_log(Vec::new(), operations, Vec::new()).expect("it puts each key once")
}

/// A transaction that compares all its entries as often as a transaction may.
fn compares_much() -> Txn {
    let key = |key: &str| Key::new(key.as_bytes()).expect("it is short");
    let operand = Operand::Version(0);
    let compare = Compare { key: key("h/"), up_to: Some(key("h0")), relation: Relation::Greater, operand };
    Txn::from_log(vec![compare; TXN_OPERATIONS_MAX], Vec::new(), Vec::new()).expect("it puts nothing")
}

fn temporary(number: u64, session: SessionId) -> Txn {
    let ttl = Ttl::from_millis(TTL_MS).expect("it is in the bounds");
    let label = Label::new("").expect("it is short");
    let new = NewSession { session, ttl, label, address: None, owner: None };
    txn(vec![TxnOperation::Open(new), TxnOperation::Put(put(&format!("h/t/{number}"), 0, session))])
}
