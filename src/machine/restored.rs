//! The table of a cluster that is restored from a copy.
//!
//! A copy is a moment of the past. After that moment, the cluster may have issued tokens, granted locks, and ended sessions; nothing in the
//! copy tells. So the restored table is made such that it is right for every possible continuation of the old cluster:
//!
//! * **Tokens and tickets** go on at a number that belongs to the moment of the restore ([`first_at`]): above any that the old cluster,
//!   or a cluster that was restored before, can have issued by then. A resource that remembers the highest token accepts every new grant,
//!   and refuses every old one. A step of fixed size would not do: a copy that is restored on Monday and again on Tuesday would issue the
//!   same tokens twice, and a holder of Monday's cluster would pass the fence of Tuesday's.
//! * **No client keeps a session.** Each session gets another id, by a random number of this restore. A client of the old cluster learns
//!   that its session is unknown, and has lost its locks. It must not go on: with its session alive, it would trust a lock that it was
//!   granted after the copy, and that the restored table grants to another.
//! * **Nothing is granted for some time**, from the first stamp of the new cluster on ([`Restore::closed_ms`]). A lock that was granted
//!   after the copy is free in the restored table, and its holder trusts it until its deadline, which nothing in the copy tells. So no
//!   lock is granted, in whichever mode, and no entry claims one, before every such deadline has passed. An acquire is treated as if a
//!   lock-delay ran ([`Machine::closed_until`]); a transaction that claims a lock is refused.
//! * **Locks that were held stay closed for a full TTL.** Their sessions stay in the table without a client and expire after their TTL,
//!   from the first stamp of the new cluster on. A holder that is still cut off trusts its grant no longer than that.
//! * **Waits, remembered replies and notices of forced releases are dropped:** there is no client that could ask for them.
//!
//! * **Entries of the keyspace keep their revisions.** The old cluster may have written them again after the copy, at revisions above the
//!   last one of the copy and below the first one of the new cluster. So a compare with a revision that a client read after the copy never
//!   holds by chance, and every later write has a higher revision than any that a resource has seen. **This is not so for versions of
//!   entries and for numbers of numbered entries:** they count from the copy, and the old cluster may have given the same ones to other
//!   writes. A lease lasts a full TTL, as grants do. An entry with a deadline of its own lives until locks are granted again at least: how
//!   long its client gave it is not in the copy. Their history begins with the new cluster, since nothing tells what the old one wrote
//!   after the copy.
//!
//! Cluster time continues from the copy. Data of locks, lock-delays and sizes of semaphores in use are kept.

use crate::{table::ActiveLock, *};

/// Tokens and tickets for each millisecond of wall time: 2^12. No cluster issues 4,096,000 of them a second.
const PER_MS: u64 = 1 << 12;

/// Where [`first_at`] begins to count, milliseconds since 1970: the year 2020. So numbers stay below 2^53, which readers of JSON need, up
/// to the year 2089; counted from 1970, they would exceed it in 2039.
const COUNTED_FROM_MS: u64 = 1_577_836_800_000;

/// How far above the last token of the copy a first token is proposed to an operator whose clock gives none: 2^40. At 20,000 grants a
/// second, the old cluster needs 1.7 years after the copy to come this far.
const MARGIN: u64 = 1 << 40;

/// The highest possible first token: 2^62. Above it there would be little room for a second restore below 2^63, the limit of signed
/// columns in databases.
pub const FIRST_TOKEN_MAX: u64 = 1 << 62;

/// What a restore needs from outside of the copy: a copy alone cannot tell one restore from the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restore {
    /// The wall time of the restore.
    pub at: WallTime,
    /// A random number: what each session id is moved by.
    pub draw: u128,
    /// The token of the first grant. Without one, it is the one that belongs to the time, [`first_at`].
    pub first_token: Option<Token>,
    /// For how long no lock is granted, milliseconds of cluster time; longer if a session of the copy has a longer TTL. Without it, locks
    /// that are free are granted at once.
    pub closed_ms: Option<u64>,
}

