//! The limits of the keyspace, the budget for the end of a lease, the history, and damaged records.

use std::collections::BTreeMap;

use crate::*;

const ANN: SessionId = SessionId(1);

fn key(key: &str) -> Key {
    Key::new(key.as_bytes()).unwrap()
}

fn value(bytes: usize) -> Value {
    Value::new(&vec![7; bytes]).unwrap()
}

fn put(name: &str, bytes: usize, lease: Option<Lease>) -> TxnOperation {
    TxnOperation::Put(Put { key: key(name), value: value(bytes), lease: lease.into(), claims: None })
}

fn txn(then: Vec<TxnOperation>) -> Command {
    Command::Txn(Txn::new(vec![], then, vec![]).unwrap())
}

fn apply(machine: &mut Machine, limits: Limits, at: u64, command: Command) -> Reply {
    let time = Time { stamp: Stamp(at), wall: WallTime(0) };
    machine.apply_batch(time, limits, [command], &mut Vec::new()).remove(0)
}

fn run(machine: &mut Machine, command: Command) -> Reply {
    apply(machine, Limits::NONE, 0, command)
}

fn open(machine: &mut Machine) {
    let ttl = Ttl::from_millis(1000).unwrap();
    let label = Label::default();
    run(machine, Command::Open { session: ANN, ttl, label, address: None, owner: None });
}

fn open_for_entries(session: SessionId) -> TxnOperation {
    let ttl = Ttl::from_millis(1000).unwrap();
    let label = Label::default();
    TxnOperation::Open(NewSession { session, ttl, label, address: None, owner: None })
}

fn results(reply: &Reply) -> &[TxnResult] {
    let Reply::Committed(Committed { results, .. }) = reply else { panic!("{reply:?}") };
    results
}

/// A table with so many entries, of this lease.
fn with_entries(count: usize, lease: Option<Lease>) -> Machine {
    let mut machine = Machine::default();
    open(&mut machine);
    let keys: Vec<_> = (0..count).map(|number| format!("{number:06}")).collect();
    for some in keys.chunks(TXN_OPERATIONS_MAX) {
        let puts = some.iter().map(|key| put(key, 1, lease)).collect();
        assert!(matches!(run(&mut machine, txn(puts)), Reply::Committed(_)));
    }
    machine
}

fn leased(at_end: AtLeaseEnd) -> Option<Lease> {
    Some(Lease { session: ANN, at_end })
}

#[test]
fn a_transaction_out_of_its_limits_cannot_be_made() {
    let make = |then: &[TxnOperation]| Txn::new(vec![], vec![], then.to_vec()).map(|_| ());
    assert_eq!(make(&[put("a", VALUE_BYTES_MAX, None), put("b", VALUE_BYTES_MAX, None)]), Ok(()));
    let gets = vec![TxnOperation::Get(key("a")); TXN_OPERATIONS_MAX + 1];
    assert_eq!(make(&gets[1..]), Ok(()));
    let count = gets.len();
    assert_eq!(make(&gets), Err(InvalidTxn::TooManyOperations { what: "operations", count }));

    let compare = Compare { key: key("a"), up_to: None, relation: Relation::Equal, operand: Operand::Version(0) };
    let compares = Txn::new(vec![compare; count], vec![], vec![]).map(|_| ());
    assert_eq!(compares, Err(InvalidTxn::TooManyOperations { what: "compares", count }));
    let large: Vec<_> = ["a", "b", "c", "d"].map(|key| put(key, VALUE_BYTES_MAX, None)).into();
    assert_eq!(make(&large), Err(InvalidTxn::TooLarge { bytes: 4 * VALUE_BYTES_MAX + 4 }));
    assert_eq!(make(&[put("a", 0, None), put("a", 1, None)]), Err(InvalidTxn::PutTwice { key: key("a") }));
    let opened = |count| vec![open_for_entries(ANN); count];
    assert_eq!(make(&opened(1)), Err(InvalidTxn::NothingLeased { session: ANN }));
    assert_eq!(make(&opened(2)), Err(InvalidTxn::OpenedTwice { session: ANN }));

    let kept = Put {
        key: key("a"),
        value: value(1),
        lease: PutLease::Kept,
        claims: LockName::new("l").ok().map(PutClaim::from),
    };
    let lock = LockName::new("l").unwrap();
    assert_eq!(make(&[TxnOperation::Put(kept)]), Err(InvalidTxn::ClaimWithoutLease { key: key("a"), lock }));
    let either = Txn::new(vec![], vec![put("a", 0, None)], vec![put("a", 1, None)]);
    assert!(either.is_ok(), "only one of them runs");

    assert!(Key::new(b"").is_err() && Key::new(&[0; KEY_BYTES_MAX + 1]).is_err());
    assert!(Key::new(&[0; KEY_BYTES_MAX]).is_ok() && Value::new(&vec![0; VALUE_BYTES_MAX + 1]).is_err());
}

#[test]
fn entries_are_limited_until_one_is_deleted() {
    let mut machine =
        Machine { capacity: TableCapacity { entries: 2, ..TableCapacity::default() }, ..Machine::default() };
    let refused = Reply::Refused(Refusal::Limit(Limit::Entries));
    assert_ne!(run(&mut machine, txn(vec![put("a", 1, None), put("b", 1, None)])), refused);
    assert_eq!(run(&mut machine, txn(vec![put("c", 1, None)])), refused);
    assert_ne!(run(&mut machine, txn(vec![put("a", 2, None)])), refused, "it adds none");
    assert_ne!(run(&mut machine, txn(vec![TxnOperation::Delete(key("a")), put("c", 1, None)])), refused);
    assert_eq!(machine.counts().entries, 2);
}

