//! Transactions and entries of the keyspace as messages, and back: in the log, in snapshots and between nodes.
//!
//! As in `values`, reading checks no limit. Whoever reads a client's request asks it for its limits ([`Txn::check_limits`] and the like).

use std::sync::Arc;

use bytes::Bytes;

pub use super::values::{read_session, write_session};
use super::{
    Malformed,
    values::{read_address, read_identity, read_label, read_name, read_ttl, write_address, write_identity},
};
use crate::messages::{self as pb, compare, key_entry, select, txn_failure, txn_operation};
use lockkeeper_machine::*;

/// A transaction as its message.
pub fn write_txn(txn: &Txn) -> pb::Txn {
    let operations = |operations: &[TxnOperation]| operations.iter().map(write_operation).collect();
    pb::Txn {
        compares: txn.compares().iter().map(write_compare).collect(),
        then: operations(txn.then()),
        otherwise: operations(txn.otherwise()),
        attached: txn.attached().map(write_attached),
        falls_back: txn.falls_back(),
        closes: txn.closes(),
    }
}

/// The transaction of a message, of any size. Fails on one that the table cannot carry out.
pub fn read_txn(txn: pb::Txn) -> Result<Txn, Malformed> {
    let operations =
        |operations: Vec<pb::TxnOperation>| operations.into_iter().map(read_operation).collect::<Result<_, _>>();
    let compares = txn.compares.into_iter().map(read_compare).collect::<Result<_, _>>()?;
    let then = operations(txn.then)?;
    let otherwise = operations(txn.otherwise)?;
    let read = Txn::from_log(compares, then, otherwise).map_err(|_| {
        Malformed("a transaction that puts, opens or claims the same twice, or opens a session without an entry")
    })?;

    let read = if txn.falls_back { read.falling_back() } else { read };
    let attached = txn.attached.as_ref().map(read_attached).transpose()?;
    match attached {
        Some(attached) if txn.closes => Ok(read.closing(attached)),
        Some(attached) => Ok(read.by_attached(attached)),
        None if txn.closes => Err(Malformed("a transaction that closes a session without a name")),
        None => Ok(read),
    }
}

fn write_attached(Attached { session, number }: Attached) -> pb::Attached {
    pb::Attached { session: write_session(session), number }
}

fn read_attached(pb::Attached { session, number }: &pb::Attached) -> Result<Attached, Malformed> {
    Ok(Attached { session: read_session(session)?, number: *number })
}

/// A key as its message.
pub fn write_key(key: &Key) -> Bytes {
    Bytes::copy_from_slice(key.as_bytes())
}

/// The key of a message, of any length. Fails on an empty one.
pub fn read_key(key: &[u8]) -> Result<Key, Malformed> {
    Key::from_log(key).map_err(|_| Malformed("a key that is empty"))
}

/// A range as its message.
pub fn write_range(range: &KeyRange) -> pb::KeyRange {
    let end = |key: &Option<Key>| key.as_ref().map(write_key).unwrap_or_default();
    pb::KeyRange { from: end(&range.from), to: end(&range.to) }
}

/// The range of a message.
pub fn read_range(range: &pb::KeyRange) -> Result<KeyRange, Malformed> {
    let end = |key: &Bytes| (!key.is_empty()).then(|| read_key(key)).transpose();
    Ok(KeyRange { from: end(&range.from)?, to: end(&range.to)? })
}

/// An entry as its message.
pub fn write_entry(entry: &Entry) -> key_entry::Entry {
    let Entry { created, modified, version, lease, until, claim, is_expired, is_revoked, is_temporary, kin, value } =
        entry;

    key_entry::Entry {
        created: created.0,
        modified: modified.0,
        version: *version,
        lease: lease.map(write_lease),
        expired: *is_expired,
        value: write_value(value),
        claim: claim.as_deref().map(write_claim),
        revoked: *is_revoked,
        until: until.map_or(0, |until| until.0),
        kin: kin.as_deref().map(|kin| Box::new(write_kin(kin))),
        temporary: *is_temporary,
    }
}