/// The first number of a counter in a cluster that is restored at this time.
///
/// A cluster whose counter began at or below the number of some moment stays below the numbers of all later moments, since it counts more
/// slowly. So whatever was issued up to the time of a restore is below the first number of that restore, in whichever cluster: the one of
/// the copy, or one that was restored from it, or from another copy, before. Two restores have different numbers, the later one the higher.
pub fn first_at(at: WallTime) -> u64 {
    at.0.saturating_sub(COUNTED_FROM_MS).saturating_mul(PER_MS).min(FIRST_TOKEN_MAX)
}

/// The first ticket of the restored cluster, whose copy ended at the ticket `last`. Operators are not asked for it.
fn first_ticket_at(at: WallTime, last: u64) -> u64 {
    let by_time = first_at(at);
    if by_time > last { by_time } else { last.saturating_add(MARGIN) }
}

/// Why a table cannot be restored with a first token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FirstTokenError {
    /// A grant of the copy has this token, or a higher one.
    #[error(
        "the first token {first} is not above {last}, the last token of the copy: choose one of at least {}, and above every token \
         that any resource remembers",
        .last.saturating_add(1)
    )]
    Issued {
        /// The token that was asked for.
        first: u64,
        /// The last token of the copy.
        last: u64,
    },
    /// The time of the restore gives no first token: the clock is wrong, or the cluster of the copy was given a higher one.
    #[error(
        "the copy's last token is {last}, and tokens of a cluster that is restored now begin at {now}: this machine's clock is behind, or \
         the cluster was once given a high --first-token; correct the clock, or give --first-token, above every token that any resource \
         remembers, such as {}", .last.saturating_add(MARGIN)
    )]
    Clock {
        /// The last token of the copy.
        last: u64,
        /// The first token that the time gives.
        now: u64,
    },
    /// It leaves too little room.
    #[error("the first token {first} exceeds the maximum of {FIRST_TOKEN_MAX}: choose a lower one")]
    TooHigh {
        /// The token that was asked for.
        first: u64,
    },
}

impl Machine {
    /// The table of a new cluster that is restored from this one.
    ///
    /// Pure: equal tables and restores give equal results.
    ///
    /// # Panics
    ///
    /// If the result contradicts itself, which would be a bug here: the invariants of `self` hold.
    pub fn restored(&self, restore: &Restore) -> Result<Self, FirstTokenError> {
        let first = self.first_token(restore)?;
        let records = self.records().filter_map(|record| self.restored_record(record, first, restore));

        // These records follow the clock and the version, as in every table.
        let (head, rest): (Vec<_>, Vec<_>) = records.partition(|record| matches!(record, Record::Clock { .. }));
        let closed = self.restored_closed_until(restore).map(|until| Record::Closed { until });
        let records = head.into_iter().chain(closed).chain(rest);
        let records = records.chain(self.restored_history(first));
        Ok(Self::from_records(records).expect("what is left of a sound table is sound"))
    }

    /// Until when the restored cluster grants nothing: at least for the longest TTL in the copy, since the sessions that came after it will
    /// have been of the same clients.
    fn restored_closed_until(&self, restore: &Restore) -> Option<Stamp> {
        let longest = self.sessions.iter().map(|(_, session)| u64::from(session.ttl.as_millis())).max().unwrap_or(0);
        let closed_ms = restore.closed_ms.filter(|_| !Planted::RestoredOpensAtOnce.is_on())?.max(longest);
        Some(Stamp(self.now().0.saturating_add(closed_ms)))
    }

    /// When an entry ends in the restored cluster that has a deadline of its own: not before locks are granted again, since its client may
    /// have put it anew after the copy.
    fn restored_until(&self, until: Stamp, restore: &Restore) -> Stamp {
        let is_over = until <= self.now();
        let closed_until = self.restored_closed_until(restore).filter(|_| !is_over);
        closed_until.map_or(until, |closed_until| until.max(closed_until))
    }

