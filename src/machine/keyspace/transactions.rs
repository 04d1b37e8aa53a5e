//! Compares and operations of a transaction.
//!
//! A transaction is checked once, by [`Machine::judge`], before it changes anything. The check is for the table after the whole
//! transaction, never for the table between two of its steps. After the check it cannot be refused: [`Machine::carry_out`] has no error.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    sessions::lease_ms,
    table::{Weight, new_session_bytes},
    *,
};

/// Why operations are not carried out.
enum Obstacle {
    /// The whole transaction is refused.
    Refused(Refusal),
    /// An operation cannot be done as the table is.
    Failed { index: u32, reason: TxnFailureReason },
}

/// Why one operation is not carried out.
pub(super) enum OperationObstacle {
    Refused(Refusal),
    Failed(TxnFailureReason),
}

/// What a transaction is about to do.
#[derive(Default)]
pub(super) struct Draft {
    /// The revision of its writes.
    pub(super) revision: Revision,
    /// The entries whose leases are over, and that it writes: each lease ends first, at this revision.
    pub(super) ended: BTreeMap<Key, Revision>,
    /// The entries that it writes, without one where it deletes.
    pub(super) writes: BTreeMap<Key, Option<Arc<Entry>>>,
    /// Entries that it does not write, with the children that it leaves them.
    pub(super) parents: BTreeMap<Key, Arc<Entry>>,
    renewals: Vec<SessionId>,
    openings: Vec<NewSession>,
    /// Entries of the ranges that it shows.
    read: usize,
    /// Entries in the ranges that it deletes, as far as they were visited.
    visited: usize,
    /// Bytes of the keys and values that its reply shows.
    bytes_shown: usize,
}

/// How much of something a transaction adds and removes.
#[derive(Clone, Copy, Default)]
struct Balance {
    added: usize,
    removed: usize,
}

/// How the table that a transaction leaves differs from the one before it.
#[derive(Default)]
struct Difference {
    entries: Balance,
    sessions: Balance,
    bytes: Balance,
    by_session: BTreeMap<SessionId, SessionDifference>,
}

/// The same of one session.
#[derive(Default)]
struct SessionDifference {
    bytes: Balance,
    /// Whether one of the entries that are written has it as its lease before the transaction.
    was_lease: bool,
    /// Whether one of them has it afterwards.
    is_lease: bool,
}

impl Machine {
    /// Runs a transaction, whole or not at all.
    pub(crate) fn commit(&mut self, txn: &Txn, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        self.ensure_attached(txn)?;
        let unmet = self.first_unmet(txn.compares())?;
        let planned = match unmet {
            None => self.judge(txn.then()),
            Some(_) => self.judge(txn.otherwise()),
        };

        let (failed, planned) = match (unmet, planned) {
            (None, Err(Obstacle::Failed { index, reason })) if txn.falls_back() => {
                (Some(TxnFailure::Operation { index, reason }), self.judge(txn.otherwise()))
            }
            (unmet, planned) => (unmet.map(TxnFailure::Compare), planned),
        };
        let (draft, results) = planned.map_err(Obstacle::into_refusal)?;
        let revision = self.carry_out(draft, events);
        if failed.is_none() {
            self.close_attached(txn, events);
        }
        Ok(Reply::Committed(Committed { succeeded: failed.is_none(), failed, revision, now: self.now(), results }))
    }

    /// Plans the operations, and refuses them if the table that they leave is beyond a limit. Changes nothing.
    fn judge(&self, operations: &[TxnOperation]) -> Result<(Draft, Vec<TxnResult>), Obstacle> {
        // The first plan only finds the keys that are written. It stays in nearly all cases, because no lease of these entries is over.
        let (mut draft, mut results) = self.plan_all(operations, BTreeMap::new())?;

        let touched = draft.writes.keys().chain(draft.parents.keys());
        let mut over: Vec<_> = touched.filter(|key| self.is_lease_over(key)).cloned().collect();
        if !over.is_empty() {
            over.sort_unstable();
            // The end of a lease is a change of its own, though it is handled late: watchers are told of it before the new entry.
            // So the writes have a later revision, and the operations see the entries as these ends leave them.
            let revisions = (self.last_token().0.saturating_add(1)..).map(Revision);
            (draft, results) = self.plan_all(operations, over.into_iter().zip(revisions).collect())?;
        }

        self.ensure_room_for(&draft).map_err(Obstacle::Refused)?;
        Ok((draft, results))
    }

