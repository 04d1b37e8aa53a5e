//! Commands about the keyspace, and what is checked of its history.

use super::*;

/// The sessions that transactions open have ids from here on.
pub(super) const OF_ENTRIES: u128 = 1 << 64;

fn key() -> impl Strategy<Value = Key> {
    proptest::sample::select(vec!["k", "k1", "m", "z", "k0000000000"]).prop_map(|key| Key::new(key.as_bytes()).unwrap())
}

fn value() -> impl Strategy<Value = Value> {
    vec(0..3u8, 0..2).prop_map(|value| Value::new(&value).unwrap())
}

/// Mostly with what the entry has, or with something close to it.
fn compare(model: &Model) -> impl Strategy<Value = Compare> + use<> {
    let last = model.entries.values().map(|entry| entry.modified.0).max();
    let entries = model.entries.clone();
    let relation = prop_oneof![5 => Just(Relation::Equal), 1 => Just(Relation::NotEqual), 1 => Just(Relation::Less), 1 => Just(Relation::Greater)];
    let keys = (key(), option::weighted(0.2, key()));
    (keys, relation, 0..5u8, value(), option::of(session()), 0..=last.unwrap_or(0) + 1, any::<bool>()).prop_map(
        move |((key, up_to), relation, kind, value, lease, number, same)| {
            let entry = entries.get(&key).filter(|_| same);
            let operand = match kind {
                0 => Operand::Created(entry.map_or(Revision(number), |entry| entry.created)),
                1 => Operand::Modified(entry.map_or(Revision(number), |entry| entry.modified)),
                2 => Operand::Version(entry.map_or(number % 4, |entry| entry.version)),
                3 => Operand::Value(entry.map_or(value, |entry| entry.value.clone())),
                _ => Operand::Lease(entry.map_or(lease, |entry| entry.lease.map(|lease| lease.session))),
            };
            Compare { key, up_to, relation, operand }
        },
    )
}

fn put_lease(session: BoxedStrategy<SessionId>, now: u64) -> impl Strategy<Value = PutLease> {
    let given = (session, at_end()).prop_map(|(session, at_end)| PutLease::Given(Lease { session, at_end }));
    prop_oneof![
        6 => given,
        2 => Just(PutLease::None),
        1 => Just(PutLease::Kept),
        1 => Just(PutLease::Renewed),
        3 => deadline(now).prop_map(PutLease::Until),
        2 => deadline(now).prop_map(PutLease::Extended),
        1 => (1..=300u64).prop_map(|ms| PutLease::Temporary(Lifetime::from_millis(ms).unwrap())),
    ]
}

/// Mostly short ones, so that several end in the same millisecond, as sessions do.
fn deadline(now: u64) -> impl Strategy<Value = EntryDeadline> {
    let after = prop_oneof![Just(1u64), Just(100), Just(300)]
        .prop_map(|ms| EntryDeadline::After(Lifetime::from_millis(ms).unwrap()));
    let at = (0..=400u64).prop_map(move |ms| EntryDeadline::At(Stamp((now + ms).saturating_sub(100))));
    prop_oneof![2 => after, 1 => at]
}

fn at_end() -> impl Strategy<Value = AtLeaseEnd> {
    prop_oneof![Just(AtLeaseEnd::Delete), Just(AtLeaseEnd::Keep)]
}

/// Mostly for one name, and seldom for that of other locks.
fn claims() -> impl Strategy<Value = Option<PutClaim>> {
    let label = proptest::sample::select(vec!["", "ann", "bob"]).prop_map(|label| Label::new(label).unwrap());
    let lock = prop_oneof![8 => Just(claimed()), 1 => proptest::sample::select(names())];
    option::weighted(0.8, (lock, label).prop_map(|(lock, label)| PutClaim { lock, label }))
}

fn range() -> impl Strategy<Value = KeyRange> {
    (option::of(key()), option::of(key())).prop_map(|(from, to)| KeyRange { from, to })
}

fn select(last: u64) -> impl Strategy<Value = TxnOperation> {
    let bounds = move || {
        let bound = move || option::weighted(0.3, (0..=last).prop_map(Revision));
        (bound(), bound()).prop_map(|(min, max)| Bounds { min, max })
    };
    let by =
        proptest::sample::select(vec![SortBy::Key, SortBy::Created, SortBy::Modified, SortBy::Version, SortBy::Value]);
    let shows = prop_oneof![4 => Just(Shows::Entries), 1 => Just(Shows::Keys), 1 => Just(Shows::Count)];
    (range(), bounds(), bounds(), by, any::<bool>(), 0..4u32, shows).prop_map(
        |(range, created, modified, by, is_descending, limit, shows)| {
            TxnOperation::Select(Select { range, created, modified, by, is_descending, limit, shows })
        },
    )
}

/// A put with a session of its own. Sessions that ended do not come back, so the ids rise with time.
fn leased(now: u64) -> impl Strategy<Value = Vec<TxnOperation>> {
    let new = (1..=3u128, prop_oneof![Just(100u32), Just(300)]).prop_map(move |(id, ttl)| NewSession {
        session: SessionId(OF_ENTRIES + u128::from(now / 300) + id),
        ttl: Ttl::from_millis(ttl).unwrap(),
        label: Label::default(),
        address: None,
        owner: None,
    });
    (new, key(), value(), at_end(), claims()).prop_map(|(new, key, value, at_end, claims)| {
        let lease = PutLease::Given(Lease { session: new.session, at_end });
        vec![TxnOperation::Open(new), TxnOperation::Put(Put { key, value, lease, claims })]
    })
}