#[test]
fn a_transaction_deletes_a_bounded_number_of_entries_or_none() {
    let all = || txn(vec![TxnOperation::DeleteRange(KeyRange::default())]);
    let mut machine = with_entries(TXN_WRITES_MAX + 1, None);
    let before = machine.revision();
    assert_eq!(run(&mut machine, all()), Reply::Refused(Refusal::Limit(Limit::TxnWrites)));
    assert_eq!((machine.counts().entries, machine.revision()), (TXN_WRITES_MAX + 1, before));

    let first = TxnOperation::Delete(key("000000"));
    let range = KeyRange { from: Some(key("000001")), to: None };
    let both = txn(vec![first.clone(), TxnOperation::DeleteRange(range)]);
    assert_eq!(run(&mut machine, both), Reply::Refused(Refusal::Limit(Limit::TxnWrites)), "of all its operations");
    run(&mut machine, txn(vec![first]));

    let half = KeyRange { from: Some(key("000001")), to: Some(key("000513")) };
    let thrice = txn(vec![TxnOperation::DeleteRange(half); 3]);
    assert_eq!(
        run(&mut machine, thrice),
        Reply::Refused(Refusal::Limit(Limit::TxnWrites)),
        "it visits each of them thrice"
    );
    assert_eq!(results(&run(&mut machine, all())), [TxnResult::Deleted(TXN_WRITES_MAX as u64)]);
    assert_eq!(machine.counts().entries, 0);
}

#[test]
fn a_reply_shows_a_bounded_number_of_bytes() {
    let mut machine = Machine::default();
    run(&mut machine, txn(vec![put("a", VALUE_BYTES_MAX, None)]));
    let gets = |count| vec![TxnOperation::Get(key("a")); count];
    let most = TXN_BYTES_MAX / VALUE_BYTES_MAX;
    assert_eq!(results(&run(&mut machine, txn(gets(most)))).len(), most);
    let more = gets(most + 1).into_iter().chain([put("b", 1, None)]).collect();
    assert_eq!(run(&mut machine, txn(more)), Reply::Refused(Refusal::Limit(Limit::TxnBytes)));
    assert!(machine.entry(&key("b")).is_none(), "nothing of it took effect");
}

#[test]
fn a_transaction_reads_a_bounded_number_of_entries() {
    let mut machine = with_entries(TXN_READS_MAX / 2, None);
    let count = Select { shows: Shows::Count, ..Select::default() };
    let counted = |times| txn(vec![TxnOperation::Select(count.clone()); times]);
    let (entries, more) = (Vec::new(), false);
    let selected = TxnResult::Selected(Selected { entries, count: TXN_READS_MAX as u64 / 2, more });
    assert_eq!(results(&run(&mut machine, counted(2))), [selected.clone(), selected]);
    let refused = Reply::Refused(Refusal::Limit(Limit::TxnReads));
    assert_eq!(run(&mut machine, counted(3)), refused);
    let (key, up_to) = (key("0"), Some(key("1")));
    let compare = Compare { key, up_to, relation: Relation::Greater, operand: Operand::Version(0) };
    let compared = |times| Command::Txn(Txn::new(vec![compare.clone(); times], vec![], vec![]).unwrap());
    assert!(matches!(run(&mut machine, compared(2)), Reply::Committed(Committed { succeeded: true, .. })));
    assert_eq!(run(&mut machine, compared(3)), refused);
}

#[test]
fn sessions_of_entries_count_for_the_limits() {
    let mut machine =
        Machine { capacity: TableCapacity { sessions: 2, ..TableCapacity::default() }, ..Machine::default() };
    let of = |id: u128| {
        let lease = Some(Lease { session: SessionId(id), at_end: AtLeaseEnd::Keep });
        [open_for_entries(SessionId(id)), put(&id.to_string(), 1, lease)]
    };
    let three = txn([of(1), of(2), of(3)].concat());
    assert_eq!(run(&mut machine, three), Reply::Refused(Refusal::Limit(Limit::Sessions)));
    assert_eq!(results(&run(&mut machine, txn([of(1), of(2)].concat()))).len(), 4);
    assert_eq!(run(&mut machine, txn(of(3).into())), Reply::Refused(Refusal::Limit(Limit::Sessions)));
    run(&mut machine, txn(vec![TxnOperation::Delete(key("1"))]));
    let bytes = machine.bytes() as usize;
    let tight = Limits { table_bytes: bytes + 100, ..Limits::NONE };
    let small = txn(vec![put("4", 1, None)]);
    assert_eq!(apply(&mut machine, tight, 0, txn(of(3).into())), Reply::Refused(Refusal::Limit(Limit::TableBytes)));
    let tight = Limits { table_bytes: bytes + 300, ..Limits::NONE };
    assert!(matches!(apply(&mut machine, tight, 0, small), Reply::Committed(_)), "an entry alone has room");
}

/// The end of a lease with many entries takes many batches; meanwhile none of the entries is there for anybody.
#[test]
fn the_end_of_a_lease_is_spread_over_batches() {
    const ENTRIES: usize = 1000;
    const LIMITS: Limits = Limits { work: 20, ..Limits::NONE };
    for at_end in [AtLeaseEnd::Delete, AtLeaseEnd::Keep] {
        let mut machine = with_entries(ENTRIES, leased(at_end));
        let mut batches = 0;
        while machine.has_work() || batches == 0 {
            let before = machine.revision();
            apply(&mut machine, LIMITS, 1000, Command::Tick);
            // The backlog, and the deadlines: each has a budget.
            assert!(machine.revision().0 - before.0 <= 2 * LIMITS.work as u64);
            let mut entries = machine.entries(&KeyRange::default());
            assert!(entries.all(|(_, entry)| at_end == AtLeaseEnd::Keep && entry.is_expired && entry.lease.is_none()));
            batches += 1;
        }
        assert!(batches >= ENTRIES / LIMITS.work, "{batches} batches");
        assert_eq!(machine.counts().entries, if at_end == AtLeaseEnd::Keep { ENTRIES } else { 0 });
    }
}