/// The entry of a message. Fails on a lease or a claim without its parts.
pub fn read_entry(entry: &key_entry::Entry) -> Result<Arc<Entry>, Malformed> {
    Ok(Arc::new(Entry {
        created: Revision(entry.created),
        modified: Revision(entry.modified),
        version: entry.version,
        lease: entry.lease.as_ref().map(read_lease).transpose()?,
        until: (entry.until > 0).then_some(Stamp(entry.until)),
        claim: entry.claim.as_ref().map(read_claim).transpose()?,
        is_expired: entry.expired,
        is_revoked: entry.revoked,
        is_temporary: entry.temporary,
        kin: entry.kin.as_deref().map(read_kin).transpose()?.flatten(),
        value: read_value(&entry.value),
    }))
}

fn write_kin(Kinship { parent, children }: &Kinship) -> key_entry::Kinship {
    let parent = parent.as_ref().map(write_key).unwrap_or_default();
    key_entry::Kinship { parent, children: children.map(write_children) }
}

fn read_kin(key_entry::Kinship { parent, children }: &key_entry::Kinship) -> Result<Option<Arc<Kinship>>, Malformed> {
    let parent = (!parent.is_empty()).then(|| read_key(parent)).transpose()?;
    let children = children.as_ref().map(read_children);
    Ok(Kinship::stored(parent, children))
}

fn write_children(Children { made, live, changed }: Children) -> key_entry::Children {
    key_entry::Children { made, live, changed: changed.0 }
}

fn read_children(children: &key_entry::Children) -> Children {
    let key_entry::Children { made, live, changed } = *children;
    Children { made, live, changed: Revision(changed) }
}

fn write_claim(claim: &Claim) -> key_entry::Claim {
    let Claim { lock, token, since, is_held, label } = claim;
    key_entry::Claim {
        lock: lock.to_string(),
        token: token.0,
        since_unix_ms: since.0,
        held: *is_held,
        label: label.as_str().to_owned(),
    }
}

fn read_claim(claim: &key_entry::Claim) -> Result<Arc<Claim>, Malformed> {
    let token = Token(claim.token);
    let since = WallTime(claim.since_unix_ms);
    let label = read_label(&claim.label);
    Ok(Arc::new(Claim { lock: read_name(&claim.lock)?, token, since, is_held: claim.held, label }))
}

fn write_value(value: &Value) -> Bytes {
    Bytes::copy_from_slice(value.as_bytes())
}

fn read_value(value: &[u8]) -> Value {
    Value::from_log(value)
}

fn write_lease(lease: Lease) -> pb::Lease {
    let at_end = match lease.at_end {
        AtLeaseEnd::Delete => pb::AtLeaseEnd::Delete,
        AtLeaseEnd::Keep => pb::AtLeaseEnd::Keep,
    };
    pb::Lease { session: write_session(lease.session), at_end: at_end.into() }
}

fn read_lease(lease: &pb::Lease) -> Result<Lease, Malformed> {
    let at_end = match pb::AtLeaseEnd::try_from(lease.at_end) {
        Ok(pb::AtLeaseEnd::Delete) => AtLeaseEnd::Delete,
        Ok(pb::AtLeaseEnd::Keep) => AtLeaseEnd::Keep,
        Ok(pb::AtLeaseEnd::Unspecified) | Err(_) => return Err(Malformed("a lease with an unknown end")),
    };
    Ok(Lease { session: read_session(&lease.session)?, at_end })
}

fn write_compare(Compare { key, up_to, relation, operand }: &Compare) -> pb::Compare {
    use compare::Operand as Written;
    let relation = match relation {
        Relation::Equal => pb::Relation::Equal,
        Relation::NotEqual => pb::Relation::NotEqual,
        Relation::Less => pb::Relation::Less,
        Relation::Greater => pb::Relation::Greater,
    };

    let operand = match operand {
        Operand::Created(revision) => Written::Created(revision.0),
        Operand::Modified(revision) => Written::Modified(revision.0),
        Operand::Version(version) => Written::Version(*version),
        Operand::Value(value) => Written::Value(write_value(value)),
        Operand::Lease(session) => Written::Lease(session.map(write_session).unwrap_or_default()),
    };

    let up_to = up_to.as_ref().map(write_key).unwrap_or_default();
    pb::Compare { key: write_key(key), relation: relation.into(), operand: Some(operand), up_to }
}

