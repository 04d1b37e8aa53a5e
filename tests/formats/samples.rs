//! Samples of everything that nodes encode: each kind of command, snapshot record and message between peers.
//!
//! A sample stays as it is for ever: it says what its bytes meant in the version that wrote them. A field that a later version adds has, in
//! these, the value that stands for *absent*. A later version adds samples with names of their own.

#![allow(clippy::needless_update, reason = "later versions add fields to these structs")]

use std::{fmt::Debug, sync::Arc};

use bytes::Bytes;
use lockkeeper::{
    machine::*,
    raft::messages as pb,
    table::codec::{commands, records},
};
use prost::Message;

/// Checks decoded bytes; panics if they are not as expected.
type Check = Box<dyn Fn(&[u8])>;

/// A name, its encoding by the present build, and a check of an encoding by an earlier one.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) check: Check,
}

/// All samples.
pub(crate) fn samples() -> Vec<Sample> {
    let batches = [
        batch("batch", limits(), commands_of_version_1()),
        batch("batch-without-limits", Limits::NONE, vec![Command::Tick]),
        batch("batch-txn", limits(), vec![Command::Txn(txn())]),
        batch("batch-compact", limits(), vec![Command::Compact { revision: Revision(1 << 40) }]),
    ];
    let records = numbered("record", records_of_version_1());
    let entries = numbered("record-entry", entries()).chain(numbered("record-history", history()));
    batches.into_iter().chain(records).chain(entries).chain(messages()).collect()
}

fn numbered(name: &'static str, records: Vec<Record>) -> impl Iterator<Item = Sample> {
    records.into_iter().enumerate().map(move |(number, expected)| {
        let bytes = records::encode(&expected);
        let check = move |bytes: &[u8]| assert_eq!(records::decode(bytes).as_ref(), Ok(&expected));
        Sample { name: format!("{name}-{number}"), bytes, check: Box::new(check) }
    })
}

fn batch(name: &str, limits: Limits, commands: Vec<Command>) -> Sample {
    let time = Time { stamp: Stamp(12_345), wall: WallTime(1_760_000_000_000) };
    let bytes = commands::encode(time, limits, &commands).to_vec();
    let check = move |bytes: &[u8]| {
        let decoded = commands::decode(&Bytes::copy_from_slice(bytes)).expect("a batch");
        assert_eq!(decoded, (time, limits, commands.clone()));
    };
    Sample { name: name.to_owned(), bytes, check: Box::new(check) }
}

fn message<M: Message + Default + PartialEq + Debug + 'static>(name: &str, expected: M) -> Sample {
    let bytes = expected.encode_to_vec();
    let check = move |bytes: &[u8]| assert_eq!(M::decode(bytes).as_ref(), Ok(&expected));
    Sample { name: name.to_owned(), bytes, check: Box::new(check) }
}

fn name(name: &str) -> LockName {
    LockName::new(name).expect("a name")
}

fn data() -> Option<Data> {
    Some(Data::new(b"\0\xffdata").expect("short"))
}

fn permits(permits: u32) -> Permits {
    Permits::new(permits).expect("in bounds")
}

fn reason() -> Reason {
    Reason::new("stuck").expect("short")
}

const ANN: SessionId = SessionId(0xa << 64);
const BOB: SessionId = SessionId(0xb);

fn limits() -> Limits {
    Limits { work: 5000, grants_per_session: 100, table_bytes: 1 << 30, session_bytes: 1 << 20, ..Limits::NONE }
}

fn acquire(wait: Wait) -> Acquire {
    let want =
        |name: LockName, mode, data: Option<Data>, must_exist| Want { name, mode, data, keep_data: true, must_exist };
    let wants = vec![
        want(name("a"), Mode::Exclusive, data(), false),
        want(name("b/é"), Mode::Shared, None, true),
        want(name("c"), Mode::Permit(permits(7)), None, false),
    ];
    Acquire::new(wants, wait, 50).expect("names that differ")
}