#[test]
fn entries_of_a_lease_are_found_by_it() {
    let lease = leased(AtLeaseEnd::Delete);
    let mut machine = with_entries(10, lease);
    let of = |session| Some(Lease { session, at_end: AtLeaseEnd::Delete });
    // The neighbors of the session, and an entry without a lease, among its keys.
    let others = [SessionId(ANN.0 - 1), SessionId(ANN.0 + 1)];
    let other = |id| [open_for_entries(id), put(&format!("000004-{id}"), 1, of(id))];
    let mut then: Vec<_> = others.into_iter().flat_map(other).collect();
    then.push(put("000005-", 1, None));
    assert!(matches!(run(&mut machine, txn(then)), Reply::Committed(_)));

    let some = KeyRange { from: Some(key("000002")), to: Some(key("000007")) };
    for range in [KeyRange::default(), some] {
        let all = machine.entries(&range).filter(|(_, entry)| entry.lease == lease).collect::<Vec<_>>();
        assert!(all.len() == 10 || all.len() == 5);
        assert_eq!(machine.entries_leased_by(ANN, &range).collect::<Vec<_>>(), all);
        let backwards: Vec<_> = all.into_iter().rev().collect();
        assert_eq!(machine.entries_leased_by(ANN, &range).rev().collect::<Vec<_>>(), backwards);
    }

    // The lease is over, and no entry's end is handled yet.
    apply(&mut machine, Limits { work: 1, ..Limits::NONE }, 1000, Command::Tick);
    assert!(machine.has_work());
    assert_eq!(machine.entries_leased_by(ANN, &KeyRange::default()).count(), 0);
}

/// Members that do not know the keyspace must not be sent any of it.
#[test]
fn transactions_and_entries_need_a_cluster_version() {
    assert_eq!(txn(vec![]).since(), Version::KEYSPACE);
    let machine = with_entries(1, None);
    let since: Vec<_> = machine.records().map(|record| record.since()).collect();
    assert_eq!(since, [Version::FIRST, Version::FIRST, Version::KEYSPACE, Version::KEYSPACE]);
    assert_eq!(Command::Compact { revision: Revision(1) }.since(), Version::KEYSPACE);
}

#[test]
fn tables_that_differ_in_one_entry_have_different_hashes() {
    let hash = |operation| {
        let mut machine = with_entries(1, leased(AtLeaseEnd::Keep));
        run(&mut machine, txn(vec![put("x", 1, None), operation]));
        machine.hash()
    };
    let operations = [
        put("y", 1, None),
        put("z", 1, None),
        put("y", 2, None),
        put("y", 1, leased(AtLeaseEnd::Keep)),
        put("y", 1, leased(AtLeaseEnd::Delete)),
        TxnOperation::Delete(key("000000")),
    ];
    let mut hashes: Vec<_> = operations.into_iter().map(hash).collect();
    let count = hashes.len();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), count);
}

#[test]
fn damaged_entries_are_refused() {
    let machine = with_entries(1, leased(AtLeaseEnd::Keep));
    let restored = |spoil: &dyn Fn(&mut Entry)| {
        let records = machine.records().map(|mut record| {
            if let Record::Entry { entry, .. } = &mut record {
                spoil(Arc::make_mut(entry));
            }
            record
        });
        Machine::from_records(records).map(|restored| restored.hash()).map_err(|broken| broken.to_string())
    };

    assert_eq!(restored(&|_| {}), Ok(machine.hash()));
    let spoils: [&dyn Fn(&mut Entry); 7] = [
        &|entry| entry.created = Revision(0),
        &|entry| entry.created = Revision(2),
        &|entry| entry.modified = Revision(2),
        &|entry| entry.version = 0,
        &|entry| entry.is_expired = true,
        &|entry| entry.until = Some(Stamp(2000)),
        &|entry| entry.lease = Some(Lease { session: SessionId(2), at_end: AtLeaseEnd::Keep }),
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        assert!(restored(spoil).is_err(), "number {number} was taken");
    }
}

fn delete(name: &str) -> TxnOperation {
    TxnOperation::Delete(key(name))
}

/// The events after a revision: the revision, the key, and the versions before and after; 0: no entry.
fn events(machine: &Machine, after: u64) -> Vec<(u64, String, u64, u64)> {
    let version = |entry: &Option<Arc<Entry>>| entry.as_ref().map_or(0, |entry| entry.version);
    let show = |event: &Arc<EntryEvent>| {
        let key = String::from_utf8_lossy(event.key.as_bytes()).into_owned();
        (event.revision.0, key, version(&event.before), version(&event.after))
    };
    machine.history().after(Revision(after), None).expect("not compacted").map(show).collect()
}

fn event(revision: u64, key: &str, before: u64, after: u64) -> (u64, String, u64, u64) {
    (revision, key.to_owned(), before, after)
}

fn compact(machine: &mut Machine, revision: u64) -> Reply {
    run(machine, Command::Compact { revision: Revision(revision) })
}