fn read_compare(compare: pb::Compare) -> Result<Compare, Malformed> {
    use compare::Operand as Written;
    let relation = match compare.relation() {
        pb::Relation::Equal => Relation::Equal,
        pb::Relation::NotEqual => Relation::NotEqual,
        pb::Relation::Less => Relation::Less,
        pb::Relation::Greater => Relation::Greater,
        pb::Relation::Unspecified => return Err(Malformed("a compare with an unknown relation")),
    };

    let operand = match compare.operand.ok_or(Malformed("a comparison without an operand"))? {
        Written::Created(revision) => Operand::Created(Revision(revision)),
        Written::Modified(revision) => Operand::Modified(Revision(revision)),
        Written::Version(version) => Operand::Version(version),
        Written::Value(value) => Operand::Value(read_value(&value)),
        Written::Lease(session) if session.is_empty() => Operand::Lease(None),
        Written::Lease(session) => Operand::Lease(Some(read_session(&session)?)),
    };

    let up_to = (!compare.up_to.is_empty()).then(|| read_key(&compare.up_to)).transpose()?;
    Ok(Compare { key: read_key(&compare.key)?, up_to, relation, operand })
}

fn write_operation(operation: &TxnOperation) -> pb::TxnOperation {
    use txn_operation::Kind;
    let kind = match operation {
        TxnOperation::Get(key) => Kind::Get(write_key(key)),
        TxnOperation::Put(put) => Kind::Put(write_put(put)),
        TxnOperation::PutChild(PutChild { parent, put, is_numbered }) => {
            let parent = write_key(parent);
            Kind::PutChild(pb::PutChild { parent, put: Some(write_put(put)), numbered: *is_numbered })
        }

        TxnOperation::Expire(Expire { key, deadline }) => {
            let (lifetime_ms, until) = write_deadline(*deadline);
            Kind::Expire(pb::Expire { key: write_key(key), lifetime_ms, until })
        }
        TxnOperation::Delete(key) => Kind::Delete(write_key(key)),
        TxnOperation::DeleteRange(range) => Kind::DeleteRange(write_range(range)),
        TxnOperation::Select(select) => Kind::Select(write_select(select)),
        TxnOperation::Open(NewSession { session, ttl, label, address, owner }) => Kind::Open(pb::NewSession {
            session: write_session(*session),
            ttl_ms: ttl.as_millis(),
            label: label.as_str().into(),
            address: write_address(*address),
            owner: write_identity(owner.as_ref()),
        }),
    };

    pb::TxnOperation { kind: Some(kind) }
}

fn write_put(Put { key, value, lease, claims }: &Put) -> pb::Put {
    pb::Put {
        key: write_key(key),
        value: write_value(value),
        lease: if let PutLease::Given(lease) = lease { Some(write_lease(*lease)) } else { None },
        keeps_lease: matches!(lease, PutLease::Kept | PutLease::Renewed),
        renews_lease: *lease == PutLease::Renewed,
        lifetime_ms: write_deadline(lease.deadline()).0,
        until: write_deadline(lease.deadline()).1,
        keeps_claim: matches!(lease, PutLease::Extended(_)),
        temporary: lease.is_temporary(),
        claims: claims.as_ref().map(|claims| claims.lock.to_string()).unwrap_or_default(),
        label: claims.as_ref().map(|claims| claims.label.as_str().to_owned()).unwrap_or_default(),
    }
}

fn read_put(put: &pb::Put) -> Result<Put, Malformed> {
    Ok(Put {
        key: read_key(&put.key)?,
        value: read_value(&put.value),
        lease: read_put_lease(put)?,
        claims: read_put_claim(put)?,
    })
}

