//! Every command is read back as it was written; what no version wrote is refused.

use proptest::{
    collection::{btree_set, vec},
    option,
    prelude::*,
};

use super::*;

fn name() -> impl Strategy<Value = LockName> {
    "[^\0]{1,40}".prop_map(|name| LockName::new(&name).unwrap())
}

fn address() -> impl Strategy<Value = Option<Address>> {
    option::of(any::<(std::net::IpAddr, u16)>().prop_map(|address| std::net::SocketAddr::from(address).into()))
}

fn identity() -> impl Strategy<Value = Option<Identity>> {
    option::of("[a-z0-9][a-zA-Z0-9._@:/-]{0,30}".prop_filter_map("reserved", |name| Identity::new(&name).ok()))
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Shared),
        (1..=PERMITS_MAX).prop_map(|permits| Mode::Permit(Permits::new(permits).unwrap())),
    ]
}

fn data() -> impl Strategy<Value = Option<Data>> {
    option::of(vec(any::<u8>(), 0..40).prop_map(|data| Data::new(&data).unwrap()))
}

fn acquire() -> impl Strategy<Value = Acquire> {
    let want = (name(), mode(), data(), any::<(bool, bool)>());
    let want =
        want.prop_map(|(name, mode, data, (keep_data, must_exist))| Want { name, mode, data, keep_data, must_exist });
    let wait = prop_oneof![Just(Wait::Never), Just(Wait::Forever), (1..=WAIT_MS_MAX).prop_map(Wait::Millis)];
    (vec(want, 1..4), wait, 0..=LOCK_DELAY_MS_MAX)
        .prop_filter_map("a name twice", |(wants, wait, delay)| Acquire::new(wants, wait, delay).ok())
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        acquire().prop_map(Operation::Acquire),
        any::<u64>().prop_map(|token| Operation::Release(Target::Grant(Token(token)))),
        any::<u64>().prop_map(|id| Operation::Release(Target::Acquire(id))),
        (any::<u64>(), name(), data(), any::<bool>()).prop_map(|(token, name, data, keep_data)| {
            Operation::Update(Update { token: Token(token), name, data, keep_data })
        }),
    ]
}

fn key() -> impl Strategy<Value = Key> {
    vec(any::<u8>(), 1..20).prop_map(|key| Key::new(&key).unwrap())
}

fn value() -> impl Strategy<Value = Value> {
    vec(any::<u8>(), 0..20).prop_map(|value| Value::new(&value).unwrap())
}

fn lease() -> impl Strategy<Value = Option<Lease>> {
    let at_end = prop_oneof![Just(AtLeaseEnd::Delete), Just(AtLeaseEnd::Keep)];
    option::of((any::<u128>(), at_end).prop_map(|(id, at_end)| Lease { session: SessionId(id), at_end }))
}

fn compare() -> impl Strategy<Value = Compare> {
    let relation =
        prop_oneof![Just(Relation::Equal), Just(Relation::NotEqual), Just(Relation::Less), Just(Relation::Greater)];
    let operand = prop_oneof![
        any::<u64>().prop_map(|revision| Operand::Created(Revision(revision))),
        any::<u64>().prop_map(|revision| Operand::Modified(Revision(revision))),
        any::<u64>().prop_map(Operand::Version),
        value().prop_map(Operand::Value),
        option::of(any::<u128>()).prop_map(|session| Operand::Lease(session.map(SessionId))),
    ];
    (key(), option::of(key()), relation, operand).prop_map(|(key, up_to, relation, operand)| Compare {
        key,
        up_to,
        relation,
        operand,
    })
}

fn label() -> impl Strategy<Value = Label> {
    ".{0,8}".prop_map(|label| Label::new(&label).unwrap())
}

fn put_lease() -> impl Strategy<Value = PutLease> {
    prop_oneof![
        lease().prop_map(PutLease::from),
        Just(PutLease::Kept),
        Just(PutLease::Renewed),
        deadline().prop_map(PutLease::Until),
        deadline().prop_map(PutLease::Extended),
        (1..=LIFETIME_MS_MAX).prop_map(|ms| PutLease::Temporary(Lifetime::from_millis(ms).unwrap())),
    ]
}

fn deadline() -> impl Strategy<Value = EntryDeadline> {
    let lifetime = (1..=LIFETIME_MS_MAX).prop_map(|ms| Lifetime::from_millis(ms).unwrap());
    prop_oneof![lifetime.prop_map(EntryDeadline::After), any::<u64>().prop_map(|at| EntryDeadline::At(Stamp(at))),]
}

