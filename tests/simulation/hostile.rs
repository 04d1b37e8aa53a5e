//! A client that sends values at the edges of what is documented: the least, the most, one below and one above each.
//!
//! The fields of `lockkeeper.v1` and of the keyspace that have limits are those of [`fields`]. What is within its limit must not be refused
//! for it, and what is beyond must be, by the documented kind of error, which names the field. Whatever reaches the log, every node must
//! apply: that is judged elsewhere. The limits of a session and of the table have a client of their own: see [`greed`](crate::greed).
//!
//! All edges are tried in rounds. In the first seconds of a run one sender tries a few of them, so that short runs stay cheap. Then some
//! senders hurry, until an answer has decided each edge twice. A long run in which no answer has decided some edge is vacuous.

mod fields;
mod walk;

use std::{
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::{
    machine::{
        AtLeaseEnd, Compare, EntryDeadline, Invalid, Key, Label, Lease, Lifetime, LockName, NewSession, Operand, Put,
        PutClaim, PutLease, REPLIES_PER_SESSION_MAX, Relation, SessionId, Ttl, Txn, TxnOperation, VALUE_BYTES_MAX,
        Value,
    },
    proto::v1::{
        AcquireRequest, CloseSessionRequest, DropDataRequest, ForceReleaseRequest, Mode, OpenSessionRequest,
        OpenSessionResponse, RenewSessionRequest, RequestId, ResizeRequest, Want, WatchRequest, acquire_request,
        mode::{Kind, Permit},
        sessions_client::SessionsClient,
    },
    raft::messages::keyspace_client::KeyspaceClient,
    server::DOMAIN,
    table::codec::transactions::write_txn,
};
use rand::Rng as _;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt as _;

use crate::{
    clients::{self, Draws},
    keyspace::judge::Judge,
    network,
};
use fields::{
    AcquireField, BEGINNING, EntryField, FieldLimit, HostileField, OperatorField, SessionField, sendable_edges,
};
use walk::{DECISIONS, EdgeWalk};

/// Before the fields, among the counts of a run.
const COUNTED: &str = "edge of ";
const LIMIT: Duration = Duration::from_millis(900);
/// The same for a request of hundreds of kilobytes.
const HEAVY_LIMIT: Duration = Duration::from_secs(2);
/// Between two requests of a sender, milliseconds; and while it hurries.
const PAUSE_MS: Range<u64> = 100..700;
const HURRIED_PAUSE_MS: Range<u64> = 20..120;
/// From this time of a run on, its senders hurry. Short runs end before.
const HURRY_AFTER: Duration = Duration::from_secs(20);
/// Senders that hurry.
const SENDERS: u64 = 4;
/// A run with as much time for faults must decide each edge.
const LONG_RUN: Duration = Duration::from_secs(60);
/// The TTL of its sessions. If they cannot be closed, they expire this soon.
const USUAL_TTL_MS: u32 = 1_500;
/// How often a request of hundreds of kilobytes is sent by a sender that does not hurry, percent.
const HEAVY: u32 = 25;
/// Bytes of a message to a node.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// What a batch of runs must have sent.
pub(crate) fn all() -> impl Iterator<Item = String> {
    sendable_edges().map(|(limit, size)| counted(limit, size))
}

/// What a run of this duration needs, and lacks by its counts.
pub(crate) fn missing(counts: &[(String, u64)], duration: Duration) -> Option<String> {
    if duration < LONG_RUN {
        return None;
    }
    let undecided: Vec<_> = all().filter(|edge| counts.iter().all(|(what, _)| what != edge)).collect();
    (!undecided.is_empty()).then(|| format!("edges were not decided: {undecided:?}"))
}

fn counted(limit: &FieldLimit, size: u64) -> String {
    let outcome = if limit.allows(size) { "accepted" } else { "refused" };
    format!("{COUNTED}{} of {size} {outcome}", limit.name)
}

/// Sends all edges, by one sender or by some.
pub(crate) struct EdgeClient {
    seats: u64,
    seed: u64,
    judge: Arc<Judge>,
}

impl EdgeClient {
    pub(crate) fn new(seats: u64, seed: u64, judge: Arc<Judge>) -> Self {
        Self { seats, seed, judge }
    }

    /// Sends requests until the run is over.
    pub(crate) async fn work(self, finish: &CancellationToken) {
        let walk = Mutex::new(EdgeWalk::new(self.seed ^ 0x3a1c));
        let senders = (0..SENDERS).map(|number| EdgeSender::new(&self, number, &walk).work(finish));
        join_all(senders).await;
    }
}

/// Sends edges, one after the other.
struct EdgeSender<'a> {
    /// The first sender works for the whole run, the others while it hurries.
    is_first: bool,
    began: Instant,
    walk: &'a Mutex<EdgeWalk>,
    judge: Arc<Judge>,
    draws: Draws,
    peers: Vec<Channel>,
    /// The place of the node that took a transaction last.
    leader: usize,
}

