//! A model of the keyspace: what a transaction or a read must have answered, given what was there.
//!
//! One thing the history does not say: an entry whose lease is over is over for everybody from that moment, though the event of it comes
//! later. So the model takes the sessions that were over as a parameter, and an answer is right if there is some set of sessions that
//! explains all of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lockkeeper::machine::{
    AtLeaseEnd, Committed, Compare, Entry, EntryDeadline, Expire, Key, KeyRange, Kinship, Lease, Put, PutChild,
    PutLease, Revision, Select, Selected, SessionId, Stamp, Txn, TxnFailure, TxnOperation, TxnResult,
};

use super::truth::Truth;

/// With more sessions, not all sets of them are tried.
const SESSIONS_MAX: usize = 8;

/// What a client saw of the keyspace at one moment.
pub(crate) struct State<'a> {
    truth: &'a Truth,
    revision: Revision,
    over: &'a BTreeSet<SessionId>,
    /// Cluster time: entries whose deadlines have passed are gone.
    now: Stamp,
    /// What the transaction itself has written.
    written: BTreeMap<Key, Option<Arc<Entry>>>,
}

impl<'a> State<'a> {
    fn new(truth: &'a Truth, revision: Revision, over: &'a BTreeSet<SessionId>, now: Stamp) -> Self {
        Self { truth, revision, over, now, written: BTreeMap::new() }
    }

    fn in_force(&self, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        if entry.until.is_some_and(|until| until <= self.now) {
            return None;
        }
        match entry.lease.filter(|lease| self.over.contains(&lease.session)) {
            None => Some(Arc::clone(entry)),
            Some(Lease { at_end: AtLeaseEnd::Delete, .. }) => None,
            Some(Lease { at_end: AtLeaseEnd::Keep, .. }) => {
                Some(Arc::new(Entry { lease: None, is_expired: true, ..Entry::clone(entry) }))
            }
        }
    }

    pub(crate) fn entry(&self, key: &Key) -> Option<Arc<Entry>> {
        match self.written.get(key) {
            Some(written) => written.clone(),
            None => self.in_force(self.truth.entry(key, self.revision)?),
        }
    }

    pub(crate) fn entries(&self, range: &KeyRange) -> BTreeMap<Key, Arc<Entry>> {
        let present = self.truth.entries(range, self.revision);
        let present = present.filter_map(|(key, entry)| Some((key.clone(), self.in_force(entry)?)));
        let mut entries: BTreeMap<_, _> = present.collect();
        for (key, entry) in self.written.iter().filter(|(key, _)| range.contains(key)) {
            match entry {
                Some(entry) => drop(entries.insert(key.clone(), Arc::clone(entry))),
                None => drop(entries.remove(key)),
            }
        }
        entries
    }

    pub(crate) fn select(&self, select: &Select) -> Selected {
        let entries = self.entries(&select.range);
        select.from(entries.iter().map(|(key, entry)| (key, Arc::clone(entry))))
    }

    fn holds(&self, compare: &Compare) -> bool {
        let Compare { key, up_to, relation, operand } = compare;
        let Some(up_to) = up_to else { return operand.holds(*relation, self.entry(key).as_deref()) };
        let entries = self.entries(&KeyRange { from: Some(key.clone()), to: Some(up_to.clone()) });
        if entries.is_empty() {
            operand.holds(*relation, None)
        } else {
            entries.values().all(|entry| operand.holds(*relation, Some(entry)))
        }
    }