fn read_operation(operation: pb::TxnOperation) -> Result<TxnOperation, Malformed> {
    use txn_operation::Kind;
    Ok(match operation.kind.ok_or(Malformed("an operation of an unknown kind"))? {
        Kind::Get(key) => TxnOperation::Get(read_key(&key)?),
        Kind::Put(put) => TxnOperation::Put(read_put(&put)?),
        Kind::PutChild(pb::PutChild { parent, put, numbered }) => {
            let put = put.ok_or(Malformed("a child without its entry"))?;
            TxnOperation::PutChild(PutChild { parent: read_key(&parent)?, put: read_put(&put)?, is_numbered: numbered })
        }

        Kind::Expire(pb::Expire { key, lifetime_ms, until }) => {
            TxnOperation::Expire(Expire { key: read_key(&key)?, deadline: read_deadline(lifetime_ms, until)? })
        }
        Kind::Delete(key) => TxnOperation::Delete(read_key(&key)?),
        Kind::DeleteRange(range) => TxnOperation::DeleteRange(read_range(&range)?),
        Kind::Select(select) => TxnOperation::Select(read_select(&select)?),
        Kind::Open(new) => TxnOperation::Open(NewSession {
            session: read_session(&new.session)?,
            ttl: read_ttl(new.ttl_ms)?,
            label: read_label(&new.label),
            address: read_address(&new.address)?,
            owner: read_identity(&new.owner)?,
        }),
    })
}

fn read_put_lease(put: &pb::Put) -> Result<PutLease, Malformed> {
    let given = put.lease.as_ref().map(read_lease).transpose()?;
    let deadline = read_deadline(put.lifetime_ms, put.until)?;

    if put.temporary {
        return match (given, deadline, put.keeps_lease || put.renews_lease || put.keeps_claim) {
            (None, Some(EntryDeadline::After(lifetime)), false) => Ok(PutLease::Temporary(lifetime)),
            (_, _, _) => Err(Malformed("a temporary entry without a lifetime, or with a lease")),
        };
    }
    Ok(match (given, deadline, put.keeps_lease, put.renews_lease, put.keeps_claim) {
        (None, None, false, false, false) => PutLease::None,
        (Some(lease), None, false, false, false) => PutLease::Given(lease),
        (None, None, true, false, false) => PutLease::Kept,
        (None, None, true, true, false) => PutLease::Renewed,
        (None, Some(deadline), false, false, false) => PutLease::Until(deadline),
        (None, Some(deadline), false, false, true) => PutLease::Extended(deadline),
        (_, _, _, _, _) => return Err(Malformed("a lease that is both given and kept, or beside a deadline")),
    })
}

/// A lifetime, or else a moment.
fn write_deadline(deadline: Option<EntryDeadline>) -> (u64, Option<u64>) {
    match deadline {
        None => (0, None),
        Some(EntryDeadline::After(lifetime)) => (lifetime.as_millis(), None),
        Some(EntryDeadline::At(stamp)) => (0, Some(stamp.0)),
    }
}

fn read_deadline(lifetime_ms: u64, until: Option<u64>) -> Result<Option<EntryDeadline>, Malformed> {
    // A lifetime of 0 is none.
    match (Lifetime::from_log(lifetime_ms).ok(), until) {
        (None, None) => Ok(None),
        (Some(lifetime), None) => Ok(Some(EntryDeadline::After(lifetime))),
        (None, Some(until)) => Ok(Some(EntryDeadline::At(Stamp(until)))),
        (Some(_), Some(_)) => Err(Malformed("a lifetime beside a deadline")),
    }
}

fn read_put_claim(put: &pb::Put) -> Result<Option<PutClaim>, Malformed> {
    if put.claims.is_empty() {
        return Ok(None);
    }
    Ok(Some(PutClaim { lock: read_name(&put.claims)?, label: read_label(&put.label) }))
}