    /// Makes the changes of a transaction that was judged. Returns its revision.
    fn carry_out(&mut self, draft: Draft, events: &mut Vec<Event>) -> Revision {
        for key in draft.ended.into_keys() {
            self.end_lease(key, None, events);
        }
        let writes = draft.writes.len() + draft.parents.len();
        self.batch.spend(writes.max(draft.visited).max(draft.openings.len()));
        if !draft.writes.is_empty() {
            let issued = self.issued.issue_token();
            debug_assert_eq!(Revision(issued.0), draft.revision, "the planned entries have this revision");
        }

        let mut left: BTreeSet<_> = draft.openings.iter().map(|new| new.session).collect();
        for new in draft.openings {
            if Planted::TxnJudgedAgain.is_on() {
                let bytes = new_session_bytes(&new.label, new.owner.as_ref());
                self.ensure_room_in_table(bytes).expect("the transaction was judged");
            }
            self.open_or_renew(new, true);
        }
        for session in draft.renewals {
            if !Planted::RenewingPutExtendsNothing.is_on() {
                self.extend(session);
            }
        }
        for (key, entry) in draft.writes {
            let lease = self.set_entry(key, entry, None, events);
            left.extend(lease.map(|lease| lease.session));
        }

        for (key, entry) in draft.parents {
            self.entries.set_children(&key, entry);
        }

        // Read it before sessions are closed, because their locks may be granted to others then.
        let revision = self.revision();
        for session in left {
            self.close_without_entries(session, events);
        }
        revision
    }

