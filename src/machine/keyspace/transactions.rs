//! Compares and operations of a transaction.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    bytes::{Weight, of_new_session},
    *,
};

/// What a transaction is about to do.
#[derive(Default)]
struct Draft {
    /// The entries that it writes; `None`: deletes.
    writes: BTreeMap<Key, Option<Arc<Entry>>>,
    renewals: Vec<SessionId>,
    openings: Vec<NewSession>,
    /// Entries of the ranges that it shows.
    read: usize,
    /// Entries in the ranges that it deletes, as far as they were visited.
    visited: usize,
    /// Bytes of the keys and values that its reply shows.
    bytes_shown: usize,
}

impl Machine {
    /// Runs a transaction, whole or not at all.
    pub(crate) fn commit(&mut self, txn: &Txn, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        let succeeded = self.all_hold(txn.compares())?;
        let operations = if succeeded { txn.then() } else { txn.otherwise() };
        let (mut draft, mut results) = self.plan_all(operations)?;
        self.ensure_room_for_writes(&draft)?;
        let over = draft.writes.keys().filter(|key| self.is_lease_over(key)).cloned().collect::<Vec<_>>();
        if !over.is_empty() {
            // The end of a lease is a change of its own, though it is handled late: whoever watches is told of it before the new entry.
            over.into_iter().for_each(|key| self.end_lease(key, None, events));
            (draft, results) = self.plan_all(operations)?;
        }
        self.spend(draft.writes.len().max(draft.visited).max(draft.openings.len()));
        if !draft.writes.is_empty() {
            let revision = self.next_revision();
            assert_eq!(Revision(self.issue_token().0), revision, "the planned entries have this revision");
        }
        let mut left: BTreeSet<_> = draft.openings.iter().map(|new| new.session).collect();
        for new in draft.openings {
            self.open(new, true).expect("it was planned, and nothing has changed since");
        }
        for session in draft.renewals {
            self.extend(session);
        }
        for (key, entry) in draft.writes {
            left.extend(self.entries.get(&key).and_then(|before| before.lease).map(|lease| lease.session));
            self.set_entry(key, entry, None, events);
        }
        // Before sessions are closed: what they held may be granted to others.
        let revision = self.revision();
        for session in left {
            self.close_without_entries(session, events);
        }
        Ok(Reply::Committed(Committed { succeeded, revision, results }))
    }

    fn all_hold(&self, compares: &[Compare]) -> Result<bool, Refusal> {
        let mut read = 0;
        for compare in compares {
            let holds = match &compare.up_to {
                None => compare.operand.holds(compare.relation, self.entry(&compare.key).as_deref()),
                Some(up_to) => {
                    let range = KeyRange { from: Some(compare.key.clone()), to: Some(up_to.clone()) };
                    self.count_read(&range, &mut read)?;
                    let mut entries = self.entries(&range).peekable();
                    match entries.peek() {
                        None => compare.operand.holds(compare.relation, None),
                        Some(_) => entries.all(|(_, entry)| compare.operand.holds(compare.relation, Some(&entry))),
                    }
                }
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Counts the entries of a range that is read. They are visited while the table is locked, and so have a limit.
    fn count_read(&self, range: &KeyRange, read: &mut usize) -> Result<(), Refusal> {
        *read += self.stored(range).take(TXN_READS_MAX + 1).count();
        if *read > TXN_READS_MAX { Err(Refusal::Limit(Limit::TxnReads)) } else { Ok(()) }
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
            TxnOperation::Select(select) => self.plan_select(select, draft),
            TxnOperation::Open(new) => self.plan_open(new, draft),
        }
    }

    /// The entry as the next operation of the transaction sees it.
    fn drafted(&self, key: &Key, draft: &Draft) -> Option<Arc<Entry>> {
        draft.writes.get(key).cloned().unwrap_or_else(|| self.entry(key))
    }

    fn plan_get(&self, key: &Key, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let entry = self.drafted(key, draft);
        draft.show(entry.as_ref().map_or(0, |entry| entry.value.as_bytes().len()))?;
        Ok(TxnResult::Got(entry))
    }

    fn plan_select(&self, select: &Select, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let range = &select.range;
        self.count_read(range, &mut draft.read)?;
        let is_written = draft.writes.keys().any(|key| range.contains(key));
        let selected = match is_written {
            false => select.from(self.entries(range)),
            true => {
                let mut entries: BTreeMap<&Key, Arc<Entry>> = self.entries(range).collect();
                for (key, entry) in draft.writes.iter().filter(|(key, _)| range.contains(key)) {
                    _ = match entry {
                        Some(entry) => entries.insert(key, Arc::clone(entry)),
                        None => entries.remove(key),
                    };
                }
                select.from(entries.into_iter())
            }
        };
        draft.show(selected.bytes())?;
        Ok(TxnResult::Selected(selected))
    }

    fn plan_open(&self, new: &NewSession, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        self.can_open(new, draft.openings.len())?;
        if self.sessions.get(&new.session).is_some_and(|session| !session.is_of_entries) {
            return Err(Refusal::SessionExists);
        }
        draft.openings.push(new.clone());
        Ok(TxnResult::Opened(new.ttl))
    }

    fn plan_put(&self, put: &Put, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let Put { key, value, lease, claims } = put.clone();
        let modified = self.next_revision();
        let before = self.drafted(&key, draft);
        let (created, version) = before.as_ref().map_or((modified, 1), |entry| (entry.created, entry.version + 1));
        let (is_expired, is_revoked) = (false, false);
        let bare = Entry { created, modified, version, lease: None, claim: None, is_expired, is_revoked, value };
        let entry = match (lease, before) {
            (PutLease::None, _) | (PutLease::Kept | PutLease::Renewed, None) => bare,
            (PutLease::Given(lease), before) => {
                if !draft.opens(lease.session) {
                    self.alive(lease.session)?;
                }
                let claim = claims.and_then(|lock| self.plan_claim(lock, lease, before.as_deref()));
                Entry { lease: Some(lease), claim, ..bare }
            }
            (PutLease::Kept | PutLease::Renewed, Some(before)) => {
                let Entry { lease: kept, claim, is_expired, is_revoked, .. } = Entry::clone(&before);
                if let Some(Lease { session, .. }) = kept.filter(|_| lease == PutLease::Renewed)
                    && self.sessions.get(&session).is_some_and(|session| session.is_of_entries)
                {
                    draft.renewals.push(session);
                }
                Entry { lease: kept, claim, is_expired, is_revoked, ..bare }
            }
        };
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
        for NewSession { label, owner, .. } in &draft.openings {
            added += of_new_session(label, owner.as_ref());
        }
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
    fn opens(&self, session: SessionId) -> bool {
        self.openings.iter().any(|new| new.session == session)
    }

    fn show(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes_shown += bytes;
        if self.bytes_shown > TXN_BYTES_MAX { Err(Refusal::Limit(Limit::TxnBytes)) } else { Ok(()) }
    }

    fn write(&mut self, key: Key, entry: Option<Arc<Entry>>) -> Result<(), Refusal> {
        self.writes.insert(key, entry);
        match self.writes.len() > TXN_WRITES_MAX {
            true => Err(Refusal::Limit(Limit::TxnWrites)),
            false => Ok(()),
        }
    }
}