#[test]
fn each_change_of_an_entry_is_an_event_at_the_revision_of_its_transaction() {
    let mut machine = Machine::default();
    open(&mut machine);
    run(&mut machine, txn(vec![put("b", 1, None), put("a", 1, leased(AtLeaseEnd::Delete))]));
    run(&mut machine, txn(vec![put("a", 2, leased(AtLeaseEnd::Keep)), delete("b"), delete("no such key")]));
    run(&mut machine, txn(vec![delete("no such key"), TxnOperation::Get(key("a"))]));
    run(&mut machine, txn(vec![put("passes", 1, None), delete("passes")]));
    run(&mut machine, txn(vec![put("c", 1, leased(AtLeaseEnd::Delete))]));
    run(&mut machine, Command::Close { session: ANN, by: None, reason: None });

    let first = [event(1, "a", 0, 1), event(1, "b", 0, 1)];
    let then = [
        event(2, "a", 1, 2),
        event(2, "b", 1, 0),
        // The entry that came and went at revision 3 was never there.
        event(4, "c", 0, 1),
        event(5, "a", 2, 2),
        event(6, "c", 1, 0),
    ];

    assert_eq!(events(&machine, 1), then);
    assert_eq!(events(&machine, 0), [first.as_slice(), then.as_slice()].concat());
    assert_eq!(events(&machine, 6), []);

    let history = machine.history();
    let after_a: Vec<_> =
        history.after(Revision(1), Some(&key("a"))).expect("known").map(|it| it.key.clone()).collect();
    assert_eq!(after_a[..2], [key("b"), key("a")], "within a revision it goes on behind the key");
    let marked = history.after(Revision(4), None).expect("known").next().expect("the mark").after.clone();
    assert!(marked.is_some_and(|entry| entry.is_expired && entry.lease.is_none() && entry.modified == Revision(5)));
}

/// A read of the past visits keys, not events: a thousand writes of one key cost a read of another nothing.
#[test]
fn a_read_of_the_past_visits_the_keys_of_its_range() {
    let mut machine = Machine::default();
    for name in ["a", "b", "c"] {
        run(&mut machine, txn(vec![put(name, 1, None)]));
    }
    let then = machine.revision();
    for bytes in 0..1000 {
        run(&mut machine, txn(vec![put("b", bytes, None)]));
    }
    run(&mut machine, txn(vec![delete("c"), put("d", 1, None)]));
    for backwards in [false, true] {
        let past = machine.entries_at(&KeyRange::default(), then).expect("not compacted");
        let visits: Vec<_> = past.visits(backwards).collect();
        assert_eq!(visits.len(), 4);
        let mut found: Vec<_> = visits.into_iter().flatten().map(|(key, _)| key.clone()).collect();
        found.sort();
        assert_eq!(found, [key("a"), key("b"), key("c")]);
    }
}

#[test]
fn the_past_is_readable_at_each_revision_that_is_not_compacted() {
    let mut machine = Machine::default();
    open(&mut machine);
    let everything = KeyRange::default();
    let middle = KeyRange { from: Some(key("b")), to: Some(key("d")) };
    let state = |machine: &Machine| -> BTreeMap<Key, Arc<Entry>> {
        machine.entries(&KeyRange::default()).map(|(key, entry)| (key.clone(), entry)).collect()
    };
    let mut states = BTreeMap::from([(0, state(&machine))]);
    let steps = [
        vec![put("b", 1, None), put("d", 1, None)],
        vec![put("a", 2, leased(AtLeaseEnd::Keep)), put("b", 2, None)],
        vec![delete("b"), put("c", 3, leased(AtLeaseEnd::Delete))],
        vec![put("b", 4, None), delete("d"), put("e", 1, None)],
        vec![TxnOperation::DeleteRange(KeyRange { from: Some(key("c")), to: None })],
    ];
    for step in steps {
        run(&mut machine, txn(step));
        states.insert(machine.revision().0, state(&machine));
    }
    run(&mut machine, Command::Close { session: ANN, by: None, reason: None });
    states.insert(machine.revision().0, state(&machine));
    assert!(states.len() >= 7, "{} states", states.len());

    let check = |machine: &Machine, compacted: u64| {
        for (revision, expected) in &states {
            let revision = Revision(*revision);
            let found = machine.entries_at(&everything, revision);
            if revision.0 < compacted {
                let compacted = RevisionError::Compacted { compacted: Revision(compacted) };
                assert_eq!(found.err(), Some(compacted));
                assert_eq!(machine.entry_at(&key("a"), revision), Err(compacted));
                continue;
            }
            let found = found.expect("not compacted");
            let list = |past: &PastEntries<'_>, backwards| -> Vec<(Key, Arc<Entry>)> {
                past.iter(backwards).map(|(key, entry)| (key.clone(), entry)).collect()
            };
            let expected: Vec<_> = expected.clone().into_iter().collect();
            assert_eq!(list(&found, false), expected, "at {revision:?}");
            assert_eq!(list(&found, true), expected.iter().cloned().rev().collect::<Vec<_>>(), "at {revision:?}");
            let part = machine.entries_at(&middle, revision).expect("not compacted");
            let of_middle: Vec<_> = expected.iter().filter(|(key, _)| middle.contains(key)).cloned().collect();
            assert_eq!(list(&part, false), of_middle, "at {revision:?}");
            for name in ["a", "b", "c", "d", "e", "f"] {
                let there = expected.iter().find(|(known, _)| *known == key(name)).map(|(_, entry)| entry.clone());
                assert_eq!(machine.entry_at(&key(name), revision), Ok(there), "{name} at {revision:?}");
            }
        }
    };
    check(&machine, 0);
    let present = machine.revision();
    let ahead = RevisionError::Future { present };
    assert_eq!(machine.entries_at(&everything, Revision(present.0 + 1)).err(), Some(ahead));
    assert_eq!(machine.entry_at(&key("a"), Revision(present.0 + 1)), Err(ahead));
    compact(&mut machine, 3);
    check(&machine, 3);
    let restored = Machine::from_records(machine.records()).expect("sound");
    check(&restored, 3);
    assert_eq!(restored.hash(), machine.hash());
    compact(&mut machine, present.0);
    check(&machine, present.0);
    assert_eq!((machine.history().len(), machine.history().bytes()), (0, 0));
}