fn operations(model: &Model, session: BoxedStrategy<SessionId>) -> impl Strategy<Value = Vec<TxnOperation>> + use<> {
    let put = move |lease: BoxedStrategy<PutLease>| {
        (key(), value(), lease, claims()).prop_map(|(key, value, lease, claims)| {
            let claims = claims.filter(|_| matches!(lease, PutLease::Given(_) | PutLease::Until(_)));
            Put { key, value, lease, claims }
        })
    };
    let lease = put_lease(session.clone(), model.now).boxed();
    // Mostly without an end: then there may be children below it.
    let lasting = prop_oneof![3 => Just(PutLease::None), 1 => put_lease(session, model.now)].boxed();
    let child = (key(), put(lasting.clone()), any::<bool>())
        .prop_map(|(parent, put, is_numbered)| TxnOperation::PutChild(PutChild { parent, put, is_numbered }));
    let one = prop_oneof![
        2 => key().prop_map(TxnOperation::Get),
        2 => select(model.last_token()),
        5 => put(lease).prop_map(TxnOperation::Put),
        2 => put(lasting).prop_map(TxnOperation::Put),
        4 => child,
        1 => key().prop_map(TxnOperation::Delete),
        1 => (key(), option::of(deadline(model.now)))
            .prop_map(|(key, deadline)| TxnOperation::Expire(Expire { key, deadline })),
        1 => range().prop_map(TxnOperation::DeleteRange),
    ];
    prop_oneof![5 => one.prop_map(|operation| vec![operation]), 1 => leased(model.now)]
}

pub(super) fn txn(model: &Model, session: BoxedStrategy<SessionId>) -> impl Strategy<Value = Command> + use<> {
    let branch = || vec(operations(model, session.clone()), 0..4).prop_map(|operations| operations.concat());
    let attached = (session.clone(), 0..3u64).prop_map(|(session, number)| Attached { session, number });
    let by = option::weighted(0.2, (attached, proptest::bool::weighted(0.2)));
    (vec(compare(model), 0..3), branch(), branch(), by, any::<bool>()).prop_filter_map(
        "a key twice",
        |(compares, then, otherwise, by, falls_back)| {
            let txn = Txn::new(compares, then, otherwise).ok()?;
            let txn = if falls_back { txn.falling_back() } else { txn };
            Some(Command::Txn(match by {
                Some((attached, true)) => txn.closing(attached),
                Some((attached, false)) => txn.by_attached(attached),
                None => txn,
            }))
        },
    )
}

/// Mostly of a few revisions, so that some of them stay.
pub(super) fn compaction(model: &Model) -> impl Strategy<Value = Command> + use<> {
    let last = model.last_token();
    let some = model.compacted..=last.min(model.compacted + 5);
    prop_oneof![5 => some, 1 => 0..last + 3].prop_map(|revision| Command::Compact { revision: Revision(revision) })
}

/// The entry without the lock that it claims and without its children, which only a read of the present shows.
pub(super) fn as_written(entry: &Entry) -> Entry {
    Entry { claim: None, kin: Kinship::stored(entry.parent().cloned(), None), ..entry.clone() }
}

fn shown_entries(past: &PastEntries<'_>, backwards: bool) -> Vec<(Key, Entry)> {
    past.iter(backwards).map(|(key, entry)| (key.clone(), as_written(&entry))).collect()
}

/// The events are those of the model; on top of the entries at the compacted revision they lead to the present ones, and each state on the
/// way is read as it was.
pub(super) fn check_history(machine: &Machine, model: &Model) {
    let compacted = Revision(model.compacted);
    let events: Vec<_> =
        machine.history().after(compacted, None).unwrap().map(|event| EntryEvent::clone(event)).collect();
    assert_eq!(events, model.entry_events());
    assert!(events.is_sorted_by(|one, next| (one.revision, &one.key) < (next.revision, &next.key)));
    let everything = KeyRange::default();
    let mut state: BTreeMap<_, _> =
        shown_entries(&machine.entries_at(&everything, compacted).unwrap(), false).into_iter().collect();
    assert_eq!(state, model.entries_at(model.compacted));
    for events in events.chunk_by(|one, next| one.revision == next.revision) {
        for EntryEvent { key, before, after, .. } in events {
            let replaced = match after {
                Some(entry) => state.insert(key.clone(), Entry::clone(entry)),
                None => state.remove(key),
            };
            assert_eq!(replaced.as_ref(), before.as_deref());
        }
        let revision = events[0].revision;
        // Only some: each visits all events since.
        if revision.0 % 4 != model.now % 4 {
            continue;
        }
        let past = machine.entries_at(&everything, revision).unwrap();
        let expected: Vec<_> = state.clone().into_iter().collect();
        assert_eq!(shown_entries(&past, false), expected, "at {revision:?}");
        assert!(shown_entries(&past, true).into_iter().rev().eq(expected), "from the end, at {revision:?}");
        for EntryEvent { key, .. } in events {
            assert_eq!(machine.entry_at(key, revision).unwrap().as_deref().map(as_written), state.get(key).cloned());
        }
        happened("states of the past that were read");
    }
    assert_eq!(state, model.unclaimed_entries());
    let ahead = Revision(model.last_token() + 1);
    assert!(matches!(machine.entries_at(&everything, ahead), Err(RevisionError::Future { .. })));
    if let Some(forgotten) = model.compacted.checked_sub(1) {
        let error = Err(RevisionError::Compacted { compacted });
        assert_eq!(machine.history().after(Revision(forgotten), None).map(drop), error);
    }
}