    fn first_token(&self, restore: &Restore) -> Result<Token, FirstTokenError> {
        let last = self.last_token().0;
        let Some(Token(first)) = restore.first_token else {
            let now = if Planted::RestoredTwiceAlike.is_on() { last + MARGIN } else { first_at(restore.at) };
            return if now > last { Ok(Token(now)) } else { Err(FirstTokenError::Clock { last, now }) };
        };

        if first <= last {
            return Err(FirstTokenError::Issued { first, last });
        }
        if first > FIRST_TOKEN_MAX {
            return Err(FirstTokenError::TooHigh { first });
        }
        Ok(Token(first))
    }

    /// After the copy, the old cluster may have written at revisions below the first one of the new cluster. To a watch that resumes there,
    /// the events of the copy would be a history with a gap.
    fn restored_history(&self, first: Token) -> Option<Record> {
        let had_writes = self.version >= Version::KEYSPACE || self.entries.len() > 0 || self.history.len() > 0;
        let revision = Revision(self.restored_last_token(first).0);
        (had_writes && !Planted::RestoredHistoryGoesOn.is_on()).then_some(Record::Compacted { revision })
    }

    fn restored_last_token(&self, first: Token) -> Token {
        if Planted::RestoreForgetsTokenOffset.is_on() { self.last_token() } else { Token(first.0 - 1) }
    }

