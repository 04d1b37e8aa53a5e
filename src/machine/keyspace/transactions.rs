//! Compares and operations of a transaction.

use std::{cmp::Ordering, collections::BTreeMap};

use crate::{bytes::Weight, *};

/// What a transaction is about to do.
#[derive(Default)]
struct Draft {
    /// The entries that it writes; `None`: deletes.
    writes: BTreeMap<Key, Option<Arc<Entry>>>,
    renewals: Vec<SessionId>,
    /// Entries in the ranges that it deletes, as far as they were visited.
    visited: usize,
    /// Bytes of the keys and values that its reply shows.
    bytes_shown: usize,
}

impl Machine {
    /// Runs a transaction, whole or not at all.
    pub(crate) fn commit(&mut self, txn: &Txn, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        let succeeded = txn.compares().iter().all(|compare| self.holds(compare));
        let operations = if succeeded { txn.then() } else { txn.otherwise() };
        let (mut draft, mut results) = self.plan_all(operations)?;
        self.ensure_room_for_writes(&draft)?;
        let over = draft.writes.keys().filter(|key| self.is_lease_over(key)).cloned().collect::<Vec<_>>();
        if !over.is_empty() {
            // The end of a lease is a change of its own, though it is handled late: whoever watches is told of it before the new entry.
            over.into_iter().for_each(|key| self.end_lease(key, None, events));
            (draft, results) = self.plan_all(operations)?;
        }
        self.spend(draft.writes.len().max(draft.visited));
        if !draft.writes.is_empty() {
            let revision = self.next_revision();
            assert_eq!(Revision(self.issue_token().0), revision, "the planned entries have this revision");
        }
        for session in draft.renewals {
            self.extend(session);
        }
        for (key, entry) in draft.writes {
            self.set_entry(key, entry, None, events);
        }
        Ok(Reply::Committed(Committed { succeeded, revision: self.revision(), results }))
    }

    fn holds(&self, Compare { key, relation, operand }: &Compare) -> bool {
        let entry = self.entry(key);
        let number = |of: fn(&Entry) -> u64| entry.as_deref().map_or(0, of);
        let ordering = match operand {
            Operand::Created(revision) => number(|entry| entry.created.0).cmp(&revision.0),
            Operand::Modified(revision) => number(|entry| entry.modified.0).cmp(&revision.0),
            Operand::Version(version) => number(|entry| entry.version).cmp(version),
            Operand::Lease(session) => entry.and_then(|entry| entry.lease).map(|lease| lease.session).cmp(session),
            Operand::Value(value) => match &entry {
                Some(entry) => entry.value.cmp(value),
                None => return false,
            },
        };
        match relation {
            Relation::Equal => ordering == Ordering::Equal,
            Relation::NotEqual => ordering != Ordering::Equal,
            Relation::Less => ordering == Ordering::Less,
            Relation::Greater => ordering == Ordering::Greater,
        }
    }

    fn plan_all(&self, operations: &[TxnOperation]) -> Result<(Draft, Vec<TxnResult>), Refusal> {
        let mut draft = Draft::default();
        let results = operations.iter().map(|operation| self.plan(operation, &mut draft)).collect::<Result<_, _>>()?;
        Ok((draft, results))
    }

    /// Adds an operation to the draft. Changes nothing else.
    fn plan(&self, operation: &TxnOperation, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        match operation {
            TxnOperation::Get(key) => self.plan_get(key, draft),
            TxnOperation::Put(put) => self.plan_put(put, draft),
            TxnOperation::Delete(key) => {
                let is_there = self.drafted(key, draft).is_some();
                if is_there {
                    draft.write(key.clone(), None)?;
                }
                Ok(TxnResult::Deleted(is_there.into()))
            }
            TxnOperation::DeleteRange(range) => self.plan_delete(range, draft),
            TxnOperation::Renew(session) => {
                self.alive(*session)?;
                draft.renewals.push(*session);
                Ok(TxnResult::Renewed(self.sessions[session].ttl))
            }
        }
    }

