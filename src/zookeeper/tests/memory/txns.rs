//! Transactions as the store counts them: their keys and bytes.

use std::collections::BTreeSet;

use crate::{ZookeeperTxn, ZookeeperWrite};

/// Maximum number of conditions, and of writes.
pub(super) const TXN_MAX: usize = 1_024;
/// Maximum bytes of keys and values that a transaction has, and of values that its refusal shows.
pub(super) const TXN_BYTES_MAX: usize = 1_536 << 10;
/// Maximum bytes of a value.
pub(super) const VALUE_BYTES_MAX: usize = 400 << 10;

/// Whether a key is put twice: the store would not take it.
pub(super) fn puts_twice(txn: &ZookeeperTxn) -> bool {
    let put = |write: &ZookeeperWrite| match write {
        ZookeeperWrite::CreateChild { key, is_numbered: false, .. } | ZookeeperWrite::Put { key, .. } => {
            Some(key.clone())
        }
        ZookeeperWrite::CreateChild { .. } | ZookeeperWrite::Delete { .. } => None,
    };
    let mut seen = BTreeSet::new();
    txn.writes.iter().filter_map(put).any(|key| !seen.insert(key))
}

/// Bytes of its keys and values, as the store counts them.
pub(super) fn txn_bytes(txn: &ZookeeperTxn) -> usize {
    let written = txn.writes.iter().map(|write| match write {
        ZookeeperWrite::CreateChild { parent, key, value, .. } => parent.len() + key.len() + value.len(),
        ZookeeperWrite::Put { key, value } => key.len() + value.len(),
        ZookeeperWrite::Delete { key } => key.len(),
    });
    let compared = txn.conditions.iter().map(|condition| condition.key.len());
    written.chain(compared).chain(txn.otherwise_get.iter().map(Vec::len)).sum()
}

pub(super) fn keys(txn: &ZookeeperTxn) -> impl Iterator<Item = &Vec<u8>> {
    txn.writes.iter().map(|write| match write {
        ZookeeperWrite::CreateChild { key, .. } | ZookeeperWrite::Put { key, .. } | ZookeeperWrite::Delete { key } => {
            key
        }
    })
}
