//! What clients were told, against the lines of the audit trails.
//!
//! Each acquire, release and forced release that the history reports as done must be in the trail: with its lock, its token and its
//! session, and each grant once. So must the end of each session that was closed. Holders that speak another protocol hold by an entry:
//! their grants are looked for by token, and by the beginning that all names of the protocol's locks have.
//!
//! A cluster that is lost may have told clients of lines that no disk has. These are excused by the time of the answer. What happened
//! before the trail began has no lines.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    time::Duration,
};

use lockkeeper::chaos::history::{Acquire, Answer, Call, Ended, Fact, History, Operation, What, operations};
use lockkeeper_audit::{AuditEvent, AuditLine, Session};

use super::{TrailCount, TrailFindings};

/// A lock, and the token of a grant of it.
type GrantKey = (u64, String);

/// The lines of all trails of a run, by what clients may have been told of them.
#[derive(Default, Debug)]
pub(super) struct TrailLines {
    /// The last token that was issued before the first line of all.
    issued_before: Option<u64>,
    granted: BTreeMap<GrantKey, Vec<GrantLine>>,
    /// Grants that were released, with the sessions that held them.
    released: BTreeMap<GrantKey, Session>,
    /// Grants that were lost or revoked.
    taken: BTreeSet<GrantKey>,
    forced: BTreeMap<String, Vec<ForcedLine>>,
    opened: BTreeSet<Session>,
    ended: BTreeSet<Session>,
}

/// What a line says of a grant.
#[derive(Debug)]
struct GrantLine {
    session: Session,
    is_of_entry: bool,
}

/// What a line says of an operator's act.
#[derive(Debug)]
struct ForcedLine {
    token: Option<u64>,
    is_now: bool,
    count: u64,
}

impl TrailLines {
    /// Adds a line. Those of one trail come in their order, those of an earlier cluster before those of a later one.
    pub(super) fn add(&mut self, line: &AuditLine<'_>) {
        let session = line.session.unwrap_or(Session::NONE);
        let lock = line.lock.as_deref().unwrap_or_default().to_owned();
        let grant = (line.token.unwrap_or_default(), lock);

        match line.what {
            AuditEvent::Begun | AuditEvent::Restored => {
                self.issued_before.get_or_insert(grant.0);
            }
            AuditEvent::SessionOpened => {
                self.opened.insert(session);
            }
            AuditEvent::SessionEnded => {
                self.ended.insert(session);
            }
            AuditEvent::Granted => {
                let is_of_entry = line.kind.is_some();
                self.granted.entry(grant).or_default().push(GrantLine { session, is_of_entry });
            }
            AuditEvent::Released => {
                // A cluster from a backup may end the same grant again, under another session.
                self.released.entry(grant).or_insert(session);
            }
            AuditEvent::Lost | AuditEvent::Revoked => {
                self.taken.insert(grant);
            }
            AuditEvent::ForcedRelease => {
                let is_now = line.how.as_deref() == Some("now");
                let count = line.count.unwrap_or_default();
                self.forced.entry(grant.1).or_default().push(ForcedLine { token: line.token, is_now, count });
            }
            AuditEvent::OwnerSet
            | AuditEvent::Queued
            | AuditEvent::Left
            | AuditEvent::WaiterRemoved
            | AuditEvent::DelayLifted
            | AuditEvent::DataDropped
            | AuditEvent::Resized
            | AuditEvent::MemberChanged
            | AuditEvent::MemberRemoved
            | AuditEvent::VersionRaised
            | AuditEvent::Note => {}
        }
    }

    /// Judges a history. In the `excused` times, clients may have been told of lines that are in no file.
    pub(super) fn judge(
        &self,
        history: &History,
        excused: &[RangeInclusive<Duration>],
        findings: &mut TrailFindings,
    ) -> Result<(), String> {
        let Some(issued_before) = self.issued_before else { return Ok(()) };
        let operations = operations(history).map_err(|error| error.to_string())?;
        let protocols = protocols(history);

        let lost_ns = lost_ns(history);
        let mut judgement = Judgement { lines: self, issued_before, lost_ns, findings };
        for operation in &operations {
            let Ended::Ok(answer) = operation.ended else { continue };
            let at = Duration::from_nanos(operation.ended_ns);
            if excused.iter().any(|times| times.contains(&at)) {
                judgement.findings.count(TrailCount::Excused, 1);
                continue;
            }
            match protocols.get(operation.process) {
                None => judgement.judge(operation, answer),
                Some(protocol) => judgement.judge_by_token(operation, answer, protocol),
            }
        }
        Ok(())
    }
}

/// The processes that speak another protocol, and its name.
fn protocols(history: &History) -> BTreeMap<&str, &str> {
    let mut protocols = BTreeMap::new();
    for (_, event) in &history.events {
        if let What::Fact(Fact::Speaks { process, protocol }) = &event.what {
            protocols.insert(&**process, &**protocol);
        }
    }
    protocols
}

