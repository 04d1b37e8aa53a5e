//! The histories of single protocols: a verdict for holders by each.
//!
//! Clients of several protocols may use one cluster, and each has its own way to hold a lock. A property that holds for the whole history
//! may hold because one protocol has all the evidence. So what concerns holders is checked again for each protocol that a history names,
//! with its clients alone, and with what others did to their locks.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::verdict::Property;
use crate::history::{Call, Event, Fact, History, What};

/// The properties that concern holders.
const OF_HOLDERS: [Property; 4] =
    [Property::MutualExclusion, Property::NoEarlyExpiry, Property::ExactlyOnce, Property::Told];

/// Whether a property is checked for each protocol.
pub(super) fn concerns_holders(property: Property) -> bool {
    OF_HOLDERS.contains(&property)
}

/// The history of each protocol, by its name. Lines keep their numbers.
pub(super) fn histories(history: &History) -> BTreeMap<String, History> {
    let mut processes: BTreeMap<&str, HashSet<&str>> = BTreeMap::new();
    for (_, event) in &history.events {
        if let What::Fact(Fact::Speaks { process, protocol }) = &event.what {
            processes.entry(protocol).or_default().insert(process);
        }
    }

    let of_protocol = |(protocol, processes): (&&str, &HashSet<&str>)| {
        let protocol = (*protocol).to_owned();
        (protocol, ProtocolFilter::new(history, processes).filter(history))
    };
    processes.iter().map(of_protocol).collect()
}

/// What belongs to one protocol.
struct ProtocolFilter<'h> {
    processes: &'h HashSet<&'h str>,
    locks: BTreeSet<&'h str>,
    sessions: HashSet<&'h str>,
}

impl<'h> ProtocolFilter<'h> {
    fn new(history: &'h History, processes: &'h HashSet<&'h str>) -> Self {
        let mut filter = Self { processes, locks: BTreeSet::new(), sessions: HashSet::new() };
        let of_protocol = history.events.iter().filter(|(_, event)| processes.contains(&*event.process));
        for (_, event) in of_protocol {
            if let What::Invoke(call) = &event.what {
                filter.sessions.extend(call.session().map(String::as_str));
                if let Call::Acquire(_) = call {
                    filter.locks.extend(event.locks.iter().map(String::as_str));
                }
            }
        }
        filter
    }

    fn filter(&self, history: &History) -> History {
        let mut others = HashSet::new();
        let mut events = Vec::new();
        for (line, event) in &history.events {
            let who = (&*event.process, event.op);
            let is_kept = match &event.what {
                What::Fact(fact) => self.has_fact(fact),
                What::Invoke(call) => {
                    let is_kept = self.has_call(event, call);
                    if !is_kept {
                        others.insert(who);
                    }
                    is_kept
                }
                What::Ok(_) | What::Fail { .. } | What::Info { .. } => !others.remove(&who),
            };

            if is_kept {
                events.push((*line, event.clone()));
            }
        }
        History { events }
    }

    /// Whether a call is one of the protocol's clients, or what another did to their locks without a session, or to their sessions.
    fn has_call(&self, event: &Event, call: &Call) -> bool {
        if matches!(call, Call::Txn(_)) {
            return false;
        }
        if let Call::Close { session } = call {
            return self.sessions.contains(&**session);
        }
        let concerns_locks = event.locks.iter().any(|lock| self.locks.contains(&**lock));
        self.processes.contains(&*event.process) || call.session().is_none() && concerns_locks
    }

    fn has_fact(&self, fact: &Fact) -> bool {
        match fact {
            Fact::Renewed { session, .. } | Fact::Lost { session, .. } | Fact::Bystander { session } => {
                self.sessions.contains(&**session)
            }
            Fact::Died { process } => self.processes.contains(&**process),
            Fact::Watching { .. } | Fact::Watched { .. } | Fact::WatchProgress { .. } | Fact::WatchEnded { .. } => {
                false
            }
            Fact::Meta(_)
            | Fact::Fault { .. }
            | Fact::Heal { .. }
            | Fact::Killed { .. }
            | Fact::Started { .. }
            | Fact::Stopped { .. }
            | Fact::Joined { .. }
            | Fact::Removed { .. }
            | Fact::Transferred { .. }
            | Fact::Elected { .. }
            | Fact::SnapshotInstalled { .. }
            | Fact::Table { .. }
            | Fact::Speaks { .. }
            | Fact::RefusedEntry { .. }
            | Fact::LongestTurn { .. }
            | Fact::LongestApply { .. }
            | Fact::Restored
            | Fact::End
            | Fact::Other { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Finding, Property, Verdict, check, history::History};

    const META: &str =
        r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"turn_bound_us":50}}"#;

    fn findings(events: &[&str]) -> Vec<Finding> {
        let lines = events.iter().enumerate().map(|(at, event)| format!("\n{{\"time_ns\":{},{event}}}", at + 1));
        let text = format!("{META}{}", lines.collect::<String>());
        check(&History::read(text.as_bytes()).unwrap()).unwrap()
    }

