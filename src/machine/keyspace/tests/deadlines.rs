//! Entries with a deadline of their own.

use super::*;

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
