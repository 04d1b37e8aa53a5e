//! Each record that a table can hold, written and read; and records that none can hold.

use std::sync::Arc;

use bytes::Bytes;

use super::*;

const ANN: SessionId = SessionId(0xa << 64);

fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// One of each kind, with each optional part present and absent.
fn records() -> Vec<Record> {
    let data = || Some(Data::new(b"\0\xff").unwrap());
    let reason = || Reason::new("stuck").unwrap();
    let permits = Permits::new(7).unwrap();
    let want = |name: &str, mode, data: Option<Data>| {
        let must_exist = data.is_none();
        Want { name: self::name(name), mode, data, keep_data: true, must_exist }
    };
    let wants = || vec![want("a", Mode::Permit(permits), data()), want("b", Mode::Shared, None)];
    let now = Stamp(12);
    let label = Label::new("host").unwrap();
    vec![
        Record::Clock { now, last_token: Token(3), last_ticket: Ticket(u64::MAX), is_behind: true },
        Record::Version { version: Version(2) },
        Record::Work(Work::EndSession { session: ANN, end: SessionEnd::Expired, at: now }),
        Record::Work(Work::HandOn { name: name("a") }),
        Record::Ended { session: SessionId(u128::MAX), end: SessionEnd::Closed },
        Record::Ended { session: SessionId(0), end: SessionEnd::Expired },
        Record::Session {
            session: ANN,
            label,
            ttl: Ttl::from_millis(100).unwrap(),
            deadline: now,
            opened: WallTime(9),
            address: None,
            open: OpenIds::new(4, vec![1, 3]).unwrap(),
            owner: None,
            is_of_entries: false,
            is_temporary: false,
            attached: 0,
        },
        Record::Session {
            session: SessionId(7),
            label: Label::default(),
            ttl: Ttl::from_millis(100).unwrap(),
            deadline: now,
            opened: WallTime(9),
            address: Some("[2001:db8::7]:65535".parse().unwrap()),
            open: OpenIds::default(),
            owner: Identity::new("shop-1").ok(),
            is_of_entries: true,
            is_temporary: true,
            attached: u64::MAX,
        },
        Record::Lock { name: name("a"), data: data(), keep_data: true, closed_until: None },
        Record::Lock { name: name("a"), data: None, keep_data: false, closed_until: Some(Stamp(0)) },
        Record::Grant {
            token: Token(1),
            session: ANN,
            locks: vec![(name("a"), Mode::Exclusive), (name("é"), Mode::Permit(permits))],
            lock_delay_ms: 50,
            since: WallTime(8),
            revoked: Some((reason(), now)),
            revoked_by: Identity::new("ops@example.com").ok(),
        },
        Record::Taken { token: Token(7), session: ANN, reason: reason() },
        Record::Entry {
            key: Key::new(b"\0k\xff").unwrap(),
            entry: Arc::new(Entry {
                created: Revision(1),
                modified: Revision(2),
                version: 3,
                lease: Some(Lease { session: ANN, at_end: AtLeaseEnd::Keep }),
                claim: Some(Arc::new(Claim {
                    lock: name("é"),
                    token: Token(2),
                    since: WallTime(9),
                    is_held: true,
                    label: Label::default(),
                })),
                until: None,
                is_expired: false,
                is_revoked: false,
                is_temporary: false,
                kin: None,
                value: Value::new(b"\0\xff").unwrap(),
            }),
        },
        Record::Entry {
            key: Key::first(),
            entry: Arc::new(Entry {
                created: Revision(1),
                modified: Revision(1),
                version: 1,
                lease: None,
                until: None,
                claim: None,
                is_expired: true,
                is_revoked: true,
                is_temporary: false,
                kin: None,
                value: Value::new(b"").unwrap(),
            }),
        },
        Record::Entry {
            key: Key::new(b"until").unwrap(),
            entry: Arc::new(Entry {
                created: Revision(1),
                modified: Revision(5),
                version: 2,
                lease: None,
                until: Some(Stamp(u64::MAX)),
                claim: Some(Arc::new(Claim {
                    lock: name("until"),
                    token: Token(1),
                    since: WallTime(9),
                    is_held: false,
                    label: Label::from_log("ann é"),
                })),
                is_expired: false,
                is_revoked: false,
                is_temporary: false,
                kin: None,
                value: Value::new(b"v").unwrap(),
            }),
        },
        Record::Entry {
            key: Key::new(b"child").unwrap(),
            entry: Arc::new(Entry {
                created: Revision(1),
                modified: Revision(5),
                version: 2,
                lease: None,
                until: None,
                claim: None,
                is_expired: false,
                is_revoked: false,
                is_temporary: false,
                kin: Kinship::stored(
                    Key::new(b"parent\0").ok(),
                    Some(Children { made: u64::MAX, live: 2, changed: Revision(7) }),
                ),
                value: Value::new(b"v").unwrap(),
            }),
        },
        Record::Closed { until: Stamp(u64::MAX) },
        Record::Compacted { revision: Revision(u64::MAX) },
        Record::EntryEvent { revision: Revision(7), key: Key::first(), before: None },
        Record::EntryEvent {
            revision: Revision(8),
            key: Key::new(b"k").unwrap(),
            before: Some(Arc::new(Entry {
                created: Revision(1),
                modified: Revision(7),
                version: 2,
                lease: None,
                until: None,
                is_expired: true,
                is_revoked: false,
                is_temporary: false,
                kin: None,
                claim: None,
                value: Value::new(b"v").unwrap(),
            })),
        },
        Record::Resized { name: name("a"), permits },
        Record::Grant {
            token: Token(2),
            session: ANN,
            locks: vec![(name("b"), Mode::Shared)],
            lock_delay_ms: 0,
            since: WallTime(8),
            revoked: None,
            revoked_by: None,
        },
        Record::Wait {
            ticket: Ticket(1),
            session: ANN,
            request: Some(0),
            acquire: Acquire::new(wants(), Wait::Millis(10), 5).unwrap(),
            deadline: Some(now),
            since: WallTime(1),
            repeats: 3,
        },
        Record::Wait {
            ticket: Ticket(2),
            session: ANN,
            request: None,
            acquire: Acquire::new(wants(), Wait::Forever, 0).unwrap(),
            deadline: None,
            since: WallTime(1),
            repeats: 0,
        },
    ]
}

