//! The keyspace of the model: what is written, what it was at each revision, and the locks that it claims.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::*;

/// The claim of an entry, apart from whether it is held.
fn claim_of(entry: &Entry) -> Option<(Token, LockName, SessionId)> {
    let claim = entry.claim.as_ref()?;
    Some((claim.token, claim.lock.clone(), owner(entry)?))
}

/// The session by which an entry may claim a lock, or none of all if it has a deadline of its own.
fn owner(entry: &Entry) -> Option<SessionId> {
    match (entry.lease, entry.until) {
        (Some(lease), _) => Some(lease.session),
        (None, Some(_)) => Some(SessionId(0)),
        (None, None) => None,
    }
}

/// What a branch leaves.
struct Run {
    entries: BTreeMap<Key, Entry>,
    sessions: BTreeMap<SessionId, Session>,
    results: Vec<TxnResult>,
    writes: bool,
}

/// Why a branch leaves nothing.
enum Stop {
    Refused(Refusal),
    Failed { index: u32, reason: TxnFailureReason },
}

fn child_key(child: &PutChild, above: &Entry) -> Key {
    if !child.is_numbered {
        return child.put.key.clone();
    }
    let made = above.children().map_or(0, |children| children.made);
    Key::from_log(format!("{}{made:010}", String::from_utf8_lossy(child.put.key.as_bytes())).as_bytes()).unwrap()
}

/// Counts the children that are gone, and returns the keys that are.
fn settle(before: &BTreeMap<Key, Entry>, entries: &mut BTreeMap<Key, Entry>, changed: Revision) -> Vec<Key> {
    let gone: Vec<_> = before.keys().filter(|key| !entries.contains_key(*key)).cloned().collect();
    for key in &gone {
        let Some(above) = before[key].parent().and_then(|parent| entries.get_mut(parent)) else { continue };
        let Children { made, live, .. } = above.children().expect("it has a child");
        let children = Some(Children { made, live: live - 1, changed });
        above.kin = Kinship::stored(above.parent().cloned(), children);
    }
    gone
}

/// Why an operation cannot be done, by what it leaves.
fn check_after(operation: &TxnOperation, gone: &[Key], entries: &BTreeMap<Key, Entry>) -> Result<(), TxnFailureReason> {
    if gone.iter().any(|key| entries.values().any(|entry| entry.parent() == Some(key))) {
        return Err(TxnFailureReason::ChildrenLeft);
    }
    let key = match operation {
        TxnOperation::Put(put) => &put.key,
        TxnOperation::Expire(expire) => &expire.key,
        TxnOperation::Get(_) | TxnOperation::Select(_) | TxnOperation::Open(_) | TxnOperation::PutChild(_) => {
            return Ok(());
        }
        TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => return Ok(()),
    };
    let ends = |entry: &Entry| entry.children().is_some() && (entry.lease.is_some() || entry.until.is_some());
    if entries.get(key).is_some_and(ends) {
        return Err(TxnFailureReason::ParentCannotEnd);
    }
    Ok(())
}

