//! Locks that are held by entries, under the names that their adapters give them.
//!
//! Protocols that lock by writing have no lock but what their clients agree to see in their entries. So the machine decides nothing about
//! these locks: the protocol says who may write an entry. A claim *reports* one: a put names the lock that its entry stands for while its
//! lease lasts, or until its own deadline. One entry claims a lock of DynamoDB's clients; several may claim one of etcd's, where the oldest
//! is the holder and the others are its queue.
//!
//! * **Order**: by token, which is the revision at which the lease, or a deadline, and the lock came together on the entry. The first claim
//!   holds the lock; when it ends, the next one does. So the tokens of a lock's holders rise, though one of them may be lower than a token
//!   that another lock was granted meanwhile.
//! * **A claim lasts** as long as the entry has the same lease and is put for the same lock. An entry that is put with another lease, or
//!   for another lock, begins anew: at the end of the queue, with a new token.
//! * **A claim whose lease is over** is granted nothing. It leaves when its session is cleared away, its entry is written, or it is first
//!   in the queue as the lock is handed on. So each is passed over once, however many there are; what the budget does not allow goes to the
//!   backlog, and until then new claims queue behind those that are left.
//! * **No lock of the table has a name that is claimed**: an acquire of that name is refused, and a put claims nothing under the name
//!   of a lock in the table. The put takes effect all the same: the protocol does not depend on its claim.
//!
//! * **An entry with a deadline of its own** claims without a session ([`SessionId::NONE`]), under the label of its claim. It keeps the
//!   claim while each put for the same lock gives it a deadline, or extends the one that it has.
//!
//! **A forced release** ends the lease of the holder's entry, and of no other entry with the same lease, at once. The entry is deleted or
//! kept, as its put said, and is marked as revoked if it is kept; an entry with a deadline of its own is deleted. Its adapter then refuses
//! what the former holder does by its right as the holder, such as a heartbeat. The lease itself lives on if its client opened it as a
//! session, or other entries have it.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{
    table::{BacklogKey, ClaimCount, ClaimPlace, ClaimTable, SessionState, Weight},
    *,
};

impl Machine {
    /// Whether entries claim this lock.
    pub(crate) fn is_claimed(&self, lock: &LockName) -> bool {
        self.claims.contains(lock)
    }

    /// The claim of an entry that is put at a revision: the one that it has, or a new one that waits until the entry is in the table.
    pub(super) fn plan_claim(
        &self,
        PutClaim { lock, label }: PutClaim,
        planned: &Entry,
        before: Option<&Entry>,
    ) -> Option<Arc<Claim>> {
        let outlives = |before: &Entry| before.lease.is_some() && planned.lease.is_some();
        let is_kept = |before: &&Entry| {
            before.claimant() == planned.claimant() || outlives(before) && Planted::ClaimOutlivesLease.is_on()
        };
        let kept = before.filter(is_kept);
        let kept = kept.and_then(|before| before.claim.clone()).filter(|claim| claim.lock == lock);
        if kept.is_some() || self.locks.contains(&lock) {
            return kept;
        }

        let token = Token(planned.modified.0);
        let label = if planned.lease.is_none() { label } else { Label::default() };
        Some(Arc::new(Claim { lock, token, since: self.clock.wall(), is_held: false, label }))
    }

