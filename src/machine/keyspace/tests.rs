//! Tables of entries, and what the tests of each idea share. Here: versions, hashes, and damaged records.

mod claims;
mod deadlines;
mod history;
mod leases;
mod limits;

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
