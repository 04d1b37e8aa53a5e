//! A client that sends values at the edges of what is documented: the least, the most, one below and one above each.
//!
//! Each field of `lockkeeper.v1` and of the keyspace that has a limit is a row of [`LIMITS`]. What is within its limit must not be refused
//! for it, and what is beyond must be, by the documented kind of error, which names the field. Whatever reaches the log, every node must
//! apply: that is judged elsewhere. The limits of a session and of the table have a client of their own: see [`greed`](crate::greed).

use std::{sync::Arc, time::Duration};

use lockkeeper::{
    machine::{
        AtLeaseEnd, Compare, DATA_BYTES_MAX, EntryDeadline, Invalid, KEY_BYTES_MAX, Key, LABEL_BYTES_MAX,
        LIFETIME_MS_MAX, LOCK_DELAY_MS_MAX, Label, Lease, Lifetime, LockName, NAME_BYTES_MAX, NewSession, Operand,
        PERMITS_MAX, Put, PutClaim, PutLease, REASON_BYTES_MAX, REPLIES_PER_SESSION_MAX, Relation, SessionId,
        TTL_MS_MAX, TTL_MS_MIN, TXN_BYTES_MAX, TXN_OPERATIONS_MAX, Ttl, Txn, TxnOperation, VALUE_BYTES_MAX, Value,
        WAIT_MS_MAX, WANTS_MAX,
    },
    proto::v1::{
        AcquireRequest, CloseSessionRequest, DropDataRequest, ForceReleaseRequest, Mode, OpenSessionRequest,
        OpenSessionResponse, RenewSessionRequest, RequestId, ResizeRequest, Want, WatchRequest, acquire_request,
        mode::{Kind, Permit},
        sessions_client::SessionsClient,
    },
    raft::messages::keyspace_client::KeyspaceClient,
    server::DOMAIN,
    table::codec::keyspace::write_txn,
};
use rand::{Rng as _, seq::IndexedRandom as _};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt as _;

use crate::{
    clients::{self, Draws},
    keyspace::judge::Judge,
    network,
};

/// Before the fields, among the counts of a run.
const COUNTED: &str = "edge of ";
const LIMIT: Duration = Duration::from_millis(900);
const PAUSE_MS: std::ops::Range<u64> = 100..700;
/// The TTL of its sessions. If they cannot be closed, they expire this soon.
const USUAL_TTL_MS: u32 = 1_500;
/// The names of its locks and keys begin with this, if they are long enough.
const BEGINNING: &str = "hostile/";
/// How often a request of hundreds of kilobytes is sent after all, percent.
const HEAVY: u32 = 25;
/// Bytes of a message to a node.
const MESSAGE_BYTES_MAX: usize = 16 << 20;

/// A field that has a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HostileField {
    Acquire(AcquireField),
    Session(SessionField),
    Operator(OperatorField),
    Entry(EntryField),
}

/// A field of an acquire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AcquireField {
    Name,
    Data,
    Wants,
    Permits,
    Wait,
    LockDelay,
    Kept,
}

/// A field of a request for a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SessionField {
    Id,
    Ttl,
    Label,
    CloseReason,
}

/// A field of what operators and watchers ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OperatorField {
    ForceReason,
    WatchPrefix,
    DropPrefix,
    Permits,
}

/// A part of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EntryField {
    Key,
    Value,
    Lifetime,
    Compares,
    Operations,
    Bytes,
    ClaimedLock,
    OpenedTtl,
    OpenedLabel,
}

/// The documented limit of a field.
#[derive(Clone, Copy, Debug)]
struct FieldLimit {
    field: HostileField,
    /// Its name among the counts.
    name: &'static str,
    /// Its name in a refusal.
    refused_as: &'static str,
    least: u64,
    most: u64,
}

const fn limit(field: HostileField, name: &'static str, refused_as: &'static str, least: u64, most: u64) -> FieldLimit {
    FieldLimit { field, name, refused_as, least, most }
}

/// Refusals of a transaction name no part of it.
const TXN: &str = "txn";