    fn put(&mut self, put: &Put, revision: Revision) {
        let before = self.entry(&put.key);
        if matches!(put.lease.deadline(), Some(EntryDeadline::At(stamp)) if stamp <= self.now) {
            if before.is_some() {
                self.written.insert(put.key.clone(), None);
            }
            return;
        }

        let until = match (put.lease, &before) {
            (PutLease::Until(EntryDeadline::At(stamp)) | PutLease::Extended(EntryDeadline::At(stamp)), _) => {
                Some(stamp)
            }
            // The table counts from a moment that may be a little later: what it wrote down counts, if it is not earlier.
            (
                PutLease::Until(EntryDeadline::After(lifetime))
                | PutLease::Extended(EntryDeadline::After(lifetime))
                | PutLease::Temporary(lifetime),
                _,
            ) => {
                let earliest = Stamp(self.now.0.saturating_add(lifetime.as_millis()));
                let event = self.truth.event(&put.key, revision).and_then(|event| event.after.as_ref()?.until);
                Some(event.map_or(earliest, |until| until.max(earliest)))
            }
            (PutLease::Kept | PutLease::Renewed, Some(before)) => before.until,
            (PutLease::Kept | PutLease::Renewed, None) | (PutLease::None | PutLease::Given(_), _) => None,
        };
        let (lease, is_expired, is_revoked) = match (put.lease, &before) {
            (PutLease::None | PutLease::Until(_) | PutLease::Extended(_) | PutLease::Temporary(_), _)
            | (PutLease::Kept | PutLease::Renewed, None) => (None, false, false),
            (PutLease::Given(lease), _) => (Some(lease), false, false),
            (PutLease::Kept | PutLease::Renewed, Some(before)) => (before.lease, before.is_expired, before.is_revoked),
        };
        let kin = before.as_ref().and_then(|before| before.kin.clone());
        let is_temporary = match (put.lease, &before) {
            (PutLease::Temporary(_), _) => true,
            (PutLease::Kept | PutLease::Renewed, Some(before)) => before.is_temporary,
            (PutLease::Kept | PutLease::Renewed, None) => false,
            (PutLease::None | PutLease::Given(_) | PutLease::Until(_) | PutLease::Extended(_), _) => false,
        };
        let entry = Entry {
            created: before.as_ref().map_or(revision, |before| before.created),
            modified: revision,
            version: before.as_ref().map_or(1, |before| before.version + 1),
            lease,
            until,
            claim: None,
            is_expired,
            is_revoked,
            is_temporary,
            kin,
            value: put.value.clone(),
        };
        self.written.insert(put.key.clone(), Some(Arc::new(entry)));
    }

    /// The result that the operation must have; `shown` says what only the table knows: the number of a child.
    fn run(&mut self, operation: &TxnOperation, revision: Revision, shown: &TxnResult) -> Result<TxnResult, String> {
        Ok(match operation {
            TxnOperation::PutChild(child) => {
                let key = self.make_child(child, revision, shown)?;
                TxnResult::PutChild(key)
            }
            TxnOperation::Get(key) => TxnResult::Got(self.entry(key)),
            TxnOperation::Select(select) => TxnResult::Selected(self.select(select)),
            TxnOperation::Put(put) => {
                self.put(put, revision);
                TxnResult::Put
            }
            TxnOperation::Delete(key) => {
                let is_there = self.entry(key).is_some();
                if is_there {
                    self.written.insert(key.clone(), None);
                    self.ensure_childless(std::slice::from_ref(key))?;
                }
                TxnResult::Deleted(is_there.into())
            }
            TxnOperation::DeleteRange(range) => {
                let keys: Vec<_> = self.entries(range).into_keys().collect();
                let deleted = keys.len() as u64;
                self.written.extend(keys.iter().map(|key| (key.clone(), None)));
                self.ensure_childless(&keys)?;
                TxnResult::Deleted(deleted)
            }
            TxnOperation::Open(new) => TxnResult::Opened(new.ttl),
            TxnOperation::Expire(Expire { key, deadline }) => {
                let Some(entry) = self.entry(key) else { return Ok(TxnResult::Expires(false)) };
                let lease = deadline.map_or(PutLease::None, PutLease::Extended);
                self.put(&Put { key: key.clone(), value: entry.value.clone(), lease, claims: None }, revision);
                TxnResult::Expires(true)
            }
        })
    }