#[test]
fn a_compaction_refuses_the_future_and_does_not_go_back() {
    let mut machine = with_entries(1, None);
    run(&mut machine, txn(vec![put("a", 1, None)]));
    assert_eq!(compact(&mut machine, 3), Reply::Refused(Refusal::RevisionFuture { present: Revision(2) }));
    assert_eq!(machine.history().compacted(), Revision(0));
    assert_eq!(compact(&mut machine, 1), Reply::Compacted(Revision(1)));
    assert_eq!(events(&machine, 1), [event(2, "a", 0, 1)]);
    for revision in [0, 1] {
        assert_eq!(compact(&mut machine, revision), Reply::Compacted(Revision(1)));
    }
    let compacted = RevisionError::Compacted { compacted: Revision(1) };
    assert_eq!(machine.history().after(Revision(0), None).err(), Some(compacted));
    assert_eq!(machine.history().after(Revision(1), Some(&key("0"))).err(), Some(compacted), "it is not known whole");
    let hash = machine.hash();
    compact(&mut machine, 2);
    assert_ne!(machine.hash(), hash);
}

#[test]
fn the_history_drops_whole_revisions_and_keeps_the_last_one() {
    const EVENTS: usize = 10;
    let capacity = TableCapacity { events: EVENTS, event_bytes: 4000, ..TableCapacity::default() };
    let mut machine = Machine { capacity, ..Machine::default() };
    let keys = ["a", "b", "c"];
    for round in 1..=20 {
        run(&mut machine, txn(keys.map(|name| put(name, round, None)).into()));
        let known = machine.history().len();
        assert!(known <= EVENTS && known.is_multiple_of(keys.len()), "{known} events");
        assert_eq!(machine.history().compacted().0 as usize, round.saturating_sub(EVENTS / keys.len()));
    }

    // By bytes, before the number: the entries before are kept by the history alone.
    run(&mut machine, txn(vec![put("a", 1000, None)]));
    run(&mut machine, txn(vec![put("a", 1500, None)]));
    let before = machine.history().len();
    run(&mut machine, txn(vec![put("a", 1, None)]));
    assert!(machine.history().len() < before && machine.history().bytes() <= 4000, "{:?}", machine.history());
    let bytes = machine.history().count_bytes();
    assert_eq!(machine.history().bytes(), bytes);

    // A revision that exceeds the limit alone.
    let many: Vec<_> = (0..3 * EVENTS).map(|number| put(&format!("many/{number}"), 1, None)).collect();
    run(&mut machine, txn(many));
    assert_eq!(machine.history().len(), 3 * EVENTS);
    assert!(!machine.has_work());
    run(&mut machine, txn(vec![put("a", 1, None)]));
    assert_eq!(machine.history().len(), 1);
}

/// Meanwhile nobody sees the events, and a table that is restored from a snapshot goes on where the other was.
#[test]
fn a_compaction_is_spread_over_batches() {
    const ROUNDS: usize = 1000;
    const LIMITS: Limits = Limits { work: 20, ..Limits::NONE };
    let mut machine = Machine::default();
    for _ in 0..ROUNDS {
        run(&mut machine, txn(vec![put("a", 1, None)]));
    }

    let last = ROUNDS as u64;
    apply(&mut machine, LIMITS, 0, Command::Compact { revision: Revision(last - 1) });
    let mut batches = 0;
    while machine.has_work() {
        let before = machine.history().len();
        assert_eq!(events(&machine, last - 1).len(), 1);
        assert!(machine.entry_at(&key("a"), Revision(last - 2)).is_err());
        let mut restored = Machine::from_records(machine.records()).expect("sound");
        for machine in [&mut machine, &mut restored] {
            apply(machine, LIMITS, 0, Command::Tick);
        }
        assert_eq!(restored.hash(), machine.hash());
        assert!(before - machine.history().len() <= 16 * LIMITS.work, "{before} events before");
        batches += 1;
        assert!(batches < ROUNDS, "it does not end");
    }

    assert!(batches >= ROUNDS / LIMITS.work / 16, "{batches} batches");
    assert_eq!(machine.history().len(), 1);
}

/// The session is over, and its end is in the backlog: a write of its entry comes after the end of the lease, also in the history.
#[test]
fn a_lease_ends_before_its_entry_is_replaced() {
    const LITTLE: Limits = Limits { work: 1, ..Limits::NONE };
    for at_end in [AtLeaseEnd::Delete, AtLeaseEnd::Keep] {
        let mut machine = with_entries(100, leased(at_end));
        apply(&mut machine, LITTLE, 1000, Command::Tick);
        let (name, before) = ("000099", machine.revision().0);
        assert!(machine.is_lease_over(&key(name)), "it is in the backlog");

        let write = txn(vec![put(name, 1, None), TxnOperation::Get(key(name))]);
        // In the same batch: the next one would go on with the backlog.
        let reply = machine.step(write, &mut Vec::new());
        let ended = u64::from(at_end == AtLeaseEnd::Keep);
        let last = machine.revision().0;
        assert_eq!(events(&machine, last - 2), [event(last - 1, name, 1, ended), event(last, name, ended, ended + 1)]);
        let Some(TxnResult::Got(Some(entry))) = results(&reply).last() else { panic!("{reply:?}") };
        assert_eq!((entry.modified.0, machine.entry(&key(name)).as_ref()), (last, Some(entry)));
        assert!(last >= before + 2);
        machine.check().expect("sound");
    }
}

#[test]
fn a_restored_history_shares_its_entries_with_the_table() {
    let mut machine = Machine::default();
    for round in 1..=3 {
        run(&mut machine, txn(vec![put("a", round, None), put("b", 1, None)]));
    }
    let restored = Machine::from_records(machine.records()).expect("sound");
    let known: Vec<_> = restored.history().after(Revision(0), None).expect("known").cloned().collect();
    assert_eq!(known, machine.history().after(Revision(0), None).expect("known").cloned().collect::<Vec<_>>());
    let of_a: Vec<_> = known.iter().filter(|event| event.key == key("a")).collect();
    let same = |one: &Option<Arc<Entry>>, other: &Option<Arc<Entry>>| {
        one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    };
    assert!(same(&of_a[0].after, &of_a[1].before) && same(&of_a[1].after, &of_a[2].before));
    assert!(same(&of_a[2].after, &restored.entry(&key("a"))));
}