impl Model {
    pub(super) fn commit(&mut self, txn: &Txn) -> Result<Reply, Refusal> {
        if let Some(Attached { session, number }) = txn.attached() {
            let attached = self.sessions.get(&session).map(|session| session.attached);
            match attached {
                None => return Err(Refusal::SessionEnded(self.end(session))),
                Some(last) if last != number => return Err(Refusal::SessionMoved { number: last }),
                Some(_) => {}
            }
        }
        let unmet = txn.compares().iter().position(|compare| !self.holds(compare));
        let mut failed = unmet.map(|index| TxnFailure::Compare(index as u32));
        let mut run = self.run_branch(if unmet.is_none() { txn.then() } else { txn.otherwise() });
        if let (None, Err(Stop::Failed { index, reason }), true) = (unmet, &run, txn.falls_back()) {
            failed = Some(TxnFailure::Operation { index: *index, reason: *reason });
            run = self.run_branch(txn.otherwise());
        }
        let Run { entries, sessions, results, writes } = run.map_err(|stop| match stop {
            Stop::Refused(refusal) => refusal,
            Stop::Failed { index, reason } => Refusal::TxnFailed { index, reason },
        })?;
        self.sessions = sessions;
        // Write by write: one may give up a lock, and another claim it.
        let keys: BTreeSet<_> = self.entries.keys().chain(entries.keys()).cloned().collect();
        for key in keys {
            let mut after = entries.get(&key).cloned();
            let before = self.entries.remove(&key);
            if let (Some(before), Some(after)) = (&before, &mut after)
                && claim_of(before) == claim_of(after)
            {
                after.claim = before.claim.clone();
            } else {
                self.hand_claims_on();
            }
            self.entries.extend(after.map(|after| (key, after)));
            self.hand_claims_on();
        }
        self.last_token += u64::from(writes);
        self.keep_state();
        let revision = Revision(self.last_token);
        self.close_without_entries();
        if let Some(Attached { session, .. }) = txn.attached().filter(|_| txn.closes() && failed.is_none())
            && self.sessions.contains_key(&session)
        {
            self.end_session(session, SessionEnd::Closed);
        }
        Ok(Reply::Committed(Committed { succeeded: failed.is_none(), failed, revision, now: Stamp(self.now), results }))
    }