    /// The claim of an entry ends, unless the entry after it has the same one.
    pub(super) fn drop_claim(
        &mut self,
        before: &Entry,
        after: Option<&Entry>,
        forced: Option<&ForceRelease>,
        events: &mut Vec<Event>,
    ) {
        let (Some(claim), Some(session)) = (&before.claim, before.claimant()) else { return };
        if is_same(before, after) {
            return;
        }

        let Claim { lock: name, token, since, is_held: _, label: _ } = &**claim;
        let place = ClaimPlace::from(&**claim);
        self.claims.remove(name, place).expect("each claim has its place");
        if before.lease.is_some() {
            self.sessions.end_claim(session, place.is_waiting);
        }
        // A claim that waited did not hold the lock, so its end grants the lock to nobody.
        if place.is_waiting {
            if !self.claims.contains(name) {
                self.backlog.remove_lock(name);
            }
            return events.push(claim_changed(name, ChangeKind::Left { ticket: Ticket(token.0), session }));
        }

        let lost = |reason, by| ChangeKind::Lost { token: *token, session, since: *since, reason, by };
        let over = match before.lease {
            Some(_) => self.over(session),
            None => self.is_end_due(before).then_some(SessionEnd::Expired),
        };
        let kind = match (over, forced) {
            // An expiry comes before the operator's act: it was due before, and only then handled.
            (Some(SessionEnd::Expired | SessionEnd::Unknown), _) => lost(None, None),
            (None, Some(force)) => lost(Some(force.reason.clone()), force.by.clone()),
            (Some(SessionEnd::Closed), _) | (None, None) => {
                ChangeKind::Released { token: *token, session, since: *since }
            }
        };
        events.push(claim_changed(name, kind));
        self.grant_claim(name, events);
    }

    /// Makes the claim of an entry that is put, unless the entry has it already. It is granted the lock if the lock is free and is not
    /// about to be granted to a waiter: the leases of all waiters are then over.
    pub(super) fn make_claim(
        &mut self,
        key: &Key,
        before: Option<&Entry>,
        entry: &mut Arc<Entry>,
        events: &mut Vec<Event>,
    ) {
        let (Some(claim), Some(session)) = (&entry.claim, entry.claimant()) else { return };
        if let Some(before) = before.filter(|before| is_same(before, Some(entry))) {
            // An earlier write of the transaction may have granted it the lock since the entry was planned.
            if before.claim != entry.claim {
                Arc::make_mut(entry).claim = before.claim.clone();
            }
            return;
        }

        let is_held = self.claims.holder(&claim.lock).is_none() && !self.backlog.contains_lock(&claim.lock)
            || Planted::ClaimsShareLock.is_on();
        let claim = Claim { is_held, ..Claim::clone(claim) };
        self.claims.insert(&claim.lock, ClaimPlace::from(&claim), key.clone());
        let label = match entry.lease {
            Some(_) => self.sessions.begin_claim(session, !is_held),
            None => claim.label.clone(),
        };

        let mode = Mode::Exclusive;
        let kind = if is_held {
            ChangeKind::Granted { token: claim.token, session, label, mode, ticket: None }
        } else {
            ChangeKind::Queued { ticket: Ticket(claim.token.0), session, label, mode }
        };
        events.push(claim_changed(&claim.lock, kind));
        Arc::make_mut(entry).claim = Some(Arc::new(claim));
    }

    /// Grants a free lock to the first claim whose lease is not over. The claims before it leave the queue. Work beyond the budget goes to
    /// the backlog.
    pub(crate) fn grant_claim(&mut self, name: &LockName, events: &mut Vec<Event>) {
        // Nobody waits for most locks.
        if self.claims.queue_length(name) == 0 {
            return;
        }
        let first = |machine: &Self| {
            let (place, key) = machine.claims.waiting_from(name, Token(0)).next()?;
            Some((place, key.clone(), Arc::clone(machine.entries.existing(key))))
        };
        let (place, key, entry) = loop {
            let Some((place, key, entry)) = first(self) else { return };
            if !self.is_end_due(&entry) || Planted::DeadClaimGranted.is_on() {
                break (place, key, entry);
            }
            if self.batch.is_spent() {
                self.backlog.push(BacklogKey::Lock(name.clone()));
                return;
            }
            self.leave_queue(name, place, &key, events);
        };
        self.batch.spend(1);

        self.claims.remove(name, place);
        self.claims.insert(name, ClaimPlace { is_waiting: false, ..place }, key.clone());
        let session = entry.claimant().unwrap_or(SessionId::NONE);
        let label = match (entry.lease, &entry.claim) {
            (None, Some(claim)) => claim.label.clone(),
            (Some(_), _) | (None, None) => self.sessions.grant_claim(session),
        };
        let since = self.clock.wall();
        self.entries.set_claim(&key, |claim| Some(Claim { is_held: true, since, ..claim.clone() }));

        let token = place.token;
        let ticket = Some(Ticket(token.0));
        let kind = ChangeKind::Granted { token, session, label, mode: Mode::Exclusive, ticket };
        events.push(claim_changed(name, kind));
    }