#[test]
fn a_cluster_that_is_restored_from_a_copy_has_no_history() {
    let machine = with_entries(1, None);
    let restore = Restore { at: WallTime(0), draw: 7, first_token: Some(Token(50)), closed_ms: None };
    let mut restored = machine.restored(&restore).expect("above the last one");
    assert_eq!(restored.history().compacted(), Revision(49));
    run(&mut restored, txn(vec![put("a", 1, None)]));
    assert_eq!(events(&restored, 49), [event(50, "a", 0, 1)]);
    assert!(
        restored.entry_at(&key("000000"), Revision(1)).is_err(),
        "the old cluster may have changed it after the copy"
    );
}

/// An entry that claims a lock is a grant: the old cluster may have made another one after the copy.
#[test]
fn no_entry_claims_a_lock_while_a_restored_cluster_is_closed() {
    const BOB: SessionId = SessionId(2);
    const CLOSED_MS: u64 = 5_000;
    let restore = Restore { at: WallTime(0), draw: 7, first_token: Some(Token(50)), closed_ms: Some(CLOSED_MS) };
    let mut restored = with_entries(1, None).restored(&restore).expect("above the last one");
    let lease = Lease { session: BOB, at_end: AtLeaseEnd::Delete };
    let claim = |name: &str| {
        let claims = Some(LockName::new(name).unwrap().into());
        let put = Put { key: key(name), value: value(1), lease: PutLease::Given(lease), claims };
        txn(vec![open_for_entries(BOB), TxnOperation::Put(put)])
    };

    let (now, opens) = (restored.now().0, restored.now().0 + CLOSED_MS);
    for at in [now, opens - 1] {
        let refused = apply(&mut restored, Limits::NONE, at, claim("a"));
        assert_eq!(refused, Reply::Refused(Refusal::Closed { remaining_ms: opens - at }));
    }

    // What claims nothing goes on, with and without a lease.
    let plain = txn(vec![open_for_entries(BOB), put("b", 1, Some(lease)), put("c", 1, None)]);
    assert!(matches!(apply(&mut restored, Limits::NONE, opens - 1, plain), Reply::Committed(_)));
    assert!(matches!(apply(&mut restored, Limits::NONE, opens, claim("a")), Reply::Committed(_)));
}

#[test]
fn a_damaged_history_is_refused() {
    let mut machine = Machine::default();
    for name in ["a", "b", "a"] {
        run(&mut machine, txn(vec![put(name, 1, None), put("c", 1, None)]));
    }
    run(&mut machine, txn(vec![delete("b")]));
    compact(&mut machine, 1);

    let records: Vec<_> = machine.records().collect();
    let places: Vec<_> = (0..records.len()).filter(|at| matches!(records[*at], Record::EntryEvent { .. })).collect();
    assert_eq!(places.len(), 5);
    let restored = |records: Vec<Record>| Machine::from_records(records).map(|restored| restored.hash());
    assert_eq!(restored(records.clone()), Ok(machine.hash()));
    let refused = |what: &str, spoil: &dyn Fn(&mut Vec<Record>)| {
        let mut spoilt = records.clone();
        spoil(&mut spoilt);
        assert!(restored(spoilt).is_err(), "{what} was taken");
    };

    for at in &places {
        refused("an event twice", &|records| records.insert(*at, records[*at].clone()));
        refused("an event with another entry", &|records| {
            let Record::EntryEvent { before, .. } = &mut records[*at] else { panic!("an event") };
            match before {
                Some(entry) => Arc::make_mut(entry).version += 1,
                None => *before = machine.entry(&key("c")),
            }
        });
    }

    refused("events in another order", &|records| records.swap(places[0], places[1]));
    refused("no event of a deletion", &|records| _ = records.remove(places[4]));
    refused("a later compaction than revisions", &|records| {
        let at = records.iter().position(|record| matches!(record, Record::Compacted { .. })).expect("there is one");
        records[at] = Record::Compacted { revision: Revision(9) };
    });
    refused("no event of an entry", &|records| records.retain(|record| !matches!(record, Record::EntryEvent { .. })));
}

fn claim(name: &str, session: SessionId, lock: &str) -> TxnOperation {
    let lease = Some(Lease { session, at_end: AtLeaseEnd::Keep });
    TxnOperation::Put(Put {
        key: key(name),
        value: value(1),
        lease: lease.into(),
        claims: LockName::new(lock).ok().map(PutClaim::from),
    })
}

/// A table with a holder and one that waits.
fn with_claims() -> Machine {
    let mut machine = Machine::default();
    open(&mut machine);
    for name in ["a", "b"] {
        assert!(matches!(run(&mut machine, txn(vec![claim(name, ANN, "l")])), Reply::Committed(_)));
    }
    machine
}

#[test]
fn a_claim_that_would_never_end_or_has_no_order_cannot_be_made() {
    let make = |then: Vec<TxnOperation>| Txn::new(vec![], then, vec![]).map(|_| ());
    let lock = LockName::new("l").unwrap();
    let put = TxnOperation::Put(Put {
        key: key("a"),
        value: value(1),
        lease: PutLease::None,
        claims: Some(lock.clone().into()),
    });
    assert_eq!(make(vec![put]), Err(InvalidTxn::ClaimWithoutLease { key: key("a"), lock: lock.clone() }));
    assert_eq!(make(vec![claim("a", ANN, "l"), claim("b", ANN, "l")]), Err(InvalidTxn::ClaimedTwice { lock }));
    assert_eq!(make(vec![claim("a", ANN, "l"), claim("b", ANN, "m")]), Ok(()));
}

