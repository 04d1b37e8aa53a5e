//! The table as a sequence of records: the content of a snapshot, and the input of the digest.
//!
//! Each fact is in one record: indexes, counters, the holders and the queue of a lock follow from them. Records come in a fixed order,
//! each after those that it refers to, one at a time, so that neither side needs the whole table in memory.

use crate::{
    table::{
        ActiveLock, BacklogKey, Due, GrantNames, HeldGrant, RememberedReply, RevokedGrant, SessionEnding, SessionState,
        WaitingAcquire, Weight,
    },
    *,
};

/// One piece of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// First, once: the counters.
    Clock {
        /// Cluster time.
        now: Stamp,
        /// The highest token issued.
        last_token: Token,
        /// The highest ticket issued.
        last_ticket: Ticket,
        /// Whether deadlines have passed that were not handled yet.
        is_behind: bool,
    },
    /// The cluster version, unless it is 1. A record of its own: a program from before versions refuses the snapshot.
    Version {
        /// The version.
        version: Version,
    },
    /// No lock is granted before this moment, which lies in the future: the cluster was restored from a copy. Since version 4 of the
    /// cluster, though not by a command: a restore writes it.
    Closed {
        /// The moment.
        until: Stamp,
    },
    /// A session that ended, the earliest first.
    Ended {
        /// The session's id.
        session: SessionId,
        /// How it ended.
        end: SessionEnd,
    },
    /// A session that is alive.
    Session {
        /// The session's id.
        session: SessionId,
        /// Its label.
        label: Label,
        /// How long it lives without a renewal.
        ttl: Ttl,
        /// When it ends.
        deadline: Stamp,
        /// When it was opened.
        opened: WallTime,
        /// The address from which it was opened, if known.
        address: Option<Address>,
        /// The request ids whose replies its client may still ask for.
        open: OpenIds,
        /// The client that it belongs to. Since version 2 of the cluster.
        owner: Option<Identity>,
        /// It lives as long as its entries. Since version 3 of the cluster.
        is_of_entries: bool,
        /// It was opened for a temporary entry. Since version 3 of the cluster.
        is_temporary: bool,
        /// How often it was attached. Since version 5 of the cluster.
        attached: u64,
    },
    /// A lock that carries data or is closed by a lock-delay. All others follow from grants and waits.
    Lock {
        /// Its name.
        name: LockName,
        /// Its data.
        data: Option<Data>,
        /// Whether the data outlives the present grants.
        keep_data: bool,
        /// When its lock-delay ends.
        closed_until: Option<Stamp>,
    },
    /// A grant that is held.
    Grant {
        /// Its token.
        token: Token,
        /// The holder's session.
        session: SessionId,
        /// The locks, sorted by name, and the mode of each.
        locks: Vec<(LockName, Mode)>,
        /// How long the locks stay closed if the holder is lost, milliseconds.
        lock_delay_ms: u32,
        /// When it was granted.
        since: WallTime,
        /// Why an operator revoked it, if one did, and the stamp at which it ends.
        revoked: Option<(Reason, Stamp)>,
        /// The operator, if it was revoked and the operator is known. Since version 2 of the cluster.
        revoked_by: Option<Identity>,
    },
    /// A grant that an operator took from a session that is alive, and that the session has not released.
    Taken {
        /// Its token.
        token: Token,
        /// The session that held it.
        session: SessionId,
        /// The operator's reason.
        reason: Reason,
    },
    /// An acquire that waits.
    Wait {
        /// Its place in the order of arrival.
        ticket: Ticket,
        /// The session that waits.
        session: SessionId,
        /// The request whose remembered reply becomes the end of this wait.
        request: Option<u64>,
        /// The acquire.
        acquire: Acquire,
        /// When it times out.
        deadline: Option<Stamp>,
        /// When it began to wait.
        since: WallTime,
        /// How often its request was repeated.
        repeats: u64,
    },
    /// A semaphore that an operator resized. It comes after the grants, the waits and the data that use it.
    Resized {
        /// Its name.
        name: LockName,
        /// The size that counts.
        permits: Permits,
    },
    /// A reply that a session remembers.
    Reply {
        /// The session.
        session: SessionId,
        /// The request id.
        request: u64,
        /// What the request asked for.
        asked: RememberedRequest,
        /// The reply.
        reply: Reply,
    },
    /// An entry of the keyspace. It comes after the session that is its lease.
    Entry {
        /// The key.
        key: Key,
        /// The entry under the key.
        entry: Arc<Entry>,
    },
    /// The revision of the last event of the keyspace that was forgotten, if any was.
    Compacted {
        /// The revision.
        revision: Revision,
    },
    /// An event of the keyspace, in the order of the history. What came after it follows from the later ones and from the entries.
    EntryEvent {
        /// Its revision.
        revision: Revision,
        /// The key.
        key: Key,
        /// The entry before, if there was one.
        before: Option<Arc<Entry>>,
    },
    /// Last: the backlog, in its order.
    Work(Work),
}

