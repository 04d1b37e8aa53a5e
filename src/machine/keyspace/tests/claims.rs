//! Entries that stand for locks.

use super::*;

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

    let opens = restored.now().0 + CLOSED_MS;
    let now = restored.now().0;
    for at in [now, opens - 1] {
        let refused = apply(&mut restored, Limits::NONE, at, claim("a"));
        assert_eq!(refused, Reply::Refused(Refusal::Closed { remaining_ms: opens - at }));
    }

    // What claims nothing goes on, with and without a lease.
    let plain = txn(vec![open_for_entries(BOB), put("b", 1, Some(lease)), put("c", 1, None)]);
    assert!(matches!(apply(&mut restored, Limits::NONE, opens - 1, plain), Reply::Committed(_)));
    assert!(matches!(apply(&mut restored, Limits::NONE, opens, claim("a")), Reply::Committed(_)));
}
