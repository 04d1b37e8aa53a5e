//! A transaction is judged by the table that it leaves, and then it runs: at every limit, with every room that is left.

use crate::*;

const ANN: SessionId = SessionId(1);
const BOB: SessionId = SessionId(2);

fn key(key: &str) -> Key {
    Key::new(key.as_bytes()).unwrap()
}

fn put(name: &str, bytes: usize, lease: Option<SessionId>) -> TxnOperation {
    let value = Value::new(&vec![7; bytes]).unwrap();
    // Kept at the end of its lease: one that is deleted is temporary, which has limits of its own.
    let lease = lease.map(|session| Lease { session, at_end: AtLeaseEnd::Keep });
    TxnOperation::Put(Put { key: key(name), value, lease: lease.into(), claims: None })
}

fn opens(session: SessionId) -> TxnOperation {
    let ttl = Ttl::from_millis(1000).unwrap();
    let label = Label::new("a label").unwrap();
    TxnOperation::Open(NewSession { session, ttl, label, address: None, owner: None })
}

fn run(machine: &mut Machine, limits: Limits, at: u64, then: Vec<TxnOperation>) -> Reply {
    let time = Time { stamp: Stamp(at), wall: WallTime(0) };
    let txn = Command::Txn(Txn::new(vec![], then, vec![]).unwrap());
    let reply = machine.apply_batch(time, limits, [txn], &mut Vec::new()).remove(0);
    machine.check().unwrap();
    reply
}

fn is_committed(reply: &Reply) -> bool {
    matches!(reply, Reply::Committed(_))
}

/// A table that has these entries.
fn with(then: Vec<TxnOperation>) -> Machine {
    let mut machine = Machine::default();
    assert!(is_committed(&run(&mut machine, Limits::NONE, 0, then)));
    machine
}

/// Limits that leave the table room for so many bytes more.
fn with_room(machine: &Machine, bytes: usize) -> Limits {
    Limits { table_bytes: machine.bytes() as usize + bytes, ..Limits::NONE }
}

/// The new session alone has no room before the larger entry is gone.
#[test]
fn a_smaller_entry_with_a_new_session_replaces_a_larger_one_in_a_full_table() {
    let before = with(vec![put("a", 10_000, None)]);
    for room in 0..1_000 {
        let mut machine = before.clone();
        let tight = with_room(&machine, room);
        let reply = run(&mut machine, tight, 0, vec![opens(ANN), put("a", 1, Some(ANN))]);
        assert!(is_committed(&reply), "with room for {room} bytes: {reply:?}");
        assert!(machine.bytes() < before.bytes());
    }
}

/// The last entry leaves the old session, so it is closed: its place and its bytes are the new one's.
#[test]
fn a_session_that_is_left_makes_room_for_the_one_that_replaces_it() {
    let mut before = with(vec![opens(ANN), put("a", 1, Some(ANN))]);
    before.capacity = TableCapacity { sessions: 1, ..TableCapacity::default() };
    let replace = || vec![opens(BOB), put("a", 1, Some(BOB))];
    let full = with_room(&before, 0);
    let mut machine = before.clone();
    assert!(is_committed(&run(&mut machine, full, 0, replace())));
    assert_eq!((machine.counts().sessions, machine.bytes()), (1, before.bytes()));

    // It keeps another entry, so both sessions stay.
    let mut machine = before.clone();
    assert!(is_committed(&run(&mut machine, Limits::NONE, 0, vec![put("b", 1, Some(ANN))])));
    let full = with_room(&machine, 10_000);
    let refused = run(&mut machine, full, 0, replace());
    assert_eq!(refused, Reply::Refused(Refusal::Limit(Limit::Sessions)));
}

/// A session that is there adds nothing, whether it is opened again or renewed by its entry.
#[test]
fn a_repeated_open_needs_no_room() {
    let mut machine = with(vec![opens(ANN), put("a", 5, Some(ANN))]);
    machine.capacity = TableCapacity { sessions: 1, entries: 1, ..TableCapacity::default() };
    let full = with_room(&machine, 0);
    let reply = run(&mut machine, full, 900, vec![opens(ANN), put("a", 5, Some(ANN))]);
    assert!(is_committed(&reply), "{reply:?}");
    assert!(run(&mut machine, full, 1_500, vec![put("a", 5, Some(ANN))]) == reply_of_put(&machine), "it was renewed");
}

fn reply_of_put(machine: &Machine) -> Reply {
    let succeeded = true;
    let results = vec![TxnResult::Put];
    Reply::Committed(Committed { succeeded, failed: None, revision: machine.revision(), now: machine.now(), results })
}

/// A new session counts with all that it then has.
#[test]
fn a_new_session_is_judged_with_its_entries() {
    let alone = with(vec![opens(ANN), put("a", 100, Some(ANN))]);
    let needs = alone.bytes() as usize;
    for (limit, fits) in [(needs, true), (needs - 1, false)] {
        let mut machine = Machine::default();
        let limits = Limits { session_bytes: limit, ..Limits::NONE };
        let reply = run(&mut machine, limits, 0, vec![opens(ANN), put("a", 100, Some(ANN))]);
        assert_eq!(is_committed(&reply), fits, "{limit} of {needs}: {reply:?}");
        let limits = Limits { table_bytes: limit, ..Limits::NONE };
        let reply = run(&mut Machine::default(), limits, 0, vec![opens(ANN), put("a", 100, Some(ANN))]);
        assert_eq!(is_committed(&reply), fits, "{limit} of {needs}: {reply:?}");
    }
}

/// Leases that are over end first, each at a revision of its own; the operations see what that leaves, in whatever room there is.
#[test]
fn leases_that_are_over_end_before_the_operations_see_their_entries() {
    let keep = |name, bytes| {
        let value = Value::new(&vec![7; bytes]).unwrap();
        let lease = PutLease::Given(Lease { session: ANN, at_end: AtLeaseEnd::Keep });
        TxnOperation::Put(Put { key: key(name), value, lease, claims: LockName::new(name).ok().map(PutClaim::from) })
    };
    let before = with(vec![opens(ANN), keep("a", 900), keep("b", 900), put("c", 900, Some(ANN))]);
    let revision = before.revision();
    for room in 0..1_000 {
        let mut machine = before.clone();
        // The deadline was not reached by the budget: the session is over, and its end was not handled.
        let limits = Limits { work: 1, ..with_room(&machine, room) };
        machine.clock.arrive(Stamp(1_000));
        assert!(machine.clock.is_behind());
        let get = || TxnOperation::Get(key("b"));
        let then = vec![get(), opens(BOB), put("a", 1, Some(BOB)), put("b", 1, None), put("c", 1, Some(BOB)), get()];
        let txn = Txn::new(vec![], then, vec![]).unwrap();
        machine.batch.set_limits(limits);
        let reply = machine.commit(&txn, &mut Vec::new()).unwrap();

        let Reply::Committed(Committed { revision: at, results, .. }) = reply else { panic!("{reply:?}") };
        assert_eq!(at, Revision(revision.0 + 4), "a, b and c end, and then one write");
        let seen = |result: &TxnResult| {
            let TxnResult::Got(Some(entry)) = result else { panic!("{result:?}") };
            (entry.modified, entry.version, entry.is_expired, entry.lease)
        };
        assert_eq!(seen(&results[0]), (Revision(revision.0 + 2), 1, true, None));
        assert_eq!(seen(&results[5]), (at, 2, false, None));
        assert_eq!(machine.entry(&key("b")).unwrap().modified, at);
        machine.check().unwrap();
    }
}
