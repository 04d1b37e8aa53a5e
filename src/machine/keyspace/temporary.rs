//! Temporary entries: what an adapter must remember for a time, such as the answer to a request that may be sent again.
//!
//! A temporary entry is put with a deadline of its own by [`PutLease::Temporary`]; it claims no lock. Each write of a protocol may
//! bring one, and they live for minutes: so they would take the limit of bytes away from all others. They have limits of their own instead,
//! [`TEMPORARY_ENTRIES_MAX`] and 1 / [`PART`] of the table's bytes, in addition to those. A transaction that would exceed these is refused;
//! all else goes on.
//!
//! **Until version 5 of the cluster** a temporary entry had a session for itself, opened by the transaction that puts it; it is deleted
//! when the session ends ([`Txn::temporaries`]). Such transactions are in logs, and such sessions in tables, until their time is over: they
//! count for the same limits, and for no limit of sessions.
//!
//! Left out: other entries with a deadline of their own count as all others, not as these.

use std::collections::BTreeSet;

use crate::{
    table::{Temporaries, new_session_bytes},
    *,
};

/// Temporary entries and their sessions have this part of the limit of the table's bytes, in addition to it.
const PART: usize = 4;
/// The maximum number of bytes of a temporary entry without its key and value.
const FIXED: usize = 400;

impl Machine {
    /// What temporary entries take, with the sessions of those that have one.
    pub(crate) fn temporaries(&self) -> Temporaries {
        self.sessions.ledger().temporaries() + self.entries.temporaries()
    }

    /// The sessions that a transaction opens for temporary entries, and the bytes of its temporary entries at the most. Refuses what
    /// exceeds their limits.
    pub(super) fn plan_temporaries(&self, txn: &Txn) -> Result<(BTreeSet<SessionId>, usize), Refusal> {
        if !txn.may_have_temporaries() {
            return Ok((BTreeSet::new(), 0));
        }
        let [then, otherwise] = [txn.then(), txn.otherwise()].map(|branch| (Txn::temporaries(branch), branch));
        let [in_then, in_otherwise] =
            [&then, &otherwise].map(|(sessions, branch)| self.new_temporaries(sessions, branch));
        let count = in_then.count.max(in_otherwise.count);
        let bytes = in_then.bytes.max(in_otherwise.bytes);
        if bytes == 0 {
            return Ok((BTreeSet::new(), 0));
        }

        let bytes_max = self.batch.limits().table_bytes / PART;
        let present = self.temporaries();
        let are_too_many = count > 0 && present.count + count > self.capacity.temporary_entries;
        let more = if self.counts_all() {
            let grown = [(&in_then, txn.then()), (&in_otherwise, txn.otherwise())]
                .map(|(new, branch)| new.bytes.saturating_sub(self.replaced_temporary_bytes(branch)));
            grown[0].max(grown[1])
        } else if count > 0 {
            bytes
        } else {
            0
        };
        // What takes no more than it replaces is never refused, also where the part is full.
        if are_too_many || more > 0 && present.bytes.saturating_add(more) > bytes_max {
            return Err(Refusal::Limit(Limit::TemporaryEntries));
        }

        // A session is temporary in each branch that opens it, or in none.
        let is_other = |session: &SessionId, (sessions, branch): &(BTreeSet<SessionId>, &[TxnOperation])| {
            let opens = |it: &TxnOperation| matches!(it, TxnOperation::Open(new) if new.session == *session);
            !sessions.contains(session) && branch.iter().any(opens)
        };
        let mut sessions: BTreeSet<SessionId> = then.0.union(&otherwise.0).copied().collect();
        sessions.retain(|session| !is_other(session, &then) && !is_other(session, &otherwise));
        Ok((sessions, bytes))
    }

