//! How much happened: a run in which nothing did has shown nothing.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::chaos::history::{Answer, Call, Ended, Fact, History, ReadError, What, operations};

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
        let mut grants: HashMap<&str, Vec<(u64, &str)>> = HashMap::new();
        for operation in operations(history)? {
            tally.operations += 1;
            if let (Call::Acquire(acquire), Ended::Ok(Answer::Acquire { token, .. })) =
                (operation.call, operation.ended)
            {
                tally.grants += 1;
                for lock in operation.locks {
                    grants.entry(lock).or_default().push((*token, &acquire.session));
                }
            }
            if let (Some(session), Ended::Fail("session_expired" | "session_unknown")) =
                (operation.call.session(), operation.ended)
            {
                expired.insert(session);
            }
        }
        tally.expiries += expired.len() as u64;
        tally.hand_overs = grants.values_mut().map(hand_overs).sum();
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
            (self.elections, "no election was seen"),
        ];
        counts.iter().filter(|(count, _)| *count == 0).map(|(_, what)| *what).collect()
    }
}

/// How often the session changed, in the order of the tokens.
fn hand_overs(grants: &mut Vec<(u64, &str)>) -> u64 {
    grants.sort_unstable();
    grants.windows(2).filter(|pair| pair[0].1 != pair[1].1).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_anything_says_what_is_missing() {
        let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
{"time_ns":1,"process":"a","type":"invoke","f":"acquire","lock":"x","value":{"session":"s"}}
{"time_ns":2,"process":"a","type":"ok","f":"acquire","value":{"token":1}}
{"time_ns":3,"process":"b","type":"invoke","f":"acquire","lock":"x","value":{"session":"t"}}
{"time_ns":4,"process":"b","type":"ok","f":"acquire","value":{"token":2}}
{"time_ns":5,"process":"nemesis","type":"info","f":"fault","value":{"name":"delay"}}"#;
        let tally = Tally::of(&History::read(text.as_bytes()).unwrap()).unwrap();
        assert_eq!((tally.operations, tally.grants, tally.hand_overs), (2, 2, 1));
        assert_eq!(tally.faults, BTreeMap::from([("delay".to_owned(), 1)]));
        assert_eq!(tally.missing(), ["no session expired", "no election was seen"]);
    }
}
