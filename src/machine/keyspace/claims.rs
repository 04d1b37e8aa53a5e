//! Locks that are held by entries, under the names that their adapters give them.
//!
//! Protocols that lock by writing have no lock but what their clients agree to see in their entries. So the machine decides nothing about
//! such a lock: whoever may write an entry is the protocol's matter. A claim *reports* it: a put names the lock that its entry stands for
//! while its lease lasts. One entry claims a lock of DynamoDB's clients; several may claim one of etcd's, where the oldest is the holder
//! and the others are its queue.
//!
//! * **Order**: by token, which is the revision at which the lease and the lock came together on the entry. The first claim holds the
//!   lock; when it ends, the next one does. So the tokens of a lock's holders rise, though one of them may be lower than a token that
//!   another lock was granted meanwhile.
//! * **A claim lasts** as long as the entry has the same lease and is put for the same lock. An entry that is put with another lease, or
//!   for another lock, begins anew: at the end of the queue, with a new token.
//! * **A claim whose lease is over** is granted nothing. It leaves when its session is cleared away, its entry is written, or it is first
//!   in the queue as the lock is handed on. So each is passed over once, however many there are; what the budget does not allow goes to the
//!   backlog, and until then new claims queue behind those that are left.
//! * **No lock of the table has a name that is claimed**: an acquire of such a name is refused, and a put claims nothing under the name
//!   of a lock in the table. The put takes effect all the same: the protocol does not depend on its claim.
//!
//! **A forced release** ends the lease of the holder's entry, and of no other entry with the same lease, at once. The entry is deleted or
//! kept, as its put said, and is marked as revoked if it is kept: its adapter then refuses what the former holder does by its right as the
//! holder, such as a heartbeat. The lease itself lives on if its client opened it as a session, or other entries have it.

use std::ops::Bound;

use crate::{bytes::Weight, *};

/// The claims by lock: the one that holds it first, then those that wait, by token.
#[derive(Clone, Default)]
pub(crate) struct Claims {
    keys: OrdMap<(LockName, Place), Key>,
    /// How many wait for each lock for which some do.
    queues: OrdMap<LockName, u64>,
    names: usize,
    held: usize,
}

/// A place among the claims of one lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    is_waiting: bool,
    token: Token,
}

/// Number of the claims of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Claimed {
    pub(crate) held: u32,
    pub(crate) waiting: u32,
}

impl Place {
    const FIRST: Self = Self { is_waiting: false, token: Token(0) };
    const FIRST_WAITING: Self = Self { is_waiting: true, token: Token(0) };
    /// Above all places: no token is as high.
    const LAST: Self = Self { is_waiting: true, token: Token(u64::MAX) };
}

impl Claims {
    /// Locks that are claimed.
    pub(crate) fn names(&self) -> usize {
        self.names
    }

    /// Claims that hold their lock.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Claims that do not.
    pub(crate) fn waiting(&self) -> usize {
        self.keys.len() - self.held
    }

    /// The claims of a lock from a place on.
    fn of<'a>(&'a self, lock: &LockName, from: Place) -> impl Iterator<Item = (Place, &'a Key)> + use<'a> {
        let range = (lock.clone(), from)..(lock.clone(), Place::LAST);
        self.keys.range(range).map(|((_, place), key)| (*place, key))
    }

    fn contains(&self, lock: &LockName) -> bool {
        self.of(lock, Place::FIRST).next().is_some()
    }

    fn holder(&self, lock: &LockName) -> Option<&Key> {
        self.of(lock, Place::FIRST).next().filter(|(place, _)| !place.is_waiting).map(|(_, key)| key)
    }

    /// The first lock from a bound on.
    fn first_from(&self, from: Bound<(LockName, Place)>) -> Option<&LockName> {
        self.keys.range((from, Bound::Unbounded)).next().map(|((name, _), _)| name)
    }

    /// Returns whether the place was taken.
    fn insert(&mut self, lock: &LockName, place: Place, key: Key) -> bool {
        self.names += usize::from(!self.contains(lock));
        let is_taken = self.keys.insert((lock.clone(), place), key).is_some();
        match place.is_waiting {
            false => self.held += 1,
            true => *self.queues.entry(lock.clone()).or_default() += 1,
        }
        is_taken
    }

    fn remove(&mut self, lock: &LockName, place: Place) -> Option<Key> {
        let key = self.keys.remove(&(lock.clone(), place))?;
        if !place.is_waiting {
            self.held -= 1;
        } else if let Some(length) = self.queues.get_mut(lock) {
            *length -= 1;
            if *length == 0 {
                self.queues.remove(lock);
            }
        }
        self.names -= usize::from(!self.contains(lock));
        Some(key)
    }
}

