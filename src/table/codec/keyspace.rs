//! Entries of the keyspace and their selections as messages, and back: in snapshots and between nodes.
//!
//! As in `values`, reading checks no limit. Whoever reads a client's request asks it for its limits ([`Txn::check_limits`] and the like).

use std::sync::Arc;

use bytes::Bytes;

pub use super::values::{read_session, write_session};
use super::{
    Malformed,
    values::{read_label, read_name},
};
use crate::messages::{self as pb, key_entry, select, txn_failure};
use lockkeeper_machine::*;

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