    /// The entry as the next operation of the transaction sees it.
    fn drafted(&self, key: &Key, draft: &Draft) -> Option<Arc<Entry>> {
        draft.writes.get(key).cloned().unwrap_or_else(|| self.entry(key))
    }

    fn plan_get(&self, key: &Key, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let entry = self.drafted(key, draft);
        draft.bytes_shown += entry.as_ref().map_or(0, |entry| entry.value.as_bytes().len());
        match draft.bytes_shown > TXN_BYTES_MAX {
            true => Err(Refusal::Limit(Limit::TxnBytes)),
            false => Ok(TxnResult::Got(entry)),
        }
    }

    fn plan_put(&self, put: &Put, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let Put { key, value, lease, claims } = put.clone();
        if let Some(lease) = lease {
            self.alive(lease.session)?;
        }
        let modified = self.next_revision();
        let before = self.drafted(&key, draft);
        let claim = claims.zip(lease).and_then(|(lock, lease)| self.plan_claim(lock, lease, before.as_deref()));
        let (created, version) = before.map_or((modified, 1), |entry| (entry.created, entry.version + 1));
        let entry = Entry { created, modified, version, lease, claim, is_expired: false, is_revoked: false, value };
        draft.write(key, Some(Arc::new(entry)))?;
        Ok(TxnResult::Put)
    }

    /// Entries of the range whose lease is over count for the limit, since they are visited; they are left to the end of their session.
    fn plan_delete(&self, range: &KeyRange, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        draft.visited += self.stored(range).take(TXN_WRITES_MAX + 1).count();
        if draft.visited > TXN_WRITES_MAX {
            return Err(Refusal::Limit(Limit::TxnWrites));
        }
        let put = draft.writes.iter().filter(|(key, entry)| entry.is_some() && range.contains(key));
        let mut keys: Vec<Key> = put.map(|(key, _)| key.clone()).collect();
        let present = self.entries(range).filter(|(key, _)| !draft.writes.contains_key(*key));
        keys.extend(present.map(|(key, _)| key.clone()));
        let deleted = keys.len() as u64;
        keys.into_iter().try_for_each(|key| draft.write(key, None))?;
        Ok(TxnResult::Deleted(deleted))
    }

    /// The revision of what is written next.
    fn next_revision(&self) -> Revision {
        Revision(self.last_token.0 + 1)
    }

    /// Refuses writes that would exceed a limit. Writes that take no more than what they replace are never refused.
    fn ensure_room_for_writes(&self, draft: &Draft) -> Result<(), Refusal> {
        let (mut added, mut removed, mut entries) = (0, 0, self.entries.len());
        let mut of_sessions: BTreeMap<SessionId, (usize, usize)> = BTreeMap::new();
        for (key, after) in &draft.writes {
            if let Some(before) = self.entries.get(key) {
                let weight = Weight::of_entry(key, before);
                removed += weight.all;
                entries -= 1;
                if let Some(lease) = before.lease {
                    of_sessions.entry(lease.session).or_default().1 += weight.own;
                }
            }
            if let Some(after) = after {
                let weight = Weight::of_entry(key, after);
                added += weight.all;
                entries += 1;
                if let Some(lease) = after.lease {
                    of_sessions.entry(lease.session).or_default().0 += weight.own;
                }
            }
        }
        if entries > self.capacity.entries.max(self.entries.len()) {
            return Err(Refusal::Limit(Limit::Entries));
        }
        if added > removed {
            self.ensure_room_in_table(added - removed)?;
        }
        let more = of_sessions.into_iter().filter(|(_, (added, removed))| added > removed);
        more.into_iter().try_for_each(|(session, (added, removed))| self.ensure_room_of(session, added - removed))
    }
}

impl Draft {
    fn write(&mut self, key: Key, entry: Option<Arc<Entry>>) -> Result<(), Refusal> {
        self.writes.insert(key, entry);
        match self.writes.len() > TXN_WRITES_MAX {
            true => Err(Refusal::Limit(Limit::TxnWrites)),
            false => Ok(()),
        }
    }
}