    /// The temporary entries that a branch adds.
    fn new_temporaries(&self, sessions: &BTreeSet<SessionId>, branch: &[TxnOperation]) -> Temporaries {
        let mut new = Temporaries::default();
        for operation in branch {
            match operation {
                TxnOperation::Open(opened) if sessions.contains(&opened.session) => {
                    if !self.sessions.contains(opened.session) {
                        new.count += 1;
                        new.bytes += new_session_bytes(&opened.label, opened.owner.as_ref());
                    }
                }
                TxnOperation::Put(put) if put.lease.is_temporary() => new = new + self.new_temporary(put),
                TxnOperation::PutChild(PutChild { parent, put, .. }) if put.lease.is_temporary() => {
                    new = new + self.new_temporary(put);
                    new.bytes += parent.as_bytes().len();
                }
                TxnOperation::Put(put) if put.lease.given().is_some_and(|it| sessions.contains(&it.session)) => {
                    new.bytes += bytes_max(put);
                }
                TxnOperation::PutChild(_)
                | TxnOperation::Put(_)
                | TxnOperation::Open(_)
                | TxnOperation::Get(_)
                | TxnOperation::Select(_) => {}
                TxnOperation::Expire(_) | TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => {}
            }
        }
        new
    }

    /// The bytes of the temporary entries without a session that a branch replaces by others, counted as those are.
    fn replaced_temporary_bytes(&self, branch: &[TxnOperation]) -> usize {
        let replaced = branch.iter().filter_map(|operation| {
            let put = operation.put().filter(|put| put.lease.is_temporary())?;
            let present = self.entries.get(&put.key).filter(|entry| entry.is_temporary)?;
            Some(entry_bytes_max(&put.key, &present.value))
        });
        replaced.sum()
    }

    /// What a put of a temporary entry without a session adds. One that replaces another takes no further place.
    fn new_temporary(&self, put: &Put) -> Temporaries {
        let is_replaced = self.entries.get(&put.key).is_some_and(|entry| entry.is_temporary);
        Temporaries { count: usize::from(!is_replaced), bytes: bytes_max(put) }
    }
}

/// What the entry of a put takes at the most.
fn bytes_max(put: &Put) -> usize {
    entry_bytes_max(&put.key, &put.value)
}

