//! Whether a command asks for more than the table has, gives back, or renews: for load shedding, for a shortage of disk space, and for
//! limits.
//!
//! Clients of protocols that lock by writing renew by a put, and release by a put or by a deletion. So the kind of a command says nothing;
//! what it does to the table decides. Under pressure those that ask for more are refused first, and renewals and releases go on: a cluster
//! that refuses these ends the sessions of its clients, and keeps what they would give back.
//!
//! A transaction is classified by the branch that would run now. It does not ask for more if each of its writes
//! * deletes an entry;
//! * puts an entry over one that has the same lease, or renews that lease, and claims no other lock;
//! * puts an entry with a deadline of its own over one that has a deadline, too, and claims no other lock, or changes a deadline;
//! * puts an entry without a lease over one that has a lease, or had one until it ended: a release;
//!
//! and none of them makes its value longer than by [`GROWTH_MAX`]. A temporary entry (see `temporary`) is left out if there is
//! another write: it is the memory of that write, and has a limit of its own. All else asks for more, also a transaction that compares or
//! deletes a range: the judgement must be short.
//!
//! A few bytes of growth are part of a renewal: the writer's new version may be longer, and a release adds its mark. So a table without
//! room for more has a reserve for them, 1 / [`RESERVE`] of its limit.
//!
//! Left out: changes between this check and the log. A lease may end in between; the command is then refused or applied like any other.

use std::collections::BTreeSet;

use crate::*;

/// Bytes by which the value of an entry may grow in a renewal or a release: a version, a mark, an attribute.
const GROWTH_MAX: usize = 128;
/// The part of a limit of bytes that is kept for the growth of renewals and releases.
const RESERVE: usize = 64;

impl Machine {
    /// Whether a command asks for something that the table then has to keep, as the table is now. A repetition of what the table knows,
    /// such as an acquire that waits, does not: refused, its client would lose its place, or not learn that it holds the lock.
    pub fn asks_for_more(&self, command: &Command) -> bool {
        match command {
            Command::Open { session, .. } if self.sessions.contains(*session) => false,
            Command::Session { session, request: Some(request), .. } if self.remembers(*session, request.id) => false,
            Command::Open { .. } | Command::Session { operation: Operation::Acquire(_) | Operation::Update(_), .. } => {
                true
            }
            Command::Txn(txn) => self.txn_asks_for_more(txn),
            Command::Session { operation: Operation::Release(_), .. }
            | Command::Renew { .. }
            | Command::Attach { .. }
            | Command::SetOwner { .. }
            | Command::Close { .. }
            | Command::CancelWait { .. }
            | Command::ForceRelease(_)
            | Command::RemoveWaiter { .. }
            | Command::LiftDelay { .. }
            | Command::DropData { .. }
            | Command::Resize { .. }
            | Command::Compact { .. }
            | Command::RaiseVersion { .. }
            | Command::Note(_)
            | Command::BeginAudit
            | Command::Probe
            | Command::Tick => false,
        }
    }

    /// The same of a transaction.
    pub fn txn_asks_for_more(&self, txn: &Txn) -> bool {
        if !txn.puts() {
            return false;
        }
        if Planted::HeartbeatAsksForMore.is_on() {
            return true;
        }
        if txn.compares().iter().any(|compare| compare.up_to.is_some()) {
            return true;
        }

        let holds = |compare: &Compare| compare.operand.holds(compare.relation, self.entry(&compare.key).as_deref());
        let operations = if txn.compares().iter().all(holds) { txn.then() } else { txn.otherwise() };
        let temporaries = Txn::temporaries(operations);
        let mut remembers = !temporaries.is_empty();
        let mut written = BTreeSet::new();
        for operation in operations {
            let key = match operation {
                TxnOperation::Get(_) | TxnOperation::Select(_) => continue,
                TxnOperation::Open(new) if temporaries.contains(&new.session) => continue,
                TxnOperation::Put(put) if put.lease.given().is_some_and(|it| temporaries.contains(&it.session)) => {
                    continue;
                }
                TxnOperation::Put(put) if put.lease.is_temporary() => {
                    remembers = true;
                    continue;
                }
                TxnOperation::Put(put) if self.renews_or_gives_back(put) => &put.key,
                TxnOperation::Expire(expire) => &expire.key,
                TxnOperation::Delete(key) => key,
                TxnOperation::Open(_) | TxnOperation::Put(_) | TxnOperation::PutChild(_) => return true,
                TxnOperation::DeleteRange(_) => return true,
            };
            // The second write of a key is not over what the table has.
            if !written.insert(key) {
                return true;
            }
        }
        // The memory of a write that does nothing.
        remembers && !written.iter().any(|key| self.entries.contains(key))
    }

