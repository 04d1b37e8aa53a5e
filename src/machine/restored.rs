//! The table of a cluster that is restored from a copy.
//!
//! A copy is a moment of the past. After that moment, the cluster may have issued tokens, granted locks, and ended sessions; nothing in the
//! copy tells. So the restored table is made such that it is right for every possible continuation of the old cluster:
//!
//! * **Tokens and tickets** go on far above any that can have been issued ([`TOKEN_STEP`]). A resource that remembers the highest token
//!   accepts every new grant, and refuses every old one.
//! * **No client keeps a session.** Each session gets another id. A client of the old cluster is told that its session is unknown, and has
//!   lost what it held. It must not go on: with its session alive, it would trust a lock that it was granted after the copy, and that the
//!   restored table grants to another.
//! * **Locks that were held stay closed for a full TTL.** Their sessions stay in the table without a client and expire after their TTL,
//!   from the first stamp of the new cluster on. A holder that is still cut off trusts its grant no longer than that.
//! * **Waits, remembered replies and notices of forced releases are dropped:** there is no client that could ask for them.
//!
//! * **Entries of the keyspace keep their revisions.** The old cluster may have written them again after the copy, at revisions above the
//!   last one of the copy and below the first one of the new cluster. So a compare with what a client read after the copy never holds by
//!   chance, and every later write has a higher revision than any that a resource has seen. A lease lasts a full TTL, as grants do.
//!   Their history begins with the new cluster, since nothing tells what the old one wrote after the copy.
//!
//! Cluster time continues from the copy. Data of locks, lock-delays and sizes of semaphores in use are kept.

use super::*;

/// The distance of the first token of a restored cluster from the last one in the copy, unless the operator names another: 2^40. At 20,000
/// grants a second, the old cluster needs 1.7 years after the copy to come this far.
pub const TOKEN_STEP: u64 = 1 << 40;

/// The highest possible first token: 2^62. Above it there would be little room for a second restore below 2^63, the limit of signed
/// columns in databases.
pub const FIRST_TOKEN_MAX: u64 = 1 << 62;

/// Added to each session id. Odd, so that no number of restores comes back to an id that a client has.
const OTHER_ID: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;

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
    /// It leaves too little room.
    #[error("the first token {first} exceeds the maximum of {FIRST_TOKEN_MAX}: choose a lower one")]
    TooHigh {
        /// The token that was asked for.
        first: u64,
    },
}

impl Machine {
    /// The table of a new cluster that is restored from this one. Its first grant has the token `first`; `None`: the last token of this
    /// table plus [`TOKEN_STEP`].
    ///
    /// Pure: equal tables and tokens give equal results.
    ///
    /// # Panics
    ///
    /// If the result contradicts itself, which would be a bug here: the invariants of `self` hold.
    pub fn restored(&self, first: Option<Token>) -> Result<Self, FirstTokenError> {
        let last = self.last_token.0;
        let first = first.map_or(last.saturating_add(TOKEN_STEP), |first| first.0);
        if first <= last {
            return Err(FirstTokenError::Issued { first, last });
        }
        if first > FIRST_TOKEN_MAX {
            return Err(FirstTokenError::TooHigh { first });
        }
        let records = self.records().filter_map(|record| self.restored_record(record, Token(first)));
        let records = records.chain(self.restored_history(Token(first)));
        Ok(Self::from_records(records).expect("what is left of a sound table is sound"))
    }

    /// After the copy, the old cluster may have written at revisions below the first one of the new cluster. To a watch that resumes there,
    /// the events of the copy would be a history with a gap.
    fn restored_history(&self, first: Token) -> Option<Record> {
        let had_writes = self.version >= Version::KEYSPACE || !self.entries.is_empty() || self.history.len() > 0;
        let revision = Revision(self.restored_last_token(first).0);
        had_writes.then_some(Record::Compacted { revision })
    }

    fn restored_last_token(&self, first: Token) -> Token {
        match Planted::RestoreForgetsTokenOffset.is_on() {
            true => self.last_token,
            false => Token(first.0 - 1),
        }
    }