    /// What the operations leave, if all of them can be done.
    fn run_branch(&self, operations: &[TxnOperation]) -> Result<Run, Stop> {
        let mut entries = self.entries.clone();
        let mut sessions = self.sessions.clone();
        let modified = Revision(self.last_token + 1);
        let mut results = Vec::new();
        let mut writes = false;
        for (index, operation) in operations.iter().enumerate() {
            let index = index as u32;
            let before = entries.clone();
            self.ensure_possible(operation, &entries, modified).map_err(|reason| Stop::Failed { index, reason })?;
            let mut put_child = None;
            let put = self.child_as_put(operation, &entries, &mut put_child);
            let result = match put.as_ref().unwrap_or(operation) {
                TxnOperation::PutChild(_) => unreachable!("it is a put here"),
                TxnOperation::Get(key) => TxnResult::Got(entries.get(key).cloned().map(Arc::new)),
                TxnOperation::Select(select) => {
                    let range = &select.range;
                    TxnResult::Selected(selected(select, entries.iter().filter(|(key, _)| range.contains(key))))
                }
                TxnOperation::Open(NewSession { session: id, ttl, label, address, owner }) => {
                    if self.ended.iter().any(|(ended, _)| ended == id) {
                        return Err(Stop::Refused(Refusal::SessionEnded(self.end(*id))));
                    }
                    let new = Session::new(*ttl, label.clone(), self.wall, *address, owner.clone(), true);
                    let session = sessions.entry(*id).or_insert(new);
                    if (session.ttl, &session.label, &session.owner, session.is_of_entries)
                        != (*ttl, label, owner, true)
                    {
                        return Err(Stop::Refused(Refusal::SessionExists));
                    }
                    session.deadline = self.now + u64::from(ttl.as_millis());
                    TxnResult::Opened(*ttl)
                }
                TxnOperation::Put(Put { key, value, lease: PutLease::Kept, .. }) => {
                    writes = true;
                    kept(&mut entries, key, value, modified);
                    TxnResult::Put
                }
                TxnOperation::Put(Put { key, value, lease: PutLease::Renewed, .. }) => {
                    writes = true;
                    let lease = kept(&mut entries, key, value, modified);
                    let session = lease.and_then(|lease| sessions.get_mut(&lease.session));
                    if let Some(session) = session.filter(|session| session.is_of_entries) {
                        session.deadline = self.now + u64::from(session.ttl.as_millis());
                    }
                    TxnResult::Put
                }
                TxnOperation::Put(Put { key, lease, .. })
                    if lease.deadline().is_some_and(|deadline| self.until(deadline).0 <= self.now) =>
                {
                    writes |= entries.remove(key).is_some();
                    TxnResult::Put
                }
                TxnOperation::Put(Put { key, value, lease: PutLease::Extended(deadline), .. }) => {
                    writes = true;
                    kept(&mut entries, key, value, modified);
                    extend(entries.get_mut(key).expect("it was just put"), Some(self.until(*deadline)));
                    TxnResult::Put
                }
                TxnOperation::Expire(Expire { key, deadline }) => {
                    let until = deadline.map(|deadline| self.until(deadline));
                    let is_there = entries.contains_key(key);
                    writes |= is_there;
                    if until.is_some_and(|until| until.0 <= self.now) {
                        entries.remove(key);
                    } else if let Some(entry) = entries.get_mut(key) {
                        (entry.modified, entry.version) = (modified, entry.version + 1);
                        extend(entry, until);
                    }
                    TxnResult::Expires(is_there)
                }
                TxnOperation::Put(Put { key, value, lease, claims }) => {
                    let until = lease.deadline().map(|deadline| self.until(deadline));
                    let put_lease = *lease;
                    let lease = if let PutLease::Given(lease) = lease { Some(*lease) } else { None };
                    if let Some(lease) = lease.filter(|lease| !sessions.contains_key(&lease.session)) {
                        return Err(Stop::Refused(Refusal::SessionEnded(self.end(lease.session))));
                    }
                    writes = true;
                    let before = entries.get(key).map(|entry| (entry.created, entry.version));
                    let (created, version) = before.unwrap_or((modified, 0));
                    let value = value.clone();
                    let version = version + 1;
                    let same = entries
                        .get(key)
                        .filter(|before| before.lease.map(|lease| lease.session) == lease.map(|lease| lease.session))
                        .filter(|before| before.until.is_some() == until.is_some());
                    let same = same.and_then(|before| before.claim.clone());
                    let token = Token(modified.0);
                    let claim = claims.clone().filter(|claims| !self.exists(&claims.lock)).map(|claims| {
                        let lock = claims.lock;
                        let label = if until.is_some() { claims.label } else { Label::default() };
                        let made = Claim { lock: lock.clone(), token, since: self.wall, is_held: false, label };
                        same.filter(|claim| claim.lock == lock).unwrap_or(Arc::new(made))
                    });
                    let kin = entries.get(key).and_then(|entry| entry.kin.clone());
                    let bare = Entry { created, modified, version, kin, ..unwritten(value) };
                    let entry = Entry {
                        lease,
                        until,
                        claim,
                        is_temporary: matches!(put_lease, PutLease::Temporary(_)),
                        ..bare
                    };
                    entries.insert(key.clone(), entry);
                    TxnResult::Put
                }
                TxnOperation::Delete(key) => {
                    let deleted = entries.remove(key).is_some();
                    writes |= deleted;
                    TxnResult::Deleted(deleted.into())
                }
                TxnOperation::DeleteRange(KeyRange { from, to }) => {
                    let before = entries.len();
                    entries.retain(|key, _| {
                        from.as_ref().is_some_and(|from| key < from) || to.as_ref().is_some_and(|to| key >= to)
                    });
                    let deleted = before - entries.len();
                    writes |= deleted > 0;
                    TxnResult::Deleted(deleted as u64)
                }
            };
            let child = put_child.and_then(|(parent, key)| entries.get_mut(&key).map(|entry| (parent, entry)));
            if let Some((parent, entry)) = child {
                entry.kin = Kinship::stored(Some(parent.clone()), None);
                let above = entries.get_mut(&parent).expect("it was found before");
                let Children { made, live, .. } = above.children().unwrap_or_default();
                let children = Children { made: made + 1, live: live + 1, changed: modified };
                above.kin = Kinship::stored(above.parent().cloned(), Some(children));
            }
            let ended = settle(&before, &mut entries, modified);
            check_after(operation, &ended, &entries).map_err(|reason| Stop::Failed { index, reason })?;
            results.push(if let (TxnOperation::PutChild(child), Some(TxnOperation::Put(put))) = (operation, put) {
                assert!(child.is_numbered || child.put.key == put.key);
                TxnResult::PutChild(put.key)
            } else {
                result
            });
        }
        Ok(Run { entries, sessions, results, writes })
    }

