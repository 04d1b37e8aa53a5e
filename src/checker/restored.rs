//! Histories of clusters that were lost and made anew from a backup.
//!
//! The new cluster knows nothing that was granted, released or opened after the backup, so most properties of one cluster do not hold
//! across the loss. Two kinds must hold. Resources rely on tokens: they rise, none is granted twice, and fences refuse the old ones.
//! Holders rely on their deadlines: nobody else has the lock before, because a restored cluster grants nothing for that time. All other
//! properties are checked for the time before and the time after, each as a history of its own.

use std::collections::HashSet;

use super::verdict::{Finding, Verdict, Violations};
use crate::history::{Answer, Event, Fact, Function, History, View, What};

/// The parts of the history between the losses, or one part if there was none. Lines keep their numbers.
///
/// An operation in flight at a loss has an unknown outcome before it, and is left out after it. Locks and sessions that were known before a
/// loss are left out after it too, because it cannot be told what the backup knew of them.
pub(super) fn parts(history: &History) -> Vec<History> {
    let mut parts = vec![Vec::new()];
    for (line, event) in &history.events {
        if matches!(event.what, What::Fact(Fact::Restored)) {
            parts.push(history.events.first().cloned().into_iter().collect());
        }
        parts.last_mut().expect("one from the begin on").push((*line, event.clone()));
    }

    let mut known = EarlierNames::default();

    let mut judged = |(part, events): (usize, Vec<(usize, Event)>)| {
        let events = known.without(events);
        let events = if part > 0 { without_closed(events) } else { events };
        History { events }
    };

    parts.into_iter().enumerate().map(&mut judged).collect()
}

/// Gives acquires that were refused before the first grant an unknown outcome. A restored cluster grants nothing for some time, so until it
/// has granted a lock, a lock that is busy need not be held.
fn without_closed(mut events: Vec<(usize, Event)>) -> Vec<(usize, Event)> {
    let is_grant = |(_, event): &(usize, Event)| matches!(event.what, What::Ok(Answer::Acquire { .. }));
    let opened = events.iter().position(is_grant).unwrap_or(events.len());
    let mut sent = HashSet::new();

    for (place, (_, event)) in events.iter_mut().enumerate() {
        let who = (event.process.clone(), event.op);
        if let What::Invoke(call) = &event.what {
            if place < opened && call.function() == Function::Acquire {
                sent.insert(who);
            }
        } else if let What::Fail { f, .. } = event.what
            && sent.remove(&who)
        {
            event.what = What::Info { f, why: "the cluster was restored".to_owned() };
        } else if let What::Ok(_) | What::Info { .. } = event.what {
            sent.remove(&who);
        }
    }

    events
}

/// The whole history, for properties that must hold across a loss. Of what reads show after it only the highest token is left: a restored
/// session has another id, so a read shows its tokens with another owner.
pub(super) fn across(history: &History) -> History {
    let mut is_restored = false;
    let blinded = |(line, event): &(usize, Event)| {
        is_restored |= matches!(event.what, What::Fact(Fact::Restored));
        let What::Ok(Answer::Get(view)) = &event.what else { return (*line, event.clone()) };
        if !is_restored {
            return (*line, event.clone());
        }

        let tokens = view.holders.iter().map(|holder| holder.token);
        let last_token = tokens.chain(view.last_token).max();
        let what = What::Ok(Answer::Get(View { last_token, ..View::default() }));
        (*line, Event { what, ..event.clone() })
    };
    History { events: history.events.iter().map(blinded).collect() }
}

/// The names in earlier parts.
#[derive(Default)]
struct EarlierNames {
    locks: HashSet<String>,
    sessions: HashSet<String>,
    /// The operations without an end, each by its process and number.
    open: HashSet<(String, Option<u64>)>,
}