/// Each command, with each optional part present and absent.
fn commands_of_version_1() -> Vec<Command> {
    let request = |id| Some(Request { id, open: OpenIds::new(4, vec![1, 3]).expect("ascending") });
    let session = |request, operation| Command::Session { session: ANN, request, operation };
    let update = |data| Operation::Update(Update { token: Token(3), name: name("a"), data, keep_data: true });
    let ttl = |ms| Ttl::from_millis(ms).expect("in bounds");
    let force = |token: Option<u64>, now| {
        let up_to = token.map(Token);
        let token = token.map(Token);
        Command::ForceRelease(ForceRelease {
            name: name("a"),
            token,
            after: Token(2),
            up_to,
            reason: reason(),
            now,
            by: None,
        })
    };
    vec![
        Command::Open {
            session: ANN,
            ttl: ttl(10_000),
            label: Label::new("ann").expect("short"),
            address: None,
            owner: None,
        },
        Command::Open {
            session: BOB,
            ttl: ttl(600_000),
            label: Label::default(),
            address: Some("10.0.0.7:5123".parse().expect("an address")),
            owner: None,
        },
        Command::Renew { sessions: vec![ANN, BOB] },
        Command::Close { session: BOB, by: None, reason: None },
        session(request(5), Operation::Acquire(acquire(Wait::Never))),
        session(None, Operation::Acquire(acquire(Wait::Millis(1500)))),
        session(None, Operation::Acquire(acquire(Wait::Forever))),
        session(request(6), Operation::Release(Target::Grant(Token(1)))),
        session(None, Operation::Release(Target::Acquire(5))),
        session(request(7), update(data())),
        session(None, update(None)),
        Command::CancelWait { ticket: Ticket(4), repeats: Some(2) },
        Command::CancelWait { ticket: Ticket(4), repeats: None },
        force(Some(9), true),
        force(None, false),
        Command::RemoveWaiter { name: name("a"), ticket: Ticket(8), by: None },
        Command::LiftDelay { name: name("a"), by: None },
        Command::DropData { prefix: "a/".to_owned(), after: Some(name("a/b")), by: None },
        Command::DropData { prefix: String::new(), after: None, by: None },
        Command::Resize { name: name("c"), permits: permits(12), by: None },
        Command::Tick,
    ]
}

fn key(key: &[u8]) -> Key {
    Key::new(key).expect("in bounds")
}

fn leases() -> [Option<Lease>; 3] {
    [None, Some(AtLeaseEnd::Delete), Some(AtLeaseEnd::Keep)]
        .map(|at_end| at_end.map(|at_end| Lease { session: ANN, at_end }))
}

/// Each compare and each operation, with each optional part present and absent. Since version 3.
fn txn() -> Txn {
    let value = || Value::new(b"\0\xffvalue").expect("short");
    let compare = |relation, operand| Compare { key: key(b"k"), up_to: None, relation, operand };
    let compares = vec![
        compare(Relation::Equal, Operand::Created(Revision(3))),
        compare(Relation::NotEqual, Operand::Modified(Revision(0))),
        compare(Relation::Less, Operand::Version(7)),
        compare(Relation::Greater, Operand::Value(value())),
        compare(Relation::Equal, Operand::Lease(Some(ANN))),
        compare(Relation::Equal, Operand::Lease(None)),
    ];
    let puts = (b'a'..).zip(leases()).map(|(name, lease)| {
        let value = if lease.is_some() { value() } else { Value::new(b"").expect("short") };
        TxnOperation::Put(Put { key: key(&[name]), value, lease: lease.into(), claims: None })
    });
    let range = |from: Option<&[u8]>, to: Option<&[u8]>| {
        TxnOperation::DeleteRange(KeyRange { from: from.map(key), to: to.map(key) })
    };
    let otherwise = vec![
        TxnOperation::Get(key(b"\0\xff")),
        TxnOperation::Delete(key(b"k")),
        range(Some(b"a"), Some(b"b")),
        range(None, None),
    ];
    Txn::new(compares, puts.collect(), otherwise).expect("in bounds")
}

/// Entries of the keyspace. Since version 3.
fn entries() -> Vec<Record> {
    let entry = |lease: Option<Lease>| Record::Entry {
        key: key(b"\0k\xff"),
        entry: Arc::new(Entry {
            created: Revision(3),
            modified: Revision(1 << 40),
            version: 2,
            lease,
            until: None,
            claim: None,
            is_expired: lease.is_none(),
            is_revoked: false,
            is_temporary: false,
            kin: None,
            value: Value::new(b"\0\xffvalue").expect("short"),
        }),
    };
    leases().map(entry).into()
}

/// The history of the keyspace. Since version 3.
fn history() -> Vec<Record> {
    let event = |before| Record::EntryEvent { revision: Revision(1 << 41), key: key(b"\0k\xff"), before };
    let before = entries().into_iter().map(|record| {
        let Record::Entry { entry, .. } = record else { panic!("{record:?}") };
        event(Some(entry))
    });
    let compacted = Record::Compacted { revision: Revision(1 << 40) };
    [compacted, event(None)].into_iter().chain(before).collect()
}