impl Claimed {
    fn of(&mut self, place: Place) -> &mut u32 {
        if place.is_waiting { &mut self.waiting } else { &mut self.held }
    }
}

impl Claim {
    fn place(&self) -> Place {
        Place { is_waiting: !self.is_held, token: self.token }
    }
}

impl Machine {
    /// Whether entries claim this lock.
    pub(crate) fn is_claimed(&self, lock: &LockName) -> bool {
        self.claims.contains(lock)
    }

    /// The claim of an entry that is put at a revision: the one that it has, or a new one that waits until the entry is in the table.
    pub(super) fn plan_claim(
        &self,
        lock: LockName,
        lease: Lease,
        before: Option<&Entry>,
        revision: Revision,
    ) -> Option<Arc<Claim>> {
        let kept = before.filter(|before| before.lease.is_some_and(|before| before.session == lease.session));
        let kept = kept.and_then(|before| before.claim.clone()).filter(|claim| claim.lock == lock);
        if kept.is_some() || self.locks.contains_key(&lock) {
            return kept;
        }
        let token = Token(revision.0);
        Some(Arc::new(Claim { lock, token, since: self.wall, is_held: false }))
    }

    /// The claim of an entry ends, unless the entry after it has the same one.
    pub(super) fn drop_claim(
        &mut self,
        before: &Entry,
        after: Option<&Entry>,
        forced: Option<&ForceRelease>,
        events: &mut Vec<Event>,
    ) {
        let (Some(claim), Some(Lease { session, .. })) = (&before.claim, before.lease) else { return };
        if is_same(before, after) {
            return;
        }
        let (name, token, since, place) = (&claim.lock, claim.token, claim.since, claim.place());
        self.claims.remove(name, place).expect("each claim has its place");
        *self.session_mut(session).claims.of(place) -= 1;
        if place.is_waiting {
            if !self.claims.contains(name) {
                self.cancel_hand_on(name);
            }
            return events.push(of_entry(name, ChangeKind::Left { ticket: Ticket(token.0), session }));
        }
        let lost = |reason, by| ChangeKind::Lost { token, session, since, reason, by };
        let kind = match (self.over(session), forced) {
            (Some(SessionEnd::Expired | SessionEnd::Unknown), _) => lost(None, None),
            (None, Some(force)) => lost(Some(force.reason.clone()), force.by.clone()),
            (Some(SessionEnd::Closed), _) | (None, None) => ChangeKind::Released { token, session, since },
        };
        events.push(of_entry(name, kind));
        self.grant_claim(name, events);
    }