fn select() -> impl Strategy<Value = Select> {
    let bounds = || {
        (option::of(any::<u64>()), option::of(any::<u64>()))
            .prop_map(|(min, max)| Bounds { min: min.map(Revision), max: max.map(Revision) })
    };
    let by = prop_oneof![
        Just(SortBy::Key),
        Just(SortBy::Created),
        Just(SortBy::Modified),
        Just(SortBy::Version),
        Just(SortBy::Value)
    ];
    let shows = prop_oneof![Just(Shows::Entries), Just(Shows::Keys), Just(Shows::Count)];
    let range = (option::of(key()), option::of(key())).prop_map(|(from, to)| KeyRange { from, to });
    (range, bounds(), bounds(), by, any::<bool>(), any::<u32>(), shows).prop_map(
        |(range, created, modified, by, is_descending, limit, shows)| Select {
            range,
            created,
            modified,
            by,
            is_descending,
            limit,
            shows,
        },
    )
}

fn new_session() -> impl Strategy<Value = NewSession> {
    (TTL_MS_MIN..=TTL_MS_MAX, "[a-z]{0,9}", address(), identity()).prop_map(|(ttl, label, address, owner)| {
        let ttl = Ttl::from_millis(ttl).unwrap();
        let label = Label::new(&label).unwrap();
        NewSession { session: SessionId(0), ttl, label, address, owner }
    })
}

/// A branch, with the operations that open the sessions of some of its leases.
fn branch() -> impl Strategy<Value = Vec<TxnOperation>> {
    vec((txn_operation(), option::of(new_session())), 0..4).prop_map(|operations| {
        let with_open = operations.into_iter().flat_map(|(operation, new)| {
            let lease = operation.put().map(|put| put.lease);
            let open = match (lease, new) {
                (Some(PutLease::Given(lease)), Some(new)) => {
                    Some(TxnOperation::Open(NewSession { session: lease.session, ..new }))
                }
                _ => None,
            };
            open.into_iter().chain([operation])
        });
        with_open.collect()
    })
}

fn put() -> impl Strategy<Value = Put> {
    (key(), value(), put_lease(), option::of((name(), label()))).prop_map(|(key, value, lease, claims)| {
        let claims = claims.map(|(lock, label)| PutClaim { lock, label });
        let claims = claims.filter(|_| matches!(lease, PutLease::Given(_) | PutLease::Until(_)));
        Put { key, value, lease, claims }
    })
}

fn txn_operation() -> impl Strategy<Value = TxnOperation> {
    prop_oneof![
        key().prop_map(TxnOperation::Get),
        select().prop_map(TxnOperation::Select),
        put().prop_map(TxnOperation::Put),
        (key(), put(), any::<bool>()).prop_map(|(parent, put, is_numbered)| TxnOperation::PutChild(PutChild {
            parent,
            put,
            is_numbered
        })),
        (key(), option::of(deadline())).prop_map(|(key, deadline)| TxnOperation::Expire(Expire { key, deadline })),
        key().prop_map(TxnOperation::Delete),
        (option::of(key()), option::of(key())).prop_map(|(from, to)| TxnOperation::DeleteRange(KeyRange { from, to })),
    ]
}

fn txn() -> impl Strategy<Value = Txn> {
    let attached =
        (any::<u128>(), any::<u64>()).prop_map(|(session, number)| Attached { session: SessionId(session), number });
    let by = option::of((attached, any::<bool>()));
    (vec(compare(), 0..3), branch(), branch(), by, any::<bool>()).prop_filter_map(
        "a key twice",
        |(compares, then, otherwise, by, falls_back)| {
            let txn = Txn::new(compares, then, otherwise).ok()?;
            let txn = if falls_back { txn.falling_back() } else { txn };
            Some(match by {
                Some((attached, true)) => txn.closing(attached),
                Some((attached, false)) => txn.by_attached(attached),
                None => txn,
            })
        },
    )
}

fn limits() -> impl Strategy<Value = Limits> {
    let limit = || prop_oneof![Just(usize::MAX), 1..usize::MAX];
    (limit(), limit(), limit(), limit()).prop_map(|(work, grants_per_session, table_bytes, session_bytes)| Limits {
        work,
        grants_per_session,
        table_bytes,
        session_bytes,
    })
}

