//! What a transaction and the keyspace may hold at the most.

use super::*;

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
    let entries = Vec::new();
    let more = false;
    let selected = TxnResult::Selected(Selected { entries, count: TXN_READS_MAX as u64 / 2, more });
    assert_eq!(results(&run(&mut machine, counted(2))), [selected.clone(), selected]);
    let refused = Reply::Refused(Refusal::Limit(Limit::TxnReads));
    assert_eq!(run(&mut machine, counted(3)), refused);
    let up_to = Some(key("1"));
    let key = key("0");
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