/// The first write of a transaction gives the lock up, and so grants it to an entry that the second one only renews.
#[test]
fn an_entry_that_is_granted_a_lock_by_the_transaction_that_writes_it_has_it() {
    let mut machine = with_claims();
    run(&mut machine, txn(vec![TxnOperation::Delete(key("a")), claim("b", ANN, "l")]));
    let claim = machine.entry(&key("b")).unwrap().claim.clone().unwrap();
    assert_eq!((claim.token, claim.is_held), (Token(2), true));
    machine.check().unwrap();
}

#[test]
fn names_are_listed_once_between_those_of_locks() {
    let mut machine = with_claims();
    run(&mut machine, txn(vec![claim("c", ANN, "n")]));
    let want = |name| Want {
        name: LockName::new(name).unwrap(),
        mode: Mode::Exclusive,
        data: None,
        keep_data: false,
        must_exist: false,
    };

    let acquire = Acquire::new(vec![want("k"), want("la"), want("m"), want("o")], Wait::Never, 0).unwrap();
    run(&mut machine, Command::Session { session: ANN, request: None, operation: Operation::Acquire(acquire) });

    let names = |prefix: &str, after: Option<&str>| {
        let after = after.map(|after| LockName::new(after).unwrap());
        machine.locks(prefix, after.as_ref()).map(ToString::to_string).collect::<Vec<_>>()
    };

    assert_eq!(names("", None), ["k", "l", "la", "m", "n", "o"]);
    assert_eq!(names("", Some("l")), ["la", "m", "n", "o"]);
    assert_eq!(names("l", None), ["l", "la"]);
    assert_eq!(names("n", Some("a")), ["n"]);
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    assert_eq!((names("n", Some("n")), names("nn", None), names(&long, None)), (vec![], vec![], vec![]));
    let Counts { locks, grants, waiters, .. } = machine.counts();
    assert_eq!((locks, grants, waiters), (6, 3, 1));
}

#[test]
fn damaged_claims_are_refused() {
    let machine = with_claims();
    let restored = |spoil: &dyn Fn(&str, &mut Claim)| {
        let records = machine.records().map(|mut record| {
            if let Record::Entry { key, entry } = &mut record
                && let Some(claim) = &mut Arc::make_mut(entry).claim
            {
                spoil(if *key == Key::new(b"a").unwrap() { "a" } else { "b" }, Arc::make_mut(claim));
            }
            record
        });
        Machine::from_records(records).map(|restored| restored.hash()).map_err(|broken| broken.to_string())
    };

    assert_eq!(restored(&|_, _| {}), Ok(machine.hash()));
    type Spoil = dyn Fn(&str, &mut Claim);
    let spoils: [&Spoil; 5] = [
        &|_, claim| claim.is_held = true,
        &|_, claim| claim.is_held = false,
        &|_, claim| claim.token = Token(1),
        &|_, claim| claim.token = Token(claim.token.0 + 1),
        &|name, claim| claim.token = if name == "a" { Token(0) } else { claim.token },
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        assert!(restored(spoil).is_err(), "number {number} was taken");
    }

    let mut other = with_claims();
    run(&mut other, txn(vec![claim("b", ANN, "l")]));
    assert_ne!(other.hash(), machine.hash());
}

fn after(ms: u64) -> EntryDeadline {
    EntryDeadline::After(Lifetime::from_millis(ms).unwrap())
}

fn put_until(name: &str, deadline: EntryDeadline, lock: Option<&str>) -> TxnOperation {
    let claims = lock.map(|lock| PutClaim { lock: LockName::new(lock).unwrap(), label: Label::new("ann").unwrap() });
    TxnOperation::Put(Put { key: key(name), value: value(1), lease: PutLease::Until(deadline), claims })
}

/// A table with so many entries that end at 1000, one in ten of which claims a lock.
fn with_deadlines(count: usize) -> Machine {
    let mut machine = Machine::default();
    let names: Vec<_> = (0..count).map(|number| format!("{number:06}")).collect();
    for some in names.chunks(TXN_OPERATIONS_MAX) {
        let puts = some.iter().map(|name| put_until(name, after(1000), name.ends_with('0').then_some(name)));
        assert!(matches!(run(&mut machine, txn(puts.collect())), Reply::Committed(_)));
    }
    machine
}

/// However many entries end in one millisecond, each batch does a bounded part, and all are gone for everybody at once.
#[test]
fn a_hundred_thousand_entries_end_in_one_millisecond_and_in_many_batches() {
    const COUNT: usize = 100_000;
    const WORK: usize = 5000;
    let mut machine = with_deadlines(COUNT);
    assert_eq!((machine.entries(&KeyRange::default()).count(), machine.counts().grants), (COUNT, COUNT / 10));
    assert_eq!(machine.next_deadline(), Some(Stamp(1000)));
    assert!(!machine.is_due_by(Stamp(999)) && machine.is_due_by(Stamp(1000)));

    let limits = Limits { work: WORK, ..Limits::NONE };
    let mut batches = 0;
    while batches == 0 || machine.has_work() {
        let before = machine.counts().entries;
        let reply = apply(&mut machine, limits, 1000, txn(vec![put(&format!("other {batches}"), 1, None)]));
        assert!(matches!(reply, Reply::Committed(_)), "{reply:?}");
        batches += 1;
        assert!(before + 1 - machine.counts().entries <= 2 * WORK, "{before} entries, {:?}", machine.counts());
        assert_eq!(machine.entries(&KeyRange::default()).count(), batches, "the others are over");
        // The late ones are no reason to wait for a tick.
        assert!(!machine.is_due_by(Stamp(5000)));
    }
    assert!((COUNT / (2 * WORK)..=2 * COUNT / WORK).contains(&batches), "{batches}");
    assert_eq!((machine.counts().entries, machine.counts().grants), (batches, 0));
    machine.check().unwrap();
}

