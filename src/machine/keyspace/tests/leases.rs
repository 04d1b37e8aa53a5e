//! The end of a lease, and the entries that it takes along.

use super::*;

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

/// Who opens a session in the place of another one waits until that one's entries are gone, and not for sessions that end later.
#[test]
fn the_first_session_that_is_not_cleared_away_is_known() {
    const ENTRIES: usize = 200;
    const LIMITS: Limits = Limits { work: 20, ..Limits::NONE };
    let mut machine = with_entries(ENTRIES, leased(AtLeaseEnd::Delete));
    let bob = SessionId(ANN.0 + 1);
    let lease = Some(Lease { session: bob, at_end: AtLeaseEnd::Delete });
    let mut then = vec![open_for_entries(bob)];
    then.extend((0..ENTRIES).map(|number| put(&format!("bob-{number}"), 1, lease)));
    assert!(matches!(run(&mut machine, txn(then)), Reply::Committed(_)));
    let first = |machine: &Machine| machine.first_uncleared(|_| true);
    let shown = |machine: &Machine, name| machine.stored_entry(&key(name)).is_some();
    assert_eq!(first(&machine), None);

    // Both have the same time to live; the end of one comes before its own deadline is handled.
    apply(&mut machine, LIMITS, 990, Command::Close { session: bob, by: None, reason: None });
    assert_eq!(first(&machine), Some(Stamp(990)));
    assert_eq!(machine.first_uncleared(|id| id == ANN), None);
    let mut seen = Vec::new();
    while machine.has_work() || seen.is_empty() {
        apply(&mut machine, LIMITS, 1000, Command::Tick);
        let first = first(&machine);
        assert_eq!(first.is_some_and(|at| at <= Stamp(990)), shown(&machine, "bob-99"));
        assert_eq!(first.is_some_and(|at| at <= Stamp(1000)), machine.has_work());
        seen.push(first.map(|at| at.0));
    }
    seen.dedup();
    assert_eq!(seen, [Some(990), Some(1000), None]);
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

/// The session is over, and its end is in the backlog: a write of its entry comes after the end of the lease, also in the history.
#[test]
fn a_lease_ends_before_its_entry_is_replaced() {
    const LITTLE: Limits = Limits { work: 1, ..Limits::NONE };
    for at_end in [AtLeaseEnd::Delete, AtLeaseEnd::Keep] {
        let mut machine = with_entries(100, leased(at_end));
        apply(&mut machine, LITTLE, 1000, Command::Tick);
        let name = "000099";
        let before = machine.revision().0;
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
