//! What each request needs: a right, the locks that the right is for, and the session that it uses.
//!
//! A caller needs the right, and must own the session. A release and a close need no right: a client that held a lock when the policy
//! changed can still give it back. A renewal needs the right to acquire anywhere, so the sessions of an identity that lost all its rights
//! expire.

use crate::api::requests::*;
use lockkeeper_machine::{ForceRelease, Key, KeyRange, Put, SessionId, Txn, TxnOperation, Wait, Want};
use lockkeeper_names::{has_hash, lock_for_key};
use lockkeeper_policy::{RequestSubject, Right};

/// The things that a request concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Concern<'a> {
    One(RequestSubject<'a>),
    /// Each of these locks.
    All(&'a [Want]),
    /// Each of these keys.
    Keys(&'a [Key]),
}

/// What a request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs<'a> {
    /// The right, and what it is for. Without one, the session suffices.
    pub(crate) right: Option<(Right, Concern<'a>)>,
    /// The session that the request uses. Its caller must own it.
    pub(crate) session: Option<SessionId>,
    /// Whether an administrator may send the request for a session of another identity.
    pub(crate) for_others: bool,
    /// What the request adds to the table, if anything.
    pub(crate) adds: Option<Adds>,
    /// A transaction: each of its keys needs a right ([`rights_needed`]), and its caller must own each of its sessions.
    pub(crate) txn: Option<&'a Txn>,
}

/// The additions of a request to the table, for the limits of its caller's identity.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Adds {
    /// The session that the request opens, if the client chose its id.
    pub(crate) opens: Option<SessionId>,
    pub(crate) sessions: u64,
    pub(crate) locks: u64,
    pub(crate) waiters: u64,
    /// The request's id. A repetition adds nothing.
    pub(crate) request: Option<u64>,
}

/// A request that needs a right or a session.
pub(crate) trait Guarded {
    fn needs(&self) -> Needs<'_>;
}

fn right(right: Right, what: RequestSubject<'_>) -> Needs<'_> {
    Needs { right: Some((right, Concern::One(what))), session: None, for_others: false, adds: None, txn: None }
}

fn session(session: SessionId) -> Needs<'static> {
    Needs { right: None, session: Some(session), for_others: false, adds: None, txn: None }
}

/// The first part of the keys under which DynamoDB's adapter keeps answers to requests. No client can name these keys.
const ANSWERS: &[u8] = b"dynamodb/once/";
/// The first part of the keys under which it describes tables. No client can name these keys.
const TABLES: &[u8] = b"dynamodb/table/";
/// The first part of the keys of its items.
const ITEMS: &[u8] = b"dynamodb/item/";
/// The first part of the names of its items' locks.
const ITEM_LOCKS: &str = "dynamodb/";

/// The first part of the keys of messages that Redis' adapter publishes. No client can name these keys, and channels have no rights.
const MESSAGES: &[u8] = b"redis/message/";

/// The high half of the ids of sessions that ZooKeeper's clients open; the low half is the number that they see. Other sessions do not have
/// it: their ids are random, or have another high half.
pub(crate) const ZOOKEEPER_SESSIONS: u128 = 0x7a6f_6f6b_6565_7065 << 64;

/// Whether a client of ZooKeeper opened the session.
pub(crate) fn is_of_zookeeper(session: SessionId) -> bool {
    session.0 >> 64 == ZOOKEEPER_SESSIONS >> 64
}

/// Whether an adapter does this for itself, not for its client: then a rule for the keys that the client names suffices. To create, change
/// or delete a table is the client's act.
pub(crate) fn is_of_adapter(right: Right, key: &[u8]) -> bool {
    key.starts_with(ANSWERS)
        || right == Right::Read && key.starts_with(TABLES)
        || right == Right::Acquire && key.starts_with(MESSAGES)
}

/// The rights that a transaction needs: to read what it compares and shows, to acquire what it puts and deletes (with the lease that it
/// has), and to acquire the locks that its puts claim. To open a session needs the right to acquire anywhere.
pub(crate) fn rights_needed(txn: &Txn) -> impl Iterator<Item = (Right, RequestSubject<'_>)> {
    let is_asked = |(right, what): &(Right, RequestSubject<'_>)| match what {
        RequestSubject::Key(key) => !is_of_adapter(*right, key),
        RequestSubject::Name(_)
        | RequestSubject::Under(_)
        | RequestSubject::Keys { .. }
        | RequestSubject::Anywhere
        | RequestSubject::Cluster => true,
    };

    let compares = txn.compares().iter().map(|compare| {
        let from = compare.key.as_bytes();
        let to = compare.up_to.as_ref().map(Key::as_bytes);
        (Right::Read, if to.is_some() { RequestSubject::Keys { from, to } } else { RequestSubject::Key(from) })
    });

    let claims = txn.operations().filter_map(right_to_claim);
    let operations = txn.operations().map(|operation| match operation {
        TxnOperation::Get(key) => (Right::Read, RequestSubject::Key(key.as_bytes())),
        TxnOperation::Select(select) => (Right::Read, keys_of(&select.range)),
        TxnOperation::Put(put) => (Right::Acquire, RequestSubject::Key(put.key.as_bytes())),
        // The number of a child only continues its key, so a prefix that allows the one allows the other.
        TxnOperation::PutChild(child) => (Right::Acquire, RequestSubject::Key(child.put.key.as_bytes())),
        TxnOperation::Expire(expire) => (Right::Acquire, RequestSubject::Key(expire.key.as_bytes())),
        TxnOperation::Delete(key) => (Right::Acquire, RequestSubject::Key(key.as_bytes())),
        TxnOperation::DeleteRange(range) => (Right::Acquire, keys_of(range)),
        TxnOperation::Open(_) => (Right::Acquire, RequestSubject::Anywhere),
    });

    compares.chain(operations).chain(claims).filter(is_asked)
}

/// The right to the lock that a put claims. A put needs no such right if it claims no lock, or a lock that belongs to its key alone: then
/// the right to the key is enough.
///
/// The key `NAME/…`, of ZooKeeper's nodes with a NUL for the last `/`, is a place in the queue for `NAME`, and other keys are the other
/// places. So a place needs the right to all keys of the queue: a rule for less would let a client hold a lock that the rule does not name.
///
/// The name of a lock whose key is too long or not text is made from that key, and is compared as such.
fn right_to_claim(operation: &TxnOperation) -> Option<(Right, RequestSubject<'_>)> {
    let Put { key, claims, .. } = operation.put()?;
    let claims = claims.as_ref()?;
    let key = key.as_bytes();
    let lock = claims.lock.as_str();

    let is_made_from = |part: &[u8]| has_hash(&claims.lock) && lock_for_key(part) == claims.lock;
    let is_own = key == lock.as_bytes() || is_made_from(key);
    if is_own || is_of_item(key, lock) || lockkeeper_redis::is_lock_of_key(key, lock) {
        return None;
    }

    let is_separator = |byte: &u8| matches!(byte, b'/' | 0);
    let queue_end = if key.starts_with(lock.as_bytes()) {
        Some(lock.len()).filter(|end| key.get(*end).is_some_and(is_separator))
    } else {
        key.iter().rposition(is_separator).filter(|end| is_made_from(&key[..*end]))
    };
    let what = queue_end.map_or(RequestSubject::Name(lock), |end| RequestSubject::Key(&key[..=end]));
    Some((Right::Acquire, what))
}

/// Whether the lock belongs to an item of DynamoDB's under this key: its name is made from the key, in the same table.
fn is_of_item(key: &[u8], lock: &str) -> bool {
    let table = lock.strip_prefix(ITEM_LOCKS).and_then(|rest| Some(rest.split_once('/')?.0));
    let after_table = table.zip(key.strip_prefix(ITEMS)).and_then(|(table, rest)| rest.strip_prefix(table.as_bytes()));
    after_table.is_some_and(|rest| rest.starts_with(b"/"))
}

/// The most that a transaction adds. The sessions of temporary entries have a limit of their own.
fn added_by(txn: &Txn) -> Adds {
    let opened = |branch: &[TxnOperation]| {
        let opens = branch.iter().filter(|operation| matches!(operation, TxnOperation::Open(_)));
        opens.count().saturating_sub(Txn::temporaries(branch).len()) as u64
    };
    Adds { sessions: opened(txn.then()).max(opened(txn.otherwise())), ..Adds::default() }
}

pub(crate) fn keys_of(range: &KeyRange) -> RequestSubject<'_> {
    let from = range.from.as_ref();
    let to = range.to.as_ref();
    RequestSubject::Keys { from: from.map_or(&[], Key::as_bytes), to: to.map(Key::as_bytes) }
}