    /// Takes a claim out of the queue whose lease is over. Its entry stays until the end of its session, or its deadline, is handled.
    fn leave_queue(&mut self, name: &LockName, place: ClaimPlace, key: &Key, events: &mut Vec<Event>) {
        self.batch.spend(1);
        self.claims.remove(name, place);

        let before = Arc::clone(self.entries.existing(key));
        let session = before.claimant().unwrap_or(SessionId::NONE);
        self.entries.set_claim(key, |_| None);
        if before.lease.is_some() {
            self.sessions.end_claim(session, true);
            // The session was charged for the claim with its entry.
            let claiming = Weight::for_entry(key, &before);
            let bare = Weight::for_entry(key, self.entries.existing(key));
            self.sessions.refund(session, Weight { own: claiming.own - bare.own, all: claiming.all - bare.all });
        }

        events.push(claim_changed(name, ChangeKind::Left { ticket: Ticket(place.token.0), session }));
    }

    /// Ends the lease of the entry that holds a lock, if the command means it.
    pub(crate) fn force_claim(&mut self, force: &ForceRelease, events: &mut Vec<Event>) -> Option<Forced> {
        let HolderView { token, session, label, .. } = self.claim_holder(&force.name)?;
        let meant = force.token.is_none_or(|only| only == token)
            && token > force.after
            && force.up_to.is_none_or(|up_to| token <= up_to);
        let key = self.claims.holder(&force.name).filter(|_| meant)?.clone();

        self.end_lease(key, Some(force), events);
        // With its last entry the session has no purpose, and no client that would close it.
        self.close_without_entries(session, events);
        Some(Forced { token, session, label, remaining_ms: 0, lock_delay_ms: 0 })
    }

    /// A record's claim. Fails on one that contradicts others.
    pub(crate) fn restore_claim(&mut self, key: &Key, entry: &Entry) -> Result<(), BrokenInvariant> {
        let Some(claim) = &entry.claim else { return Ok(()) };
        if entry.claimant().is_none() || entry.lease.is_some_and(|lease| !self.sessions.contains(lease.session)) {
            return Err(BrokenInvariant::new(format!("{key:?} claims a lock and has no lease (M12)")));
        }

        let place = ClaimPlace::from(&**claim);
        if let Some(Lease { session, .. }) = entry.lease {
            self.sessions.begin_claim(session, place.is_waiting);
        }
        if self.claims.insert(&claim.lock, place, key.clone()) {
            return Err(BrokenInvariant::new(format!("{key:?} claims a lock as another entry does (M12)")));
        }
        Ok(())
    }

    /// **M12**
    pub(crate) fn check_claims(&self) -> Result<(), BrokenInvariant> {
        let mut expected = ClaimTable::default();
        let mut counts: OrdMap<SessionId, ClaimCount> = OrdMap::new();
        for (key, entry) in self.entries.iter() {
            let Some(claim) = &entry.claim else { continue };
            if entry.claimant().is_none() {
                return Err(BrokenInvariant::new(format!("{key:?} claims a lock and has no lease (M12)")));
            }
            // A claim is made by a write of its entry, and its token is the revision of that write.
            let is_written = (entry.created.0..=entry.modified.0).contains(&claim.token.0);
            if !is_written || self.locks.contains(&claim.lock) {
                return Err(BrokenInvariant::new(format!("{key:?} has an invalid claim: {claim:?} (M12)")));
            }
            let place = ClaimPlace::from(&**claim);
            expected.insert(&claim.lock, place, key.clone());
            if let Some(Lease { session, .. }) = entry.lease {
                *counts.entry(session).or_default().get_mut(place.is_waiting) += 1;
            }
        }

        if self.claims != expected {
            return Err(BrokenInvariant::new("the claims differ from those of the entries (M12)"));
        }
        let is_counted =
            |(id, session): (SessionId, &SessionState)| session.claims == counts.get(&id).copied().unwrap_or_default();
        if !self.sessions.iter().all(is_counted) {
            return Err(BrokenInvariant::new("a session's number of claims is not that of its entries (M12)"));
        }
        self.claims.names_under("", None).try_for_each(|name| self.check_claim_queue(name))
    }

