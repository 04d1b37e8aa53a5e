//! What the limits of nodes have refused must not have happened.
//!
//! Each request of a crowd puts a key, or asks for a lock by a session, that no other request does. So one look at the events, or at a
//! table, tells whether it had an effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard},
};

use lockkeeper::machine::{Key, Machine, Page, Revision, SessionId, Ticket, Token};

use crate::keyspace::truth::Truth;

/// Locks that crowds ask for begin so.
pub(super) const CROWD_LOCKS: &str = "crowd/";
/// Complaints that are shown of each kind.
const SHOWN_MAX: usize = 3;

/// Collects what crowds were told.
#[derive(Default, Debug)]
pub(crate) struct RefusalJudge(Mutex<Told>);

#[derive(Default, Debug)]
struct Told {
    /// Keys whose puts were refused without effect.
    unmade: Vec<Key>,
    /// Keys whose puts took effect, with their revisions.
    made: Vec<(Key, Revision)>,
    /// Keys whose puts took effect, at some revision.
    made_once: Vec<Key>,
    /// Locks that were refused to sessions without effect.
    ungranted: BTreeSet<(String, SessionId)>,
    counts: BTreeMap<&'static str, u64>,
    complaints: Vec<String>,
}

impl RefusalJudge {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.lock().expect("nothing panics while it has what was told")
    }

    /// The put of this key was refused without effect.
    pub(super) fn unmade(&self, key: Key) {
        let mut told = self.told();
        told.unmade.push(key);
        *told.counts.entry("puts of crowds without effect").or_default() += 1;
    }

    /// The put of this key took effect.
    pub(super) fn made(&self, key: Key, revision: Revision) {
        let mut told = self.told();
        told.made.push((key, revision));
        *told.counts.entry("puts of crowds").or_default() += 1;
    }

    /// The put of this key took effect, at some revision.
    pub(super) fn made_once(&self, key: Key) {
        let mut told = self.told();
        told.made_once.push(key);
        *told.counts.entry("puts of crowds").or_default() += 1;
    }

    /// Notes an answer that cannot be.
    pub(super) fn complain(&self, what: String) {
        self.told().complaints.push(what);
    }

    /// This lock was refused to this session without effect.
    pub(super) fn ungranted(&self, name: String, session: SessionId) {
        let mut told = self.told();
        told.ungranted.insert((name, session));
        *told.counts.entry("acquires of crowds without effect").or_default() += 1;
    }

    /// How much was told.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        self.told().counts.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect()
    }

    /// Fails if a session holds a lock, or waits for one, that was refused to it.
    pub(crate) fn check(&self, machine: &Machine) -> Result<(), String> {
        let told = self.told();
        if told.ungranted.is_empty() {
            return Ok(());
        }

        for name in machine.locks(CROWD_LOCKS, None) {
            let page = Page { size: usize::MAX, holders_after: Token(0), waiters_after: Ticket(0) };
            let lock = machine.lock(name, page);
            let holders = lock.holders.iter().map(|holder| holder.session);
            let mut all = holders.chain(lock.waiters.iter().map(|waiter| waiter.session));
            let refused = |session: &SessionId| told.ungranted.contains(&(name.as_str().to_owned(), *session));
            if let Some(session) = all.find(refused) {
                return Err(format!("{session} has {name}, or waits for it, which was refused to it"));
            }
        }
        Ok(())
    }

    /// What cannot have been, by the events that there were.
    pub(crate) fn complaints(&self, truth: &Truth) -> Vec<String> {
        let told = self.told();
        let unmade = told.unmade.iter().filter(|key| truth.has(key));
        let unmade = unmade.map(|key| format!("the put of {key:?} was refused without effect, and took effect"));
        let is_lost = |(key, revision): &&(Key, Revision)| {
            truth.is_whole(Revision(revision.0.saturating_sub(1)), *revision) && truth.event(key, *revision).is_none()
        };
        let lost = told.made.iter().filter(is_lost);
        let lost = lost.map(|(key, revision)| format!("the put of {key:?} took effect at {revision:?}, and did not"));
        let gone = told.made_once.iter().filter(|key| !truth.has_gaps() && !truth.has(key));
        let gone = gone.map(|key| format!("the put of {key:?} took effect, and there is no event of it"));
        let complaints = told.complaints.iter().take(SHOWN_MAX).cloned();
        complaints.chain(unmade.take(SHOWN_MAX)).chain(lost.take(SHOWN_MAX)).chain(gone.take(SHOWN_MAX)).collect()
    }
}