fn entry_bytes_max(key: &Key, value: &Value) -> usize {
    FIXED + key.as_bytes().len() + value.as_bytes().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableCapacity;

    fn key(number: u128) -> Key {
        Key::new(format!("{number:06}").as_bytes()).unwrap()
    }

    fn apply(machine: &mut Machine, limits: Limits, at: u64, command: Command) -> Reply {
        let time = Time { stamp: Stamp(at), wall: WallTime(0) };
        machine.apply_batch(time, limits, [command], &mut Vec::new()).remove(0)
    }

    fn opens(id: u128) -> NewSession {
        let ttl = Ttl::from_millis(1000).unwrap();
        let label = Label::default();
        NewSession { session: SessionId(id), ttl, label, address: None, owner: Identity::new("ann").ok() }
    }

    /// Puts an entry with a session of its own.
    fn put(id: u128, bytes: usize, at_end: AtLeaseEnd, claims: Option<&str>) -> Command {
        let lease = PutLease::Given(Lease { session: SessionId(id), at_end });
        let claims = claims.map(|lock| LockName::new(lock).unwrap().into());
        let put = Put { key: key(id), value: Value::new(&vec![7; bytes]).unwrap(), lease, claims };
        Command::Txn(Txn::new(vec![], vec![TxnOperation::Open(opens(id)), TxnOperation::Put(put)], vec![]).unwrap())
    }

    fn temporary(id: u128, bytes: usize) -> Command {
        put(id, bytes, AtLeaseEnd::Delete, None)
    }

    /// The same without a session.
    fn remembered(id: u128, bytes: usize) -> Command {
        let lease = PutLease::Temporary(Lifetime::from_millis(1000).unwrap());
        let put = Put { key: key(id), value: Value::new(&vec![7; bytes]).unwrap(), lease, claims: None };
        Command::Txn(Txn::new(vec![], vec![TxnOperation::Put(put)], vec![]).unwrap())
    }

    fn open(id: u128) -> Command {
        let NewSession { session, ttl, label, address, owner } = opens(id);
        Command::Open { session, ttl, label, address, owner }
    }

    fn refused(limit: Limit) -> Reply {
        Reply::Refused(Refusal::Limit(limit))
    }

    #[test]
    fn temporary_entries_take_no_session_from_others_and_others_none_from_them() {
        for temporary in [temporary, remembered] {
            let capacity = TableCapacity { sessions: 2, temporary_entries: 3, ..TableCapacity::default() };
            let mut machine = Machine { capacity, ..Machine::default() };
            for id in 1..=3 {
                assert!(matches!(apply(&mut machine, Limits::NONE, 0, temporary(id, 1)), Reply::Committed(_)));
            }
            assert_eq!(apply(&mut machine, Limits::NONE, 0, temporary(4, 1)), refused(Limit::TemporaryEntries));
            // An identity's limit of sessions does not count them.
            assert_eq!(machine.usage(&Identity::new("ann").unwrap()).sessions, 0);
            assert!(matches!(apply(&mut machine, Limits::NONE, 0, open(5)), Reply::Opened(_)));
            let lock = put(6, 1, AtLeaseEnd::Keep, Some("jobs"));
            assert!(matches!(apply(&mut machine, Limits::NONE, 0, lock), Reply::Committed(_)));
            for other in [open(7), put(7, 1, AtLeaseEnd::Keep, None), put(7, 1, AtLeaseEnd::Delete, Some("others"))] {
                assert_eq!(apply(&mut machine, Limits::NONE, 0, other), refused(Limit::Sessions));
            }
            assert_eq!(machine.usage(&Identity::new("ann").unwrap()).sessions, 2);

            let mut restored = Machine { capacity, ..Machine::from_records(machine.records()).unwrap() };
            assert_eq!(restored.temporaries(), machine.temporaries());
            assert_eq!(apply(&mut restored, Limits::NONE, 0, temporary(4, 1)), refused(Limit::TemporaryEntries));
            // Their time is over.
            apply(&mut machine, Limits::NONE, 1000, Command::Tick);
            machine.check().unwrap();
            assert_eq!(machine.temporaries(), Temporaries::default());
            assert!(matches!(apply(&mut machine, Limits::NONE, 1000, temporary(4, 1)), Reply::Committed(_)));
        }
    }

    /// Those of tables of earlier versions have sessions, and both are there until their time is over.
    #[test]
    fn temporary_entries_with_and_without_sessions_share_their_limits() {
        let capacity = TableCapacity { temporary_entries: 2, ..TableCapacity::default() };
        let mut machine = Machine { capacity, ..Machine::default() };
        assert!(matches!(apply(&mut machine, Limits::NONE, 0, temporary(1, 1)), Reply::Committed(_)));
        let sessions = machine.counts().sessions;
        assert!(matches!(apply(&mut machine, Limits::NONE, 0, remembered(2, 1)), Reply::Committed(_)));
        assert_eq!(machine.counts().sessions, sessions);
        for other in [temporary(3, 1), remembered(3, 1)] {
            assert_eq!(apply(&mut machine, Limits::NONE, 0, other), refused(Limit::TemporaryEntries));
        }

        // An entry that replaces another one takes no further place, and a deleted entry frees its place.
        assert!(matches!(apply(&mut machine, Limits::NONE, 0, remembered(2, 5)), Reply::Committed(_)));
        let delete = Txn::new(vec![], vec![TxnOperation::Delete(key(2))], vec![]).unwrap();
        apply(&mut machine, Limits::NONE, 0, Command::Txn(delete));
        assert!(matches!(apply(&mut machine, Limits::NONE, 0, remembered(3, 1)), Reply::Committed(_)));
        machine.check().unwrap();
    }

    #[test]
    fn temporary_entries_take_no_bytes_from_others() {
        for temporary in [temporary, remembered] {
            let mut machine = Machine::default();
            let limits = Limits { table_bytes: 8000, ..Limits::NONE };
            assert!(matches!(apply(&mut machine, limits, 0, temporary(1, 1000)), Reply::Committed(_)));
            assert_eq!(apply(&mut machine, limits, 0, temporary(2, 1000)), refused(Limit::TemporaryEntries));
            let taken = machine.table_bytes();
            let mut opened = 0;
            while matches!(apply(&mut machine, limits, 0, open(100 + opened)), Reply::Opened(_)) {
                opened += 1;
            }
            assert!(opened > 0 && machine.table_bytes() - taken + 500 > limits.table_bytes, "{opened} are open");
            apply(&mut machine, limits, 1000, Command::Tick);
            for id in 200..200 + opened {
                assert!(matches!(apply(&mut machine, limits, 1000, open(id)), Reply::Opened(_)));
            }
            // A full table leaves them their part.
            assert!(matches!(apply(&mut machine, limits, 1000, temporary(3, 1000)), Reply::Committed(_)));
            assert_eq!(apply(&mut machine, limits, 1000, open(300)), refused(Limit::TableBytes));
        }
    }

    /// Before version 6, one that replaces another was not counted, however long it was.
    #[test]
    fn a_temporary_entry_that_grows_takes_no_more_than_its_part() {
        let mut machine = Machine::default();
        let limits = Limits { table_bytes: 8000, ..Limits::NONE };
        assert!(matches!(apply(&mut machine, limits, 0, remembered(1, 500)), Reply::Committed(_)));
        assert!(matches!(apply(&mut machine, limits, 0, remembered(1, 20_000)), Reply::Committed(_)));
        apply(&mut machine, limits, 1000, Command::Tick);

        apply(&mut machine, limits, 1000, Command::RaiseVersion { to: Version::ALL_COUNTED });
        assert!(matches!(apply(&mut machine, limits, 1000, remembered(1, 500)), Reply::Committed(_)));
        assert_eq!(apply(&mut machine, limits, 1000, remembered(1, 20_000)), refused(Limit::TemporaryEntries));
        assert!(matches!(apply(&mut machine, limits, 1000, remembered(1, 1500)), Reply::Committed(_)));
        assert_eq!(apply(&mut machine, limits, 1000, remembered(2, 500)), refused(Limit::TemporaryEntries));

        // The same again, or less.
        for bytes in [1500, 10] {
            assert!(matches!(apply(&mut machine, limits, 1000, remembered(1, bytes)), Reply::Committed(_)));
        }
        assert!(matches!(apply(&mut machine, limits, 1000, remembered(2, 500)), Reply::Committed(_)));
        machine.check().unwrap();
    }

    /// The ends of sessions are remembered for the clients that renew them: nobody renews those of entries.
    #[test]
    fn the_ends_of_sessions_of_entries_push_no_other_out() {
        let mut machine = Machine::default();
        apply(&mut machine, Limits::NONE, 0, open(1));
        apply(&mut machine, Limits::NONE, 0, Command::Close { session: SessionId(1), by: None, reason: None });
        for id in 2..=6 {
            apply(&mut machine, Limits::NONE, 0, put(id, 1, AtLeaseEnd::Keep, Some("jobs")));
            let delete = Txn::new(vec![], vec![TxnOperation::Delete(key(id))], vec![]).unwrap();
            apply(&mut machine, Limits::NONE, 0, Command::Txn(delete));
        }
        apply(&mut machine, Limits::NONE, 0, temporary(7, 1));
        apply(&mut machine, Limits::NONE, 1000, Command::Tick);
        assert_eq!(machine.sessions.ended().iter().collect::<Vec<_>>(), [(SessionId(1), SessionEnd::Closed)]);
    }
}