    /// Puts a child. Returns its key, which the answer shows.
    fn make_child(&mut self, child: &PutChild, revision: Revision, shown: &TxnResult) -> Result<Key, String> {
        let PutChild { parent, put, is_numbered } = child;
        let TxnResult::PutChild(key) = shown else { return Err("it is not the answer to a child".to_owned()) };
        let number = key.as_bytes().strip_prefix(put.key.as_bytes());
        let is_number = |digits: &[u8]| digits.len() >= 10 && digits.iter().all(u8::is_ascii_digit);
        if !number.is_some_and(|number| if *is_numbered { is_number(number) } else { number.is_empty() }) {
            return Err(format!("a child that was to be {:?} is {key:?}", put.key));
        }

        let above = self.entry(parent).ok_or_else(|| format!("a child was made below {parent:?}, which is absent"))?;
        if above.lease.is_some() || above.until.is_some() {
            return Err(format!("a child was made below {parent:?}, which ends by itself"));
        }
        if self.entry(key).is_some() {
            return Err(format!("the child {key:?} was made, and was there"));
        }

        self.put(&Put { key: key.clone(), ..put.clone() }, revision);
        if let Some(Some(entry)) = self.written.get_mut(key) {
            Arc::make_mut(entry).kin = Kinship::stored(Some(parent.clone()), None);
        }
        Ok(key.clone())
    }

    /// Fails if one of these entries, which were deleted, has left children.
    fn ensure_childless(&self, deleted: &[Key]) -> Result<(), String> {
        let entries = self.entries(&ALL);
        let orphan = entries.iter().find(|(_, entry)| entry.parent().is_some_and(|parent| deleted.contains(parent)));
        orphan.map_or(Ok(()), |(key, _)| Err(format!("the parent of {key:?} was deleted")))
    }
}

/// Why an answer is wrong; `None`: it is right, or cannot be judged.
pub(crate) fn judge_txn(truth: &Truth, txn: &Txn, committed: &Committed) -> Option<String> {
    let branch = if committed.succeeded { txn.then() } else { txn.otherwise() };
    let is_late = |put: &Put| matches!(put.lease.deadline(), Some(EntryDeadline::At(stamp)) if stamp <= committed.now);
    let has_written = branch.iter().zip(&committed.results).any(|(operation, result)| match operation {
        TxnOperation::Put(put) | TxnOperation::PutChild(PutChild { put, .. }) => !is_late(put),
        TxnOperation::Expire(_) => *result == TxnResult::Expires(true),
        TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => *result != TxnResult::Deleted(0),
        TxnOperation::Get(_) | TxnOperation::Select(_) | TxnOperation::Open(_) => false,
    });
    // A put whose deadline has passed deletes what was there, and does nothing if there was nothing. The answer does not say which.
    let may_have_written = branch.iter().any(|operation| matches!(operation, TxnOperation::Put(put) if is_late(put)));

    let earlier = Revision(committed.revision.0.saturating_sub(1));
    if !truth.is_whole(Revision(earlier.0.saturating_sub(1)), committed.revision) {
        return None;
    }
    let befores: &[Revision] = match (has_written, may_have_written) {
        (true, _) => &[earlier],
        (false, true) => &[committed.revision, earlier],
        (false, false) => &[committed.revision],
    };

    let mut first = None;
    for before in befores {
        for over in some_sessions(truth, *before)? {
            match judge_one(truth, *before, &over, txn, committed) {
                None => return None,
                why => first = first.or(why),
            }
        }
    }
    first
}

