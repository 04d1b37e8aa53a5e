//! Whether enough happened: a run in which nothing did has shown nothing.

use std::collections::{HashMap, HashSet};

use crate::chaos::{
    history::{Answer, Call, Ended, Fact, History, Operation, ReadError, What, operations},
    report::Summary,
};

/// How often a lock passed on that a client had in its hands when it was killed. Fails as [`operations`] does.
pub fn inherited(history: &History) -> Result<usize, ReadError> {
    let operations = operations(history)?;
    let over = Over::of(history, &operations);
    let mut grants: HashMap<&str, Vec<Grant<'_>>> = HashMap::new();
    for operation in &operations {
        if let Some(grant) = Grant::of(operation) {
            operation.locks.iter().for_each(|lock| grants.entry(lock).or_default().push(grant));
        }
    }
    let passed_on = |grants: &mut Vec<Grant<'_>>| {
        grants.sort_unstable_by_key(|grant| grant.token);
        grants.windows(2).filter(|pair| over.died_with(&pair[0])).count()
    };
    Ok(grants.values_mut().map(passed_on).sum())
}

/// What did not happen, although it does in any run that is worth something.
pub fn missing(summary: &Summary, inherited: usize) -> Vec<&'static str> {
    let counts = [
        (summary.grants, "no lock was granted"),
        (summary.hand_overs, "no lock passed from one session to another"),
        (summary.expiries, "no session expired"),
        (inherited, "no lock of a client that was killed passed on"),
        (summary.elections, "no election was seen"),
        (summary.faults.len(), "there was no fault"),
    ];
    counts.iter().filter(|(count, _)| *count == 0).map(|(_, what)| *what).collect()
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
    use crate::chaos::report::{About, Report};

    #[test]
    fn a_run_without_anything_says_what_is_missing() {
        let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
{"time_ns":1,"process":"a","type":"invoke","f":"open","value":{"session":"s","ttl_ms":9000}}
{"time_ns":1,"process":"a","type":"ok","f":"open","value":{"ttl_ms":9000}}
{"time_ns":1,"process":"b","type":"invoke","f":"open","value":{"session":"t","ttl_ms":9000}}
{"time_ns":1,"process":"b","type":"ok","f":"open","value":{"ttl_ms":9000}}
{"time_ns":1,"process":"a","type":"invoke","f":"acquire","lock":"x","value":{"session":"s"}}
{"time_ns":2,"process":"a","type":"ok","f":"acquire","value":{"token":1}}
{"time_ns":3,"process":"nemesis","type":"info","f":"died","value":{"process":"a"}}
{"time_ns":3,"process":"b","type":"invoke","f":"acquire","lock":"x","value":{"session":"t"}}
{"time_ns":9000000004,"process":"b","type":"ok","f":"acquire","value":{"token":2}}
{"time_ns":9000000005,"process":"nemesis","type":"info","f":"fault","value":{"name":"delay"}}"#;
        let history = History::read(text.as_bytes()).unwrap();
        let report = Report::of(&history, About::default(), Vec::new()).unwrap();
        let inherited = inherited(&history).unwrap();
        assert_eq!(inherited, 1);
        assert_eq!(missing(report.summary(), inherited), ["no election was seen"]);
        assert!(missing(&Summary::default(), 0).len() == 6);
    }
}