/// When the first cluster was lost.
fn lost_ns(history: &History) -> u64 {
    let lost = history.events.iter().find(|(_, event)| matches!(event.what, What::Fact(Fact::Restored)));
    lost.map_or(u64::MAX, |(_, event)| event.time_ns)
}

/// Judges one operation after the other.
struct Judgement<'a> {
    lines: &'a TrailLines,
    issued_before: u64,
    lost_ns: u64,
    findings: &'a mut TrailFindings,
}

impl Judgement<'_> {
    fn judge(&mut self, operation: &Operation<'_>, answer: &Answer) {
        let locks = operation.locks;
        if let Some((session, token)) = granted(operation.call, answer) {
            locks.iter().for_each(|lock| self.judge_grant(operation, session, (token, lock.clone())));
        } else if let Call::Release { session, token } = operation.call {
            locks.iter().for_each(|lock| self.judge_release(operation, session, (*token, lock.clone())));
        } else if let (Call::ForceRelease { token: Some(token), now }, Answer::ForceRelease { revoked }) =
            (operation.call, answer)
        {
            locks.iter().for_each(|lock| self.judge_force(operation, (*token, &**lock), *now, revoked));
        } else if let Call::Close { session } = operation.call {
            self.judge_close(operation, session);
        }
    }

    /// The grant of a holder by another protocol.
    fn judge_by_token(&mut self, operation: &Operation<'_>, answer: &Answer, protocol: &str) {
        let Some((_, token)) = granted(operation.call, answer) else { return };
        if token <= self.issued_before {
            return;
        }

        let names = format!("{protocol}/");
        let later = self.lines.granted.range((token, names.clone())..);
        let mut found = later.take_while(|((other, lock), _)| *other == token && lock.starts_with(&names));
        if found.any(|(_, lines)| lines.iter().any(|line| line.is_of_entry)) {
            self.findings.count(TrailCount::GrantOfEntry, 1);
        } else {
            self.complain(operation, &format!("no lock of {protocol} was granted with token {token}"));
        }
    }

    fn judge_grant(&mut self, operation: &Operation<'_>, session: &str, grant: GrantKey) {
        let (token, lock) = &grant;
        if *token <= self.issued_before {
            return;
        }

        match self.lines.granted.get(&grant).map(Vec::as_slice).unwrap_or_default() {
            [line] if line.session.to_string() == session && !line.is_of_entry => {
                self.findings.count(TrailCount::Grant, 1);
            }
            [] => self.complain(operation, &format!("no line grants {lock:?} with token {token}")),
            lines => {
                let what = format!("{lock:?} was granted once with token {token}, to {session}: {lines:?}");
                self.complain(operation, &what);
            }
        }
    }

    fn judge_release(&mut self, operation: &Operation<'_>, session: &str, grant: GrantKey) {
        let (token, lock) = &grant;
        if *token <= self.issued_before {
            return;
        }

        match self.lines.released.get(&grant) {
            Some(found) if found.to_string() == session => self.findings.count(TrailCount::Release, 1),
            Some(found) => {
                let what = format!("{session} released {lock:?} with token {token}, and the line says {found}");
                self.complain(operation, &what);
            }
            None => self.complain(operation, &format!("no line says that {lock:?} was released with token {token}")),
        }
    }

    fn judge_force(&mut self, operation: &Operation<'_>, (token, lock): (u64, &str), now: bool, revoked: &[u64]) {
        if token <= self.issued_before {
            return;
        }

        let count = revoked.len() as u64;
        let acts = self.lines.forced.get(lock).map(Vec::as_slice).unwrap_or_default();
        let is_act = |act: &ForcedLine| act.token == Some(token) && act.is_now == now && act.count == count;
        if !acts.iter().any(is_act) {
            let what = format!("no line says that {count} grants of {lock:?} were taken back by token {token}");
            return self.complain(operation, &what);
        }

        let is_ended = |token: &u64| {
            let grant = (*token, lock.to_owned());
            self.lines.taken.contains(&grant) || self.lines.released.contains_key(&grant)
        };
        if revoked.iter().all(is_ended) {
            self.findings.count(TrailCount::Forced, 1);
        } else {
            self.complain(operation, &format!("a grant of {lock:?} among {revoked:?} has no line that takes it"));
        }
    }

    fn judge_close(&mut self, operation: &Operation<'_>, session: &str) {
        // A session that was opened before the trail began may have ended before it, too. Clients count one that a later cluster does not
        // know as closed.
        let id = u128::from_str_radix(session, 16).map(Session).unwrap_or(Session::NONE);
        if !self.lines.opened.contains(&id) || operation.ended_ns >= self.lost_ns {
            return;
        }

        if self.lines.ended.contains(&id) {
            self.findings.count(TrailCount::Close, 1);
        } else {
            self.complain(operation, &format!("no line ends the session {session}"));
        }
    }

    fn complain(&mut self, operation: &Operation<'_>, what: &str) {
        let Operation { process, invoked_line, ended_line, .. } = operation;
        self.findings.complain(format!("{what}; {process} was told so (lines {invoked_line} and {ended_line})"));
    }
}