    /// An entry that is put makes a claim, unless it has it already. It is granted the lock if nobody holds it and the lock is not about to
    /// be handed on: then the leases of all that wait are over.
    pub(super) fn make_claim(
        &mut self,
        key: &Key,
        before: Option<&Entry>,
        entry: &mut Arc<Entry>,
        events: &mut Vec<Event>,
    ) {
        let (Some(claim), Some(Lease { session, .. })) = (&entry.claim, entry.lease) else { return };
        if let Some(before) = before.filter(|before| is_same(before, Some(entry))) {
            // An earlier write of the transaction may have granted it the lock since the entry was planned.
            if before.claim != entry.claim {
                Arc::make_mut(entry).claim = before.claim.clone();
            }
            return;
        }
        let is_held = self.claims.holder(&claim.lock).is_none() && !self.is_in_backlog(&claim.lock);
        let claim = Claim { is_held, ..Claim::clone(claim) };
        let (name, place) = (claim.lock.clone(), claim.place());
        self.claims.insert(&name, place, key.clone());
        let owner = self.session_mut(session);
        *owner.claims.of(place) += 1;
        let (label, mode) = (owner.label.clone(), Mode::Exclusive);
        events.push(of_entry(
            &name,
            match is_held {
                true => ChangeKind::Granted { token: claim.token, session, label, mode, ticket: None },
                false => ChangeKind::Queued { ticket: Ticket(claim.token.0), session, label, mode },
            },
        ));
        Arc::make_mut(entry).claim = Some(Arc::new(claim));
    }

    /// Grants a lock that nobody holds to the first claim whose lease is not over. Those before it leave; what the budget does not allow
    /// goes to the backlog.
    pub(crate) fn grant_claim(&mut self, name: &LockName, events: &mut Vec<Event>) {
        let first = |machine: &Self| {
            let (place, key) = machine.claims.of(name, Place::FIRST_WAITING).next()?;
            let Lease { session, .. } = machine.entries[key].lease?;
            Some((place, key.clone(), session))
        };
        let (place, key, session) = loop {
            let Some((place, key, session)) = first(self) else { return };
            if !self.is_over(session) {
                break (place, key, session);
            }
            if self.is_spent() {
                self.backlog.push(Piece::Lock(name.clone()));
                return;
            }
            self.leave_queue(name, place, &key, session, events);
        };
        self.spend(1);

        let granted = Place { is_waiting: false, ..place };
        self.claims.remove(name, place);
        self.claims.insert(name, granted, key.clone());
        let since = self.wall;
        let entry = Arc::make_mut(self.entries.get_mut(&key).expect("each claim is that of an entry"));
        if let Some(claim) = &mut entry.claim {
            *claim = Arc::new(Claim { is_held: true, since, ..Claim::clone(claim) });
        }
        let owner = self.session_mut(session);
        owner.claims.waiting -= 1;
        owner.claims.held += 1;
        let (label, mode, token) = (owner.label.clone(), Mode::Exclusive, place.token);
        let kind = ChangeKind::Granted { token, session, label, mode, ticket: Some(Ticket(token.0)) };
        events.push(of_entry(name, kind));
    }

    /// Takes a claim out of the queue whose lease is over. Its entry stays until the end of its session is handled.
    fn leave_queue(&mut self, name: &LockName, place: Place, key: &Key, session: SessionId, events: &mut Vec<Event>) {
        self.spend(1);
        self.claims.remove(name, place);
        self.session_mut(session).claims.waiting -= 1;

        let entry = Arc::make_mut(self.entries.get_mut(key).expect("each claim is that of an entry"));
        let claiming = Weight::of_entry(key, entry);
        entry.claim = None;
        let bare = Weight::of_entry(key, entry);
        self.subtract(session, Weight { own: claiming.own - bare.own, all: claiming.all - bare.all });

        events.push(of_entry(name, ChangeKind::Left { ticket: Ticket(place.token.0), session }));
    }

    /// Ends the lease of the entry that holds a lock, if the command means it.
    pub(crate) fn force_claim(&mut self, force: &ForceRelease, events: &mut Vec<Event>) -> Option<Forced> {
        let HolderView { token, session, label, .. } = self.claim_holder(&force.name)?;
        let meant = force.token.is_none_or(|only| only == token)
            && token > force.after
            && force.up_to.is_none_or(|up_to| token <= up_to);
        let key = self.claims.holder(&force.name).filter(|_| meant)?.clone();
        self.end_lease(key, Some(force), events);
        self.close_without_entries(session, events);
        Some(Forced { token, session, label, remaining_ms: 0, lock_delay_ms: 0 })
    }