/// All of them, one in each row.
static LIMITS: [FieldLimit; 24] = {
    use HostileField::{Acquire, Entry, Operator, Session};

    [
        limit(Acquire(AcquireField::Name), "a lock's name", "locks.name", 1, NAME_BYTES_MAX as u64),
        limit(Acquire(AcquireField::Data), "a lock's data", "data", 0, DATA_BYTES_MAX as u64),
        limit(Acquire(AcquireField::Wants), "locks of an acquire", "locks", 1, WANTS_MAX as u64),
        limit(Acquire(AcquireField::Permits), "permits", "locks.mode.permit.limit", 1, PERMITS_MAX as u64),
        limit(Acquire(AcquireField::Wait), "a wait", "wait_ms", 0, WAIT_MS_MAX),
        limit(Acquire(AcquireField::LockDelay), "a lock-delay", "lock_delay_ms", 0, LOCK_DELAY_MS_MAX as u64),
        limit(Acquire(AcquireField::Kept), "kept ids", "request.kept", 0, REPLIES_PER_SESSION_MAX as u64),
        limit(Session(SessionField::Id), "a session's id", "session_id", 32, 32),
        limit(Session(SessionField::Ttl), "a TTL", "ttl_ms", TTL_MS_MIN as u64, TTL_MS_MAX as u64),
        limit(Session(SessionField::Label), "a label", "label", 0, LABEL_BYTES_MAX as u64),
        limit(Session(SessionField::CloseReason), "a reason to close", "reason", 0, REASON_BYTES_MAX as u64),
        limit(Operator(OperatorField::ForceReason), "a reason to take", "reason", 1, REASON_BYTES_MAX as u64),
        limit(Operator(OperatorField::WatchPrefix), "a prefix to watch", "prefix", 0, NAME_BYTES_MAX as u64),
        limit(Operator(OperatorField::DropPrefix), "a prefix to drop", "prefix", 0, NAME_BYTES_MAX as u64),
        limit(Operator(OperatorField::Permits), "permits by an operator", "permits", 1, PERMITS_MAX as u64),
        limit(Entry(EntryField::Key), "a key", TXN, 1, KEY_BYTES_MAX as u64),
        limit(Entry(EntryField::Value), "a value", TXN, 0, VALUE_BYTES_MAX as u64),
        limit(Entry(EntryField::Lifetime), "a lifetime", TXN, 1, LIFETIME_MS_MAX),
        limit(Entry(EntryField::Compares), "compares", TXN, 0, TXN_OPERATIONS_MAX as u64),
        limit(Entry(EntryField::Operations), "operations", TXN, 0, TXN_OPERATIONS_MAX as u64),
        limit(Entry(EntryField::Bytes), "bytes of a transaction", TXN, VALUE_BYTES_MAX as u64, TXN_BYTES_MAX as u64),
        limit(Entry(EntryField::ClaimedLock), "a claimed lock's name", TXN, 1, NAME_BYTES_MAX as u64),
        limit(Entry(EntryField::OpenedTtl), "an opened TTL", TXN, TTL_MS_MIN as u64, TTL_MS_MAX as u64),
        limit(Entry(EntryField::OpenedLabel), "an opened label", TXN, 0, LABEL_BYTES_MAX as u64),
    ]
};

/// What a batch of runs must have sent.
pub(crate) fn all() -> impl Iterator<Item = String> {
    LIMITS.iter().flat_map(|limit| [true, false].map(|is_within| counted(limit, is_within)))
}

fn counted(limit: &FieldLimit, is_within: bool) -> String {
    let outcome = if is_within { "accepted" } else { "refused" };
    format!("{COUNTED}{} {outcome}", limit.name)
}

impl FieldLimit {
    /// Sizes at the edges, of which some may be impossible.
    fn edges(&self) -> [Option<u64>; 5] {
        let Self { least, most, .. } = *self;
        [least.checked_sub(1), Some(least), Some(least.max(most - 1)), Some(most), Some(most + 1)]
    }

    /// Whether a request can have this size, and harms nobody else.
    fn is_sendable(&self, size: u64) -> bool {
        match self.field {
            // Under a shorter prefix are the data of others.
            HostileField::Operator(OperatorField::DropPrefix) => size > BEGINNING.len() as u64,
            // The types of a transaction have no empty ones.
            HostileField::Entry(EntryField::Key | EntryField::ClaimedLock | EntryField::Lifetime) => size > 0,
            // One value cannot be larger.
            HostileField::Entry(EntryField::Bytes) => size > VALUE_BYTES_MAX as u64,
            HostileField::Entry(
                EntryField::Value
                | EntryField::Compares
                | EntryField::Operations
                | EntryField::OpenedTtl
                | EntryField::OpenedLabel,
            )
            | HostileField::Operator(
                OperatorField::ForceReason | OperatorField::WatchPrefix | OperatorField::Permits,
            )
            | HostileField::Acquire(_)
            | HostileField::Session(_) => true,
        }
    }