fn replies() -> Vec<Reply> {
    let holder = HolderView {
        token: Token(1),
        session: ANN,
        label: Label::default(),
        mode: Mode::Shared,
        since: WallTime(3),
        remaining_ms: 7,
        revoked: None,
        origin: HolderOrigin::default(),
    };
    let revoked = HolderView { revoked: Some(Reason::new("stuck").unwrap()), ..holder.clone() };
    let busy = |holder| Busy { name: name("a"), holder, queue_length: 2, delay_remaining_ms: 3 };
    let names: Arc<[LockName]> = Arc::new([name("a"), name("b")]);
    let mut replies = vec![
        Reply::Queued(Ticket(1)),
        Reply::Acquired(WaitEnd::Granted(Grant { token: Token(1), session: ANN, names })),
        Reply::Acquired(WaitEnd::TimedOut(busy(Some(holder)))),
        Reply::Acquired(WaitEnd::Cancelled),
        Reply::Acquired(WaitEnd::Abandoned),
        Reply::Acquired(WaitEnd::Removed),
        Reply::Busy(busy(Some(revoked))),
        Reply::Busy(busy(None)),
        Reply::Updated,
    ];
    replies.extend([Released::Grant, Released::Wait, Released::Nothing].map(Reply::Released));
    let refusals = [
        Refusal::NotHeld,
        Refusal::ModeMismatch { name: name("a"), in_use: None },
        Refusal::ModeMismatch { name: name("a"), in_use: Some(Permits::new(1).unwrap()) },
        Refusal::LockUnknown { name: name("a") },
        Refusal::Abandoned,
        Refusal::RequestStale { lowest: 0 },
        Refusal::RequestReused,
        Refusal::Limit(Limit::Waiters),
        Refusal::Limit(Limit::Locks),
        Refusal::Limit(Limit::RepliesPerSession),
        Refusal::Limit(Limit::TakenPerSession),
        Refusal::Limit(Limit::GrantsPerSession),
        Refusal::Limit(Limit::TableBytes),
        Refusal::Limit(Limit::SessionBytes),
        Refusal::Limit(Limit::WaitsPerSession),
        Refusal::Revoked { token: Token(9), reason: Reason::new("dead").unwrap() },
    ];
    replies.extend(refusals.map(Reply::Refused));
    replies
}

fn reply(asked: RememberedRequest, reply: Reply) -> Record {
    Record::Reply { session: ANN, request: 5, asked, reply }
}

#[test]
fn what_is_written_is_read() {
    let asked = [
        RememberedRequest::Acquire(Arc::new([name("a"), name("b")])),
        RememberedRequest::Release(Target::Grant(Token(0))),
        RememberedRequest::Release(Target::Acquire(0)),
        RememberedRequest::Update(Token(1), name("a")),
        RememberedRequest::Abandoned,
    ];
    let asked = asked.map(|asked| reply(asked, Reply::Updated));
    let replies = replies().into_iter().map(|answer| reply(RememberedRequest::Abandoned, answer));
    for record in records().into_iter().chain(asked).chain(replies) {
        assert_eq!(decode(&encode(&record)), Ok(record));
    }
}

#[test]
fn records_that_no_table_holds_are_malformed() {
    let bad = [
        Record::Ended { session: ANN, end: SessionEnd::Unknown },
        reply(RememberedRequest::Abandoned, Reply::Ticked),
        reply(RememberedRequest::Abandoned, Reply::Acquired(WaitEnd::SessionEnded(SessionEnd::Closed))),
        reply(RememberedRequest::Abandoned, Reply::Refused(Refusal::SessionExists)),
        reply(RememberedRequest::Abandoned, Reply::Refused(Refusal::NotSemaphore { name: name("a") })),
        reply(RememberedRequest::Abandoned, Reply::Refused(Refusal::Limit(Limit::Sessions))),
    ];
    for record in bad {
        assert!(decode(&encode(&record)).is_err(), "{record:?} was read");
    }
    assert!(decode(b"").is_err());
    assert!(decode(b"\xff\xff").is_err());
    let ended = r::Ended { session: Bytes::from_static(&[1; 17]), end: r::End::Closed.into() };
    assert!(read_record(r::Kind::Ended(ended)).is_err());
}