    /// Why an operation cannot be done, by what is there before it.
    fn ensure_possible(
        &self,
        operation: &TxnOperation,
        entries: &BTreeMap<Key, Entry>,
        modified: Revision,
    ) -> Result<(), TxnFailureReason> {
        let is_past = |deadline: EntryDeadline| self.until(deadline).0 <= self.now;
        let is_put = |key: &Key| entries.get(key).is_some_and(|entry| entry.modified == modified);
        match operation {
            TxnOperation::Put(Put { key, lease, .. }) if is_put(key) && !lease.deadline().is_some_and(is_past) => {
                Err(TxnFailureReason::PutTwice)
            }
            TxnOperation::Expire(Expire { key, deadline }) if is_put(key) && !deadline.is_some_and(is_past) => {
                Err(TxnFailureReason::PutTwice)
            }
            TxnOperation::PutChild(child) => {
                let above = entries.get(&child.parent).ok_or(TxnFailureReason::NoParent)?;
                if above.lease.is_some() || above.until.is_some() {
                    return Err(TxnFailureReason::ParentEnds);
                }
                if entries.contains_key(&child_key(child, above)) { Err(TxnFailureReason::ChildExists) } else { Ok(()) }
            }
            TxnOperation::Get(_) | TxnOperation::Select(_) | TxnOperation::Put(_) | TxnOperation::Open(_) => Ok(()),
            TxnOperation::Expire(_) | TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => Ok(()),
        }
    }

    /// A child as the put that it is; notes its parent and its key.
    fn child_as_put(
        &self,
        operation: &TxnOperation,
        entries: &BTreeMap<Key, Entry>,
        made: &mut Option<(Key, Key)>,
    ) -> Option<TxnOperation> {
        let TxnOperation::PutChild(child) = operation else { return None };
        let key = child_key(child, &entries[&child.parent]);
        *made = Some((child.parent.clone(), key.clone()));
        Some(TxnOperation::Put(Put { key, ..child.put.clone() }))
    }

    /// Takes an entry out that ended by itself, at the last revision.
    pub(super) fn take_entry(&mut self, key: &Key) -> Entry {
        let before = self.entries.clone();
        let entry = self.entries.remove(key).expect("it was found before");
        settle(&before, &mut self.entries, Revision(self.last_token));
        entry
    }

    pub(super) fn compact(&mut self, revision: Revision) -> Result<Reply, Refusal> {
        if revision.0 > self.last_token {
            return Err(Refusal::RevisionFuture { present: Revision(self.last_token) });
        }
        let forgotten = self.entry_events().into_iter().map(|event| event.revision.0).filter(|at| *at <= revision.0);
        self.compacted = forgotten.max().unwrap_or(self.compacted);
        Ok(Reply::Compacted(Revision(self.compacted)))
    }

    /// Remembers the entries as they are at this revision. The locks that they claim are of the present alone.
    pub(super) fn keep_state(&mut self) {
        self.states.insert(self.last_token, self.unclaimed_entries());
    }

    /// The entries without the locks that they claim, and without their children.
    pub(crate) fn unclaimed_entries(&self) -> BTreeMap<Key, Entry> {
        let as_written =
            |entry: &Entry| Entry { claim: None, kin: Kinship::stored(entry.parent().cloned(), None), ..entry.clone() };
        self.entries.iter().map(|(key, entry)| (key.clone(), as_written(entry))).collect()
    }