/// Each record of a snapshot.
fn records_of_version_1() -> Vec<Record> {
    let now = Stamp(12);
    let label = Label::new("host").expect("short");
    let open = |lowest, kept| OpenIds::new(lowest, kept).expect("ascending");
    let session = |session, address: Option<&str>, open| Record::Session {
        session,
        label: label.clone(),
        ttl: Ttl::from_millis(100).expect("in bounds"),
        deadline: Stamp(112),
        opened: WallTime(9),
        address: address.map(|address| address.parse().expect("an address")),
        open,
        owner: None,
        is_of_entries: false,
        is_temporary: false,
        attached: 0,
    };
    let grant = |token, mode, revoked| Record::Grant {
        token,
        session: ANN,
        locks: vec![(name("a"), mode), (name("é"), Mode::Exclusive)],
        lock_delay_ms: 50,
        since: WallTime(8),
        revoked,
        revoked_by: None,
    };
    let wait = |request, wait, deadline, repeats| Record::Wait {
        ticket: Ticket(1),
        session: ANN,
        request,
        acquire: acquire(wait),
        deadline,
        since: WallTime(1),
        repeats,
    };
    let reply = |asked, reply| Record::Reply { session: ANN, request: 5, asked, reply };
    let names: Arc<[LockName]> = Arc::new([name("a"), name("b")]);
    let holder = HolderView {
        token: Token(1),
        session: ANN,
        label: label.clone(),
        mode: Mode::Shared,
        since: WallTime(3),
        remaining_ms: 7,
        revoked: Some(reason()),
        origin: HolderOrigin::default(),
    };
    let busy = |holder| Busy { name: name("a"), holder, queue_length: 2, delay_remaining_ms: 3 };
    let granted = Grant { token: Token(1), session: ANN, names: Arc::clone(&names) };
    let refused = |refusal| reply(RememberedRequest::Abandoned, Reply::Refused(refusal));
    vec![
        Record::Clock { now, last_token: Token(3), last_ticket: Ticket(9), is_behind: true },
        Record::Clock { now, last_token: Token(3), last_ticket: Ticket(9), is_behind: false },
        Record::Ended { session: BOB, end: SessionEnd::Closed },
        Record::Ended { session: BOB, end: SessionEnd::Expired },
        session(ANN, None, open(4, vec![1, 3])),
        session(BOB, Some("[2001:db8::7]:65535"), OpenIds::default()),
        Record::Lock { name: name("a"), data: data(), keep_data: true, closed_until: None },
        Record::Lock { name: name("a"), data: None, keep_data: false, closed_until: Some(Stamp(13)) },
        grant(Token(1), Mode::Permit(permits(7)), Some((reason(), now))),
        grant(Token(2), Mode::Shared, None),
        Record::Taken { token: Token(7), session: ANN, reason: reason() },
        wait(Some(2), Wait::Millis(10), Some(now), 3),
        wait(None, Wait::Forever, None, 0),
        Record::Resized { name: name("c"), permits: permits(12) },
        reply(RememberedRequest::Acquire(Arc::clone(&names)), Reply::Acquired(WaitEnd::Granted(granted))),
        reply(RememberedRequest::Acquire(Arc::clone(&names)), Reply::Queued(Ticket(1))),
        reply(RememberedRequest::Acquire(names), Reply::Acquired(WaitEnd::TimedOut(busy(Some(holder))))),
        reply(RememberedRequest::Abandoned, Reply::Acquired(WaitEnd::Cancelled)),
        reply(RememberedRequest::Abandoned, Reply::Acquired(WaitEnd::Abandoned)),
        reply(RememberedRequest::Abandoned, Reply::Acquired(WaitEnd::Removed)),
        reply(RememberedRequest::Abandoned, Reply::Busy(busy(None))),
        reply(RememberedRequest::Release(Target::Grant(Token(4))), Reply::Released(Released::Grant)),
        reply(RememberedRequest::Release(Target::Acquire(4)), Reply::Released(Released::Wait)),
        reply(RememberedRequest::Release(Target::Acquire(4)), Reply::Released(Released::Nothing)),
        reply(RememberedRequest::Update(Token(1), name("a")), Reply::Updated),
        refused(Refusal::NotHeld),
        refused(Refusal::ModeMismatch { name: name("a"), in_use: None }),
        refused(Refusal::ModeMismatch { name: name("a"), in_use: Some(permits(1)) }),
        refused(Refusal::LockUnknown { name: name("a") }),
        refused(Refusal::Abandoned),
        refused(Refusal::RequestStale { lowest: 4 }),
        refused(Refusal::RequestReused),
        refused(Refusal::Limit(Limit::Waiters)),
        refused(Refusal::Limit(Limit::Locks)),
        refused(Refusal::Limit(Limit::RepliesPerSession)),
        refused(Refusal::Limit(Limit::TakenPerSession)),
        refused(Refusal::Limit(Limit::WaitsPerSession)),
        refused(Refusal::Limit(Limit::GrantsPerSession)),
        refused(Refusal::Limit(Limit::TableBytes)),
        refused(Refusal::Limit(Limit::SessionBytes)),
        refused(Refusal::Revoked { token: Token(9), reason: reason() }),
        Record::Work(Work::EndSession { session: ANN, end: SessionEnd::Expired, at: now }),
        Record::Work(Work::HandOn { name: name("a") }),
    ]
}