    fn is_heavy(&self) -> bool {
        matches!(self.field, HostileField::Entry(EntryField::Value | EntryField::Bytes))
    }
}

/// Sends them, one after the other, each with a session of its own.
pub(crate) struct EdgeClient {
    judge: Arc<Judge>,
    draws: Draws,
    peers: Vec<Channel>,
}

impl EdgeClient {
    pub(crate) fn new(seats: u64, seed: u64, judge: Arc<Judge>) -> Self {
        let peers = (1..=seats).map(|seat| clients::channel(&network::peer_seat_address(seat))).collect();
        Self { judge, draws: Draws::new(seats, seed), peers }
    }

    /// Sends requests until the run is over.
    pub(crate) async fn work(mut self, finish: &CancellationToken) {
        while !finish.is_cancelled() {
            self.ask().await;
            let pause = self.draws.random.random_range(PAUSE_MS);
            sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn ask(&mut self) {
        let limit = LIMITS.choose(&mut self.draws.random).expect("it is not empty");
        let size = *limit.edges().choose(&mut self.draws.random).expect("it is not empty");
        let is_sent = !limit.is_heavy() || self.draws.percent(HEAVY);
        let Some(size) = size.filter(|size| is_sent && limit.is_sendable(*size)) else { return };

        let opened = timeout(LIMIT, self.open(String::new(), USUAL_TTL_MS, String::new())).await;
        let Ok(Ok(OpenSessionResponse { session_id: session, .. })) = opened else { return };
        let answer = timeout(LIMIT, self.send(limit.field, size, &session)).await;
        // Without an answer nothing is known.
        if let Ok(answer) = answer {
            self.note(limit, size, answer.err().as_ref());
        }
        // If nobody hears it, the session expires.
        let _ = timeout(LIMIT, self.close(&session, String::new())).await;
    }

    /// Judges an answer: there is no status if the request was carried out.
    fn note(&self, limit: &FieldLimit, size: u64, status: Option<&Status>) {
        let FieldLimit { name, refused_as, least, most, .. } = *limit;
        let is_within = (least..=most).contains(&size);
        let what = format!("{name} of {size}, where {least} to {most} are allowed");
        let Some(status) = status else {
            if is_within {
                self.judge.count(&counted(limit, true));
            } else {
                self.judge.complain(format!("{what}, was accepted"));
            }
            return;
        };

        let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN);
        let value = |key: &str| info.as_ref().and_then(|info| info.metadata.get(key)).map_or("", String::as_str);
        let is_final = value("retry") == "no";
        match (status.code(), is_within) {
            (Code::InvalidArgument, false) if value("field") == refused_as => self.judge.count(&counted(limit, false)),
            (Code::InvalidArgument, _) => self.judge.complain(format!("{what}, was refused: {}", status.message())),
            // Another limit may be reached, and what was asked for may not be there: its form was right.
            (_, true) if is_final => self.judge.count(&counted(limit, true)),
            (_, false) if is_final => {
                self.judge.complain(format!("{what}, was refused for another reason: {}", status.message()));
            }
            // It was not looked at.
            _ => {}
        }
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
        let place = self.draws.random.random_range(0..self.peers.len());
        let client = KeyspaceClient::new(self.peers[place].clone());
        let mut client = client.max_encoding_message_size(MESSAGE_BYTES_MAX);
        client.commit(write_txn(&txn)).await?;

        if field == EntryField::OpenedTtl {
            self.close(&opened.to_string(), String::new()).await?;
        }
        Ok(())
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
        for limit in &LIMITS {
            let HostileField::Entry(field) = limit.field else { continue };
            for size in limit.edges().into_iter().flatten().filter(|size| limit.is_sendable(*size)) {
                let txn = txn(field, size, session, opened).expect("it has the form of a transaction");
                let is_within = (limit.least..=limit.most).contains(&size);
                assert_eq!(txn.check_limits().is_ok(), is_within, "{} of {size}", limit.name);
            }
        }
    }

    #[test]
    fn texts_have_their_length() {
        assert_eq!([0, 3, 8, 600].map(|size| text(size).len()), [0, 3, 8, 600]);
    }
}