impl<'a> EdgeSender<'a> {
    fn new(client: &EdgeClient, number: u64, walk: &'a Mutex<EdgeWalk>) -> Self {
        let EdgeClient { seats, seed, judge } = client;
        Self {
            is_first: number == 0,
            began: Instant::now(),
            walk,
            judge: Arc::clone(judge),
            draws: Draws::new(*seats, seed ^ (number << 40)),
            peers: (1..=*seats).map(|seat| clients::channel(&network::peer_seat_address(seat))).collect(),
            leader: 0,
        }
    }

    fn walk(&self) -> MutexGuard<'a, EdgeWalk> {
        self.walk.lock().expect("nothing panics while it has the walk")
    }

    async fn work(mut self, finish: &CancellationToken) {
        let is_over = !self.is_first && timeout(HURRY_AFTER, finish.cancelled()).await.is_ok();
        while !is_over && !finish.is_cancelled() {
            let is_hurried = self.began.elapsed() >= HURRY_AFTER && self.walk().is_hurried();
            if !self.is_first && !is_hurried {
                return;
            }

            self.ask(is_hurried).await;
            let pause = self.draws.random.random_range(if is_hurried { HURRIED_PAUSE_MS } else { PAUSE_MS });
            sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Tries the edge that has its turn.
    async fn ask(&mut self, is_hurried: bool) {
        let place = self.walk().take();
        let (limit, size) = self.edge(place);
        let is_sent = is_hurried || !limit.is_heavy() || self.draws.percent(HEAVY);
        let is_decided = is_sent && self.try_edge(limit, size).await;

        let decided = self.walk().settle(place, is_decided);
        if is_decided {
            self.judge.count("edges decided");
        }
        if is_decided && decided == DECISIONS {
            self.judge.count("edges decided twice");
        }
    }

    fn edge(&self, place: usize) -> (&'static FieldLimit, u64) {
        let walk = self.walk();
        let edge = walk.edge(place);
        (edge.limit, edge.size)
    }

    /// Sends a request with this size of this field, and returns whether its answer decides.
    async fn try_edge(&mut self, limit: &FieldLimit, size: u64) -> bool {
        let session = if limit.needs_session() {
            let opened = timeout(LIMIT, self.open(String::new(), USUAL_TTL_MS, String::new())).await;
            let Ok(Ok(OpenSessionResponse { session_id, .. })) = opened else { return false };
            session_id
        } else {
            // Nobody has this session, and the request does not name it.
            format!("{:032x}", self.draws.random.random::<u128>())
        };

        let time = if limit.is_heavy() { HEAVY_LIMIT } else { LIMIT };
        let answer = timeout(time, self.send(limit.field, size, &session)).await;
        // Without an answer nothing is known.
        let is_decided = answer.is_ok_and(|answer| self.note(limit, size, answer.err().as_ref()));
        if limit.needs_session() {
            // If nobody hears it, the session expires.
            let _ = timeout(LIMIT, self.close(&session, String::new())).await;
        }
        is_decided
    }

    /// Judges an answer, and returns whether it decides. There is no status if the request was carried out.
    fn note(&self, limit: &FieldLimit, size: u64, status: Option<&Status>) -> bool {
        let FieldLimit { name, refused_as, least, most, .. } = *limit;
        let is_within = limit.allows(size);
        let what = format!("{name} of {size}, where {least} to {most} are allowed");
        let Some(status) = status else {
            if is_within {
                self.judge.count(&counted(limit, size));
            } else {
                self.judge.complain(format!("{what}, was accepted"));
            }
            return true;
        };

        let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
        let value = |key: &str| info.as_ref().and_then(|info| info.metadata.get(key)).map_or("", String::as_str);
        let is_final = value("retry") == "no";
        match (status.code(), is_within) {
            (Code::InvalidArgument, false) if value("field") == refused_as => self.judge.count(&counted(limit, size)),
            (Code::InvalidArgument, _) => self.judge.complain(format!("{what}, was refused: {}", status.message())),
            // Another limit may be reached, and what was asked for may not be there: its form was right.
            (_, true) if is_final => self.judge.count(&counted(limit, size)),
            (_, false) if is_final => {
                self.judge.complain(format!("{what}, was refused for another reason: {}", status.message()));
            }
            // It was not looked at.
            _ => return false,
        }
        true
    }

    async fn send(&mut self, field: HostileField, size: u64, session: &str) -> Result<(), Status> {
        match field {
            HostileField::Acquire(field) => self.acquire(field, size, session).await,
            HostileField::Session(field) => self.use_session(field, size, session).await,
            HostileField::Operator(field) => self.operate(field, size, session).await,
            HostileField::Entry(field) => {
                let id = u128::from_str_radix(session, 16).map(SessionId);
                let id = id.map_err(|error| Status::unknown(error.to_string()))?;
                self.commit(field, size, id).await
            }
        }
    }

    async fn open(&mut self, session_id: String, ttl_ms: u32, label: String) -> Result<OpenSessionResponse, Status> {
        let message = OpenSessionRequest { session_id, ttl_ms, label };
        Ok(SessionsClient::new(self.draws.channel()).open(message).await?.into_inner())
    }

    async fn close(&mut self, session: &str, reason: String) -> Result<(), Status> {
        let message = CloseSessionRequest { session_id: session.to_owned(), reason };
        SessionsClient::new(self.draws.channel()).close_session(message).await.map(drop)
    }

    async fn acquire(&mut self, field: AcquireField, size: u64, session: &str) -> Result<(), Status> {
        let name = format!("{BEGINNING}{field:?}");
        let mut message = AcquireRequest {
            session_id: session.to_owned(),
            locks: vec![Want { name: name.clone(), ..Want::default() }],
            ..AcquireRequest::default()
        };

        match field {
            AcquireField::Name => message.locks[0].name = text(size),
            AcquireField::Data => message.locks[0].data = Some(vec![6; number(size)]),
            AcquireField::Wants => {
                let want = |place| Want { name: format!("{name}/{place}"), ..Want::default() };
                message.locks = (0..size).map(want).collect();
            }
            AcquireField::Permits => message.locks[0].mode = Some(permits(small(size))),
            AcquireField::Wait => message.wait = Some(acquire_request::Wait::WaitMs(size)),
            AcquireField::LockDelay => message.lock_delay_ms = small(size),
            AcquireField::Kept => {
                let id = 2 * REPLIES_PER_SESSION_MAX as u64;
                message.request = Some(RequestId { id, lowest: id, kept: (1..=size).collect() });
            }
        }
        self.draws.locks().acquire(message).await.map(drop)
    }

    async fn use_session(&mut self, field: SessionField, size: u64, session: &str) -> Result<(), Status> {
        match field {
            SessionField::Id => {
                let message = RenewSessionRequest { session_id: "7".repeat(number(size)) };
                SessionsClient::new(self.draws.channel()).renew(message).await.map(drop)
            }
            SessionField::Ttl => {
                let opened = self.open(String::new(), small(size), String::new()).await?;
                // It may live for a day.
                self.close(&opened.session_id, String::new()).await
            }
            SessionField::Label => {
                let opened = self.open(String::new(), USUAL_TTL_MS, text(size)).await?;
                self.close(&opened.session_id, String::new()).await
            }
            SessionField::CloseReason => self.close(session, text(size)).await,
        }
    }

    async fn operate(&mut self, field: OperatorField, size: u64, session: &str) -> Result<(), Status> {
        let name = format!("{BEGINNING}{field:?}");
        let mut locks = self.draws.locks();
        match field {
            OperatorField::ForceReason => {
                self.hold(&name, None, session).await?;
                let reason = text(size);
                let message = ForceReleaseRequest { name, reason, now: true, ..ForceReleaseRequest::default() };
                locks.force_release(message).await.map(drop)
            }
            OperatorField::WatchPrefix => {
                let mut stream = locks.watch(WatchRequest { prefix: text(size), after_index: 0 }).await?.into_inner();
                stream.message().await.map(drop)
            }
            OperatorField::DropPrefix => {
                locks.drop_data(DropDataRequest { prefix: text(size), after: String::new() }).await.map(drop)
            }
            OperatorField::Permits => {
                self.hold(&name, Some(permits(3)), session).await?;
                locks.resize(ResizeRequest { name, permits: small(size) }).await.map(drop)
            }
        }
    }

    /// Acquires a lock, by values that are allowed.
    async fn hold(&mut self, name: &str, mode: Option<Mode>, session: &str) -> Result<(), Status> {
        let want = Want { name: name.to_owned(), mode, ..Want::default() };
        let locks = vec![want];
        let message = AcquireRequest { session_id: session.to_owned(), locks, ..AcquireRequest::default() };
        let held = self.draws.locks().acquire(message).await;
        // What is refused here says nothing about what comes next.
        held.map(drop).map_err(|status| Status::unavailable(status.message()))
    }

    async fn commit(&mut self, field: EntryField, size: u64, session: SessionId) -> Result<(), Status> {
        let opened = SessionId(self.draws.random.random());
        let txn = txn(field, size, session, opened).map_err(|invalid| Status::unknown(invalid.to_string()))?;
        self.commit_at_leader(&txn).await?;

        if field == EntryField::OpenedTtl {
            // The transaction was carried out, whether this is heard or not.
            let _ = self.close(&opened.to_string(), String::new()).await;
        }
        Ok(())
    }

    /// Sends a transaction to one node after the other, until one takes it: at this port, followers take none.
    async fn commit_at_leader(&mut self, txn: &Txn) -> Result<(), Status> {
        let message = write_txn(txn);
        let mut refused = Status::unavailable("there is no node");
        for _ in 0..self.peers.len() {
            let place = self.leader;
            // If no answer comes in time, the next transaction goes to the next node.
            self.leader = (place + 1) % self.peers.len();

            let client = KeyspaceClient::new(self.peers[place].clone());
            let mut client = client.max_encoding_message_size(MESSAGE_BYTES_MAX);
            match client.commit(message.clone()).await {
                Err(status) if status.code() == Code::Unavailable => refused = status,
                answer => {
                    self.leader = place;
                    return answer.map(drop);
                }
            }
        }
        Err(refused)
    }
}

/// A transaction in which this part has this size. What it puts ends with the session, which the client has, or with the one that it opens.
fn txn(field: EntryField, size: u64, session: SessionId, opened: SessionId) -> Result<Txn, Invalid> {
    let key = Key::from_log(format!("{BEGINNING}{field:?}").as_bytes())?;
    let lease = |session| PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete });
    let put = Put { key: key.clone(), value: Value::default(), lease: lease(session), claims: None };
    let open = |ttl_ms, label: &str| {
        let ttl = Ttl::from_log(ttl_ms)?;
        let label = Label::from_log(label);
        let new = NewSession { session: opened, ttl, label, address: None, owner: None };
        Ok::<_, Invalid>(vec![TxnOperation::Open(new), TxnOperation::Put(Put { lease: lease(opened), ..put.clone() })])
    };

    let mut compares = Vec::new();
    let operations = match field {
        EntryField::Key => vec![TxnOperation::Put(Put { key: Key::from_log(text(size).as_bytes())?, ..put })],
        EntryField::Value => vec![TxnOperation::Put(Put { value: value(number(size)), ..put })],
        EntryField::Lifetime => {
            let lease = PutLease::Until(EntryDeadline::After(Lifetime::from_log(size)?));
            vec![TxnOperation::Put(Put { lease, ..put })]
        }
        EntryField::Compares => {
            let compare = Compare { key, up_to: None, relation: Relation::Equal, operand: Operand::Version(0) };
            compares = vec![compare; number(size)];
            vec![TxnOperation::Put(put)]
        }
        EntryField::Operations => vec![TxnOperation::Get(key); number(size)],
        EntryField::Bytes => {
            compares = compares_of(number(size) - key.as_bytes().len(), &key);
            vec![TxnOperation::Put(put)]
        }
        EntryField::ClaimedLock => {
            let lock = LockName::from_log(&text(size))?;
            vec![TxnOperation::Put(Put { claims: Some(PutClaim { lock, label: Label::default() }), ..put })]
        }
        EntryField::OpenedTtl => open(small(size), "")?,
        EntryField::OpenedLabel => open(USUAL_TTL_MS, &text(size))?,
    };
    Txn::from_log(compares, operations, Vec::new()).map_err(|invalid| Invalid::new(invalid.to_string()))
}