    fn renews_or_gives_back(&self, put: &Put) -> bool {
        let Some(before) = self.entry(&put.key) else { return false };
        if put.value.as_bytes().len() > before.value.as_bytes().len() + GROWTH_MAX {
            return false;
        }

        let claimed = put.claims.as_ref().map(|claims| &claims.lock);
        let is_other_claim = before.claim.as_ref().is_some_and(|claim| claimed != Some(&claim.lock));
        let claims_another = put.claims.is_some() && is_other_claim;

        match put.lease {
            PutLease::None => before.lease.is_some() || before.is_expired,
            PutLease::Kept | PutLease::Renewed => before.lease.is_some() || before.until.is_some(),
            PutLease::Extended(_) | PutLease::Temporary(_) => before.until.is_some(),
            PutLease::Until(_) => before.until.is_some() && !claims_another,
            PutLease::Given(lease) => before.lease.is_some_and(|kept| kept.session == lease.session) && !claims_another,
        }
    }

    /// Runs a transaction. One that asks for nothing more may use the reserve; temporary entries take no room from others.
    pub(crate) fn commit_within_limits(&mut self, txn: &Txn, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        self.charge_ranges(txn)?;
        let (sessions, bytes) = self.plan_temporaries(txn)?;
        let limits = self.batch.limits();
        self.batch.begin_temporaries(sessions, bytes);
        let committed = self.commit_or_use_reserve(txn, events);
        self.batch.end_temporaries(limits);
        committed
    }