/// The highest token and ticket in a snapshot. A billion a second for two centuries do not reach it; what does is not a cluster's, and
/// would leave no number for the next grant.
const COUNTERS_MAX: u64 = u64::MAX >> 1;

impl Machine {
    /// The whole table, in a fixed order.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let queue = !Planted::QueueNotInSnapshot.is_on();
        let replies = !Planted::RepliesNotInSnapshot.is_on();
        let version = (self.version > Version::FIRST).then_some(Record::Version { version: self.version });
        let locks = self.locks.iter();
        let sizes = self
            .locks
            .iter()
            .filter_map(|(name, lock)| lock.resized().map(|permits| Record::Resized { name: name.clone(), permits }));
        let is_kept = move |remembered: &RememberedReply| queue || !matches!(remembered.reply, Reply::Queued(_));

        std::iter::once(self.clock_record())
            .chain(version)
            .chain(self.closed_until().map(|until| Record::Closed { until }))
            .chain(self.sessions.ended().iter().map(|(session, end)| Record::Ended { session, end }))
            .chain(self.sessions.iter().map(|(id, session)| session_record(id, session)))
            .chain(locks.filter_map(|(name, lock)| lock_record(name, lock)))
            .chain(self.grants.iter().map(|(token, held)| self.grant_record(token, held)))
            .chain(self.grants.all_revoked().filter_map(|(id, token, revoked)| taken_record(id, token, revoked)))
            .chain(self.waits.iter().filter(move |_| queue).map(|(ticket, waiting)| wait_record(ticket, waiting)))
            .chain(sizes)
            .chain(self.replies().filter(move |(.., it)| replies && is_kept(it)).map(reply_record))
            .chain(self.entries.iter().map(|(key, entry)| Record::Entry { key: key.clone(), entry: entry.clone() }))
            .chain(self.history_records())
            .chain(self.work().map(Record::Work))
    }

    fn clock_record(&self) -> Record {
        let mut last_token = self.last_token();
        if Planted::TokenNotInSnapshot.is_on() {
            // A lower one would contradict the grants of the same snapshot, which no node takes in.
            let taken = self.grants.all_revoked().map(|(_, token, _)| token).max();
            last_token = self.grants.last_token().max(taken).unwrap_or(Token(0));
        }
        let now = self.now();
        Record::Clock { now, last_token, last_ticket: self.last_ticket(), is_behind: self.clock.is_behind() }
    }

    fn history_records(&self) -> impl Iterator<Item = Record> + '_ {
        let revision = self.history.compacted();
        let compacted = (revision > Revision(0)).then_some(Record::Compacted { revision });
        compacted.into_iter().chain(self.history.stored().map(|event| {
            let EntryEvent { revision, key, before, after: _ } = &**event;
            Record::EntryEvent { revision: *revision, key: key.clone(), before: before.clone() }
        }))
    }

    /// The remembered replies, ordered by session and request id.
    pub(super) fn replies(&self) -> impl Iterator<Item = (SessionId, u64, &RememberedReply)> {
        self.sessions.iter().flat_map(|(id, session)| {
            session.replies.iter().map(move |(request, remembered)| (id, request, remembered))
        })
    }

    fn grant_record(&self, token: Token, held: &HeldGrant) -> Record {
        let mode = |name| self.locks.existing(name).mode().expect("a lock that is held is held in some way");
        let revoked = self.grants.revoked(held.session, token);
        Record::Grant {
            token,
            session: held.session,
            locks: held.names.iter().map(|name| (name.clone(), mode(name))).collect(),
            lock_delay_ms: held.lock_delay_ms,
            since: held.since,
            revoked: revoked.and_then(|revoked| Some((revoked.reason.clone(), revoked.deadline?))),
            revoked_by: revoked.and_then(|revoked| revoked.by.clone()),
        }
    }

    /// The table that these records describe. Fails on records that contradict each other, as from a damaged snapshot.
    pub fn from_records(records: impl IntoIterator<Item = Record>) -> Result<Self, BrokenInvariant> {
        let mut machine = Self::default();
        let mut records = records.into_iter();
        let Some(Record::Clock { now, last_token, last_ticket, is_behind }) = records.next() else {
            return Err(BrokenInvariant::new("the first record is not the clock"));
        };
        if last_token.0.max(last_ticket.0) > COUNTERS_MAX {
            return Err(BrokenInvariant::new("the tokens or tickets are beyond all that a cluster can issue"));
        }

        machine.clock = TableClock::restored(now, is_behind);
        machine.issued = IssuedNumbers::restored(last_token, last_ticket);
        for record in records {
            if machine.restore(record)? {
                return Err(BrokenInvariant::new("a record is there twice"));
            }
        }

        // What follows from all records together.
        machine.history.link(&machine.entries);
        let charges = machine.count_charges();
        machine.sessions.restore_charges(&charges);
        machine.check()?;
        Ok(machine)
    }

    /// Adds a record to the table. Returns whether it was there already.
    fn restore(&mut self, record: Record) -> Result<bool, BrokenInvariant> {
        let is_twice = match record {
            // The clock is the first record, and was taken before.
            Record::Clock { .. } => true,
            Record::Version { version } => std::mem::replace(&mut self.version, version) != Version::FIRST,
            Record::Closed { until } => self.clock.close_until(until),
            Record::Ended { session, end } => self.sessions.restore_ended(session, end),
            Record::Session {
                session,
                label,
                ttl,
                deadline,
                opened,
                address,
                open,
                owner,
                is_of_entries,
                is_temporary,
                attached,
            } => {
                self.clock.schedule(deadline, Due::Session(session));
                let new = NewSession { session, ttl, label, address, owner };
                let state = SessionState::new(new, deadline, opened, open);
                self.sessions.insert(session, SessionState { is_of_entries, is_temporary, attached, ..state })
            }

            Record::Lock { name, data, keep_data, closed_until } => {
                self.restore_lock(&name, data, keep_data, closed_until)
            }
            Record::Grant { token, session, locks, lock_delay_ms, since, revoked, revoked_by } => {
                self.known(session)?;
                if let Some((reason, deadline)) = revoked {
                    self.clock.schedule(deadline, Due::Revocation(token));
                    let revoked = RevokedGrant { reason, by: revoked_by, deadline: Some(deadline) };
                    self.grants.insert_revoked(session, token, revoked);
                }
                let names = self.restore_holder(token, &locks)?;
                self.restore_grant(token, HeldGrant { session, request: None, names, since, lock_delay_ms })
            }

            Record::Taken { token, session, reason } => {
                self.known(session)?;
                self.sessions.begin_taken(session);
                self.grants.insert_revoked(session, token, RevokedGrant { reason, by: None, deadline: None })
            }
            Record::Wait { ticket, session, request, acquire, deadline, since, repeats } => {
                self.known(session)?;
                self.restore_wait(ticket, WaitingAcquire { session, request, acquire, deadline, since, repeats })
            }
            Record::Resized { name, permits } => self.restore_size(&name, permits)?,

            Record::Reply { session, request, asked, reply } => {
                self.known(session)?;
                if let Reply::Acquired(WaitEnd::Granted(grant)) = &reply {
                    self.grants.set_request(grant.token, request);
                }
                self.sessions.remember(session, request, Arc::new(RememberedReply { asked, reply }))
            }
            Record::Entry { key, entry } => self.restore_entry(key, entry)?,
            Record::Compacted { revision } => self.history.restore_compacted(revision) != Revision(0),
            // Whether it is there twice shows in the order of the history.
            Record::EntryEvent { revision, key, before } => {
                self.history.restore(revision, key, before);
                false
            }
            Record::Work(Work::HandOn { name }) => !self.backlog.push(BacklogKey::Lock(name)),
            Record::Work(Work::EndSession { session, end, at }) => {
                self.known(session)?;
                let deadline = self.sessions.begin_end(session, SessionEnding { end, at });
                self.clock.cancel(deadline, Due::Session(session));
                !self.backlog.push(BacklogKey::Session(session))
            }
        };

        Ok(is_twice)
    }

    /// Fails unless the session is in the table.
    fn known(&self, session: SessionId) -> Result<(), BrokenInvariant> {
        if self.sessions.contains(session) {
            return Ok(());
        }
        Err(BrokenInvariant::new(format!("a record names the session {session}, which is not alive")))
    }

    fn restore_grant(&mut self, token: Token, held: HeldGrant) -> bool {
        // The charges are counted at the end.
        self.sessions.begin_grant(held.session, token, Weight::default(), 0);
        self.grants.insert(token, held)
    }

    fn restore_wait(&mut self, ticket: Ticket, waiting: WaitingAcquire) -> bool {
        self.sessions.begin_wait(waiting.session, Weight::default());
        if let Some(deadline) = waiting.deadline {
            self.clock.schedule(deadline, Due::Wait(ticket));
        }
        for want in waiting.acquire.wants() {
            self.locks.change(&want.name, |lock| lock.add_waiter(ticket, want.mode));
        }
        self.waits.insert(ticket, waiting)
    }

    fn restore_entry(&mut self, key: Key, entry: Arc<Entry>) -> Result<bool, BrokenInvariant> {
        if let Some(lease) = entry.lease {
            self.known(lease.session)?;
        }
        if let Some(until) = entry.until {
            self.clock.schedule(until, Due::Entry(key.clone()));
        }

        self.restore_claim(&key, &entry)?;
        Ok(self.entries.insert(key, entry))
    }

    fn restore_size(&mut self, name: &LockName, permits: Permits) -> Result<bool, BrokenInvariant> {
        let Some(lock) = self.locks.get(name) else {
            return Err(BrokenInvariant::new(format!("the lock {name:?} was resized, and nobody uses it")));
        };
        let is_twice = lock.resized().is_some();
        self.locks.change(name, |lock| lock.resize(permits));
        Ok(is_twice)
    }

    fn restore_lock(&mut self, name: &LockName, data: Option<Data>, keep: bool, closed_until: Option<Stamp>) -> bool {
        if let Some(until) = closed_until {
            self.clock.schedule(until, Due::Delay(name.clone()));
        }
        let is_twice = self.locks.contains(name);
        self.locks.change(name, |lock| {
            lock.set_data(data, keep);
            lock.set_closed_until(closed_until);
        });
        is_twice
    }

    /// Fails on a mode that differs from that of the other holders: the table stores one mode per lock, so the difference would be lost.
    /// Fails on a second holder of an exclusive lock: [`ActiveLock::add_holder`] asserts that there is none.
    fn restore_holder(&mut self, token: Token, locks: &[(LockName, Mode)]) -> Result<GrantNames, BrokenInvariant> {
        let mut names = Vec::with_capacity(locks.len());
        for (name, mode) in locks {
            if self.locks.get(name).and_then(ActiveLock::mode).is_some_and(|held| held != *mode) {
                return Err(BrokenInvariant::new(format!("the holders of the lock {name:?} disagree on its mode")));
            }
            if *mode == Mode::Exclusive && self.locks.get(name).is_some_and(ActiveLock::is_held) {
                return Err(BrokenInvariant::new(format!("the exclusive lock {name:?} has two holders (M1)")));
            }
            names.push(self.locks.add_holder(name, token, *mode).0);
        }
        Ok(names.into())
    }
}