/// Compares whose keys and values have this many bytes together. None of them holds, so that nothing of it stays in the table.
fn compares_of(bytes: usize, key: &Key) -> Vec<Compare> {
    let key_bytes = key.as_bytes().len();
    let mut left = bytes;
    let mut compares = Vec::new();
    while left > key_bytes {
        let of_value = (left - key_bytes).min(VALUE_BYTES_MAX / 2);
        left -= key_bytes + of_value;
        let operand = Operand::Value(value(of_value));
        compares.push(Compare { key: key.clone(), up_to: None, relation: Relation::Equal, operand });
    }
    compares
}

fn value(bytes: usize) -> Value {
    Value::from_log(&vec![5; bytes])
}

fn permits(limit: u32) -> Mode {
    Mode { kind: Some(Kind::Permit(Permit { limit })) }
}

/// A text of this many bytes.
fn text(size: u64) -> String {
    let size = number(size);
    let mut text: String = BEGINNING.chars().take(size).collect();
    text.extend(std::iter::repeat_n('h', size - text.len()));
    text
}

fn number(size: u64) -> usize {
    usize::try_from(size).expect("what is counted or has bytes has a small limit")
}

fn small(size: u64) -> u32 {
    u32::try_from(size).expect("the limits of such numbers are far below the greatest one")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a refusal would be for another reason, or an edge would not be one.
    #[test]
    fn transactions_are_within_their_limits_or_beyond_them() {
        let [session, opened] = [1, 2].map(SessionId);
        for (limit, size) in sendable_edges() {
            let HostileField::Entry(field) = limit.field else { continue };
            let txn = txn(field, size, session, opened).expect("it has the form of a transaction");
            assert_eq!(txn.check_limits().is_ok(), limit.allows(size), "{} of {size}", limit.name);
        }
    }

    #[test]
    fn a_long_run_lacks_each_edge_that_it_has_not_decided() {
        let mut counts: Vec<_> = all().map(|edge| (edge, 1)).collect();
        assert_eq!(missing(&counts, LONG_RUN), None);

        let (edge, _) = counts.pop().expect("there are edges");
        assert!(missing(&counts, LONG_RUN).is_some_and(|missing| missing.contains(&edge)));
        assert_eq!(missing(&counts, LONG_RUN / 2), None);
    }

    #[test]
    fn texts_have_their_length() {
        assert_eq!([0, 3, 8, 600].map(|size| text(size).len()), [0, 3, 8, 600]);
    }
}
