//! Requests of another protocol's adapter pass a follower unchanged, and so do the replies.

use std::{fmt::Debug, sync::Arc};

use super::{Encode, Form};
use crate::api::{Error, requests::*};
use lockkeeper_machine::*;

fn survives<T: Encode + Clone + PartialEq + Debug>(values: impl IntoIterator<Item = T>) {
    for value in values {
        let message = Form::Typed(value.clone()).message();
        assert_eq!(Form::<T>::Message(message).typed().expect("a valid message"), value);
    }
}

fn name(text: &str) -> LockName {
    LockName::new(text).expect("a name")
}

fn ttl() -> Ttl {
    Ttl::from_millis(2_500).expect("a TTL")
}

fn label() -> Label {
    Label::new("host 7 program").expect("a label")
}

fn reason() -> lockkeeper_machine::Reason {
    lockkeeper_machine::Reason::new("dead").expect("a reason")
}

fn bytes() -> Option<Data> {
    Data::new(b"\0data").ok()
}

fn modes() -> [Mode; 3] {
    [Mode::Exclusive, Mode::Shared, Mode::Permit(Permits::new(3).expect("permits"))]
}

const SESSION: SessionId = SessionId(0xfedc_ba98_7654_3210_0123_4567_89ab_cdef);

fn numbered() -> Option<Request> {
    Some(Request { id: 9, open: OpenIds::new(7, vec![2, 5]).expect("rising") })
}

fn holder(mode: Mode) -> HolderView {
    let revoked = (mode == Mode::Shared).then(reason);
    let origin = HolderOrigin { address: (mode == Mode::Shared).then(|| "10.0.0.7:5123".parse().expect("an address")) };
    HolderView { origin, ..blocker(mode, revoked) }
}

fn blocker(mode: Mode, revoked: Option<lockkeeper_machine::Reason>) -> HolderView {
    let origin = HolderOrigin::default();
    let since = WallTime(5);
    HolderView { token: Token(4), session: SESSION, label: label(), mode, since, remaining_ms: 6, revoked, origin }
}

fn waiter(mode: Mode) -> WaiterView {
    let remaining_ms = (mode != Mode::Exclusive).then_some(8);
    WaiterView { ticket: Ticket(7), session: SESSION, label: label(), mode, since: WallTime(6), remaining_ms }
}

fn lock() -> LockView {
    LockView {
        name: name("a/b"),
        kind: LockKind::Entry,
        mode: Some(Mode::Shared),
        holders: modes().map(holder).into(),
        holder_count: 30,
        waiters: modes().map(waiter).into(),
        queue_length: 40,
        data: bytes(),
        keep_data: true,
        delay_remaining_ms: 11,
        resized: true,
    }
}

fn free() -> LockView {
    LockView {
        kind: LockKind::Lock,
        mode: None,
        holders: vec![],
        waiters: vec![],
        data: None,
        resized: false,
        ..lock()
    }
}

fn revocation() -> Revocation {
    Revocation { token: Token(3), reason: reason(), remaining_ms: 12 }
}

fn busy() -> [Busy; 2] {
    let busy = Busy { name: name("a"), holder: Some(holder(Mode::Shared)), queue_length: 2, delay_remaining_ms: 0 };
    [Busy { holder: None, delay_remaining_ms: 9, ..busy.clone() }, busy]
}

#[test]
fn requests_about_sessions() {
    survives([None, Some(SESSION)].map(|session| OpenSession { session, ttl: ttl(), label: label() }));
    survives([RenewSession { session: SESSION }]);
    survives([None, Some(reason())].map(|reason| CloseSession { session: SESSION, reason }));
    survives([None, Some(SESSION)].map(|id| ListSessions { after: id, last: id, page_size: 3, stale: id.is_some() }));
    survives([KeepAlive { session: SESSION, sequence: 8 }]);
}

#[test]
fn replies_about_sessions() {
    survives([SessionOpened { session: SESSION, ttl: ttl() }]);
    survives([SessionRenewed { ttl: ttl(), revoked: vec![revocation()], more_revoked: true }]);
    survives([SessionClosed]);
    let shown = SessionView {
        session: SESSION,
        label: label(),
        ttl: ttl(),
        remaining_ms: 1,
        opened: WallTime(2),
        grants: 3,
        waits: 4,
        bytes: 5,
        address: "10.0.0.7:5123".parse().ok(),
        owner: "shop-1".parse().ok(),
    };
    survives([None, Some(SESSION)].map(|more_after| ListedSessions {
        sessions: vec![shown.clone(), SessionView { address: None, owner: None, ..shown.clone() }],
        more_after,
        index: 6,
    }));
    let kinds = [SessionEnd::Closed, SessionEnd::Expired, SessionEnd::Unknown].map(KeepAliveEventKind::Ended);
    let members = vec!["10.0.0.1:7101".to_owned(), "10.0.0.2:7101".to_owned()];
    let renewed = KeepAliveEventKind::Renewed { sequence: 8, ttl: ttl(), members };
    let others = [renewed, KeepAliveEventKind::Revoked(revocation())];
    survives(kinds.into_iter().chain(others).map(|kind| KeepAliveEvent { session: SESSION, kind }));
}