    fn verdict<'f>(findings: &'f [Finding], name: &str) -> Option<&'f Verdict> {
        findings.iter().find(|finding| finding.name() == name).map(|finding| &finding.verdict)
    }

    fn speaks(process: &str, protocol: &str) -> String {
        format!(
            r#""process":"{process}","type":"info","f":"speaks","value":{{"process":"{process}","protocol":"{protocol}"}}"#
        )
    }

    /// A process opens a session and is granted a lock.
    fn granted(process: &str, lock: &str, token: u64) -> [String; 4] {
        [
            format!(
                r#""process":"{process}","type":"invoke","f":"open","value":{{"session":"{process}","ttl_ms":1000}}"#
            ),
            format!(r#""process":"{process}","type":"ok","f":"open""#),
            format!(
                r#""process":"{process}","type":"invoke","f":"acquire","lock":"{lock}","value":{{"session":"{process}"}}"#
            ),
            format!(r#""process":"{process}","type":"ok","f":"acquire","value":{{"token":{token}}}"#),
        ]
    }

    #[test]
    fn each_protocol_has_verdicts_of_its_own() {
        let mut events = vec![speaks("ann", "etcd"), speaks("bob", "dynamodb"), speaks("cat", "dynamodb")];
        events.extend(granted("ann", "a", 1));
        events.extend(granted("bob", "b", 2));
        events.extend(granted("cat", "b", 3));
        events.push(r#""process":"bob","type":"invoke","f":"release","value":{"session":"bob","token":2}"#.to_owned());
        events.push(r#""process":"bob","type":"ok","f":"release""#.to_owned());
        let events: Vec<_> = events.iter().map(String::as_str).collect();
        let found = findings(&events);

        assert!(matches!(verdict(&found, "mutual exclusion"), Some(Verdict::Violated(_))), "{found:?}");
        assert!(matches!(verdict(&found, "mutual exclusion (dynamodb)"), Some(Verdict::Violated(_))), "{found:?}");
        assert_eq!(verdict(&found, "mutual exclusion (etcd)"), Some(&Verdict::Holds));
        assert_eq!(verdict(&found, "told (etcd)"), None, "there is no evidence");
        assert_eq!(verdict(&found, "fencing (etcd)"), None, "it does not concern holders");
    }

    #[test]
    fn an_operator_that_takes_a_lock_counts_for_the_protocol_of_its_holder() {
        let told = |lost: &str| {
            let mut events = vec![speaks("ann", "etcd")];
            events.extend(granted("ann", "a", 1));
            let forced = [
                r#""process":"op","type":"invoke","f":"force_release","lock":"a","value":{"token":1,"now":true}"#,
                r#""process":"op","type":"ok","f":"force_release","value":{"revoked":[1]}"#,
                r#""process":"ann","type":"invoke","f":"renew","value":{"session":"ann"}"#,
                lost,
                r#""process":"ann","type":"ok","f":"renew""#,
            ];
            events.extend(forced.map(str::to_owned));
            let events: Vec<_> = events.iter().map(String::as_str).collect();
            findings(&events)
        };
        let lost = r#""process":"ann","type":"info","f":"lost","value":{"session":"ann","why":"revoked","token":1}"#;
        assert_eq!(verdict(&told(lost), "told (etcd)"), Some(&Verdict::Holds));
        let other = r#""process":"ann","type":"info","f":"note""#;
        assert!(matches!(verdict(&told(other), "told (etcd)"), Some(Verdict::Violated(_))));
    }

    #[test]
    fn an_operator_that_closes_a_session_counts_for_the_protocol_of_its_holder() {
        let lost = r#""process":"ann","type":"info","f":"lost","value":{"session":"ann","why":"closed"}"#;
        let closes = r#""process":"op","type":"invoke","f":"close","value":{"session":"ann"}"#;
        let told = |before: &[&str]| {
            let mut events = vec![speaks("ann", "etcd")];
            events.extend(granted("ann", "a", 1));
            events.extend(before.iter().chain([&lost]).map(|event| (*event).to_owned()));
            let events: Vec<_> = events.iter().map(String::as_str).collect();
            findings(&events)
        };
        assert_eq!(verdict(&told(&[closes]), "no early expiry (etcd)"), Some(&Verdict::Holds));
        assert!(matches!(verdict(&told(&[]), "no early expiry (etcd)"), Some(Verdict::Violated(_))));
    }

    #[test]
    fn entries_that_are_refused_and_long_turns_are_violations() {
        let table = r#""process":"n","type":"info","f":"table","value":{"node":1,"index":7,"hash":1}"#;
        let refused = r#""process":"n","type":"info","f":"refused_entry","value":{"node":2,"index":7,"why":"unknown"}"#;
        assert_eq!(verdict(&findings(&[table]), "applicable"), Some(&Verdict::Holds));
        assert!(matches!(verdict(&findings(&[table, refused]), "applicable"), Some(Verdict::Violated(_))));
        assert_eq!(verdict(&findings(&[]), "applicable"), None);

        let turn = |us: u64| {
            format!(r#""process":"n","type":"info","f":"longest_turn","value":{{"node":1,"runtime":"raft","us":{us}}}"#)
        };
        assert_eq!(verdict(&findings(&[&turn(50)]), "bounded"), Some(&Verdict::Holds));
        let found = findings(&[&turn(51)]);
        let Some(Verdict::Violated(violations)) = verdict(&found, "bounded") else { panic!("{found:?}") };
        assert_eq!(
            violations.shown[0].says,
            "node 1: a turn of the runtime \"raft\" took 51 us, and the bound is 50 us"
        );
        // Without a bound in the meta, a measurement proves nothing.
        let apply = r#""process":"n","type":"info","f":"longest_apply","value":{"node":1,"us":9}"#;
        assert_eq!(verdict(&findings(&[apply]), "bounded"), None);
        assert_eq!(Property::Bounded.name(), "bounded");
    }
}