    /// The entries as they were at a revision.
    pub(crate) fn entries_at(&self, revision: u64) -> BTreeMap<Key, Entry> {
        self.states.range(..=revision).next_back().map(|(_, entries)| entries.clone()).unwrap_or_default()
    }

    /// How the entries changed after the compacted revision: the differences between each state and the next.
    pub(crate) fn entry_events(&self) -> Vec<EntryEvent> {
        let mut events = Vec::new();
        let mut last = self.entries_at(self.compacted);
        for (revision, state) in self.states.range(self.compacted + 1..) {
            let keys: BTreeSet<_> = last.keys().chain(state.keys()).cloned().collect();
            for key in keys {
                let shared = |entry: Option<&Entry>| entry.cloned().map(Arc::new);
                let before = shared(last.get(&key));
                let after = shared(state.get(&key));
                if before != after {
                    events.push(EntryEvent { revision: Revision(*revision), key, before, after });
                }
            }
            last.clone_from(state);
        }
        events
    }

    pub(super) fn claims(&self, name: &LockName) -> Vec<(Key, Entry, Arc<Claim>)> {
        let claim = |(key, entry): (&Key, &Entry)| Some((key.clone(), entry.clone(), entry.claim.clone()?));
        let mut claims: Vec<_> = self.entries.iter().filter_map(claim).collect();
        claims.retain(|(.., claim)| claim.lock == *name);
        claims.sort_by_key(|(.., claim)| claim.token);
        claims
    }

    /// Gives each lock that no entry holds to the first that claims it and has a lease that is not over.
    pub(super) fn hand_claims_on(&mut self) {
        let names: BTreeSet<_> =
            self.entries.values().filter_map(|entry| Some(entry.claim.as_ref()?.lock.clone())).collect();
        for name in names {
            let claims = self.claims(&name);
            if claims.iter().any(|(.., claim)| claim.is_held) {
                continue;
            }
            if let Some((key, _, claim)) = claims.into_iter().find(|(_, entry, _)| self.ends(entry).1 > self.now) {
                let held = Claim { is_held: true, since: self.wall, ..Claim::clone(&claim) };
                self.entries.get_mut(&key).expect("it was found before").claim = Some(Arc::new(held));
            }
        }
    }

    /// Who claims a lock by an entry, and when the entry ends.
    fn ends(&self, entry: &Entry) -> (Label, u64) {
        let label = entry.claim.as_ref().map(|claim| claim.label.clone()).unwrap_or_default();
        match (entry.lease, entry.until) {
            (Some(lease), _) => {
                let session = self.sessions.get(&lease.session);
                session.map(|session| (session.label.clone(), session.deadline)).unwrap_or_default()
            }
            (None, until) => (label, until.expect("a claim has a lease or a deadline").0),
        }
    }

    fn until(&self, deadline: EntryDeadline) -> Stamp {
        match deadline {
            EntryDeadline::After(lifetime) => Stamp(self.now + lifetime.as_millis()),
            EntryDeadline::At(stamp) => stamp,
        }
    }

    /// The entries whose deadline is this millisecond, in the order of their keys.
    pub(super) fn end_lifetimes(&mut self) {
        let over = |(key, entry): (&Key, &Entry)| (entry.until == Some(Stamp(self.now))).then(|| key.clone());
        for key in self.entries.iter().filter_map(over).collect::<Vec<_>>() {
            self.last_token += 1;
            self.take_entry(&key);
            self.hand_claims_on();
            self.keep_state();
        }
    }