#[test]
fn requests_about_members() {
    let incarnation = [7; 16].as_slice().try_into().ok();
    survives([None, incarnation].map(|incarnation| AddMember {
        node_id: 4,
        client_address: "host:1".to_owned(),
        peer_address: "host:2".to_owned(),
        stays_learner: incarnation.is_none(),
        incarnation,
    }));
    survives([PromoteMember { node_id: 4 }]);
    survives([RemoveMember { node_id: 4 }]);
    survives([None, Some(5)].map(|with| ReplaceMember { node_id: 4, with, keep: false }));
    survives([ReplaceMember { node_id: 4, with: None, keep: true }]);
    survives([MembersChanged]);
    survives([None, Some(5)].map(|to| TransferLeader { to }));
    survives([LeaderTransferred { leader_id: 4 }]);
}

#[test]
fn requests_about_locks() {
    let want = |(at, mode): (usize, Mode)| Want {
        name: name(&format!("lock/{at}")),
        mode,
        data: (at == 0).then(bytes).flatten(),
        keep_data: at == 0,
        must_exist: at == 1,
    };
    let wants: Vec<Want> = modes().into_iter().enumerate().map(want).collect();
    survives([Wait::Never, Wait::Millis(70), Wait::Forever].map(|wait| AcquireLocks {
        session: SESSION,
        request: numbered().filter(|_| wait == Wait::Never),
        acquire: Acquire::new(wants.clone(), wait, 90).expect("an acquire"),
    }));
    let targets = [Target::Grant(Token(4)), Target::Acquire(5)];
    survives(targets.map(|target| ReleaseLocks { session: SESSION, request: numbered(), target }));
    let update = Update { token: Token(4), name: name("a"), data: bytes(), keep_data: true };
    survives([UpdateData { session: SESSION, request: None, update }]);
    survives([CheckToken { name: name("a"), token: Token(4) }]);
    let page = Page { size: 2, holders_after: Token(3), waiters_after: Ticket(4) };
    survives([GetLock { name: name("a"), page, stale: true }]);
    survives([None, Some(name("a"))].map(|after| ListLocks {
        prefix: "a".to_owned(),
        stale: after.is_none(),
        after,
        page_size: 5,
    }));
    survives([None, Some(Token(9))].map(|token| ForceRelease {
        name: name("a"),
        token,
        after: Token(1),
        up_to: token,
        reason: reason(),
        now: token.is_none(),
        by: None,
    }));
    survives([ShowBusiest { prefix: "a".to_owned(), size: 5, after_index: 6 }]);
    survives([RemoveWaiter { name: name("a"), ticket: Ticket(4) }]);
    survives([LiftDelay { name: name("a") }]);
    survives([None, Some(name("a/1"))].map(|after| DropData { prefix: "a".to_owned(), after }));
    survives([ResizeSemaphore { name: name("a"), permits: Permits::new(4).expect("permits") }]);
    survives([WatchLocks { prefix: "a".to_owned(), after_index: 6 }]);
}