impl EarlierNames {
    /// Returns the events that concern nothing known, and then adds the names in all events to the known ones.
    fn without(&mut self, events: Vec<(usize, Event)>) -> Vec<(usize, Event)> {
        self.spread(&events);

        // The operations that end in this part, and whose start is left out or lies in an earlier part.
        let mut left_out = std::mem::take(&mut self.open);
        let mut begun = HashSet::new();
        let mut kept = Vec::with_capacity(events.len());

        for (line, event) in &events {
            let who = (event.process.clone(), event.op);
            let is_kept = match &event.what {
                What::Invoke(_) if self.concerns(event) => {
                    left_out.insert(who);
                    false
                }
                What::Invoke(_) => {
                    begun.insert(who);
                    true
                }
                What::Ok(_) | What::Fail { .. } | What::Info { .. } => {
                    begun.remove(&who);
                    !left_out.remove(&who)
                }
                What::Fact(Fact::Renewed { session, .. } | Fact::Lost { session, .. }) => {
                    !self.sessions.contains(&**session)
                }
                What::Fact(_) => true,
            };

            if is_kept {
                kept.push((*line, event.clone()));
            }
        }

        self.open = begun.into_iter().chain(left_out).collect();

        for (_, event) in &events {
            if let What::Invoke(call) = &event.what {
                self.locks.extend(event.locks.iter().cloned());
                let opened = call.session().filter(|_| call.function() == Function::Open);
                self.sessions.extend(opened.map(|session| session.to_string()));
            }
        }
        kept
    }

    /// Adds locks that are acquired together with a known one: their grant cannot be judged.
    fn spread(&mut self, events: &[(usize, Event)]) {
        loop {
            let before = self.locks.len();
            for (_, event) in events {
                if matches!(event.what, What::Invoke(_)) && self.concerns(event) {
                    self.locks.extend(event.locks.iter().cloned());
                }
            }

            if self.locks.len() == before {
                return;
            }
        }
    }

    /// Whether the event is about a known lock or session.
    fn concerns(&self, event: &Event) -> bool {
        let What::Invoke(call) = &event.what else { return false };
        event.locks.iter().any(|lock| self.locks.contains(lock))
            || call.session().is_some_and(|session| self.sessions.contains(&**session))
    }
}

/// Merges the findings about the parts, in their order.
pub(super) fn merged(findings: Vec<Finding>) -> Option<Finding> {
    findings.into_iter().reduce(|mut all, next| {
        for (what, count) in next.evidence {
            match all.evidence.iter_mut().find(|(known, _)| *known == what) {
                Some((_, number)) => *number += count,
                None => all.evidence.push((what, count)),
            }
        }
        all.verdict = worse(all.verdict, next.verdict);
        all
    })
}