fn command() -> impl Strategy<Value = Command> {
    let session = || any::<u128>().prop_map(SessionId);
    let token = || any::<u64>().prop_map(Token);
    let open = btree_set(1..u64::MAX, 0..4).prop_flat_map(|kept| {
        let above = kept.last().map_or(0, |last| last + 1);
        (above..=u64::MAX).prop_map(move |lowest| OpenIds::new(lowest, kept.iter().copied().collect()).unwrap())
    });
    let request = option::of((any::<u64>(), open).prop_map(|(id, open)| Request { id, open }));
    prop_oneof![
        (session(), TTL_MS_MIN..=TTL_MS_MAX, ".{0,40}", address(), identity()).prop_map(
            |(session, ms, label, address, owner)| {
                let ttl = Ttl::from_millis(ms).unwrap();
                let label = Label::new(&label).unwrap();
                Command::Open { session, ttl, label, address, owner }
            }
        ),
        vec(session(), 0..4).prop_map(|sessions| Command::Renew { sessions }),
        session().prop_map(|session| Command::Attach { session }),
        (session(), identity())
            .prop_filter_map("no owner", |(session, owner)| Some(Command::SetOwner { session, owner: owner? })),
        (session(), identity(), option::of(".{1,40}")).prop_map(|(session, by, reason)| {
            let reason = reason.map(|reason| Reason::new(&reason).unwrap());
            Command::Close { session, by, reason }
        }),
        (session(), request, operation()).prop_map(|(session, request, operation)| Command::Session {
            session,
            request,
            operation
        }),
        (any::<u64>(), any::<Option<u64>>())
            .prop_map(|(ticket, repeats)| Command::CancelWait { ticket: Ticket(ticket), repeats }),
        (name(), option::of(token()), token(), option::of(token()), ".{1,40}", any::<bool>(), identity()).prop_map(
            |(name, token, after, up_to, reason, now, by)| {
                let reason = Reason::new(&reason).unwrap();
                Command::ForceRelease(ForceRelease { name, token, after, up_to, reason, now, by })
            }
        ),
        (name(), any::<u64>(), identity()).prop_map(|(name, ticket, by)| Command::RemoveWaiter {
            name,
            ticket: Ticket(ticket),
            by
        }),
        (name(), identity()).prop_map(|(name, by)| Command::LiftDelay { name, by }),
        (".{0,40}", option::of(name()), identity()).prop_map(|(prefix, after, by)| Command::DropData {
            prefix,
            after,
            by
        }),
        (name(), 1..=PERMITS_MAX, identity()).prop_map(|(name, permits, by)| Command::Resize {
            name,
            permits: Permits::new(permits).unwrap(),
            by
        }),
        txn().prop_map(Command::Txn),
        any::<u64>().prop_map(|revision| Command::Compact { revision: Revision(revision) }),
        Just(Command::Tick),
        any::<u32>().prop_map(|to| Command::RaiseVersion { to: Version(to) }),
        (option::of(".{0,9}"), ".{0,9}", ".{0,9}", ".{0,9}", any::<u64>()).prop_map(
            |(who, act, target, reason, omitted)| { Command::Note(Note { who, act, target, reason, omitted }) }
        ),
        Just(Command::BeginAudit),
        Just(Command::Probe),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(stamp: u64, wall: u64, limits in limits(), commands in vec(command(), 0..8)) {
        let time = Time { stamp: Stamp(stamp), wall: WallTime(wall) };
        prop_assert_eq!(decode(&encode(time, limits, &commands)), Ok((time, limits, commands)));
    }

    #[test]
    fn noise_is_malformed_or_a_batch_never_a_panic(noise in vec(any::<u8>(), 0..200)) {
        if let Ok((time, limits, commands)) = decode(&noise.into()) {
            prop_assert_eq!(decode(&encode(time, limits, &commands)), Ok((time, limits, commands)));
        }
    }
}

/// The encoding of versions that had no `kept`.
#[test]
fn a_request_that_keeps_nothing_needs_no_word_for_it() {
    let bytes = [8, 7, 16, 3];
    let request = Request { id: 7, open: OpenIds::new(3, vec![]).unwrap() };
    assert_eq!(write_request(&request).encode_to_vec(), bytes);
    assert_eq!(read_request(pb::Request::decode(&bytes[..]).unwrap()), Ok(request));
}

/// The encoding of versions that had no `repeats`: it cancels in any case.
#[test]
fn a_cancellation_without_a_count_is_one_without_a_condition() {
    let bytes = Bytes::from_static(&[26, 4, 58, 2, 8, 5]);
    let commands = vec![Command::CancelWait { ticket: Ticket(5), repeats: None }];
    assert_eq!(decode(&bytes).map(|(_, _, commands)| commands), Ok(commands));
}

/// The encoding of versions that did not know the address of a session.
#[test]
fn a_session_may_be_opened_from_nowhere() {
    let session = write_session(SessionId(3));
    let open = pb::Open { session, ttl_ms: 1000, label: String::new(), address: String::new(), owner: String::new() };
    let written = pb::Command { kind: Some(pb::command::Kind::Open(open.clone())) };
    assert_eq!(open.encoded_len(), 2 + 16 + 3, "an absent address takes no byte");
    let ttl = Ttl::from_millis(1000).unwrap();
    let label = Label::default();
    let read = Command::Open { session: SessionId(3), ttl, label, address: None, owner: None };
    assert_eq!(encode_command(&read), written.encode_to_vec());
    assert_eq!(read_command(written), Ok(read));
}

/// The encoding of versions that had no limits: it keeps the meaning that it had when it was answered.
#[test]
fn a_batch_without_limits_has_none() {
    let tick_at_5 = Bytes::from_static(&[8, 5, 26, 2, 74, 0]);
    let time = Time { stamp: Stamp(5), wall: WallTime(0) };
    assert_eq!(decode(&tick_at_5), Ok((time, Limits::NONE, vec![Command::Tick])));
}

/// Values that the table cannot have are refused, and those beyond a limit are read: each message is valid except for one field.
#[test]
fn values_that_no_table_has_are_malformed_and_those_beyond_a_limit_are_not() {
    use pb::command::Kind;
    let session = write_session(SessionId(1));
    let want = |name: &str| pb::Want {
        name: Bytes::copy_from_slice(name.as_bytes()),
        mode: Some(write_mode(Mode::Shared)),
        ..Default::default()
    };
    let acquire = pb::Acquire { session: session.clone(), wants: vec![want("a")], ..Default::default() };
    let open = pb::Open {
        session: session.clone(),
        ttl_ms: 1000,
        label: "ann".into(),
        address: "10.0.0.7:5".into(),
        owner: "shop-1".into(),
    };
    let numbered = |lowest, kept: &[u64]| Some(pb::Request { id: 9, lowest, kept: kept.to_vec() });
    let force = pb::ForceRelease { name: "a".into(), reason: "why".into(), ..Default::default() };
    let sound = [
        Kind::Acquire(pb::Acquire { request: numbered(9, &[1, 8]), ..acquire.clone() }),
        Kind::Acquire(acquire.clone()),
        Kind::Open(open.clone()),
        Kind::ForceRelease(force.clone()),
        Kind::Resize(pb::Resize { name: "a".into(), permits: PERMITS_MAX, by: "ops".into() }),
    ];
    let operation = |kind| pb::TxnOperation { kind: Some(kind) };
    let txn = |operations: Vec<pb::TxnOperation>| Kind::Txn(pb::Txn { then: operations, ..Default::default() });
    let get = |bytes| operation(pb::txn_operation::Kind::Get(vec![7; bytes].into()));
    let put = |bytes, at_end| {
        let lease = Some(pb::Lease { session: write_session(SessionId(1)), at_end });
        let key = Bytes::from_static(b"k");
        let value = vec![0; bytes].into();
        operation(pb::txn_operation::Kind::Put(pb::Put { key, value, lease, ..Default::default() }))
    };
    let child = |parent, put| {
        let parent = Bytes::from_static(parent);
        operation(pb::txn_operation::Kind::PutChild(pb::PutChild { parent, put, numbered: true }))
    };
    let numbered_key = |bytes| {
        let key = vec![7; bytes].into();
        txn(vec![child(b"p", Some(pb::Put { key, ..Default::default() }))])
    };
    let equal = pb::Relation::Equal.into();
    let compare = |key, relation, operand| {
        let compares = vec![pb::Compare { key: Bytes::from_static(key), relation, operand, up_to: Bytes::new() }];
        Kind::Txn(pb::Txn { compares, ..Default::default() })
    };
    let sound = sound.into_iter().chain([
        txn(vec![get(KEY_BYTES_MAX)]),
        txn(vec![get(1); TXN_OPERATIONS_MAX]),
        txn(vec![put(VALUE_BYTES_MAX, 1)]),
        numbered_key(KEY_BYTES_MAX - 20),
        compare(b"k", equal, Some(pb::compare::Operand::Lease(Bytes::new()))),
    ]);
    for kind in sound {
        let read = read_command(pb::Command { kind: Some(kind) });
        assert_eq!(read.map(|command| command.check_limits()), Ok(Ok(())));
    }

    // Another version may have had other limits.
    let beyond = [
        Kind::Open(pb::Open { ttl_ms: TTL_MS_MIN - 1, ..open.clone() }),
        Kind::Open(pb::Open { ttl_ms: TTL_MS_MAX + 1, ..open.clone() }),
        Kind::Open(pb::Open { owner: "*".into(), ..open.clone() }),
        Kind::Open(pb::Open { label: "x".repeat(LABEL_BYTES_MAX + 1), ..open.clone() }),
        Kind::Acquire(pb::Acquire { wants: vec![want(&"n".repeat(NAME_BYTES_MAX + 1))], ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { wait_ms: Some(WAIT_MS_MAX + 1), ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { lock_delay_ms: LOCK_DELAY_MS_MAX + 1, ..acquire.clone() }),
        Kind::ForceRelease(pb::ForceRelease { reason: "x".repeat(REASON_BYTES_MAX + 1), ..force.clone() }),
        Kind::Note(pb::Note { act: "x".repeat(NOTE_BYTES_MAX + 1), ..Default::default() }),
        Kind::Resize(pb::Resize { name: "a".into(), permits: PERMITS_MAX + 1, by: String::new() }),
        Kind::Resize(pb::Resize { name: "a".into(), permits: 1, by: "two words".into() }),
        txn(vec![get(KEY_BYTES_MAX + 1)]),
        txn(vec![get(1); TXN_OPERATIONS_MAX + 1]),
        numbered_key(KEY_BYTES_MAX - 19),
        txn(vec![put(VALUE_BYTES_MAX + 1, 1)]),
    ];
    for kind in beyond {
        let read = read_command(pb::Command { kind: Some(kind.clone()) });
        assert!(read.is_ok_and(|command| command.check_limits().is_err()), "{kind:?}");
    }

    let bad = [
        Kind::Open(pb::Open { session: Bytes::from_static(&[0; 15]), ..open.clone() }),
        Kind::Open(pb::Open { ttl_ms: 0, ..open.clone() }),
        Kind::Open(pb::Open { address: "10.0.0.7".into(), ..open }),
        Kind::Acquire(pb::Acquire { request: numbered(9, &[8, 1]), ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { request: numbered(9, &[9]), ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { wants: vec![], ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { wants: vec![want("")], ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { wants: vec![want("a"), want("a")], ..acquire.clone() }),
        Kind::Acquire(pb::Acquire { wants: vec![pb::Want { mode: None, ..want("a") }], ..acquire }),
        Kind::Release(pb::Release { session, request: None, target: None }),
        Kind::ForceRelease(pb::ForceRelease { reason: "".into(), ..force.clone() }),
        Kind::ForceRelease(pb::ForceRelease { name: "a\0b".into(), ..force }),
        Kind::Resize(pb::Resize { name: "a".into(), permits: 0, by: String::new() }),
        txn(vec![get(0)]),
        txn(vec![put(0, 0)]),
        txn(vec![put(0, 1), put(0, 1)]),
        txn(vec![pb::TxnOperation { kind: None }]),
        txn(vec![child(b"k", None)]),
        txn(vec![child(b"", Some(pb::Put { key: Bytes::from_static(b"k"), ..Default::default() }))]),
        Kind::Txn(pb::Txn { attached: Some(pb::Attached::default()), ..Default::default() }),
        Kind::Txn(pb::Txn { closes: true, ..Default::default() }),
        Kind::Attach(pb::Attach { session: Bytes::from_static(&[0; 17]) }),
        Kind::SetOwner(pb::SetOwner { session: Bytes::from_static(&[0; 17]), owner: "ann".into() }),
        Kind::SetOwner(pb::SetOwner { session: Bytes::from_static(&[0; 16]), owner: String::new() }),
        compare(b"k", 0, Some(pb::compare::Operand::Version(1))),
        compare(b"k", equal, None),
        compare(b"", equal, Some(pb::compare::Operand::Version(1))),
        compare(b"k", equal, Some(pb::compare::Operand::Lease(Bytes::from_static(b"short")))),
    ];
    for kind in bad {
        let read = read_command(pb::Command { kind: Some(kind.clone()) });
        assert!(read.is_err(), "{kind:?} was read as {read:?}");
    }
    assert!(read_command(pb::Command { kind: None }).is_err());
}