#[test]
fn replies_about_locks() {
    let grant = Grant { token: Token(4), session: SESSION, names: vec![name("a"), name("b")].into() };
    survives([Acquired::Granted(grant)]);
    survives(busy().map(Acquired::Busy));
    survives(busy().map(Acquired::TimedOut));
    survives([Released::Grant, Released::Wait, Released::Nothing]);
    survives([DataUpdated]);
    let holders = [None, Some(holder(Mode::Exclusive))];
    survives(holders.map(|holder| TokenChecked { holder, last_token: Token(9), index: 7 }));
    survives([lock(), free()].map(|lock| LockFound { lock, index: 8 }));
    survives([None, Some(name("b"))].map(|more_after| ListedLocks {
        locks: vec![lock(), free()],
        more_after,
        index: 8,
    }));
    let long = |holder| LongWaitView { name: name("a"), waiter: waiter(Mode::Shared), holder, queue_length: 3 };
    let totals = TableTotals {
        granted: 1,
        released: 2,
        expired: 3,
        forced: 4,
        queued: 5,
        waits_ended: 6,
        sessions_closed: 7,
        sessions_expired: 8,
    };
    survives([BusiestLocks {
        locks: vec![BusyLockView { lock: lock(), grants: 9 }, BusyLockView { lock: free(), grants: 0 }],
        waits: vec![long(None), long(Some(holder(Mode::Exclusive)))],
        more_waits: true,
        counted_after: 7,
        index: 8,
        node_id: 2,
        totals,
    }]);
    let forced = Forced { token: Token(2), session: SESSION, label: label(), remaining_ms: 3, lock_delay_ms: 4 };
    survives([None, Some(Token(5))].map(|more_up_to| GrantsForced { forced: vec![forced.clone()], more_up_to }));
    survives([None, Some(waiter(Mode::Shared))].map(WaiterRemoved));
    survives([None, Some(0), Some(5)].map(DelayLifted));
    survives([None, Some(name("b"))].map(|more_after| DataDropped { dropped: 3, more_after }));
    survives([SemaphoreResized { before: Permits::new(4).expect("permits"), holders: 5, waiters: 6 }]);
}

fn key() -> Key {
    Key::new(b"\0k\xff").expect("a key")
}

fn entry(is_expired: bool) -> Arc<Entry> {
    let lease = (!is_expired).then_some(Lease { session: SESSION, at_end: AtLeaseEnd::Keep });
    let value = Value::new(b"\0value").expect("a value");
    let label = Label::default();
    let claim = Claim { lock: name("a"), token: Token(3), since: WallTime(5), is_held: true, label };
    let claim = lease.map(|_| Arc::new(claim));
    let created = Revision(3);
    let modified = Revision(4);
    let is_revoked = is_expired;
    let children = Some(Children { made: 3, live: 1, changed: Revision(4) });
    let kin = Kinship::stored(Some(key()).filter(|_| is_expired), children.filter(|_| !is_expired));
    let bare = Entry {
        created,
        modified,
        version: 2,
        lease,
        until: None,
        claim,
        is_expired,
        is_revoked,
        is_temporary: false,
        kin,
        value,
    };
    Arc::new(bare)
}

#[test]
fn requests_about_the_keyspace() {
    let compare =
        Compare { key: key(), up_to: None, relation: Relation::Less, operand: Operand::Modified(Revision(9)) };
    let lease = Some(Lease { session: SESSION, at_end: AtLeaseEnd::Delete });
    let put = TxnOperation::Put(Put {
        key: key(),
        value: Value::new(b"v").expect("a value"),
        lease: lease.into(),
        claims: Some(name("a").into()),
    });
    let label = Label::default();
    let address = None;
    let owner = None;
    let open = TxnOperation::Open(NewSession { session: SESSION, ttl: ttl(), label, address, owner });
    let child = Put { key: Key::first(), value: Value::default(), lease: PutLease::None, claims: None };
    let child = TxnOperation::PutChild(PutChild { parent: key(), put: child, is_numbered: true });
    let then = vec![open, put, child, TxnOperation::Get(key()), TxnOperation::Select(Select::default())];
    let txn = Txn::new(vec![compare], then, vec![TxnOperation::Delete(key())]).expect("a transaction");
    let attached = Attached { session: SESSION, number: 7 };
    survives([txn.clone(), txn.clone().by_attached(attached).falling_back(), txn.closing(attached)]);
    survives([AttachSession { session: SESSION }]);
    survives([SetSessionOwner { session: SESSION }]);
    survives([SessionOwnerSet]);
    survives([None, Some(Revision(0)), Some(Revision(6))].map(|at| GetEntries {
        keys: vec![key(), Key::first()],
        at,
        on_time: at.is_none(),
    }));
    let range = |to: &Option<Key>| KeyRange { from: Some(Key::first()).filter(|_| to.is_some()), to: to.clone() };
    survives([None, Some(key())].map(|to| ListEntries {
        range: range(&to),
        backwards: to.is_some(),
        page_size: 7,
        at: to.is_some().then_some(Revision(6)),
        leased_by: to.is_some().then_some(SESSION),
        on_time: to.is_none(),
    }));
    survives([None, Some(Revision(6))].map(|at| SelectEntries {
        select: Select { range: range(&Some(key())), limit: 3, is_descending: true, ..Select::default() },
        at,
        stale: false,
        on_time: at.is_none(),
    }));
    survives([CompactEntries { revision: Revision(6) }]);
    let committed = Committed {
        succeeded: true,
        failed: None,
        revision: Revision(6),
        now: Stamp(7),
        results: vec![TxnResult::Put],
    };
    survives([CommitEach { txns: vec![Txn::default(); 2] }, CommitEach { txns: Vec::new() }]);
    survives([EachCommitted {
        outcomes: vec![Ok(committed), Err(Error::no_leader()), Err(Error::deadline_passed(true))],
    }]);
    survives([RunUnit { unit: b"\0unit"[..].into() }]);
    survives([UnitDone { answer: b"\0answer"[..].into() }]);
    survives([None, Some(key())].map(|to| WatchEntries {
        range: range(&to),
        from: to.is_some().then_some(Revision(6)),
        with_previous: to.is_some(),
    }));
}