    /// The record in the restored table, unless it is dropped.
    fn restored_record(&self, record: Record, first: Token, restore: &Restore) -> Option<Record> {
        // No client may know the new id: the draw is never 0 here.
        let draw = if Planted::RestoredSessionsKeepIds.is_on() { 0 } else { restore.draw.max(1) };
        let another = |id: SessionId| SessionId(id.0.wrapping_add(draw));

        Some(match record {
            Record::Clock { now, last_token: _, last_ticket, is_behind } => Record::Clock {
                now,
                last_token: self.restored_last_token(first),
                last_ticket: Ticket(first_ticket_at(restore.at, last_ticket.0)),
                is_behind,
            },
            Record::Version { .. } | Record::Ended { .. } | Record::Lock { .. } => record,
            Record::Session {
                session: id,
                label,
                ttl,
                deadline,
                opened,
                address,
                owner,
                is_of_entries,
                is_temporary,
                ..
            } => {
                Record::Session {
                    session: another(id),
                    label,
                    ttl,
                    // A session that is over stays over: its client may know that the TTL has passed.
                    deadline: if self.is_over(id) {
                        deadline
                    } else {
                        Stamp(self.now().0.saturating_add(ttl.as_millis().into()))
                    },
                    opened,
                    address,
                    open: OpenIds::default(),
                    owner,
                    is_of_entries,
                    is_temporary,
                    // The session is not attached to any connection.
                    attached: 0,
                }
            }
            Record::Grant { token, session, locks, lock_delay_ms, since, revoked, revoked_by } => {
                Record::Grant { token, session: another(session), locks, lock_delay_ms, since, revoked, revoked_by }
            }
            Record::Entry { key, entry } => {
                let lease = entry.lease.map(|lease| Lease { session: another(lease.session), ..lease });
                let until = entry.until.map(|until| self.restored_until(until, restore));
                let last = Revision(self.restored_last_token(first).0);
                let modified = if Planted::RestoredRevisionsAnew.is_on() { last } else { entry.modified };
                Record::Entry { key, entry: Arc::new(Entry { lease, until, modified, ..Entry::clone(&entry) }) }
            }
            Record::Resized { ref name, .. } => {
                let is_used = |lock: &ActiveLock| lock.is_held() || lock.data().is_some();
                return self.locks.get(name).is_some_and(is_used).then_some(record);
            }
            Record::Work(Work::EndSession { session, end, at }) => {
                Record::Work(Work::EndSession { session: another(session), end, at })
            }
            // Waits are dropped, claims are not.
            Record::Work(Work::HandOn { ref name }) => return self.is_claimed(name).then_some(record),
            Record::Taken { .. }
            | Record::Wait { .. }
            | Record::Reply { .. }
            | Record::Closed { .. }
            | Record::Compacted { .. }
            | Record::EntryEvent { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: u32 = 10_000;
    /// A day of 2026, milliseconds since 1970.
    const MONDAY: u64 = 1_768_176_000_000;
    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    fn at(ms: u64) -> Restore {
        Restore { at: WallTime(ms), draw: u128::from(ms) << 64 | 7, first_token: None, closed_ms: None }
    }

    fn with(first: u64) -> Restore {
        Restore { first_token: Some(Token(first)), ..at(MONDAY) }
    }

    /// Applies commands at a stamp.
    fn apply(machine: &mut Machine, at: u64, commands: impl IntoIterator<Item = Command>) -> Vec<Reply> {
        let time = Time { stamp: Stamp(at), wall: WallTime(at) };
        machine.apply_batch(time, Limits::default(), commands, &mut Vec::new())
    }

    fn open(id: u128) -> Command {
        let ttl = Ttl::from_millis(TTL_MS).unwrap();
        let label = Label::new("ann").unwrap();
        Command::Open { session: SessionId(id), ttl, label, address: None, owner: None }
    }

    fn acquire(id: u128, request: u64, name: &str, wait: Wait) -> Command {
        let want = Want {
            name: LockName::new(name).unwrap(),
            mode: Mode::Exclusive,
            data: Some(Data::new(b"kept").unwrap()),
            keep_data: true,
            must_exist: false,
        };
        let acquire = Acquire::new(vec![want], wait, 0).unwrap();
        let request = Some(Request { id: request, open: OpenIds::default() });
        Command::Session { session: SessionId(id), request, operation: Operation::Acquire(acquire) }
    }

    /// Session 1 holds `a` and `b`, session 2 waits for `a`.
    fn table() -> Machine {
        let mut machine = Machine::default();
        let commands = [
            open(1),
            open(2),
            acquire(1, 1, "a", Wait::Never),
            acquire(1, 2, "b", Wait::Never),
            acquire(2, 1, "a", Wait::Forever),
        ];
        let replies = apply(&mut machine, 1_000, commands);
        assert!(matches!(replies[4], Reply::Queued(_)), "{replies:?}");
        machine
    }

    /// The tokens of a machine that grants `count` locks at this stamp.
    fn tokens(machine: &mut Machine, count: u64) -> Vec<u64> {
        let now = machine.now().0;
        apply(machine, now, [open(3)]);
        let grant = |number| {
            let name = format!("c/{number}");
            apply(machine, now, [acquire(3, number, &name, Wait::Never)]);
            machine.last_token().0
        };
        (1..=count).map(grant).collect()
    }

    fn sessions(machine: &Machine) -> Vec<SessionId> {
        machine.sessions.iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn tokens_go_on_where_the_time_or_the_operator_says() {
        let machine = table();
        assert_eq!(machine.last_token(), Token(2));
        let by_time = (MONDAY - COUNTED_FROM_MS) * PER_MS;
        for (restore, first) in [(at(MONDAY), by_time), (with(3), 3), (with(FIRST_TOKEN_MAX), FIRST_TOKEN_MAX)] {
            let mut restored = machine.restored(&restore).unwrap();
            assert_eq!(tokens(&mut restored, 1), [first]);
        }
        assert!(2 + MARGIN < by_time && by_time < 1 << 53, "{by_time}");

        let refused = |restore| machine.restored(&restore).unwrap_err();
        assert_eq!(refused(with(2)), FirstTokenError::Issued { first: 2, last: 2 });
        assert_eq!(refused(with(FIRST_TOKEN_MAX + 1)), FirstTokenError::TooHigh { first: FIRST_TOKEN_MAX + 1 });
        assert_eq!(Machine::default().restored(&with(1)).unwrap().last_token(), Token(0));
    }

    #[test]
    fn a_clock_that_gives_no_token_above_the_copy_is_refused() {
        let refused = table().restored(&at(COUNTED_FROM_MS - 1)).unwrap_err();
        assert_eq!(refused, FirstTokenError::Clock { last: 2, now: 0 });
        assert!(refused.to_string().contains("correct the clock, or give --first-token"), "{refused}");

        // An operator once chose a higher token: no later one follows from the clock.
        let high = table().restored(&with(1 << 60)).unwrap();
        let refused = high.restored(&at(MONDAY)).unwrap_err();
        assert_eq!(refused, FirstTokenError::Clock { last: (1 << 60) - 1, now: first_at(WallTime(MONDAY)) });
        let distant = Machine::default().restored(&at(u64::MAX)).unwrap();
        assert_eq!(distant.last_token(), Token(FIRST_TOKEN_MAX - 1));
    }

    /// One backup, restored on Monday and again on Tuesday: what Monday's cluster issued is older than all of Tuesday's.
    #[test]
    fn a_copy_that_is_restored_twice_issues_nothing_twice() {
        let copy = table();
        let mut monday = copy.restored(&at(MONDAY)).unwrap();
        let mut tuesday = copy.restored(&at(MONDAY + DAY_MS)).unwrap();
        assert!(sessions(&monday).iter().all(|session| !sessions(&tuesday).contains(session)));
        let issued = tokens(&mut monday, 100);
        assert!(monday.last_ticket() < tuesday.last_ticket());
        assert!(tokens(&mut tuesday, 100).iter().all(|token| issued.iter().all(|earlier| earlier < token)));

        // So also for copies of copies, in whichever order they are restored, and a second apart.
        let again = monday.restored(&at(MONDAY + DAY_MS + 1_000)).unwrap();
        let last = copy.restored(&at(MONDAY + DAY_MS + 2_000)).unwrap();
        assert!(tuesday.last_token() < again.last_token() && again.last_token() < last.last_token());
        assert!(tuesday.last_ticket() < again.last_ticket() && again.last_ticket() < last.last_ticket());
    }

    fn closed(closed_ms: u64) -> Restore {
        Restore { closed_ms: Some(closed_ms), ..at(MONDAY) }
    }

    fn granted(machine: &Machine, name: &str) -> bool {
        machine.locks.get(&LockName::new(name).unwrap()).is_some_and(ActiveLock::is_held)
    }

    /// A lock that the old cluster granted after the copy is free in the restored table, and its holder trusts it.
    #[test]
    fn nothing_is_granted_before_every_deadline_of_the_old_cluster_has_passed() {
        const CLOSED_MS: u64 = 25_000;
        let mut machine = table().restored(&closed(CLOSED_MS)).unwrap();
        let opens = machine.now().0 + CLOSED_MS;
        let now = machine.now().0;
        assert_eq!(machine.closed_until(), Some(Stamp(opens)));
        let renew = || Command::Renew { sessions: vec![SessionId(3), SessionId(4)] };
        let shared = |request, name: &str| {
            let exclusive = acquire(3, request, name, Wait::Never);
            let Command::Session { session, request, operation: Operation::Acquire(acquire) } = exclusive else {
                panic!("{exclusive:?} is no acquire");
            };

            let mut want = acquire.wants()[0].clone();
            want.mode = Mode::Shared;
            let acquire = Acquire::new(vec![want], Wait::Never, 0).unwrap();
            Command::Session { session, request, operation: Operation::Acquire(acquire) }
        };

        // In whichever mode: the old holder may hold it exclusively.
        let replies = apply(&mut machine, now, [open(3), open(4), acquire(3, 1, "c", Wait::Never), shared(2, "d")]);
        for reply in &replies[2..] {
            let Reply::Busy(busy) = reply else { panic!("{replies:?}") };
            assert_eq!((busy.delay_remaining_ms, &busy.holder), (CLOSED_MS, &None));
        }
        // Those who wait get their turn, in the order of arrival; a wait that ends before leaves nothing behind.
        let waits = [
            acquire(3, 3, "c", Wait::Forever),
            acquire(4, 1, "c", Wait::Forever),
            acquire(4, 2, "e", Wait::Millis(1_000)),
        ];
        let replies = apply(&mut machine, now, waits);
        assert!(replies.iter().all(|reply| matches!(reply, Reply::Queued(_))), "{replies:?}");
        for stamp in (now..opens).step_by(1_000).chain([opens - 1]) {
            apply(&mut machine, stamp, [renew()]);
            // The locks of the copy were held by sessions that are over after their TTL.
            assert!(!granted(&machine, "c") && !granted(&machine, "d"), "{stamp}");
        }
        assert!(!machine.locks.contains(&LockName::new("e").unwrap()));
        assert_eq!(machine.counts().grants, 0);
        let replies = apply(&mut machine, opens - 1, [acquire(3, 4, "a", Wait::Never)]);
        assert!(matches!(&replies[0], Reply::Busy(busy) if busy.delay_remaining_ms == 1), "{replies:?}");

        // A replica that is restored from a snapshot meanwhile goes on alike.
        let mut other = Machine::from_records(machine.records()).unwrap();
        assert_eq!((other.hash(), other.closed_until()), (machine.hash(), Some(Stamp(opens))));
        for machine in [&mut machine, &mut other] {
            apply(machine, opens, [renew()]);
            assert!(granted(machine, "c") && machine.closed_until().is_none());
            let replies = apply(machine, opens, [acquire(3, 5, "f", Wait::Never)]);
            assert!(matches!(replies[0], Reply::Acquired(_)), "{replies:?}");
        }
        assert_eq!(other.hash(), machine.hash());
    }

    #[test]
    fn a_restored_cluster_is_closed_for_the_longest_ttl_of_the_copy_at_least() {
        let machine = table();
        let until = |restore: Restore| machine.restored(&restore).unwrap().closed_until();
        let now = machine.now().0;
        assert_eq!(until(closed(1)), Some(Stamp(now + u64::from(TTL_MS))));
        assert_eq!(until(closed(u64::MAX)), Some(Stamp(u64::MAX)));
        assert_eq!(until(at(MONDAY)), None);
        // A copy of a cluster that is closed yet: the operator decides anew.
        let again = machine.restored(&closed(60_000)).unwrap().restored(&at(MONDAY)).unwrap();
        assert_eq!(again.closed_until(), None);
    }

    #[test]
    fn no_client_keeps_its_session_and_its_locks_stay_closed_for_a_full_ttl() {
        let mut machine = table();
        // Nearly expired in the copy.
        apply(&mut machine, 1_000 + u64::from(TTL_MS) - 1, [Command::Tick]);
        let now = machine.now().0;
        let mut restored = machine.restored(&at(MONDAY)).unwrap();
        assert_eq!((restored.counts().sessions, restored.counts().waiters), (2, 0));
        let renewed = apply(&mut restored, now, [Command::Renew { sessions: vec![SessionId(1)] }]);
        assert_eq!(renewed, [Reply::Renewed(vec![Renewal::Ended(SessionEnd::Unknown)])]);

        let replies = apply(&mut restored, now, [open(3), acquire(3, 1, "a", Wait::Never)]);
        assert!(matches!(replies[1], Reply::Busy(_)), "{replies:?}");
        let last_moment = now + u64::from(TTL_MS) - 1;
        let replies = apply(&mut restored, last_moment, [acquire(3, 2, "a", Wait::Never)]);
        assert!(matches!(replies[0], Reply::Busy(_)), "{replies:?}");
        let replies = apply(&mut restored, last_moment, [Command::Renew { sessions: vec![SessionId(3)] }]);
        assert!(matches!(&replies[0], Reply::Renewed(renewed) if matches!(renewed[0], Renewal::Renewed { .. })));
        let replies = apply(&mut restored, last_moment + 1, [acquire(3, 3, "a", Wait::Never)]);
        let Reply::Acquired(WaitEnd::Granted(grant)) = &replies[0] else { panic!("{replies:?}") };
        assert_eq!(grant.token, Token(first_at(WallTime(MONDAY))));
    }

    #[test]
    fn restoring_again_and_again_gives_no_session_its_id_back() {
        let mut machine = table();
        for time in 0..8 {
            machine = machine.restored(&at(MONDAY + time)).unwrap();
            assert!(machine.session(SessionId(1)).is_none() && machine.session(SessionId(2)).is_none());
            assert_eq!(machine.counts().grants, 2);
        }
        assert_eq!(machine.hash(), {
            let again = Machine::from_records(machine.records()).unwrap();
            again.hash()
        });
    }
}