/// The same, if exactly these sessions were over.
fn judge_one(
    truth: &Truth,
    before: Revision,
    over: &BTreeSet<SessionId>,
    txn: &Txn,
    committed: &Committed,
) -> Option<String> {
    let Committed { succeeded, failed, revision, now, results } = committed;
    let mut state = State::new(truth, before, over, *now);
    let unmet = txn.compares().iter().position(|compare| !state.holds(compare)).map(|index| index as u32);
    let is_right = match failed {
        None => unmet.is_none() && *succeeded,
        Some(TxnFailure::Compare(index)) => unmet == Some(*index) && !succeeded,
        Some(TxnFailure::Operation { index, .. }) => {
            unmet.is_none() && !succeeded && txn.falls_back() && (*index as usize) < txn.then().len()
        }
    };
    if !is_right {
        return Some(format!("its first compare that does not hold is {unmet:?}, and the answer says {failed:?}"));
    }

    let branch = if *succeeded { txn.then() } else { txn.otherwise() };
    if branch.len() != results.len() {
        return Some(format!("{} operations have {} results", branch.len(), results.len()));
    }
    for (operation, result) in branch.iter().zip(results) {
        let shown = as_written(result);
        let right = match state.run(operation, *revision, &shown) {
            Ok(right) => right,
            Err(why) => return Some(why),
        };
        if right != shown {
            return Some(format!("{operation:?} answered {shown:?} instead of {right:?}"));
        }
    }

    let lost = state.written.iter().find_map(|(key, written)| {
        let event = truth.event(key, *revision);
        let is_there = match (event, written) {
            (Some(event), written) => event.after.as_ref() == written.as_ref(),
            // It put the key and deleted it again.
            (None, None) => truth.entry(key, before).is_none(),
            (None, Some(_)) => false,
        };
        (!is_there).then(|| format!("of {key:?} the history has {event:?} instead of {written:?}"))
    });
    let mut events = truth.between(&ALL, *revision, *revision);
    lost.or_else(|| {
        let other = events.find(|event| !state.written.contains_key(&event.key))?;
        (!state.written.is_empty()).then(|| format!("it did not write {:?}, whose event has its revision", other.key))
    })
}

const ALL: KeyRange = KeyRange { from: None, to: None };

/// Whether what a read showed is what was there at a revision.
pub(crate) fn is_shown(
    truth: &Truth,
    revision: Revision,
    is_present: bool,
    is_right: impl Fn(&State<'_>) -> bool,
) -> bool {
    if !truth.is_whole(Revision(revision.0.saturating_sub(1)), revision) {
        return true;
    }
    let none = BTreeSet::new();
    if !is_present {
        return is_right(&State::new(truth, revision, &none, Stamp(0)));
    }
    // Up to some moment, all deadlines have passed.
    let deadlines: BTreeSet<_> = truth.entries(&ALL, revision).filter_map(|(_, entry)| entry.until).collect();
    let moments: Vec<_> = [Stamp(0)].into_iter().chain(deadlines).collect();
    some_sessions(truth, revision).is_none_or(|mut sets| {
        sets.any(|over| moments.iter().any(|now| is_right(&State::new(truth, revision, &over, *now))))
    })
}

/// Sets of sessions that may have been over: first none, then all others. `None`: there are too many.
fn some_sessions(truth: &Truth, revision: Revision) -> Option<impl Iterator<Item = BTreeSet<SessionId>> + use<>> {
    let leases = truth.entries(&ALL, revision).filter_map(|(_, entry)| entry.lease);
    let sessions: BTreeSet<_> = leases.map(|lease| lease.session).collect();
    let sessions: Vec<_> = sessions.into_iter().collect();
    if sessions.len() > SESSIONS_MAX {
        return None;
    }
    Some((0..1_u32 << sessions.len()).map(move |set| {
        let places = (0..).zip(&sessions).filter(|(place, _)| set & (1 << place) != 0);
        places.map(|(_, session)| *session).collect()
    }))
}

/// Without the claims and the children of entries, which the history does not have.
fn as_written(result: &TxnResult) -> TxnResult {
    match result {
        TxnResult::Got(entry) => TxnResult::Got(entry.as_ref().map(without_claim)),
        TxnResult::Selected(selected) => TxnResult::Selected(without_claims(selected)),
        TxnResult::Put | TxnResult::PutChild(_) | TxnResult::Deleted(_) => result.clone(),
        TxnResult::Opened(_) | TxnResult::Expires(_) => result.clone(),
    }
}

pub(crate) fn without_claim(entry: &Arc<Entry>) -> Arc<Entry> {
    if entry.claim.is_none() && entry.children().is_none() {
        return Arc::clone(entry);
    }
    let kin = Kinship::stored(entry.parent().cloned(), None);
    Arc::new(Entry { claim: None, kin, ..Entry::clone(entry) })
}

pub(crate) fn without_claims(selected: &Selected) -> Selected {
    let entries = selected.entries.iter().map(|(key, entry)| (key.clone(), without_claim(entry))).collect();
    Selected { entries, count: selected.count, more: selected.more }
}