/// An entry with a deadline takes no more of the table than it leaves: neither bytes nor places.
#[test]
fn what_an_entry_with_a_deadline_takes_is_given_back_at_its_end() {
    let mut machine = Machine::default();
    let empty = machine.bytes();
    let then = vec![put_until("a", after(10), Some("a")), put_until("b", after(10), Some("queue"))];
    run(&mut machine, txn(then));
    // One that waits behind it, and leaves the queue as the lock is handed on: its claim ends before it.
    run(&mut machine, txn(vec![put_until("c", after(20), Some("queue"))]));
    run(&mut machine, txn(vec![put_until("d", after(10_000), Some("queue"))]));
    assert!(machine.bytes() > empty);

    let limits = Limits { work: 1, ..Limits::NONE };
    apply(&mut machine, limits, 20, Command::Tick);
    while machine.has_work() {
        machine.check().unwrap();
        apply(&mut machine, limits, 20, Command::Tick);
    }

    let holder = machine.claim_holder(&LockName::new("queue").unwrap()).map(|holder| holder.remaining_ms);
    assert_eq!(holder, Some(9_980));
    apply(&mut machine, Limits::NONE, 20, txn(vec![TxnOperation::Delete(key("d"))]));
    assert_eq!((machine.bytes(), machine.counts().entries, machine.next_deadline()), (empty, 0, None));
}

#[test]
fn a_full_table_goes_on_to_extend_and_to_end_entries() {
    let mut machine = Machine::default();
    run(&mut machine, txn(vec![put_until("a", after(1000), Some("a"))]));
    let full = Limits { table_bytes: machine.table_bytes(), ..Limits::NONE };
    let refused = Reply::Refused(Refusal::Limit(Limit::TableBytes));
    assert_eq!(apply(&mut machine, full, 1, txn(vec![put_until("b", after(1000), None)])), refused);

    let extend = |deadline| TxnOperation::Expire(Expire { key: key("a"), deadline });
    for then in [extend(Some(after(2000))), put_until("a", after(2000), Some("a")), extend(None)] {
        let then = vec![then];
        let Command::Txn(asked) = txn(then.clone()) else { panic!("it is one") };
        assert!(!machine.txn_asks_for_more(&asked), "{then:?}");
        assert!(matches!(apply(&mut machine, full, 1, txn(then)), Reply::Committed(_)));
    }
    assert_eq!(machine.entry(&key("a")).unwrap().until, None);
}

/// What a copy has of a lock that is held by an entry says nothing of how its client extended it since.
#[test]
fn an_entry_with_a_deadline_lives_until_a_restored_cluster_opens() {
    let mut machine = Machine::default();
    let then = vec![put_until("a", after(100), Some("a")), put_until("b", after(60_000), Some("b"))];
    run(&mut machine, txn(then));
    let restore = |closed_ms| Restore { at: WallTime(0), draw: 7, first_token: Some(Token(50)), closed_ms };
    let until = |restored: &Machine, name: &str| restored.entry(&key(name)).and_then(|entry| entry.until);

    let mut restored = machine.restored(&restore(Some(5000))).unwrap();
    assert_eq!((until(&restored, "a"), until(&restored, "b")), (Some(Stamp(5000)), Some(Stamp(60_000))));
    let refused = apply(&mut restored, Limits::NONE, 4999, txn(vec![put_until("c", after(1), Some("c"))]));
    assert_eq!(refused, Reply::Refused(Refusal::Closed { remaining_ms: 1 }));
    let token = restored.claim_holder(&LockName::new("a").unwrap()).map(|holder| holder.token);
    assert_eq!(token, Some(Token(1)));
    assert_eq!(until(&machine.restored(&restore(None)).unwrap(), "a"), Some(Stamp(100)));
}

#[test]
fn deadlines_wait_until_all_members_know_them() {
    let since = |then| txn(then).since();
    assert_eq!(since(vec![put("a", 1, None)]), Version::KEYSPACE);
    let expire = |deadline| TxnOperation::Expire(Expire { key: key("a"), deadline });
    for then in [put_until("a", after(1), None), expire(None), expire(Some(after(1)))] {
        let Command::Txn(either) = txn(vec![then]) else { panic!("it is one") };
        let otherwise = Txn::new(vec![], vec![], either.then().to_vec()).unwrap();
        assert_eq!([Command::Txn(either), Command::Txn(otherwise)].map(|it| it.since()), [Version::LIFETIMES; 2]);
    }

    let mut machine = Machine::default();
    run(&mut machine, txn(vec![put_until("a", after(1), None)]));
    run(&mut machine, txn(vec![TxnOperation::Delete(key("a"))]));
    let newest = machine.records().map(|record| record.since()).max();
    assert_eq!(newest, Some(Version::LIFETIMES), "also in the history alone");
}

#[test]
fn a_lifetime_has_bounds() {
    assert!(Lifetime::from_millis(0).is_err() && Lifetime::from_millis(LIFETIME_MS_MAX + 1).is_err());
    let longest = EntryDeadline::After(Lifetime::from_millis(LIFETIME_MS_MAX).unwrap());
    let mut machine = Machine::default();
    apply(&mut machine, Limits::NONE, 1 << 60, txn(vec![put_until("a", longest, None)]));
    assert_eq!(machine.entry(&key("a")).unwrap().until, Some(Stamp((1 << 60) + LIFETIME_MS_MAX)));

    let twice = [put_until("a", longest, None), TxnOperation::Expire(Expire { key: key("a"), deadline: None })];
    assert_eq!(Txn::new(vec![], twice.to_vec(), vec![]), Err(InvalidTxn::PutTwice { key: key("a") }));
}
