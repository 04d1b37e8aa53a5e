//! A state of the store in memory, and what transactions make of it.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tokio::time::Instant;

use crate::{
    AppliedZnodes, ChildCounts, TxnRefusal, WriteRefusal, ZookeeperChange, ZookeeperChangeKind, ZookeeperEntry,
    ZookeeperTxn, ZookeeperWrite,
};

#[derive(Clone)]
pub(super) struct MemoryEntry {
    pub(super) stored: ZookeeperEntry,
    pub(super) parent: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub(super) struct MemorySession {
    pub(super) number: u64,
    pub(super) ttl_ms: u64,
    pub(super) deadline: Instant,
    pub(super) owner: Option<String>,
}

/// A state, as nodes apply it.
#[derive(Clone, Default)]
pub(super) struct MemoryState {
    pub(super) revision: u64,
    pub(super) entries: BTreeMap<Vec<u8>, MemoryEntry>,
    pub(super) sessions: BTreeMap<u64, MemorySession>,
}

/// Changes, and the children that were made by each write.
type Ran = (Vec<ZookeeperChange>, Vec<Option<Vec<u8>>>);

impl MemoryState {
    pub(super) fn delete(&mut self, key: &[u8]) -> Option<ZookeeperChange> {
        let entry = self.entries.remove(key)?;
        let above = entry.parent.and_then(|parent| self.entries.get_mut(&parent));
        let parent = above.map(|above| {
            above.stored.children.live -= 1;
            above.stored.children.changed = self.revision;
            Arc::clone(&above.stored.value)
        });
        let kind = ZookeeperChangeKind::Deleted;
        let before = Some(entry.stored.value);
        Some(ZookeeperChange { revision: self.revision, key: key.to_vec(), kind, before, after: None, parent })
    }

    fn write(
        &mut self,
        write: &ZookeeperWrite,
        changes: &mut Vec<ZookeeperChange>,
    ) -> Result<Option<Vec<u8>>, WriteRefusal> {
        let revision = self.revision;
        match write {
            ZookeeperWrite::Delete { key } => {
                if self.entries.get(key).is_some_and(|entry| entry.stored.children.live > 0) {
                    return Err(WriteRefusal::HasChildren);
                }
                changes.extend(self.delete(key));
                Ok(None)
            }
            ZookeeperWrite::Put { key, value } => {
                let new = ZookeeperEntry {
                    created: revision,
                    modified: revision,
                    owner: None,
                    children: ChildCounts::default(),
                    value: Arc::clone(value),
                };
                let before = self.entries.get(key).map(|entry| Arc::clone(&entry.stored.value));
                let entry =
                    self.entries.entry(key.clone()).or_insert(MemoryEntry { stored: new.clone(), parent: None });
                entry.stored.modified = revision;
                entry.stored.value = Arc::clone(value);
                let is_new = entry.stored.created == revision;
                let kind = if is_new {
                    ZookeeperChangeKind::Created { is_again: false }
                } else {
                    ZookeeperChangeKind::Changed
                };
                let after = Some(Arc::clone(value));
                changes.push(ZookeeperChange { revision, key: key.clone(), kind, before, after, parent: None });
                Ok(None)
            }
            ZookeeperWrite::CreateChild { parent, key, is_numbered, value, owner } => {
                let above = self.entries.get_mut(parent).ok_or(WriteRefusal::NoParent)?;
                let mut key = key.clone();
                if *is_numbered {
                    key.extend_from_slice(format!("{:010}", above.stored.children.made).as_bytes());
                }
                if above.stored.owner.is_some() {
                    return Err(WriteRefusal::ParentEnds);
                }
                if self.entries.contains_key(&key) {
                    return Err(WriteRefusal::Exists);
                }

                let above = self.entries.get_mut(parent).unwrap();
                above.stored.children.made += 1;
                above.stored.children.live += 1;
                above.stored.children.changed = revision;
                let parent_value = Some(Arc::clone(&above.stored.value));
                let stored = ZookeeperEntry {
                    created: revision,
                    modified: revision,
                    owner: *owner,
                    children: ChildCounts::default(),
                    value: Arc::clone(value),
                };
                // One change tells of both, as the event of an entry that had another one before it.
                let told = changes.iter().position(|change| change.key == key);
                let before = told.map(|told| changes.remove(told)).and_then(|change| change.before);
                let is_again = before.is_some();
                self.entries.insert(key.clone(), MemoryEntry { stored, parent: Some(parent.clone()) });
                let kind = ZookeeperChangeKind::Created { is_again };
                let after = Some(Arc::clone(value));
                changes.push(ZookeeperChange { revision, key: key.clone(), kind, before, after, parent: parent_value });
                Ok(Some(key))
            }
        }
    }

    /// Judges a transaction, and does it.
    pub(super) fn run(&mut self, txn: &ZookeeperTxn) -> Result<Ran, TxnRefusal> {
        for (index, condition) in txn.conditions.iter().enumerate() {
            let modified = self.entries.get(&condition.key).map_or(0, |entry| entry.stored.modified);
            if modified != condition.modified {
                return Err(TxnRefusal::Condition(index));
            }
        }
        if !txn.writes.is_empty() {
            self.revision += 1;
        }
        let mut changes = Vec::new();
        let mut created = Vec::new();
        for (index, write) in txn.writes.iter().enumerate() {
            let child = self.write(write, &mut changes).map_err(|reason| TxnRefusal::Write { index, reason })?;
            created.push(child);
        }
        Ok((changes, created))
    }
}

pub(super) struct MemoryView<'a>(pub(super) &'a MemoryState, pub(super) &'a AtomicU64);

impl AppliedZnodes for MemoryView<'_> {
    fn revision(&self) -> u64 {
        self.0.revision
    }

    fn get(&self, key: &[u8]) -> Option<ZookeeperEntry> {
        self.0.entries.get(key).map(|entry| entry.stored.clone())
    }

    fn range(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8], &ZookeeperEntry) -> bool) {
        for (key, entry) in self.0.entries.range(from.to_vec()..to.to_vec()) {
            self.1.fetch_add(1, SeqCst);
            if !show(key, &entry.stored) {
                break;
            }
        }
    }

    fn keys(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8]) -> bool) {
        self.range(from, to, &mut |key, _| show(key));
    }

    fn owned_by(&self, session: u64) -> Vec<Vec<u8>> {
        let entries = self.0.entries.iter();
        entries.filter(|(_, entry)| entry.stored.owner == Some(session)).map(|(key, _)| key.clone()).collect()
    }
}
