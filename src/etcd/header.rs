//! The header of each answer: who answers, and which revision the answer shows.
//!
//! The header of a write has the revision of the write: clients use it as the create revision of what they have put. The header of a read
//! has the revision that was read: clients watch from it on.

use std::sync::atomic::Ordering;

use lockkeeper_machine::{Entry, Key, Lease, Revision};

use crate::{
    Etcd, EtcdStore, key,
    proto::{etcdserverpb::ResponseHeader, mvccpb::KeyValue},
};

/// The revision of etcd's store before its first write. Its recipes rely on it: they ask for keys that were created before their own one,
/// at its revision less one, and 0 there asks for all.
const FIRST: Revision = Revision(1);

impl<S: EtcdStore> Etcd<S> {
    /// The header of an answer that shows this revision; of an empty store, the first one.
    pub(crate) fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        self.shown.fetch_max(revision.0, Ordering::Relaxed);
        self.header_at(revision.max(FIRST))
    }

    /// The header of a watch that is canceled since its past is forgotten: etcd's names no revision.
    pub(crate) fn header_without_revision(&self) -> Option<ResponseHeader> {
        self.header_at(Revision(0))
    }

    fn header_at(&self, revision: Revision) -> Option<ResponseHeader> {
        let facts = self.store.facts();
        Some(ResponseHeader {
            cluster_id: facts.cluster_id,
            member_id: facts.member_id,
            revision: number(revision),
            raft_term: facts.term,
        })
    }

    /// The header of an answer that shows no data: with the revision that this node has applied, or one that it has shown: a client sees
    /// none fall.
    pub(crate) fn header_now(&self) -> Option<ResponseHeader> {
        let shown = Revision(self.shown.load(Ordering::Relaxed));
        self.header(self.store.facts().revision.max(shown))
    }
}

/// The header of an answer within a transaction: the revision alone.
pub(crate) fn inner_header(revision: Revision) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision: number(revision.max(FIRST)), ..ResponseHeader::default() })
}

/// A revision as etcd's messages have it.
pub(crate) fn number(revision: Revision) -> i64 {
    // The counter of revisions rises by one for each write: it has no more than 63 bits.
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// An entry as etcd's messages have it.
pub(crate) fn key_value(key: &Key, entry: &Entry) -> KeyValue {
    KeyValue {
        key: key::shown(key).to_vec(),
        create_revision: number(entry.created),
        mod_revision: number(entry.modified),
        version: i64::try_from(entry.version).unwrap_or(i64::MAX),
        value: entry.value.as_bytes().to_vec(),
        lease: entry.lease.map_or(0, lease_of),
    }
}

/// The id of an entry's lease; 0 if the entry has no lease of etcd's.
fn lease_of(lease: Lease) -> i64 {
    key::lease(lease.session).unwrap_or_default()
}