    /// A record's claim. Fails on one that contradicts others.
    pub(crate) fn restore_claim(&mut self, key: &Key, entry: &Entry) -> Result<(), BrokenInvariant> {
        let Some(claim) = &entry.claim else { return Ok(()) };
        let lease = entry.lease.filter(|lease| self.sessions.contains_key(&lease.session));
        let Some(Lease { session, .. }) = lease else {
            return Err(BrokenInvariant::new(format!("{key:?} claims a lock and has no lease (M12)")));
        };
        *self.session_mut(session).claims.of(claim.place()) += 1;
        match self.claims.insert(&claim.lock, claim.place(), key.clone()) {
            true => Err(BrokenInvariant::new(format!("{key:?} claims a lock as another entry does (M12)"))),
            false => Ok(()),
        }
    }

    /// **M12**
    pub(crate) fn check_claims(&self) -> Result<(), BrokenInvariant> {
        let mut expected = Claims::default();
        let mut of_sessions: OrdMap<SessionId, Claimed> = OrdMap::new();
        for (key, entry) in &self.entries {
            let Some(claim) = &entry.claim else { continue };
            let Some(Lease { session, .. }) = entry.lease else {
                return Err(BrokenInvariant::new(format!("{key:?} claims a lock and has no lease (M12)")));
            };
            let written = (entry.created.0..=entry.modified.0).contains(&claim.token.0);
            if !written || self.locks.contains_key(&claim.lock) {
                return Err(BrokenInvariant::new(format!("{key:?} claims what it cannot: {claim:?} (M12)")));
            }
            expected.insert(&claim.lock, claim.place(), key.clone());
            *of_sessions.entry(session).or_default().of(claim.place()) += 1;
        }
        let Claims { keys, queues, names, held } = &self.claims;
        let is_expected =
            (keys, queues, *names, *held) == (&expected.keys, &expected.queues, expected.names, expected.held);
        if !is_expected {
            return Err(BrokenInvariant::new("the claims differ from those of the entries (M12)"));
        }
        let counted =
            |(id, session): (&SessionId, &Session)| session.claims == of_sessions.get(id).copied().unwrap_or_default();
        if !self.sessions.iter().all(counted) {
            return Err(BrokenInvariant::new("a session's number of claims is not that of its entries (M12)"));
        }
        for name in self.claimed_names("", None) {
            let mut claims = self.claims.of(name, Place::FIRST);
            let first = claims.next().is_some_and(|(place, _)| !place.is_waiting);
            let is_held = |(place, _): (Place, &Key)| !place.is_waiting;
            let waits = |(_, key): (Place, &Key)| self.entries[key].lease.is_some_and(|it| !self.is_over(it.session));
            let broken = match first {
                true => claims.any(is_held),
                false => self.claims.of(name, Place::FIRST).any(waits) && !self.is_in_backlog(name),
            };
            if broken {
                return Err(BrokenInvariant::new(format!(
                    "the lock {name:?} has two holders, or none and could (M12)"
                )));
            }
        }
        Ok(())
    }