/// Each message between peers, and each message that the log keeps beside its entries.
fn messages() -> Vec<Sample> {
    let incarnation = || Bytes::from_static(b"0123456789abcdef");
    let id = |term, index| Some(pb::LogId { term, index, ..Default::default() });
    let vote = |committed| Some(pb::Vote { term: 4, node_id: 2, committed, ..Default::default() });
    let node = |node_id: u64| pb::Node {
        node_id,
        peer_address: format!("h{node_id}:7421"),
        client_address: format!("h{node_id}:7420"),
        incarnation: incarnation(),
        ..Default::default()
    };
    let voters = |node_ids: &[u64]| pb::membership::Voters { node_ids: node_ids.to_vec(), ..Default::default() };
    let membership = || pb::Membership {
        configs: vec![voters(&[1, 2]), voters(&[1, 2, 3])],
        nodes: vec![node(1), node(2), node(3)],
        ..Default::default()
    };
    let stored =
        || Some(pb::StoredMembership { log_id: id(1, 0), membership: Some(membership()), ..Default::default() });
    let entry = |log_id, payload| pb::Entry { log_id, payload: Some(payload), ..Default::default() };
    let batch = commands::encode(Time { stamp: Stamp(1), wall: WallTime(2) }, limits(), &[Command::Tick]);
    let append = |entries| pb::AppendRequest {
        vote: vote(true),
        previous: id(3, 11),
        entries,
        leader_commit: id(3, 10),
        ..Default::default()
    };
    let appended = |kind| pb::AppendResponse { kind: Some(kind), ..Default::default() };
    use pb::{append_response as appended_kind, entry::Payload, snapshot_piece as piece_kind};
    let partial = appended_kind::PartialSuccess { last: id(4, 12), ..Default::default() };
    let piece = |kind| pb::SnapshotPiece { kind: Some(kind), ..Default::default() };
    let header = pb::SnapshotHeader {
        vote: vote(true),
        last_log_id: id(3, 9),
        membership: stored(),
        length: 4711,
        ..Default::default()
    };
    vec![
        message(
            "hello-request",
            pb::HelloRequest {
                cluster_id: "blue".to_owned(),
                node_id: 2,
                incarnation: incarnation(),
                members: vec![node(1), node(2)],
                ..Default::default()
            },
        ),
        message(
            "hello-response",
            pb::HelloResponse {
                cluster_id: "blue".to_owned(),
                node_id: 1,
                incarnation: incarnation(),
                members: vec![node(1), node(2)],
                formed: true,
                asker_incarnation: incarnation(),
                asker_start: "0123456789abcdef".to_owned(),
                ..Default::default()
            },
        ),
        message(
            "append-request",
            append(vec![
                entry(id(4, 12), Payload::Blank(true)),
                entry(id(4, 13), Payload::Batch(batch)),
                entry(id(4, 14), Payload::Membership(membership())),
            ]),
        ),
        message("heartbeat", append(Vec::new())),
        message("append-success", appended(appended_kind::Kind::Success(true))),
        message("append-partial", appended(appended_kind::Kind::PartialSuccess(partial))),
        message("append-conflict", appended(appended_kind::Kind::Conflict(true))),
        message("append-higher-vote", appended(appended_kind::Kind::HigherVote(vote(false).expect("a vote")))),
        message(
            "vote-request",
            pb::VoteRequest {
                vote: vote(false),
                last_log_id: id(3, 9),
                leadership_transfer: true,
                ..Default::default()
            },
        ),
        message(
            "vote-response",
            pb::VoteResponse { vote: vote(false), granted: true, last_log_id: id(3, 9), ..Default::default() },
        ),
        message(
            "transfer-request",
            pb::TransferLeaderRequest {
                from_leader: vote(true),
                to_node_id: 3,
                last_log_id: id(3, 9),
                ..Default::default()
            },
        ),
        message(
            "transfer-response",
            pb::TransferLeaderResponse {
                refusal: "the vote has moved on".to_owned(),
                vote: vote(false),
                flushed: id(3, 8),
                ..Default::default()
            },
        ),
        message("snapshot-header", piece(piece_kind::Kind::Header(header))),
        message("snapshot-bytes", piece(piece_kind::Kind::Bytes(Bytes::from_static(b"LKSNAP")))),
        message("snapshot-response", pb::SnapshotResponse { vote: vote(true), ..Default::default() }),
        message(
            "snapshot-file-header",
            pb::SnapshotFileHeader { last_log_id: id(3, 9), membership: stored(), ..Default::default() },
        ),
        message(
            "log-owner",
            pb::LogOwner { incarnation: incarnation(), start: "0123456789abcdef".to_owned(), ..Default::default() },
        ),
        message("log-mark", pb::LogMark { vote: vote(true), last: id(3, 9), ..Default::default() }),
    ]
}