fn session_record(id: SessionId, session: &SessionState) -> Record {
    Record::Session {
        session: id,
        label: session.label.clone(),
        ttl: session.ttl,
        deadline: session.deadline,
        opened: session.opened,
        address: session.address,
        open: session.open.clone(),
        owner: session.owner.clone(),
        is_of_entries: session.is_of_entries,
        is_temporary: session.is_temporary,
        attached: session.attached,
    }
}

fn lock_record(name: &LockName, lock: &ActiveLock) -> Option<Record> {
    if lock.data().is_none() && lock.closed_until().is_none() {
        return None;
    }
    Some(Record::Lock {
        name: name.clone(),
        data: lock.data().cloned(),
        keep_data: lock.keeps_data(),
        closed_until: lock.closed_until(),
    })
}

fn taken_record(session: SessionId, token: Token, revoked: &RevokedGrant) -> Option<Record> {
    let reason = revoked.reason.clone();
    revoked.deadline.is_none().then_some(Record::Taken { token, session, reason })
}

fn wait_record(ticket: Ticket, waiting: &WaitingAcquire) -> Record {
    let WaitingAcquire { session, request, acquire, deadline, since, repeats } = waiting.clone();
    Record::Wait { ticket, session, request, acquire, deadline, since, repeats }
}

fn reply_record((session, request, remembered): (SessionId, u64, &RememberedReply)) -> Record {
    let RememberedReply { asked, reply } = remembered.clone();
    Record::Reply { session, request, asked, reply }
}