    /// An operator takes a lock from the entry that holds it.
    pub(super) fn force_claim(&mut self, force: &ForceRelease) -> Reply {
        let ForceRelease { name, token: only, after, up_to, .. } = force;
        let meant = |token: Token| {
            only.is_none_or(|only| only == token) && token > *after && up_to.is_none_or(|up_to| token <= up_to)
        };
        let holder = self.claims(name).into_iter().find(|(.., claim)| claim.is_held && meant(claim.token));
        let mut grants = Vec::new();
        if let Some((key, held, claim)) = holder {
            let label = self.ends(&held).0;
            self.last_token += 1;
            let kept = self.entries.clone();
            let mut entry = self.take_entry(&key);
            if held.lease.is_some_and(|lease| lease.at_end == AtLeaseEnd::Keep) {
                (entry.lease, entry.claim, entry.is_expired, entry.is_revoked) = (None, None, true, true);
                entry.modified = Revision(self.last_token);
                self.entries = kept;
                self.entries.insert(key, entry);
            }
            self.hand_claims_on();
            self.keep_state();
            let token = claim.token;
            let session = owner(&held).expect("it holds a lock");
            grants.push(Forced { token, session, label, remaining_ms: 0, lock_delay_ms: 0 });
            self.close_without_entries();
        }
        Reply::Forced { grants, more_up_to: None }
    }

    /// Closes the sessions that transactions opened and that are no entry's lease any more.
    fn close_without_entries(&mut self) {
        let is_left = |id: &SessionId, session: &Session| {
            let is_leased = |entry: &Entry| entry.lease.is_some_and(|lease| lease.session == *id);
            session.is_of_entries && !self.entries.values().any(is_leased)
        };
        let left: Vec<_> =
            self.sessions.iter().filter(|(id, session)| is_left(id, session)).map(|(id, _)| *id).collect();
        left.into_iter().for_each(|id| self.end_session(id, SessionEnd::Closed));
    }

    fn holds(&self, compare: &Compare) -> bool {
        let Compare { key, up_to: Some(up_to), .. } = compare else {
            return self.holds_of(compare, self.entries.get(&compare.key));
        };
        let range: Vec<_> = self.entries.iter().filter(|(other, _)| *other >= key && *other < up_to).collect();
        if range.is_empty() {
            self.holds_of(compare, None)
        } else {
            range.into_iter().all(|(_, entry)| self.holds_of(compare, Some(entry)))
        }
    }

    fn holds_of(&self, Compare { relation, operand, .. }: &Compare, entry: Option<&Entry>) -> bool {
        let related = |order: std::cmp::Ordering| match relation {
            Relation::Equal => order.is_eq(),
            Relation::NotEqual => order.is_ne(),
            Relation::Less => order.is_lt(),
            Relation::Greater => order.is_gt(),
        };
        let number = |found: Option<u64>, with: u64| related(found.unwrap_or(0).cmp(&with));
        match operand {
            Operand::Created(with) => number(entry.map(|entry| entry.created.0), with.0),
            Operand::Modified(with) => number(entry.map(|entry| entry.modified.0), with.0),
            Operand::Version(with) => number(entry.map(|entry| entry.version), *with),
            Operand::Value(with) => entry.is_some_and(|entry| related(entry.value.cmp(with))),
            Operand::Lease(with) => related(entry.and_then(|entry| entry.lease).map(|lease| lease.session).cmp(with)),
        }
    }

    pub(super) fn lock_of_entries(&self, name: &LockName) -> LockView {
        let mut holders = Vec::new();
        let mut waiters = Vec::new();
        for (_, entry, claim) in self.claims(name) {
            let token = claim.token;
            let since = claim.since;
            let mode = Mode::Exclusive;
            let session = owner(&entry).expect("it claims a lock");
            let (label, deadline) = self.ends(&entry);
            if claim.is_held {
                let remaining_ms = deadline - self.now;
                let origin = self.origin(session);
                holders.push(HolderView { token, session, label, mode, since, remaining_ms, revoked: None, origin });
            } else {
                let ticket = Ticket(token.0);
                let remaining_ms = entry.until.map(|until| until.0 - self.now);
                waiters.push(WaiterView { ticket, session, label, mode, since, remaining_ms });
            }
        }
        LockView {
            name: name.clone(),
            kind: LockKind::Entry,
            mode: Some(Mode::Exclusive),
            holder_count: holders.len() as u64,
            holders,
            queue_length: waiters.len() as u64,
            waiters,
            data: None,
            keep_data: false,
            delay_remaining_ms: 0,
            resized: false,
        }
    }

