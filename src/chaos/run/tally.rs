//! How much happened: a run in which nothing did has shown nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::chaos::history::{Answer, Call, Ended, Fact, History, Operation, ReadError, What, operations};

/// What was seen, and how often.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// That were begun.
    pub operations: u64,
    /// Acquires that were granted.
    pub grants: u64,
    /// Grants of a lock that another session had before.
    pub hand_overs: u64,
    /// Sessions that the cluster said to be expired, or whose process died.
    pub expiries: u64,
    /// Grants of a lock that a client had in its hands when it was killed.
    pub inherited: u64,
    /// Nodes that said that they lead, each term once.
    pub elections: u64,
    /// By followers, from their leader.
    pub snapshots_installed: u64,
    /// Nodes that were killed.
    pub nodes_killed: u64,
    /// Clients that were killed.
    pub clients_killed: u64,
    /// Each fault that began, by name.
    pub faults: BTreeMap<String, u64>,
}

impl Tally {
    /// Of a history. Fails as [`operations`] does.
    pub fn of(history: &History) -> Result<Self, ReadError> {
        let mut tally = Self::default();
        let mut expired: HashSet<&str> = HashSet::new();
        for (_, event) in &history.events {
            if let What::Fact(fact) = &event.what {
                tally.tell(fact, &mut expired);
            }
        }
        let operations = operations(history)?;
        tally.operations = operations.len() as u64;
        let mut grants: HashMap<&str, Vec<Grant<'_>>> = HashMap::new();
        for operation in &operations {
            if let Some(grant) = Grant::of(operation) {
                tally.grants += 1;
                operation.locks.iter().for_each(|lock| grants.entry(lock).or_default().push(grant));
            }
            if let (Some(session), Ended::Fail("session_expired" | "session_unknown")) =
                (operation.call.session(), operation.ended)
            {
                expired.insert(session);
            }
        }
        tally.expiries = expired.len() as u64;
        let ended = Over::of(history, &operations);
        for grants in grants.values_mut() {
            grants.sort_unstable_by_key(|grant| grant.token);
            let pairs = || grants.windows(2).map(|pair| (pair[0], pair[1]));
            tally.hand_overs += pairs().filter(|(one, next)| one.session != next.session).count() as u64;
            tally.inherited += pairs().filter(|(one, _)| ended.died_with(one)).count() as u64;
        }
        Ok(tally)
    }

    fn tell<'h>(&mut self, fact: &'h Fact, expired: &mut HashSet<&'h str>) {
        match fact {
            Fact::Lost { session, why, token: None } if why == "expired" || why == "unknown" => {
                expired.insert(session);
            }
            Fact::Died { .. } => self.clients_killed += 1,
            Fact::Fault { name } => *self.faults.entry(name.clone()).or_default() += 1,
            Fact::Killed { .. } => self.nodes_killed += 1,
            Fact::Elected { .. } => self.elections += 1,
            Fact::SnapshotInstalled { .. } => self.snapshots_installed += 1,
            Fact::Meta(_)
            | Fact::Renewed { .. }
            | Fact::Lost { .. }
            | Fact::Heal { .. }
            | Fact::Started { .. }
            | Fact::Table { .. }
            | Fact::End
            | Fact::Other { .. } => {}
        }
    }

    /// What did not happen, although it does in any run that is worth something.
    pub fn missing(&self) -> Vec<&'static str> {
        let counts = [
            (self.grants, "no lock was granted"),
            (self.hand_overs, "no lock passed from one session to another"),
            (self.expiries, "no session expired"),
            (self.inherited, "no lock of a client that was killed passed on"),
            (self.elections, "no election was seen"),
        ];
        counts.iter().filter(|(count, _)| *count == 0).map(|(_, what)| *what).collect()
    }
}

/// A grant, as its holder was told of it.
#[derive(Clone, Copy)]
struct Grant<'h> {
    token: u64,
    session: &'h str,
    process: &'h str,
}

impl<'h> Grant<'h> {
    fn of(operation: &Operation<'h>) -> Option<Self> {
        let Call::Acquire(acquire) = operation.call else { return None };
        let Ended::Ok(Answer::Acquire { token, .. }) = operation.ended else { return None };
        Some(Self { token: *token, session: &acquire.session, process: operation.process })
    }
}

/// Who died, and what was over before: grants that somebody began to give back, sessions that somebody began to close.
struct Over<'h> {
    dead: HashSet<&'h str>,
    released: HashSet<u64>,
    closed: HashSet<&'h str>,
}

impl<'h> Over<'h> {
    fn of(history: &'h History, operations: &[Operation<'h>]) -> Self {
        let dead = history.events.iter().filter_map(|(_, event)| match &event.what {
            What::Fact(Fact::Died { process }) => Some(&**process),
            What::Fact(_) | What::Invoke(_) | What::Ok(_) | What::Fail { .. } | What::Info { .. } => None,
        });
        let mut over = Self { dead: dead.collect(), released: HashSet::new(), closed: HashSet::new() };
        for operation in operations {
            if let Call::Release { token, .. } = operation.call {
                over.released.insert(*token);
            } else if let Call::Close { session } = operation.call {
                over.closed.insert(session);
            }
        }
        over
    }

    fn died_with(&self, grant: &Grant<'_>) -> bool {
        let let_go = self.released.contains(&grant.token) || self.closed.contains(grant.session);
        self.dead.contains(grant.process) && !let_go
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_anything_says_what_is_missing() {
        let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
{"time_ns":1,"process":"a","type":"invoke","f":"acquire","lock":"x","value":{"session":"s"}}
{"time_ns":2,"process":"a","type":"ok","f":"acquire","value":{"token":1}}
{"time_ns":3,"process":"nemesis","type":"info","f":"died","value":{"process":"a"}}
{"time_ns":3,"process":"b","type":"invoke","f":"acquire","lock":"x","value":{"session":"t"}}
{"time_ns":4,"process":"b","type":"ok","f":"acquire","value":{"token":2}}
{"time_ns":5,"process":"nemesis","type":"info","f":"fault","value":{"name":"delay"}}"#;
        let tally = Tally::of(&History::read(text.as_bytes()).unwrap()).unwrap();
        assert_eq!((tally.operations, tally.grants, tally.hand_overs, tally.inherited), (2, 2, 1, 1));
        assert_eq!(tally.faults, BTreeMap::from([("delay".to_owned(), 1)]));
        assert_eq!(tally.missing(), ["no session expired", "no election was seen"]);
    }
}
