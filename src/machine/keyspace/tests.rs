//! The limits of the keyspace, the budget for the end of a lease, and damaged records.

use crate::{capacity::Capacity, *};

const ANN: SessionId = SessionId(1);

fn key(key: &str) -> Key {
    Key::new(key.as_bytes()).unwrap()
}

fn value(bytes: usize) -> Value {
    Value::new(&vec![7; bytes]).unwrap()
}

fn put(name: &str, bytes: usize, lease: Option<Lease>) -> TxnOperation {
    TxnOperation::Put(Put { key: key(name), value: value(bytes), lease })
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
    let (ttl, label) = (Ttl::from_millis(1000).unwrap(), Label::default());
    run(machine, Command::Open { session: ANN, ttl, label, address: None, owner: None });
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
    let compare = Compare { key: key("a"), relation: Relation::Equal, operand: Operand::Version(0) };
    let compares = Txn::new(vec![compare; count], vec![], vec![]).map(|_| ());
    assert_eq!(compares, Err(InvalidTxn::TooManyOperations { what: "compares", count }));
    let large: Vec<_> = ["a", "b", "c", "d"].map(|key| put(key, VALUE_BYTES_MAX, None)).into();
    assert_eq!(make(&large), Err(InvalidTxn::TooLarge { bytes: 4 * VALUE_BYTES_MAX + 4 }));
    assert_eq!(make(&[put("a", 0, None), put("a", 1, None)]), Err(InvalidTxn::PutTwice { key: key("a") }));
    let either = Txn::new(vec![], vec![put("a", 0, None)], vec![put("a", 1, None)]);
    assert!(either.is_ok(), "only one of them runs");
    assert!(Key::new(b"").is_err() && Key::new(&[0; KEY_BYTES_MAX + 1]).is_err());
    assert!(Key::new(&[0; KEY_BYTES_MAX]).is_ok() && Value::new(&vec![0; VALUE_BYTES_MAX + 1]).is_err());
}

#[test]
fn entries_are_limited_until_one_is_deleted() {
    let mut machine = Machine { capacity: Capacity { entries: 2, ..Capacity::default() }, ..Machine::default() };
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

/// Members that do not know the keyspace must not be sent any of it.
#[test]
fn transactions_and_entries_need_a_cluster_version() {
    assert_eq!(txn(vec![]).since(), Version::KEYSPACE);
    let machine = with_entries(1, None);
    let since: Vec<_> = machine.records().map(|record| record.since()).collect();
    assert_eq!(since, [Version::FIRST, Version::FIRST, Version::KEYSPACE]);
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
    let spoils: [&dyn Fn(&mut Entry); 6] = [
        &|entry| entry.created = Revision(0),
        &|entry| entry.created = Revision(2),
        &|entry| entry.modified = Revision(2),
        &|entry| entry.version = 0,
        &|entry| entry.is_expired = true,
        &|entry| entry.lease = Some(Lease { session: SessionId(2), at_end: AtLeaseEnd::Keep }),
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        assert!(restored(spoil).is_err(), "number {number} was taken");
    }
}