    /// Number of the session's entries that hold a lock, or wait for one.
    pub(super) fn claimed(&self, id: SessionId, held: bool) -> u32 {
        let is_one = |entry: &&Entry| {
            let claims = entry.claim.as_ref().is_some_and(|claim| claim.is_held == held);
            claims && entry.lease.is_some_and(|lease| lease.session == id)
        };
        self.entries.values().filter(is_one).count() as u32
    }
}

/// Puts a value under a key, with the lease and the claim that its entry has. Returns the lease.
fn kept(entries: &mut BTreeMap<Key, Entry>, key: &Key, value: &Value, modified: Revision) -> Option<Lease> {
    let new = Entry { created: modified, ..unwritten(value.clone()) };
    let entry = entries.entry(key.clone()).or_insert(new);
    (entry.modified, entry.value, entry.version) = (modified, value.clone(), entry.version + 1);
    entry.lease
}

/// An entry with this value, and nothing else.
fn unwritten(value: Value) -> Entry {
    Entry {
        created: Revision(0),
        modified: Revision(0),
        version: 0,
        lease: None,
        until: None,
        claim: None,
        is_expired: false,
        is_revoked: false,
        is_temporary: false,
        kin: None,
        value,
    }
}

/// Gives an entry another end. It goes on to claim what it claims if it had a deadline, and has one.
fn extend(entry: &mut Entry, until: Option<Stamp>) {
    entry.claim = entry.claim.take().filter(|_| entry.until.is_some() && until.is_some());
    (entry.lease, entry.until, entry.is_expired, entry.is_revoked) = (None, until, false, false);
    entry.is_temporary = false;
}

/// What a selection shows: all entries in order, without those out of bounds, and then as many as the limit.
fn selected<'a>(select: &Select, range: impl Iterator<Item = (&'a Key, &'a Entry)>) -> Selected {
    let mut entries: Vec<_> = range.map(|(key, entry)| (key.clone(), Arc::new(entry.clone()))).collect();
    let count = entries.len() as u64;
    match select.by {
        SortBy::Key => {}
        SortBy::Created => entries.sort_by_key(|(_, entry)| entry.created),
        SortBy::Modified => entries.sort_by_key(|(_, entry)| entry.modified),
        SortBy::Version => entries.sort_by_key(|(_, entry)| entry.version),
        SortBy::Value => entries.sort_by_key(|(_, entry)| entry.value.clone()),
    }
    if select.is_descending {
        // Group by group: those that are equal stay in the order of their keys.
        let by = |entry: &(Key, Arc<Entry>)| match select.by {
            SortBy::Key => (Some(entry.0.clone()), 0, None),
            SortBy::Created => (None, entry.1.created.0, None),
            SortBy::Modified => (None, entry.1.modified.0, None),
            SortBy::Version => (None, entry.1.version, None),
            SortBy::Value => (None, 0, Some(entry.1.value.clone())),
        };
        let mut turned = Vec::new();
        for group in entries.chunk_by(|one, other| by(one) == by(other)).rev() {
            turned.extend_from_slice(group);
        }
        entries = turned;
    }
    let within = |bounds: Bounds, revision: Revision| {
        bounds.min.is_none_or(|min| min <= revision) && bounds.max.is_none_or(|max| revision <= max)
    };
    entries.retain(|(_, entry)| within(select.created, entry.created) && within(select.modified, entry.modified));
    let limit = if select.limit == 0 { usize::MAX } else { select.limit as usize };
    let more = entries.len() > limit;
    entries.truncate(limit);
    match select.shows {
        Shows::Entries => {}
        Shows::Keys => entries.iter_mut().for_each(|(_, entry)| Arc::make_mut(entry).value = Value::default()),
        Shows::Count => entries.clear(),
    }
    Selected { entries, count, more }
}