    /// Checks that at most one claim of a lock holds it, and that none waits that could have it.
    fn check_claim_queue(&self, name: &LockName) -> Result<(), BrokenInvariant> {
        let waits = |(_, key): (ClaimPlace, &Key)| !self.is_end_due(self.entries.existing(key));
        let holders = self.claims.places(name).filter(|(place, _)| !place.is_waiting).count();
        let is_broken = match holders {
            0 => self.claims.places(name).any(waits) && !self.backlog.contains_lock(name),
            one_or_more => one_or_more > 1,
        };
        if is_broken {
            return Err(BrokenInvariant::new(format!("the lock {name:?} has two holders, or none and could (M12)")));
        }
        Ok(())
    }

    /// The claims of locks whose names begin so, by lock, each with its ticket if it waits.
    pub fn claims<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a LockName, Option<Ticket>)> + use<'a> {
        let ticket = |place: ClaimPlace| place.is_waiting.then_some(Ticket(place.token.0));
        self.claims.places_under(prefix).map(move |(lock, place)| (lock, ticket(place)))
    }

    /// A lock that is claimed, with one page of its queue.
    pub(crate) fn claimed_lock(&self, name: &LockName, page: Page) -> Option<LockView> {
        if !self.is_claimed(name) {
            return None;
        }

        let holder = self.claim_holder(name);
        let above = Token(page.waiters_after.0.saturating_add(1));
        let waiters = self.claims.waiting_from(name, above).take(page.size);
        Some(LockView {
            name: name.clone(),
            kind: LockKind::Entry,
            mode: Some(Mode::Exclusive),
            holder_count: holder.iter().count() as u64,
            holders: holder.into_iter().filter(|holder| holder.token > page.holders_after).take(page.size).collect(),
            waiters: waiters.filter_map(|(_, key)| self.claim_waiter(key)).collect(),
            queue_length: self.claims.queue_length(name),
            data: None,
            keep_data: false,
            delay_remaining_ms: 0,
            resized: false,
        })
    }

    /// The holder of a lock that is claimed.
    pub(crate) fn claim_holder(&self, name: &LockName) -> Option<HolderView> {
        let entry = self.entries.existing(self.claims.holder(name)?);
        let claim = entry.claim.as_ref()?;
        let (label, remaining_ms) = self.claimant_view(entry, claim);
        let session = entry.claimant()?;

        Some(HolderView {
            token: claim.token,
            session,
            label,
            mode: Mode::Exclusive,
            since: claim.since,
            remaining_ms,
            revoked: None,
            origin: self.origin(session),
        })
    }

    /// Who claims, and how long the claim lasts at the least, milliseconds.
    fn claimant_view(&self, entry: &Entry, claim: &Claim) -> (Label, u64) {
        let Some(Lease { session, .. }) = entry.lease else {
            let remaining_ms = entry.until.map_or(0, |until| self.clock.remaining_ms(until));
            return (claim.label.clone(), remaining_ms);
        };
        let session = self.sessions.existing(session);
        let remaining_ms = if session.ending.is_some() { 0 } else { self.clock.remaining_ms(session.deadline) };
        (session.label.clone(), remaining_ms)
    }

    fn claim_waiter(&self, key: &Key) -> Option<WaiterView> {
        let entry = self.entries.existing(key);
        let claim = entry.claim.as_ref()?;
        Some(WaiterView {
            ticket: Ticket(claim.token.0),
            session: entry.claimant()?,
            label: self.claimant_view(entry, claim).0,
            mode: Mode::Exclusive,
            since: claim.since,
            remaining_ms: entry.until.map(|until| self.clock.remaining_ms(until)),
        })
    }
}

/// Whether both entries have the same claim.
fn is_same(before: &Entry, after: Option<&Entry>) -> bool {
    let claim = |entry: &Entry| {
        let claim = entry.claim.as_ref()?;
        Some((claim.token, claim.lock.clone(), entry.claimant()?))
    };
    after.and_then(claim).is_some_and(|after| claim(before) == Some(after))
}