/// Defines what requests need, one line for each.
macro_rules! guarded {
    ($($request:ty, |$this:ident| $needs:expr;)*) => {
        $(impl Guarded for $request {
            fn needs(&self) -> Needs<'_> {
                let $this = self;
                $needs
            }
        })*
    };
}

guarded! {
    // A repeated open also renews: the table refuses it unless the owner is the same.
    OpenSession, |it| Needs {
        adds: Some(Adds { opens: it.session, sessions: 1, ..Adds::default() }),
        ..right(Right::Acquire, RequestSubject::Anywhere)
    };
    RenewSession, |it| Needs { session: Some(it.session), ..right(Right::Acquire, RequestSubject::Anywhere) };
    KeepAlive, |it| Needs { session: Some(it.session), ..right(Right::Acquire, RequestSubject::Anywhere) };
    AttachSession, |it| Needs { session: Some(it.session), ..right(Right::Acquire, RequestSubject::Anywhere) };
    // The adapter that asks has seen that the session is the caller's.
    SetSessionOwner, |_it| Needs {
        right: None,
        session: None,
        for_others: false,
        adds: Some(Adds { sessions: 1, ..Adds::default() }),
        txn: None,
    };
    CloseSession, |it| Needs { for_others: true, ..session(it.session) };
    AcquireLocks, |it| Needs {
        right: Some((Right::Acquire, Concern::All(it.acquire.wants()))),
        adds: Some(Adds {
            locks: it.acquire.wants().len() as u64,
            waiters: u64::from(it.acquire.wait != Wait::Never),
            request: it.request.as_ref().map(|request| request.id),
            ..Adds::default()
        }),
        ..session(it.session)
    };
    ReleaseLocks, |it| session(it.session);
    UpdateData, |it| Needs {
        session: Some(it.session),
        adds: it.update.data.as_ref().map(|_| Adds { request: it.request.as_ref().map(|request| request.id), ..Adds::default() }),
        ..right(Right::Acquire, RequestSubject::Name(it.update.name.as_str()))
    };
    CheckToken, |it| right(Right::Read, RequestSubject::Name(it.name.as_str()));
    GetLock, |it| right(Right::Read, RequestSubject::Name(it.name.as_str()));
    ListLocks, |it| right(Right::Read, RequestSubject::Under(&it.prefix));
    ShowBusiest, |it| right(Right::Read, RequestSubject::Under(&it.prefix));
    // Shows the caller's own sessions, unless it administers the cluster.
    ListSessions, |_it| right(Right::Read, RequestSubject::Anywhere);
    BrowseLocks, |it| right(Right::Read, RequestSubject::Under(&it.prefix));
    SearchLocks, |it| right(Right::Read, RequestSubject::Under(&it.prefix));
    ShowLock, |it| right(Right::Read, RequestSubject::Name(it.name.as_str()));
    // Shows the caller's own session, unless it administers the cluster.
    ShowSession, |_it| right(Right::Read, RequestSubject::Anywhere);
    WatchLocks, |it| right(Right::Watch, RequestSubject::Under(&it.prefix));
    ForceRelease, |it| right(Right::ForceRelease, RequestSubject::Name(it.name.as_str()));
    RemoveWaiter, |it| right(Right::ForceRelease, RequestSubject::Name(it.name.as_str()));
    LiftDelay, |it| right(Right::ForceRelease, RequestSubject::Name(it.name.as_str()));
    ResizeSemaphore, |it| right(Right::Administer, RequestSubject::Name(it.name.as_str()));
    DropData, |it| right(Right::Administer, RequestSubject::Under(&it.prefix));
    Txn, |it| Needs { right: None, session: None, for_others: false, adds: it.puts().then(|| added_by(it)), txn: Some(it) };
    GetEntries, |it| Needs { right: Some((Right::Read, Concern::Keys(&it.keys))), ..right(Right::Read, RequestSubject::Anywhere) };
    ListEntries, |it| right(Right::Read, keys_of(&it.range));
    SelectEntries, |it| right(Right::Read, keys_of(&it.select.range));
    WatchEntries, |it| right(Right::Watch, keys_of(&it.range));
    // Each transaction is checked by itself.
    CommitEach, |_it| Needs { right: None, session: None, for_others: false, adds: None, txn: None };
    // The requests for the unit's reads and writes are checked each by itself.
    RunUnit, |_it| Needs { right: None, session: None, for_others: false, adds: None, txn: None };
    // A compaction takes the past away from everybody who watches or reads it.
    CompactEntries, |_it| right(Right::Administer, RequestSubject::Cluster);
    AddMember, |_it| right(Right::Administer, RequestSubject::Cluster);
    PromoteMember, |_it| right(Right::Administer, RequestSubject::Cluster);
    RemoveMember, |_it| right(Right::Administer, RequestSubject::Cluster);
    ReplaceMember, |_it| right(Right::Administer, RequestSubject::Cluster);
    TransferLeader, |_it| right(Right::Administer, RequestSubject::Cluster);
    SaveBackup, |_it| right(Right::Administer, RequestSubject::Cluster);
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{
        AtLeaseEnd, Compare, Label, Lease, LockName, NewSession, Operand, Put, PutLease, Relation, Revision, Ttl, Value,
    };

    #[test]
    fn a_watch_needs_its_range_and_a_compaction_the_cluster() {
        let key = |key: &[u8]| Key::new(key).ok();
        let right = |request: &dyn Guarded| match request.needs().right {
            Some((right, Concern::One(what))) => format!("{right:?} {what:?}"),
            other => panic!("{other:?}"),
        };
        let range = KeyRange { from: key(b"a"), to: key(b"b") };
        let watch = WatchEntries { range, from: None, with_previous: false };
        let keys = RequestSubject::Keys { from: b"a", to: Some(b"b") };
        assert_eq!(right(&watch), format!("{:?} {keys:?}", Right::Watch));
        let compact = CompactEntries { revision: Revision(1) };
        assert_eq!(right(&compact), format!("{:?} {:?}", Right::Administer, RequestSubject::Cluster));
    }

    /// What remembers an answer has a limit of its own, which is not the identity's.
    #[test]
    fn a_transaction_adds_the_sessions_of_its_branch_without_those_of_temporary_entries() {
        let key = |key: &[u8]| Key::new(key).expect("a key");
        let opened = |number: u8, at_end| {
            let ttl = Ttl::from_millis(1000).expect("in bounds");
            let label = Label::default();
            let session = SessionId(number.into());
            let lease = PutLease::Given(Lease { session, at_end });
            let put = Put { key: key(&[number]), value: Value::default(), lease, claims: None };
            let new = NewSession { session, ttl, label, address: None, owner: None };
            [TxnOperation::Open(new), TxnOperation::Put(put)]
        };
        let then = [opened(1, AtLeaseEnd::Keep), opened(2, AtLeaseEnd::Delete)].concat();
        let otherwise = opened(3, AtLeaseEnd::Delete).to_vec();
        let sessions = |then: &[TxnOperation], otherwise: &[TxnOperation]| {
            let txn = Txn::new(vec![], then.to_vec(), otherwise.to_vec()).expect("in bounds");
            txn.needs().adds.map(|adds| adds.sessions)
        };
        assert_eq!(sessions(&then, &otherwise), Some(1));
        assert_eq!(sessions(&otherwise, &[]), Some(0));
    }

    #[test]
    fn a_transaction_needs_a_right_for_each_key_in_both_branches() {
        let key = |key: &[u8]| Key::new(key).expect("a key");
        let compare =
            Compare { key: key(b"a"), up_to: None, relation: Relation::Equal, operand: Operand::Modified(Revision(0)) };
        let put = Put { key: key(b"b"), value: Value::new(b"").expect("a value"), lease: PutLease::None, claims: None };
        let range = KeyRange { from: None, to: Some(key(b"e")) };
        let then = vec![TxnOperation::Put(put), TxnOperation::Get(key(b"c"))];
        let otherwise = vec![TxnOperation::Delete(key(b"d")), TxnOperation::DeleteRange(range)];
        let txn = Txn::new(vec![compare], then, otherwise).expect("a transaction");
        let expected = [
            (Right::Read, RequestSubject::Key(b"a")),
            (Right::Acquire, RequestSubject::Key(b"b")),
            (Right::Read, RequestSubject::Key(b"c")),
            (Right::Acquire, RequestSubject::Key(b"d")),
            (Right::Acquire, RequestSubject::Keys { from: b"", to: Some(b"e") }),
        ];
        assert!(rights_needed(&txn).eq(expected), "{:?}", rights_needed(&txn).collect::<Vec<_>>());
    }

    /// The rights that a put of this key with this claim needs.
    fn rights_to_put(key: &[u8], lock: &str) -> Vec<String> {
        let key = Key::new(key).expect("a key");
        let claims = Some(LockName::new(lock).expect("a name").into());
        let lease = PutLease::Given(Lease { session: SessionId(1), at_end: AtLeaseEnd::Delete });
        let put = Put { key, value: Value::new(b"").expect("a value"), lease, claims };
        let txn = Txn::new(Vec::new(), vec![TxnOperation::Put(put)], Vec::new()).expect("a transaction");
        rights_needed(&txn).map(|(right, what)| format!("{right} {what}")).collect()
    }

    #[test]
    fn a_claim_needs_a_right_to_its_lock_unless_it_is_that_of_its_key_alone() {
        let place = r#"acquire the key "etcd/jobs/7b""#;
        let queue = r#"acquire the key "etcd/jobs/""#;
        assert_eq!(rights_to_put(b"etcd/jobs/7b", "etcd/jobs"), [place, queue]);
        assert_eq!(rights_to_put(b"etcd/jobs/7b", "etcd/jobs/7b"), [place]);
        assert_eq!(rights_to_put(b"etcd/jobs/7b", "etcd/job"), [place, r#"acquire "etcd/job""#]);

        // The name of a lock whose key is not text is made from the key.
        let place = r#"acquire the key "etcd/\xff/7b""#;
        let queue = lock_for_key(b"etcd/\xff");
        assert_eq!(rights_to_put(b"etcd/\xff/7b", queue.as_str()), [place, r#"acquire the key "etcd/\xff/""#]);
        assert_eq!(rights_to_put(b"etcd/\xff/7b", lock_for_key(b"etcd/\xff/7b").as_str()), [place]);
        let of_other = lock_for_key(b"etcd/\xfe");
        let name = format!("acquire {:?}", of_other.as_str());
        assert_eq!(rights_to_put(b"etcd/\xff/7b", of_other.as_str()), [place, &name]);

        let item = r#"acquire the key "dynamodb/item/locks/7/jobs""#;
        assert_eq!(rights_to_put(b"dynamodb/item/locks/7/jobs", "dynamodb/locks/jobs"), [item]);
        // A name is text, and has a `%` for each byte of the key that is none.
        let bytes = r#"acquire the key "redis/0/100%\xff""#;
        assert_eq!(rights_to_put(b"redis/0/100%\xff", "redis/0/100%25%ff"), [bytes]);
        assert_eq!(rights_to_put(b"redis/0/100%\xff", "redis/0/100%25%fe"), [bytes, r#"acquire "redis/0/100%25%fe""#]);
        let other = rights_to_put(b"dynamodb/item/locks/7/jobs", "dynamodb/lock/jobs");
        assert_eq!(other, [item, r#"acquire "dynamodb/lock/jobs""#]);
    }

    #[test]
    fn an_adapter_reads_and_remembers_what_is_its_own_without_a_right_of_its_client() {
        let key = |key: &str| Key::new(key.as_bytes()).expect("a key");
        let compare = |name: &str| Compare {
            key: key(name),
            up_to: None,
            relation: Relation::Equal,
            operand: Operand::Modified(Revision(0)),
        };
        let delete = |name: &str| TxnOperation::Delete(key(name));
        let compares =
            vec![compare("dynamodb/table/locks"), compare("dynamodb/once/1"), compare("dynamodb/item/locks/7/a")];
        let then = vec![delete("dynamodb/once/1"), delete("dynamodb/table/locks")];
        let txn = Txn::new(compares, then, Vec::new()).expect("a transaction");
        let expected = [
            (Right::Read, RequestSubject::Key(b"dynamodb/item/locks/7/a")),
            (Right::Acquire, RequestSubject::Key(b"dynamodb/table/locks")),
        ];
        assert!(rights_needed(&txn).eq(expected), "{:?}", rights_needed(&txn).collect::<Vec<_>>());
    }

    /// A script that releases a lock and wakes those that wait for it is one transaction, of a client that has a right to the lock alone.
    #[test]
    fn a_message_that_is_put_with_other_keys_needs_no_right_and_to_read_it_does() {
        let put = |key: &[u8]| {
            let key = Key::new(key).expect("a key");
            TxnOperation::Put(Put { key, value: Value::default(), lease: PutLease::None, claims: None })
        };
        let then = vec![put(b"redis/0/seat"), put(b"redis/message/opened"), put(b"redis/messages")];
        let get = TxnOperation::Get(Key::new(b"redis/message/opened").expect("a key"));
        let txn = Txn::new(Vec::new(), [then, vec![get]].concat(), Vec::new()).expect("a transaction");
        let expected = [
            (Right::Acquire, RequestSubject::Key(b"redis/0/seat")),
            (Right::Acquire, RequestSubject::Key(b"redis/messages")),
            (Right::Read, RequestSubject::Key(b"redis/message/opened")),
        ];
        assert!(rights_needed(&txn).eq(expected), "{:?}", rights_needed(&txn).collect::<Vec<_>>());
    }
}