    fn commit_or_use_reserve(&mut self, txn: &Txn, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        let committed = self.commit(txn, events);
        let is_full = matches!(committed, Err(Refusal::Limit(Limit::TableBytes | Limit::SessionBytes)));
        if !is_full || self.txn_asks_for_more(txn) {
            return committed;
        }

        // A transaction that is refused has changed nothing.
        let mut limits = self.batch.limits();
        for bytes in [&mut limits.table_bytes, &mut limits.session_bytes] {
            *bytes = bytes.saturating_add(*bytes / RESERVE);
        }
        self.batch.set_limits(limits);
        self.commit(txn, events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);
    const MEMORY: SessionId = SessionId(3);

    fn key(key: &str) -> Key {
        Key::new(key.as_bytes()).unwrap()
    }

    fn lock(name: &str) -> Option<LockName> {
        Some(LockName::new(name).unwrap())
    }

    fn given(session: SessionId, at_end: AtLeaseEnd) -> PutLease {
        PutLease::Given(Lease { session, at_end })
    }

    fn put(name: &str, bytes: usize, lease: PutLease, claims: Option<LockName>) -> TxnOperation {
        let claims = claims.map(PutClaim::from);
        TxnOperation::Put(Put { key: key(name), value: Value::new(&vec![7; bytes]).unwrap(), lease, claims })
    }

    fn opens(session: SessionId) -> TxnOperation {
        let ttl = Ttl::from_millis(1000).unwrap();
        let label = Label::default();
        TxnOperation::Open(NewSession { session, ttl, label, address: None, owner: None })
    }

    fn txn(then: &[TxnOperation]) -> Txn {
        Txn::new(vec![], then.to_vec(), vec![]).unwrap()
    }

    fn apply(machine: &mut Machine, limits: Limits, at: u64, then: &[TxnOperation]) -> Reply {
        let time = Time { stamp: Stamp(at), wall: WallTime(0) };
        machine.apply_batch(time, limits, [Command::Txn(txn(then))], &mut Vec::new()).remove(0)
    }

    /// `held` claims the lock `jobs` with a session of its own, `expired` had a lease, `plain` never had one.
    fn table() -> Machine {
        let mut machine = Machine::default();
        let kept = |session| given(session, AtLeaseEnd::Keep);
        let expired = [opens(OTHER), put("expired", 100, kept(OTHER), None)];
        assert!(matches!(apply(&mut machine, Limits::NONE, 0, &expired), Reply::Committed(_)));
        let held = [opens(HOLDER), put("held", 100, kept(HOLDER), lock("jobs"))];
        let plain = put("plain", 100, PutLease::None, None);
        apply(&mut machine, Limits::NONE, 2000, &[plain]);
        assert!(matches!(apply(&mut machine, Limits::NONE, 2000, &held), Reply::Committed(_)));
        machine
    }

    /// What a deletion or an update remembers beside its write.
    fn memory() -> [TxnOperation; 2] {
        [opens(MEMORY), put("memory", 50, given(MEMORY, AtLeaseEnd::Delete), None)]
    }

    /// The same without a session.
    fn remembered(bytes: usize) -> TxnOperation {
        put("memory", bytes, PutLease::Temporary(Lifetime::from_millis(1000).unwrap()), None)
    }

    #[test]
    fn what_renews_or_gives_back_asks_for_nothing_more() {
        let machine = table();
        let kept = |session| given(session, AtLeaseEnd::Keep);
        let delete = |name| TxnOperation::Delete(key(name));
        let goes_on = [
            vec![put("held", 100 + GROWTH_MAX, PutLease::Renewed, None)],
            vec![put("held", 0, PutLease::Kept, None)],
            vec![put("held", 100, kept(HOLDER), lock("jobs"))],
            vec![put("held", 100 + GROWTH_MAX, PutLease::None, None)],
            vec![put("expired", 100 + GROWTH_MAX, PutLease::None, None)],
            vec![delete("held"), put("expired", 1, PutLease::None, None), TxnOperation::Get(key("plain"))],
            [vec![delete("held")], memory().to_vec()].concat(),
            [memory().to_vec(), vec![put("held", 100, PutLease::Renewed, None)]].concat(),
            vec![delete("held"), remembered(50)],
            vec![remembered(50), put("held", 100, PutLease::Renewed, None)],
            vec![TxnOperation::Select(Select::default()), put("held", 100, PutLease::Renewed, None)],
            vec![],
        ];
        for then in &goes_on {
            assert!(!machine.txn_asks_for_more(&txn(then)), "{then:?}");
        }

        let range = TxnOperation::DeleteRange(KeyRange { from: Some(key("x")), to: None });
        let asks = [
            vec![put("held", 101 + GROWTH_MAX, PutLease::Renewed, None)],
            vec![put("held", 101 + GROWTH_MAX, PutLease::None, None)],
            vec![put("held", 100, kept(HOLDER), lock("other"))],
            vec![opens(MEMORY), put("held", 100, kept(MEMORY), None)],
            vec![put("plain", 100, PutLease::None, None)],
            vec![put("plain", 100, kept(HOLDER), None)],
            vec![put("expired", 100, PutLease::Renewed, None)],
            vec![put("absent", 1, PutLease::None, None)],
            vec![delete("held"), put("held", 1, PutLease::None, None)],
            vec![range, put("held", 100, PutLease::Renewed, None)],
            [vec![delete("absent")], memory().to_vec()].concat(),
            memory().to_vec(),
            vec![delete("absent"), remembered(50)],
            vec![remembered(50)],
        ];
        for then in &asks {
            assert!(machine.txn_asks_for_more(&txn(then)), "{then:?}");
        }
    }

    /// The branch that would run decides.
    #[test]
    fn a_condition_that_does_not_hold_asks_for_nothing() {
        let machine = table();
        let compare = |version| Compare {
            key: key("held"),
            up_to: None,
            relation: Relation::Equal,
            operand: Operand::Version(version),
        };
        let more = vec![put("absent", 1, PutLease::None, None)];
        let asks =
            |version| machine.txn_asks_for_more(&Txn::new(vec![compare(version)], more.clone(), vec![]).unwrap());
        assert!(asks(1) && !asks(2));
        let in_range = Compare { up_to: Some(key("i")), ..compare(2) };
        assert!(machine.txn_asks_for_more(&Txn::new(vec![in_range], more, vec![]).unwrap()));
    }

    /// A client that repeats its request under pressure has no answer yet.
    #[test]
    fn what_the_table_knows_already_asks_for_nothing() {
        let mut machine = Machine::default();
        let ttl = Ttl::from_millis(1000).unwrap();
        let label = Label::default();
        let open = Command::Open { session: HOLDER, ttl, label, address: None, owner: None };
        let want = Want {
            name: LockName::new("jobs").unwrap(),
            mode: Mode::Exclusive,
            data: None,
            keep_data: false,
            must_exist: false,
        };
        let acquire = |id| Command::Session {
            session: HOLDER,
            request: Some(Request { id, open: OpenIds::default() }),
            operation: Operation::Acquire(Acquire::new(vec![want.clone()], Wait::Forever, 0).unwrap()),
        };
        for command in [open, acquire(1)] {
            assert!(machine.asks_for_more(&command));
            machine.apply(Time::default(), command.clone(), &mut Vec::new());
            assert!(!machine.asks_for_more(&command));
        }
        assert!(machine.asks_for_more(&acquire(2)));
    }

    #[test]
    fn a_full_table_has_room_for_the_growth_of_renewals_and_releases() {
        let mut machine = table();
        let full = Limits { table_bytes: machine.table_bytes(), ..Limits::NONE };
        let refused = Reply::Refused(Refusal::Limit(Limit::TableBytes));
        let heartbeat = |bytes| [put("held", bytes, PutLease::Renewed, None)];
        assert_eq!(apply(&mut machine, full, 2000, &[put("absent", 1, PutLease::None, None)]), refused);
        assert_eq!(apply(&mut machine, full, 2000, &heartbeat(101 + GROWTH_MAX)), refused);
        let reserve = machine.table_bytes() / RESERVE;
        assert!(0 < reserve && reserve < GROWTH_MAX);
        assert_eq!(apply(&mut machine, full, 2000, &heartbeat(101 + reserve)), refused);
        for _ in 0..2 {
            assert!(matches!(apply(&mut machine, full, 2000, &heartbeat(100 + reserve)), Reply::Committed(_)));
        }
        let release = [put("held", 136, PutLease::None, None)];
        assert!(matches!(apply(&mut machine, full, 2000, &release), Reply::Committed(_)));
        assert_eq!(machine.limits(), full);
    }
}