/// The event that a lock of entries changed.
fn claim_changed(name: &LockName, kind: ChangeKind) -> Event {
    Event::Changed(Change { name: name.clone(), of: LockKind::Entry, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEAD: SessionId = SessionId(1);
    const ANN: SessionId = SessionId(2);
    const BOB: SessionId = SessionId(3);
    /// Claims whose lease is over.
    const CROWD: usize = 1000;

    fn jobs() -> LockName {
        LockName::new("jobs").unwrap()
    }

    fn key(key: &str) -> Key {
        Key::new(key.as_bytes()).unwrap()
    }

    fn put(name: &str, session: SessionId) -> TxnOperation {
        let lease = PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete });
        TxnOperation::Put(Put { key: key(name), value: Value::default(), lease, claims: Some(jobs().into()) })
    }

    fn apply(machine: &mut Machine, at: u64, work: usize, command: Command, events: &mut Vec<Event>) {
        let time = Time { stamp: Stamp(at), wall: WallTime(0) };
        let replies = machine.apply_batch(time, Limits { work, ..Limits::NONE }, [command], events);
        assert!(!matches!(replies[0], Reply::Refused(_)), "{replies:?}");
        machine.check().unwrap();
    }

    fn txn(operation: TxnOperation) -> Command {
        Command::Txn(Txn::new(vec![], vec![operation], vec![]).unwrap())
    }

    fn holder(machine: &Machine) -> Option<SessionId> {
        machine.claim_holder(&jobs()).map(|holder| holder.session)
    }

    #[test]
    fn a_claim_whose_lease_is_over_is_passed_over_once_and_within_the_budget() {
        let mut machine = Machine::default();
        let mut events = Vec::new();
        for (session, ttl_ms) in [(DEAD, 1000), (ANN, 100_000), (BOB, 100_000)] {
            let ttl = Ttl::from_millis(ttl_ms).unwrap();
            let label = Label::default();
            let open = Command::Open { session, ttl, label, address: None, owner: None };
            apply(&mut machine, 0, usize::MAX, open, &mut events);
        }
        apply(&mut machine, 0, usize::MAX, txn(put("held", ANN)), &mut events);
        for number in 0..CROWD {
            apply(&mut machine, 0, usize::MAX, txn(put(&format!("dead {number:04}"), DEAD)), &mut events);
        }
        apply(&mut machine, 0, usize::MAX, txn(put("next", BOB)), &mut events);

        // The crowd's session is over, and hardly anything of it is cleared away. Its claims do not delay the holder's release.
        events.clear();
        const WORK: usize = 20;
        apply(&mut machine, 1000, WORK, txn(TxnOperation::Delete(key("held"))), &mut events);
        let left = |events: &[Event]| {
            let is_left = |event: &&Event| {
                matches!(event, Event::Changed(Change { kind: ChangeKind::Left { .. }, of: LockKind::Entry, .. }))
            };
            events.iter().filter(is_left).count()
        };
        let first = left(&events);
        assert!(first > 0 && first <= 3 * WORK, "{first} claims were passed over in one batch");
        assert_eq!(holder(&machine), None);
        assert!(machine.has_work());

        // Who comes now queues behind those that are left, also after a snapshot.
        apply(&mut machine, 1000, WORK, txn(put("late", ANN)), &mut events);
        assert_eq!(holder(&machine), None);
        let mut restored = Machine::from_records(machine.records()).unwrap();
        let _ = machine
            .restored(&Restore { at: WallTime(0), draw: 7, first_token: Some(Token(1 << 50)), closed_ms: None })
            .unwrap();
        let mut of_restored = events.clone();
        while machine.has_work() {
            apply(&mut machine, 1000, WORK, Command::Tick, &mut events);
            apply(&mut restored, 1000, WORK, Command::Tick, &mut of_restored);
        }
        assert_eq!((machine.hash(), &events), (restored.hash(), &of_restored));
        assert_eq!(holder(&machine), Some(BOB));
        assert_eq!(left(&events), CROWD, "each once");
        apply(&mut machine, 1000, WORK, txn(TxnOperation::Delete(key("next"))), &mut events);
        assert_eq!(holder(&machine), Some(ANN));
    }
}