#[test]
fn replies_about_the_keyspace() {
    let results = vec![
        TxnResult::Got(None),
        TxnResult::Got(Some(entry(true))),
        TxnResult::Put,
        TxnResult::Expires(true),
        TxnResult::Deleted(0),
        TxnResult::Opened(ttl()),
        TxnResult::PutChild(key()),
        TxnResult::Selected(Selected { entries: vec![(key(), entry(false))], count: 2, more: true }),
    ];
    let now = Stamp(7);
    let reasons = [
        TxnFailureReason::NoParent,
        TxnFailureReason::ParentEnds,
        TxnFailureReason::ChildExists,
        TxnFailureReason::ChildrenLeft,
        TxnFailureReason::ParentCannotEnd,
        TxnFailureReason::PutTwice,
    ];
    let failures = reasons.map(|reason| Some(TxnFailure::Operation { index: 3, reason }));
    let others = [None, Some(TxnFailure::Compare(0)), Some(TxnFailure::Compare(1023))];
    survives(failures.into_iter().chain(others).map(|failed| Committed {
        succeeded: failed.is_none(),
        failed,
        revision: Revision(5),
        now,
        results: results.clone(),
    }));
    survives([Attachment { number: u64::MAX, ttl: ttl() }]);
    survives([EntriesCompacted { revision: Revision(5) }]);
    let event = |before, after| EntryEvent { revision: Revision(5), key: key(), before, after };
    let events = vec![event(None, Some(entry(true))), event(Some(entry(false)), None)];
    survives([EntriesWatched { events, complete: Revision(4) }]);
    survives([EntriesFound { entries: vec![None, Some(entry(true)), Some(entry(false))], revision: Revision(5), now }]);
    survives([true, false].map(|more| EntryPage {
        entries: vec![(key(), entry(more))],
        more,
        revision: Revision(6),
        now,
    }));
}

#[test]
fn events_of_a_watch() {
    let token = Token(4);
    let ticket = Ticket(5);
    let session = SESSION;
    let since = WallTime(6);
    let kinds = [
        ChangeKind::Granted { token, session, label: label(), mode: Mode::Shared, ticket: None },
        ChangeKind::Granted { token, session, label: label(), mode: modes()[2], ticket: Some(ticket) },
        ChangeKind::Released { token, session, since },
        ChangeKind::Lost { token, session, since, reason: None, by: None },
        ChangeKind::Lost { token, session, since, reason: Some(reason()), by: "ops".parse().ok() },
        ChangeKind::Revoked { token, session, reason: reason(), by: "ops".parse().ok() },
        ChangeKind::Queued { ticket, session, label: label(), mode: Mode::Exclusive },
        ChangeKind::Left { ticket, session },
        ChangeKind::Data(None),
        ChangeKind::Data(bytes()),
        ChangeKind::Delayed,
        ChangeKind::Opened,
        ChangeKind::Resized(Permits::new(4).expect("permits")),
    ];
    let changes = kinds.map(|kind| Change { name: name("a"), of: LockKind::Entry, kind }).into();
    survives([
        WatchEvent::State { locks: vec![lock(), free()], index: 3, first: true, last: false },
        WatchEvent::Changes { index: 4, changes, more: true },
        WatchEvent::Progress { index: 5 },
        WatchEvent::TooOld { after_index: 6 },
    ]);
}

/// A reply of a later version is an error that names the field, not a guess.
#[test]
fn a_reply_that_says_nothing_is_an_error() {
    let error = Acquired::decode(Default::default()).expect_err("no outcome");
    assert_eq!(error.violation().map(|(field, _)| field), Some("outcome"));
    let error = KeepAliveEvent::decode(Default::default()).expect_err("no kind");
    assert_eq!(error.violation().map(|(field, _)| field), Some("what"));
}