/// The session and the token that an acquire, or a repetition of it, was answered with.
fn granted<'a>(call: &'a Call, answer: &Answer) -> Option<(&'a str, u64)> {
    if let (Call::Acquire(Acquire { session, .. }), Answer::Acquire { token, .. }) = (call, answer) {
        return Some((&**session, *token));
    }
    let (Call::Retry { session, .. }, Answer::Retry { token }) = (call, answer) else { return None };
    Some((&**session, *token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: &str = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
{"time_ns":1,"process":"ann","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"0000000000000000000000000000000a"}}
{"time_ns":5,"process":"ann","type":"ok","f":"acquire","value":{"token":7}}
{"time_ns":6,"process":"ann","type":"invoke","f":"release","lock":"jobs","value":{"session":"0000000000000000000000000000000a","token":7}}
{"time_ns":9,"process":"ann","type":"ok","f":"release"}
{"time_ns":9,"process":"red","type":"info","f":"speaks","value":{"process":"red","protocol":"redis"}}
{"time_ns":9,"process":"red","type":"invoke","f":"acquire","lock":"redis/0/a","value":{"session":"red/1"}}
{"time_ns":9,"process":"red","type":"ok","f":"acquire","value":{"token":9}}
"#;

    fn begun() -> AuditLine<'static> {
        AuditLine { token: Some(3), ..AuditLine::new(AuditEvent::Begun) }
    }

    fn line(what: AuditEvent, session: u128, lock: &'static str, token: u64) -> AuditLine<'static> {
        let session = Some(Session(session));
        AuditLine { session, lock: Some(lock.into()), token: Some(token), ..AuditLine::new(what) }
    }

    fn whole() -> Vec<AuditLine<'static>> {
        let of_entry = line(AuditEvent::Granted, 0, "redis/0/a", 9);
        vec![
            begun(),
            line(AuditEvent::Granted, 10, "jobs", 7),
            line(AuditEvent::Released, 10, "jobs", 7),
            AuditLine { kind: Some("entry".into()), ..of_entry },
        ]
    }

    /// What is found with these lines, if answers are excused that came at these times.
    fn found(lines: &[AuditLine<'_>], excused: &[RangeInclusive<Duration>]) -> TrailFindings {
        let history = History::read(HISTORY.as_bytes()).expect("it is one");
        let mut trail = TrailLines::default();
        lines.iter().for_each(|line| trail.add(line));
        let mut findings = TrailFindings::default();
        trail.judge(&history, excused, &mut findings).expect("each operation has a begin");
        findings
    }

    fn complaints(lines: &[AuditLine<'_>]) -> String {
        found(lines, &[]).complaints().join("\n")
    }

    #[test]
    fn what_clients_were_told_is_looked_for_in_the_lines() {
        let findings = found(&whole(), &[]);
        assert_eq!(findings.complaints(), [""; 0]);
        let counted = [TrailCount::Grant, TrailCount::Release, TrailCount::GrantOfEntry, TrailCount::Excused];
        assert_eq!(counted.map(|what| findings.counted(what)), [1, 1, 1, 0]);
    }

    #[test]
    fn a_line_that_is_missing_or_says_something_else_is_found() {
        let without = |place: usize| {
            let mut lines = whole();
            lines.remove(place);
            complaints(&lines)
        };
        assert!(without(1).contains("no line grants \"jobs\" with token 7; ann was told so (lines 2 and 3)"));
        assert!(without(2).contains("no line says that \"jobs\" was released"));
        assert!(without(3).contains("no lock of redis was granted with token 9; red"));

        let with = |place: usize, line: AuditLine<'static>| {
            let mut lines = whole();
            lines[place] = line;
            complaints(&lines)
        };
        assert!(with(1, line(AuditEvent::Granted, 11, "jobs", 7)).contains("was granted once with token 7"));
        assert!(with(2, line(AuditEvent::Released, 11, "jobs", 7)).contains("and the line says"));
        assert!(with(3, line(AuditEvent::Granted, 10, "jobs", 7)).contains("was granted once with token 7"));
    }

    #[test]
    fn what_came_before_the_trail_or_was_lost_with_its_cluster_needs_no_line() {
        let later = AuditLine { token: Some(9), ..begun() };
        assert_eq!(complaints(&[later]), "");
        assert_eq!(complaints(&[]), "", "there is no trail");
        let nanos = Duration::from_nanos;
        let findings = found(&[begun()], &[nanos(4)..=nanos(9)]);
        assert_eq!(findings.complaints(), [""; 0]);
        assert_eq!(findings.counted(TrailCount::Excused), 3);
    }
}