/// Why a transaction fell back, as its message.
pub fn write_failure(failure: TxnFailure) -> pb::TxnFailure {
    use txn_failure::Reason;

    let (index, reason) = match failure {
        TxnFailure::Compare(index) => (index, Reason::Compare),
        TxnFailure::Operation { index, reason } => {
            let reason = match reason {
                TxnFailureReason::NoParent => Reason::NoParent,
                TxnFailureReason::ParentEnds => Reason::ParentEnds,
                TxnFailureReason::ChildExists => Reason::ChildExists,
                TxnFailureReason::ChildrenLeft => Reason::ChildrenLeft,
                TxnFailureReason::ParentCannotEnd => Reason::ParentCannotEnd,
                TxnFailureReason::PutTwice => Reason::PutTwice,
            };
            (index, reason)
        }
    };

    pb::TxnFailure { index, reason: reason.into() }
}

/// Why a transaction fell back, from its message. Fails on a reason that only a newer leader has.
pub fn read_failure(failure: pb::TxnFailure) -> Result<TxnFailure, Malformed> {
    use txn_failure::Reason;

    let index = failure.index;
    let reason = match Reason::try_from(failure.reason) {
        Ok(Reason::Compare) => return Ok(TxnFailure::Compare(index)),
        Ok(Reason::NoParent) => TxnFailureReason::NoParent,
        Ok(Reason::ParentEnds) => TxnFailureReason::ParentEnds,
        Ok(Reason::ChildExists) => TxnFailureReason::ChildExists,
        Ok(Reason::ChildrenLeft) => TxnFailureReason::ChildrenLeft,
        Ok(Reason::ParentCannotEnd) => TxnFailureReason::ParentCannotEnd,
        Ok(Reason::PutTwice) => TxnFailureReason::PutTwice,
        Err(_) => return Err(Malformed("a failure for an unknown reason")),
    };

    Ok(TxnFailure::Operation { index, reason })
}

/// A selection, as a message.
pub fn write_select(select: &Select) -> pb::Select {
    let Select { range, created, modified, by, is_descending, limit, shows } = select;
    let number = |bound: Option<Revision>| bound.map(|revision| revision.0);
    let by = match by {
        SortBy::Key => select::SortBy::Key,
        SortBy::Created => select::SortBy::Created,
        SortBy::Modified => select::SortBy::Modified,
        SortBy::Version => select::SortBy::Version,
        SortBy::Value => select::SortBy::Value,
    };

    let shows = match shows {
        Shows::Entries => select::Shows::Entries,
        Shows::Keys => select::Shows::Keys,
        Shows::Count => select::Shows::Count,
    };

    pb::Select {
        range: Some(write_range(range)),
        min_created: number(created.min),
        max_created: number(created.max),
        min_modified: number(modified.min),
        max_modified: number(modified.max),
        by: by.into(),
        descending: *is_descending,
        limit: *limit,
        shows: shows.into(),
    }
}

/// A selection from its message.
pub fn read_select(message: &pb::Select) -> Result<Select, Malformed> {
    let by = match select::SortBy::try_from(message.by) {
        Ok(select::SortBy::Key) => SortBy::Key,
        Ok(select::SortBy::Created) => SortBy::Created,
        Ok(select::SortBy::Modified) => SortBy::Modified,
        Ok(select::SortBy::Version) => SortBy::Version,
        Ok(select::SortBy::Value) => SortBy::Value,
        Err(_) => return Err(Malformed("an unknown order")),
    };

    let shows = match select::Shows::try_from(message.shows) {
        Ok(select::Shows::Entries) => Shows::Entries,
        Ok(select::Shows::Keys) => Shows::Keys,
        Ok(select::Shows::Count) => Shows::Count,
        Err(_) => return Err(Malformed("an unknown part of entries")),
    };

    let bounds = |min: Option<u64>, max: Option<u64>| Bounds { min: min.map(Revision), max: max.map(Revision) };
    Ok(Select {
        range: message.range.as_ref().map(read_range).transpose()?.unwrap_or_default(),
        created: bounds(message.min_created, message.max_created),
        modified: bounds(message.min_modified, message.max_modified),
        by,
        is_descending: message.descending,
        limit: message.limit,
        shows,
    })
}