    /// The locks under a prefix that are claimed, sorted, above `after`.
    pub(crate) fn claimed_names<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&LockName>,
    ) -> impl Iterator<Item = &'a LockName> + use<'a> {
        let from = match (after.filter(|after| after.as_str() >= prefix), LockName::new(prefix)) {
            (Some(after), _) => Bound::Excluded((after.clone(), Place::LAST)),
            (None, Ok(prefix)) => Bound::Included((prefix, Place::FIRST)),
            // The empty prefix, that of all names; and one that no name has.
            (None, Err(_)) => Bound::Unbounded,
        };
        let first = self.claims.first_from(from);
        // From lock to lock: one may have thousands of claims.
        let next = |name: &&'a LockName| self.claims.first_from(Bound::Excluded(((*name).clone(), Place::LAST)));
        std::iter::successors(first, next).take_while(move |name| name.as_str().starts_with(prefix))
    }

    /// The claims of locks whose names begin so, by lock, each with its ticket if it waits.
    pub fn claims<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a LockName, Option<Ticket>)> + use<'a> {
        let from = match LockName::new(prefix) {
            Ok(prefix) => Bound::Included((prefix, Place::FIRST)),
            // The empty prefix, that of all names; and one that no name has.
            Err(_) => Bound::Unbounded,
        };
        let ticket = |place: &Place| place.is_waiting.then_some(Ticket(place.token.0));
        let claims = self.claims.keys.range((from, Bound::Unbounded));
        let prefix = prefix.to_owned();
        let claims = claims.take_while(move |((name, _), _)| name.as_str().starts_with(&prefix));
        claims.map(move |((lock, place), _)| (lock, ticket(place)))
    }

    /// A lock that is claimed, with one page of its queue.
    pub(crate) fn claimed_lock(&self, name: &LockName, page: Page) -> Option<LockView> {
        if !self.is_claimed(name) {
            return None;
        }
        let holder = self.claim_holder(name);
        let above = Place { is_waiting: true, token: Token(page.waiters_after.0.saturating_add(1)) };
        let queue_length = self.claims.queues.get(name).copied().unwrap_or_default();
        Some(LockView {
            name: name.clone(),
            kind: LockKind::Entry,
            mode: Some(Mode::Exclusive),
            holder_count: holder.iter().count() as u64,
            holders: holder.into_iter().filter(|holder| holder.token > page.holders_after).take(page.size).collect(),
            waiters: self
                .claims
                .of(name, above)
                .take(page.size)
                .filter_map(|(_, key)| self.claim_waiter(key))
                .collect(),
            queue_length,
            data: None,
            keep_data: false,
            delay_remaining_ms: 0,
            resized: false,
        })
    }

    /// The holder of a lock that is claimed.
    pub(crate) fn claim_holder(&self, name: &LockName) -> Option<HolderView> {
        let entry = &self.entries[self.claims.holder(name)?];
        let (claim, Lease { session: id, .. }) = (entry.claim.as_ref()?, entry.lease?);
        let session = &self.sessions[&id];
        Some(HolderView {
            token: claim.token,
            session: id,
            label: session.label.clone(),
            mode: Mode::Exclusive,
            since: claim.since,
            remaining_ms: if session.ending.is_some() { 0 } else { self.remaining_ms(session.deadline) },
            revoked: None,
        })
    }

    fn claim_waiter(&self, key: &Key) -> Option<WaiterView> {
        let entry = &self.entries[key];
        let (claim, Lease { session, .. }) = (entry.claim.as_ref()?, entry.lease?);
        Some(WaiterView {
            ticket: Ticket(claim.token.0),
            session,
            label: self.sessions[&session].label.clone(),
            mode: Mode::Exclusive,
            since: claim.since,
            remaining_ms: None,
        })
    }
}

/// Whether both entries have the same claim.
fn is_same(before: &Entry, after: Option<&Entry>) -> bool {
    let of =
        |entry: &Entry| Some((entry.claim.as_ref()?.token, entry.claim.as_ref()?.lock.clone(), entry.lease?.session));
    after.and_then(of).is_some_and(|after| of(before) == Some(after))
}

/// The event that a lock of entries changed.
fn of_entry(name: &LockName, kind: ChangeKind) -> Event {
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
        TxnOperation::Put(Put { key: key(name), value: Value::default(), lease, claims: Some(jobs()) })
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
        let (mut machine, mut events) = (Machine::default(), Vec::new());
        for (session, ttl_ms) in [(DEAD, 1000), (ANN, 100_000), (BOB, 100_000)] {
            let (ttl, label) = (Ttl::from_millis(ttl_ms).unwrap(), Label::default());
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