/// Merges two verdicts. A violation counts before a doubt, and any evidence before none.
fn worse(one: Verdict, other: Verdict) -> Verdict {
    match (one, other) {
        (Verdict::Violated(mut all), Verdict::Violated(Violations { shown, count })) => {
            all.shown.extend(shown);
            all.count += count;
            Verdict::Violated(all)
        }
        (found @ Verdict::Violated(_), _) | (_, found @ Verdict::Violated(_)) => found,
        (doubt @ Verdict::Undecided(_), _) | (_, doubt @ Verdict::Undecided(_)) => doubt,
        (Verdict::Holds, _) | (_, Verdict::Holds) => Verdict::Holds,
        (Verdict::Vacuous, Verdict::Vacuous) => Verdict::Vacuous,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Property, check};

    /// One line for each event, a nanosecond apart; `$` is a session that is opened first.
    fn findings(events: &[&str]) -> Vec<Finding> {
        let mut text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#.to_owned();
        for (at, event) in events.iter().enumerate() {
            text.push_str(&format!("\n{{\"time_ns\":{},{event}}}", at + 1));
        }
        check(&History::read(text.as_bytes()).unwrap()).unwrap()
    }

    fn verdict(findings: &[Finding], property: Property) -> Verdict {
        findings.iter().find(|finding| finding.property == property).unwrap().verdict.clone()
    }

    const OPENED: [&str; 4] = [
        r#""process":"ann","type":"invoke","f":"open","value":{"session":"s1","ttl_ms":1000}"#,
        r#""process":"ann","type":"ok","f":"open""#,
        r#""process":"ann","type":"invoke","f":"acquire","lock":"a","value":{"session":"s1"}"#,
        r#""process":"ann","type":"ok","f":"acquire","value":{"token":5}"#,
    ];
    const RESTORED: &str = r#""process":"nemesis","type":"info","f":"restored""#;
    const OPENED_AGAIN: [&str; 3] = [
        r#""process":"bob","type":"invoke","f":"open","value":{"session":"s2","ttl_ms":1000}"#,
        r#""process":"bob","type":"ok","f":"open""#,
        r#""process":"bob","type":"invoke","f":"acquire","lock":"a","value":{"session":"s2"}"#,
    ];

    /// The holder does not know of the loss, and trusts its lock for its TTL of a second.
    #[test]
    fn a_lock_that_is_granted_before_the_deadline_of_its_holder_is_held_twice_across_the_loss() {
        let granted_after = |ns: u64| {
            let mut text =
                r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#.to_owned();
            let granted = r#""process":"bob","type":"ok","f":"acquire","value":{"token":1000}"#;
            let before = OPENED.iter().chain([&RESTORED]).map(|event| (0, *event));
            let after = OPENED_AGAIN.iter().chain([&granted]).map(|event| (ns, *event));
            for (at, (ns, event)) in before.chain(after).enumerate() {
                text.push_str(&format!("\n{{\"time_ns\":{},{event}}}", ns + at as u64 + 1));
            }
            check(&History::read(text.as_bytes()).unwrap()).unwrap()
        };
        let early = granted_after(999_000_000);
        assert!(matches!(verdict(&early, Property::NoEarlyExpiry), Verdict::Violated(_)), "{early:?}");
        let found = granted_after(1_000_000_000);
        assert_eq!(verdict(&found, Property::NoEarlyExpiry), Verdict::Holds);
        assert_eq!(verdict(&found, Property::MutualExclusion), Verdict::Holds);
    }

    /// What is read after a loss is of the new cluster, where tokens rise and have one owner as well.
    #[test]
    fn what_is_read_after_a_loss_is_evidence_about_tokens() {
        let opened = [
            r#""process":"bob","type":"invoke","f":"open","value":{"session":"s2","ttl_ms":1000}"#,
            r#""process":"bob","type":"ok","f":"open""#,
        ];
        let acquired = |token: u64| {
            [
                r#""process":"bob","type":"invoke","f":"acquire","lock":"n","value":{"session":"s2"}"#.to_owned(),
                format!(r#""process":"bob","type":"ok","f":"acquire","value":{{"token":{token}}}"#),
            ]
        };
        let read = |token: u64, session: &str| {
            [
                r#""process":"cat","type":"invoke","f":"get","lock":"n""#.to_owned(),
                format!(
                    r#""process":"cat","type":"ok","f":"get","value":{{"holders":[{{"token":{token},"session":"{session}"}}]}}"#
                ),
            ]
        };
        let story = |after: [[String; 2]; 2]| {
            let after: Vec<_> = after.iter().flatten().map(String::as_str).collect();
            findings(&[&OPENED[..], &[RESTORED], &opened, &after].concat())
        };

        let right = story([acquired(1_000), read(1_000, "s2")]);
        assert_eq!(verdict(&right, Property::NoTokenTwice), Verdict::Holds);
        assert_eq!(verdict(&right, Property::TokenOrder), Verdict::Holds);
        let other_owner = story([acquired(1_000), read(1_000, "s3")]);
        assert!(matches!(verdict(&other_owner, Property::NoTokenTwice), Verdict::Violated(_)), "{other_owner:?}");
        let lower = story([read(2_000, "s3"), acquired(1_000)]);
        assert!(matches!(verdict(&lower, Property::TokenOrder), Verdict::Violated(_)), "{lower:?}");
    }

    #[test]
    fn what_the_backup_lacks_is_no_violation_and_a_token_that_does_not_rise_is() {
        let granted = |token| {
            let granted = format!(r#""process":"bob","type":"ok","f":"acquire","value":{{"token":{token}}}"#);
            let events = [&OPENED[..], &[RESTORED], &OPENED_AGAIN, &[&granted]].concat();
            findings(&events)
        };
        assert_eq!(verdict(&granted(1_000), Property::TokenOrder), Verdict::Holds);
        for (token, property) in [(4, Property::TokenOrder), (5, Property::NoTokenTwice)] {
            assert!(matches!(verdict(&granted(token), property), Verdict::Violated(_)), "{token}");
        }
        let same_cluster =
            [&OPENED[..], &OPENED_AGAIN, &[r#""process":"bob","type":"ok","f":"acquire","value":{"token":6}"#]];
        let found = findings(&same_cluster.concat());
        assert!(matches!(verdict(&found, Property::NoEarlyExpiry), Verdict::Violated(_)), "{found:?}");
    }

    #[test]
    fn a_lock_that_is_busy_before_the_first_grant_need_not_be_held() {
        let asked = |lock: &str| {
            format!(
                r#""process":"bob","type":"invoke","f":"acquire","lock":"{lock}","value":{{"session":"s2","wait":"none"}}"#
            )
        };
        let one = asked("b");
        let other = asked("c");
        let last = asked("d");
        let busy = r#""process":"bob","type":"fail","f":"acquire","value":{"reason":"busy"}"#;
        let granted = r#""process":"bob","type":"ok","f":"acquire","value":{"token":1000}"#;
        let closed = [&OPENED_AGAIN[..2], &[&one, busy]].concat();
        let restored = [&[RESTORED], &closed[..]].concat();
        let is_violated =
            |events: &[&str]| matches!(verdict(&findings(events), Property::Linearizability), Verdict::Violated(_));
        assert!(!is_violated(&restored));
        assert!(is_violated(&closed), "without a restore it is one");
        assert!(is_violated(&[&restored[..], &[&other, granted, &last, busy]].concat()), "it has opened by then");
    }

    #[test]
    fn a_restored_session_has_another_id() {
        let events = [
            &OPENED[..],
            &[
                RESTORED,
                r#""process":"bob","type":"invoke","f":"get","lock":"a""#,
                r#""process":"bob","type":"ok","f":"get","value":{"holders":[{"token":5,"session":"other"}]}"#,
            ],
        ];
        let found = findings(&events.concat());
        assert_eq!(verdict(&found, Property::NoTokenTwice), Verdict::Holds, "{found:?}");
        let same_cluster = [&OPENED[..], &events[1][1..]].concat();
        assert!(matches!(verdict(&findings(&same_cluster), Property::NoTokenTwice), Verdict::Violated(_)));
    }

    #[test]
    fn violations_before_and_after_are_found_with_their_lines() {
        let twice = |lock: &str, process: &str, session: &str, token: u64| {
            [
                format!(
                    r#""process":"{process}","type":"invoke","f":"open","value":{{"session":"{session}","ttl_ms":1000}}"#
                ),
                format!(r#""process":"{process}","type":"ok","f":"open""#),
                format!(
                    r#""process":"{process}","type":"invoke","f":"acquire","lock":"{lock}","value":{{"session":"{session}"}}"#
                ),
                format!(r#""process":"{process}","type":"ok","f":"acquire","value":{{"token":{token}}}"#),
            ]
        };
        let before = [twice("a", "ann", "s1", 1), twice("a", "bob", "s2", 2)].concat();
        let after = [twice("b", "cid", "s3", 1_001), twice("b", "dan", "s4", 1_002)].concat();
        let events: Vec<&str> =
            before.iter().map(String::as_str).chain([RESTORED]).chain(after.iter().map(String::as_str)).collect();
        let Verdict::Violated(found) = verdict(&findings(&events), Property::NoEarlyExpiry) else {
            panic!("no violation")
        };
        assert_eq!(found.count, 2, "{found:?}");
        assert!(found.shown[0].lines.iter().all(|line| *line <= 9), "{found:?}");
        assert!(found.shown[1].lines.iter().all(|line| *line >= 11), "{found:?}");
    }

    #[test]
    fn an_operation_that_was_under_way_and_earlier_sessions_are_left_out() {
        let events = [
            &OPENED[..2],
            &[
                r#""process":"ann","type":"invoke","f":"acquire","lock":"a","value":{"session":"s1"}"#,
                RESTORED,
                r#""process":"ann","type":"fail","f":"acquire","value":{"reason":"session_unknown"}"#,
                r#""process":"ann","type":"invoke","f":"acquire","lock":["b","c"],"value":{"session":"s1"}"#,
                r#""process":"ann","type":"fail","f":"acquire","value":{"reason":"session_unknown"}"#,
                r#""process":"ann","type":"invoke","f":"get","lock":"c""#,
                r#""process":"ann","type":"ok","f":"get","value":{"holders":[{"token":9,"session":"s9"}]}"#,
                r#""process":"ann","type":"info","f":"lost","value":{"session":"s1","why":"unknown"}"#,
            ],
        ];
        let found = findings(&events.concat());
        assert!(!found.iter().any(|finding| matches!(finding.verdict, Verdict::Violated(_))), "{found:?}");
        let text = events.concat();
        let again = [&text[..3], &text[4..]].concat();
        let found = findings(&again);
        let lost = |finding: &Finding| matches!(finding.verdict, Verdict::Violated(_));
        assert!(found.iter().any(lost), "without a restore it is one: {found:?}");
    }
}