    /// The record in the restored table; `None`: it is dropped.
    fn restored_record(&self, record: Record, first: Token) -> Option<Record> {
        Some(match record {
            Record::Clock { now, last_token: _, last_ticket, is_behind } => Record::Clock {
                now,
                last_token: self.restored_last_token(first),
                last_ticket: Ticket(last_ticket.0.saturating_add(TOKEN_STEP)),
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
                    // A session that is over stays over: the end of its TTL may have been told.
                    deadline: match self.is_over(id) {
                        true => deadline,
                        false => Stamp(self.now.0.saturating_add(ttl.as_millis().into())),
                    },
                    opened,
                    address,
                    open: OpenIds::default(),
                    owner,
                    is_of_entries,
                    is_temporary,
                }
            }
            Record::Grant { token, session, locks, lock_delay_ms, since, revoked, revoked_by } => {
                Record::Grant { token, session: another(session), locks, lock_delay_ms, since, revoked, revoked_by }
            }
            Record::Entry { key, entry } => {
                let lease = entry.lease.map(|lease| Lease { session: another(lease.session), ..lease });
                Record::Entry { key, entry: Arc::new(Entry { lease, ..Entry::clone(&entry) }) }
            }
            Record::Resized { ref name, .. } => {
                let is_used = |lock: &Lock| lock.is_held() || lock.data().is_some();
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
            | Record::Compacted { .. }
            | Record::EntryEvent { .. } => return None,
        })
    }
}

/// The id that a session has after a restore.
fn another(id: SessionId) -> SessionId {
    SessionId({ id.0 }.wrapping_add(OTHER_ID))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL_MS: u32 = 10_000;

    /// Applies commands at a stamp.
    fn apply(machine: &mut Machine, at: u64, commands: impl IntoIterator<Item = Command>) -> Vec<Reply> {
        let time = Time { stamp: Stamp(at), wall: WallTime(at) };
        machine.apply_batch(time, Limits::default(), commands, &mut Vec::new())
    }

    fn open(id: u128) -> Command {
        let (ttl, label) = (Ttl::from_millis(TTL_MS).unwrap(), Label::new("ann").unwrap());
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

    #[test]
    fn tokens_go_on_above_the_step_or_where_the_operator_says() {
        let machine = table();
        assert_eq!(machine.last_token(), Token(2));
        for (asked, first) in
            [(None, 2 + TOKEN_STEP), (Some(Token(3)), 3), (Some(Token(FIRST_TOKEN_MAX)), FIRST_TOKEN_MAX)]
        {
            let mut restored = machine.restored(asked).unwrap();
            apply(&mut restored, 1_000, [open(3), acquire(3, 1, "c", Wait::Never)]);
            assert_eq!(restored.last_token(), Token(first));
        }
        let refused = |first| machine.restored(Some(Token(first))).unwrap_err();
        assert_eq!(refused(2), FirstTokenError::Issued { first: 2, last: 2 });
        assert_eq!(refused(FIRST_TOKEN_MAX + 1), FirstTokenError::TooHigh { first: FIRST_TOKEN_MAX + 1 });
        assert_eq!(Machine::default().restored(Some(Token(1))).unwrap().last_token(), Token(0));
    }

    #[test]
    fn no_client_keeps_its_session_and_its_locks_stay_closed_for_a_full_ttl() {
        let mut machine = table();
        // Nearly expired in the copy.
        apply(&mut machine, 1_000 + u64::from(TTL_MS) - 1, [Command::Tick]);
        let now = machine.now().0;
        let mut restored = machine.restored(None).unwrap();
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
        assert_eq!(grant.token, Token(2 + TOKEN_STEP));
    }

    #[test]
    fn restoring_again_and_again_gives_no_session_its_id_back() {
        let mut machine = table();
        for _ in 0..8 {
            machine = machine.restored(None).unwrap();
            assert!(machine.session(SessionId(1)).is_none() && machine.session(SessionId(2)).is_none());
            assert_eq!(machine.counts().grants, 2);
        }
        assert_eq!(machine.hash(), {
            let again = Machine::from_records(machine.records()).unwrap();
            again.hash()
        });
    }
}