    /// The first compare that does not hold, counted from 0.
    fn first_unmet(&self, compares: &[Compare]) -> Result<Option<u32>, Refusal> {
        let mut read = 0;
        for (index, compare) in (0..).zip(compares) {
            let holds = |entry: Option<&Entry>| compare.operand.holds(compare.relation, entry);
            let does_hold = if let Some(up_to) = &compare.up_to {
                let range = KeyRange { from: Some(compare.key.clone()), to: Some(up_to.clone()) };
                self.count_read(&range, &mut read)?;
                // A range without entries is compared as a key without an entry.
                let mut entries = self.entries(&range).peekable();
                if entries.peek().is_some() { entries.all(|(_, entry)| holds(Some(&entry))) } else { holds(None) }
            } else {
                let entry = self.entry(&compare.key);
                entry.is_none() && Planted::CompareOfAbsentHolds.is_on() || holds(entry.as_deref())
            };

            if !does_hold {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// Counts the entries of a range that is read. They are visited while the table is locked, and so have a limit.
    fn count_read(&self, range: &KeyRange, read: &mut usize) -> Result<(), Refusal> {
        // One more than the limit suffices to know that it is exceeded: the count itself must not visit a million entries.
        let visited = self.entries.range(range).take(TXN_READS_MAX + 1).count();
        self.batch.note_work(1 + visited);
        *read += visited;
        if *read > TXN_READS_MAX { Err(Refusal::Limit(Limit::TxnReads)) } else { Ok(()) }
    }

    /// Plans all operations, after the leases of some entries have ended.
    fn plan_all(
        &self,
        operations: &[TxnOperation],
        ended: BTreeMap<Key, Revision>,
    ) -> Result<(Draft, Vec<TxnResult>), Obstacle> {
        let revision = Revision(self.last_token().0.saturating_add(1).saturating_add(ended.len() as u64));
        let mut draft = Draft { revision, ended, ..Draft::default() };
        self.plan_ends(&mut draft);

        let mut results = Vec::with_capacity(operations.len());
        for (index, operation) in (0..).zip(operations) {
            results.push(self.plan(operation, &mut draft).map_err(|obstacle| obstacle.at(index))?);
        }
        Ok((draft, results))
    }

    /// Adds an operation to the draft. Changes nothing else.
    fn plan(&self, operation: &TxnOperation, draft: &mut Draft) -> Result<TxnResult, OperationObstacle> {
        Ok(match operation {
            TxnOperation::Get(key) => self.plan_get(key, draft)?,
            TxnOperation::Put(put) => self.plan_put(put, None, draft)?,
            TxnOperation::PutChild(child) => self.plan_child(child, draft)?,
            TxnOperation::Expire(expire) => self.plan_expire(expire, draft)?,
            TxnOperation::Delete(key) => {
                let entry = self.drafted(key, draft);
                let is_there = entry.is_some();
                if let Some(entry) = entry {
                    self.plan_deletion(key, &entry, draft)?;
                }
                TxnResult::Deleted(is_there.into())
            }
            TxnOperation::DeleteRange(range) => self.plan_delete(range, draft)?,
            TxnOperation::Select(select) => self.plan_select(select, draft)?,
            TxnOperation::Open(new) => self.plan_open(new, draft)?,
        })
    }

    /// The entry as the next operation of the transaction sees it.
    pub(super) fn drafted(&self, key: &Key, draft: &Draft) -> Option<Arc<Entry>> {
        if let Some(written) = draft.writes.get(key) {
            return written.clone();
        }
        let parent = draft.parents.get(key).cloned();
        parent.or_else(|| Some(draft.with_end(key, self.entry(key)?)))
    }

    fn plan_get(&self, key: &Key, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let entry = self.drafted(key, draft);
        draft.show(entry.as_ref().map_or(0, |entry| entry.value.as_bytes().len()))?;
        Ok(TxnResult::Got(entry))
    }

    fn plan_select(&self, select: &Select, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        let range = &select.range;
        self.count_read(range, &mut draft.read)?;
        let is_changed = draft.written(range).next().is_some() || draft.parents_in(range).next().is_some();
        let is_written = is_changed && !Planted::SelectMissesOwnWrites.is_on();
        let present = self.entries(range).map(|(key, entry)| (key, draft.with_end(key, entry)));

        // The usual case is read without a copy of the range.
        let selected = if !is_written {
            select.from(present)
        } else {
            let mut entries: BTreeMap<&Key, Arc<Entry>> = present.collect();
            entries.extend(draft.parents_in(range).map(|(key, entry)| (key, Arc::clone(entry))));
            for (key, entry) in draft.written(range) {
                if let Some(entry) = entry {
                    entries.insert(key, Arc::clone(entry));
                } else {
                    entries.remove(key);
                }
            }
            select.from(entries.into_iter())
        };
        draft.show(selected.bytes())?;
        Ok(TxnResult::Selected(selected))
    }

    fn plan_open(&self, new: &NewSession, draft: &mut Draft) -> Result<TxnResult, Refusal> {
        self.can_open(new)?;
        if self.sessions.get(new.session).is_some_and(|session| !session.is_of_entries) {
            return Err(Refusal::SessionExists);
        }
        draft.openings.push(new.clone());
        Ok(TxnResult::Opened(new.ttl))
    }

    /// A put of the same value, with another deadline.
    fn plan_expire(
        &self,
        Expire { key, deadline }: &Expire,
        draft: &mut Draft,
    ) -> Result<TxnResult, OperationObstacle> {
        let Some(entry) = self.drafted(key, draft) else { return Ok(TxnResult::Expires(false)) };
        let lease = deadline.map_or(PutLease::None, PutLease::Extended);
        self.plan_put(&Put { key: key.clone(), value: entry.value.clone(), lease, claims: None }, None, draft)?;
        Ok(TxnResult::Expires(true))
    }

    /// Puts an entry, as a child of `parent` if that is given: then there is none under its key.
    pub(super) fn plan_put(
        &self,
        put: &Put,
        parent: Option<&Key>,
        draft: &mut Draft,
    ) -> Result<TxnResult, OperationObstacle> {
        let before = self.drafted(&put.key, draft);
        if put.lease.deadline().is_some_and(|deadline| self.end_of(deadline) <= self.now()) {
            if let Some(before) = before {
                self.plan_deletion(&put.key, &before, draft)?;
            }
            return Ok(TxnResult::Put);
        }
        if before.as_ref().is_some_and(|before| before.modified == draft.revision) {
            return Err(TxnFailureReason::PutTwice.into());
        }

        let bare = draft.bare_entry(put, before.as_deref());
        let bare = Entry { kin: bare.kin.or_else(|| Kinship::stored(parent.cloned(), None)), ..bare };
        let entry = match (put.lease, before) {
            (PutLease::None, _) | (PutLease::Kept | PutLease::Renewed, None) => bare,
            (PutLease::Given(lease), before) => {
                let claim = self.plan_lease(put, lease, before.as_deref(), draft)?;
                Entry { lease: Some(lease), claim, ..bare }
            }
            (PutLease::Until(deadline), before) => {
                self.ensure_grants(put)?;
                let until = Some(self.end_of(deadline));
                let planned = Entry { until, ..bare };
                let claim = put.claims.clone().and_then(|claims| self.plan_claim(claims, &planned, before.as_deref()));
                Entry { claim, ..planned }
            }
            (PutLease::Extended(deadline), before) => {
                let claim = before.filter(|before| before.until.is_some()).and_then(|before| before.claim.clone());
                Entry { until: Some(self.end_of(deadline)), claim, ..bare }
            }
            (PutLease::Temporary(lifetime), _) => {
                let until = Some(self.end_of(EntryDeadline::After(lifetime)));
                Entry { until, is_temporary: !Planted::MemoriesTakeSessions.is_on(), ..bare }
            }
            (PutLease::Kept | PutLease::Renewed, Some(before)) => {
                let Entry { lease, until, claim, is_expired, is_revoked, is_temporary, .. } = Entry::clone(&before);
                if let Some(Lease { session, .. }) = lease.filter(|_| put.lease == PutLease::Renewed)
                    && self.sessions.get(session).is_some_and(|session| session.is_of_entries)
                {
                    draft.renewals.push(session);
                }
                Entry { lease, until, claim, is_expired, is_revoked, is_temporary, ..bare }
            }
        };

        if entry.ends() && entry.children().is_some() && !Planted::ChildBelowLease.is_on() {
            return Err(TxnFailureReason::ParentCannotEnd.into());
        }
        draft.write(put.key.clone(), Some(Arc::new(entry)))?;
        Ok(TxnResult::Put)
    }

    /// Plans the lease that a put gives its entry. Returns the claim that comes with it.
    fn plan_lease(
        &self,
        put: &Put,
        lease: Lease,
        before: Option<&Entry>,
        draft: &Draft,
    ) -> Result<Option<Arc<Claim>>, Refusal> {
        self.ensure_grants(put)?;

        // A lease that the transaction itself opens is not in the table yet.
        if !draft.opens(lease.session) {
            self.alive(lease.session)?;
        }
        let planned = Entry { lease: Some(lease), ..draft.bare_entry(put, before) };
        Ok(put.claims.clone().and_then(|claims| self.plan_claim(claims, &planned, before)))
    }

    /// Refuses a put that claims a lock while the table grants none.
    fn ensure_grants(&self, put: &Put) -> Result<(), Refusal> {
        match self.closed_until().filter(|_| put.claims.is_some()) {
            Some(until) => Err(Refusal::Closed { remaining_ms: self.clock.remaining_ms(until) }),
            None => Ok(()),
        }
    }

    fn end_of(&self, deadline: EntryDeadline) -> Stamp {
        match deadline {
            EntryDeadline::After(lifetime) => self.clock.after_ms(lease_ms(lifetime.as_millis())),
            EntryDeadline::At(stamp) => stamp,
        }
    }

    /// Entries of the range whose lease is over count for the limit, since they are visited; they are left to the end of their session.
    fn plan_delete(&self, range: &KeyRange, draft: &mut Draft) -> Result<TxnResult, OperationObstacle> {
        let visited = self.entries.range(range).take(TXN_WRITES_MAX + 1).count();
        self.batch.note_work(1 + visited);
        draft.visited += visited;
        if draft.visited > TXN_WRITES_MAX {
            return Err(Refusal::Limit(Limit::TxnWrites).into());
        }

        let put = draft.written(range).filter(|(_, entry)| entry.is_some());
        let mut keys: Vec<Key> = put.map(|(key, _)| key.clone()).collect();
        if Planted::DeleteSparesOwnPuts.is_on() {
            keys.clear();
        }
        let present = self.entries(range).filter(|(key, _)| !draft.writes.contains_key(*key));
        keys.extend(present.map(|(key, _)| key.clone()));
        let deleted = keys.len() as u64;
        self.plan_deletions(keys, draft)?;
        Ok(TxnResult::Deleted(deleted))
    }

    /// Refuses a transaction that would leave the table beyond a limit. One that takes no more than it replaces is never refused, also in a
    /// table that is beyond a limit already.
    fn ensure_room_for(&self, draft: &Draft) -> Result<(), Refusal> {
        let Difference { entries, sessions, bytes, by_session } = self.difference(draft);
        let exceeds = |balance: Balance, present: usize, capacity: usize| {
            balance.more().is_some_and(|more| present.saturating_add(more) > capacity)
        };
        if exceeds(sessions, self.sessions.ordinary(), self.capacity.sessions) {
            return Err(Refusal::Limit(Limit::Sessions));
        }
        if exceeds(entries, self.entries.len(), self.capacity.entries) {
            return Err(Refusal::Limit(Limit::Entries));
        }

        if let Some(more) = bytes.more() {
            self.ensure_room_in_table(more)?;
        }
        for (session, difference) in by_session {
            if let Some(more) = difference.bytes.more() {
                self.ensure_room_in_session(session, more)?;
            }
        }
        Ok(())
    }

    fn difference(&self, draft: &Draft) -> Difference {
        let mut difference = Difference::default();
        let parents = draft.parents.iter().map(|(key, entry)| (key, Some(entry)));
        for (key, written) in draft.writes.iter().map(|(key, entry)| (key, entry.as_ref())).chain(parents) {
            if let Some(entry) = self.entries.get(key) {
                difference.remove_entry(key, entry);
            }
            if let Some(entry) = written {
                difference.add_entry(key, entry);
            }
        }

        // A session that is opened and is the lease of no entry afterwards is closed again.
        for NewSession { session, label, owner, .. } in &draft.openings {
            if !self.sessions.contains(*session) && difference.has_lease(*session) {
                let is_temporary = self.batch.opens_temporary(*session);
                difference.add_session(*session, new_session_bytes(label, owner.as_ref()), is_temporary);
            }
        }
        for session in difference.left() {
            let is_temporary = self.sessions.get(session).is_some_and(|session| session.is_temporary);
            difference.remove_session(self.bytes_if_left(session, draft), is_temporary);
        }
        difference
    }

    /// The bytes of a session that is closed at once when the transaction writes its entries: it has no others, and holds and awaits
    /// nothing. There are none if it stays.
    fn bytes_if_left(&self, id: SessionId, draft: &Draft) -> Option<usize> {
        let session = self.sessions.get(id).filter(|session| session.is_of_entries && session.is_idle())?;
        let is_alive = session.over(self.now()).is_none();
        let is_left = is_alive && self.entries.leased(id).all(|key| draft.writes.contains_key(key));
        is_left.then(|| session.bare_bytes())
    }
}

impl Obstacle {
    fn into_refusal(self) -> Refusal {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Failed { index, reason } => Refusal::TxnFailed { index, reason },
        }
    }
}

impl OperationObstacle {
    fn at(self, index: u32) -> Obstacle {
        match self {
            Self::Refused(refusal) => Obstacle::Refused(refusal),
            Self::Failed(reason) => Obstacle::Failed { index, reason },
        }
    }
}

impl From<Refusal> for OperationObstacle {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<TxnFailureReason> for OperationObstacle {
    fn from(reason: TxnFailureReason) -> Self {
        Self::Failed(reason)
    }
}

impl Balance {
    /// The number by which it grows, or `None` if it does not grow.
    fn more(self) -> Option<usize> {
        self.added.checked_sub(self.removed).filter(|more| *more > 0)
    }
}

impl Difference {
    fn add_entry(&mut self, key: &Key, entry: &Entry) {
        let weight = Weight::for_entry(key, entry);
        self.entries.added += 1;
        self.bytes.added += weight.all;
        if let Some(lease) = entry.lease {
            let session = self.by_session.entry(lease.session).or_default();
            session.bytes.added += weight.own;
            session.is_lease = true;
        }
    }

    fn remove_entry(&mut self, key: &Key, entry: &Entry) {
        let weight = Weight::for_entry(key, entry);
        self.entries.removed += 1;
        self.bytes.removed += weight.all;
        if let Some(lease) = entry.lease {
            let session = self.by_session.entry(lease.session).or_default();
            session.bytes.removed += weight.own;
            session.was_lease = true;
        }
    }

    fn has_lease(&self, session: SessionId) -> bool {
        self.by_session.get(&session).is_some_and(|session| session.is_lease)
    }

    /// The sessions that were the lease of entries, and are not afterwards.
    fn left(&self) -> Vec<SessionId> {
        let is_left = |session: &SessionDifference| session.was_lease && !session.is_lease;
        self.by_session.iter().filter(|(_, session)| is_left(session)).map(|(id, _)| *id).collect()
    }

    /// The session of a temporary entry has a limit of its own: see `temporary`.
    fn add_session(&mut self, session: SessionId, bytes: usize, is_temporary: bool) {
        self.sessions.added += usize::from(!is_temporary);
        self.bytes.added += bytes;
        self.by_session.entry(session).or_default().bytes.added += bytes;
    }

    /// A session without bytes stays.
    fn remove_session(&mut self, bytes: Option<usize>, is_temporary: bool) {
        self.sessions.removed += usize::from(bytes.is_some() && !is_temporary);
        self.bytes.removed += bytes.unwrap_or_default();
    }
}

impl Draft {
    /// An entry of the table as the operations see it: after the end of its lease, if that comes first.
    fn with_end(&self, key: &Key, entry: Arc<Entry>) -> Arc<Entry> {
        match self.ended.get(key) {
            Some(modified) => Arc::new(Entry { modified: *modified, is_revoked: false, ..Entry::clone(&entry) }),
            None => entry,
        }
    }

    /// The entry that a put leaves, without what it keeps of the lease before.
    fn bare_entry(&self, put: &Put, before: Option<&Entry>) -> Entry {
        let modified = self.revision;
        let before = before.filter(|_| !Planted::CreatedByEachPut.is_on());
        Entry {
            created: before.map_or(modified, |before| before.created),
            modified,
            version: before.map_or(1, |before| before.version.saturating_add(1)),
            lease: None,
            until: None,
            claim: None,
            is_expired: false,
            is_revoked: false,
            is_temporary: false,
            kin: before.and_then(|before| before.kin.clone()),
            value: put.value.clone(),
        }
    }

    /// Its writes in a range. Its other writes are not visited, because a transaction may have many of both.
    fn written(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &Option<Arc<Entry>>)> {
        self.writes.range::<Key, _>(range.bounds())
    }

    /// The parents in a range that its writes change.
    fn parents_in(&self, range: &KeyRange) -> impl Iterator<Item = (&Key, &Arc<Entry>)> {
        self.parents.range::<Key, _>(range.bounds())
    }

    fn opens(&self, session: SessionId) -> bool {
        self.openings.iter().any(|new| new.session == session)
    }

    fn show(&mut self, bytes: usize) -> Result<(), Refusal> {
        self.bytes_shown += bytes;
        if self.bytes_shown > TXN_BYTES_MAX { Err(Refusal::Limit(Limit::TxnBytes)) } else { Ok(()) }
    }

    pub(super) fn write(&mut self, key: Key, entry: Option<Arc<Entry>>) -> Result<(), Refusal> {
        self.parents.remove(&key);
        self.writes.insert(key, entry);
        if self.writes.len() > TXN_WRITES_MAX { Err(Refusal::Limit(Limit::TxnWrites)) } else { Ok(()) }
    }
}
