//! A history prepared for the checks: operations, facts, sessions.

use std::collections::HashMap;

use super::calm::Calm;
use crate::history::{
    Acquire, Answer, Call, Ended, Event, Fact, History, Meta, Operation, ReadError, What, operations,
};

/// Nanoseconds per millisecond.
pub(super) const MS: u64 = 1_000_000;

/// The input of the checks.
#[derive(Debug)]
pub(super) struct Run<'a> {
    pub(super) meta: Meta,
    pub(super) operations: Vec<Operation<'a>>,
    pub(super) facts: Vec<Told<'a>>,
    pub(super) calm: Calm,
    pub(super) sessions: HashMap<&'a str, SessionRecord<'a>>,
    /// The time of the last line.
    pub(super) last_ns: u64,
    /// The line of `end`, if the run is complete.
    pub(super) end_line: Option<usize>,
}

/// A fact with its line and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) line: usize,
    pub(super) time_ns: u64,
    pub(super) fact: &'a Fact,
}

/// A moment and the line of its event.
pub(super) type Mark = (u64, usize);

/// What the history tells about a session.
#[derive(Debug, Default)]
pub(super) struct SessionRecord<'a> {
    pub(super) ttl_ns: u64,
    /// Its acknowledged open and renewals, in the order of the acknowledgements.
    pub(super) leases: Vec<Acknowledged>,
    /// The lease with the latest deadline. The session cannot end before it, unless it is closed.
    pub(super) trusted: Option<Acknowledged>,
    /// The last sending of an acknowledged open or renewal. The session was alive at that moment.
    pub(super) alive_ns: u64,
    /// The first attempt to close it.
    pub(super) closing: Option<Mark>,
    /// The moment by which the session was certainly closed.
    pub(super) closed_ns: Option<u64>,
    /// The moment at which the session's process was killed.
    pub(super) died: Option<Mark>,
    /// The moment at which the cluster reported its end, and how it ended.
    pub(super) over: Option<(Mark, &'a str)>,
}

/// An acknowledged open or renewal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledged {
    pub(super) sent_ns: u64,
    pub(super) acked_ns: u64,
    /// The moment before which the cluster does not end the session.
    pub(super) until_ns: u64,
    pub(super) line: usize,
}

impl<'a> Run<'a> {
    pub(super) fn from_history(history: &'a History) -> Result<Self, ReadError> {
        let operations = operations(history)?;
        let facts: Vec<_> = history.events.iter().filter_map(|(line, event)| told(*line, event)).collect();
        let end_line = facts.iter().find(|told| matches!(told.fact, Fact::End)).map(|told| told.line);

        let mut run = Self {
            meta: history.meta(),
            calm: Calm::from_facts(facts.iter().map(|told| (told.time_ns, told.fact))),
            sessions: HashMap::new(),
            last_ns: history.events.last().map_or(0, |(_, event)| event.time_ns),
            operations,
            facts,
            end_line,
        };
        run.collect_sessions();
        Ok(run)
    }

    /// The session with this name, if the history mentions it.
    pub(super) fn session(&self, name: &str) -> Option<&SessionRecord<'a>> {
        self.sessions.get(name)
    }

    /// The acquires, with their indexes among the operations.
    pub(super) fn acquires(&self) -> impl Iterator<Item = (usize, &Operation<'a>, &'a Acquire)> {
        self.operations.iter().enumerate().filter_map(|(place, operation)| {
            let Call::Acquire(acquire) = operation.call else { return None };
            Some((place, operation, acquire))
        })
    }

    fn collect_sessions(&mut self) {
        let mut processes: HashMap<&str, Vec<&str>> = HashMap::new();
        let mut leases = Vec::new();

        for operation in &self.operations {
            let Some(session) = operation.call.session() else { continue };
            let record = self.sessions.entry(session).or_default();
            if let Call::Open { ttl_ms, .. } = operation.call {
                record.ttl_ns = ttl_ms.saturating_mul(MS);
                processes.entry(operation.process).or_default().push(session);
            }

            if let Ended::Ok(Answer::Open(lease) | Answer::Renew(lease)) = operation.ended {
                let sent_ns = lease.sent_ns.unwrap_or(operation.invoked_ns);
                leases.push((operation.ended_ns, operation.ended_line, &**session, sent_ns, lease.ttl_ms));
            }

            record.closing(operation);
            if let Ended::Fail(reason @ ("session_expired" | "session_unknown" | "session_closed")) = operation.ended {
                record.over((operation.ended_ns, operation.ended_line), reason);
            }
        }

        for Told { line, time_ns, fact } in &self.facts {
            let mark = (*time_ns, *line);
            if let Fact::Renewed { session, sent_ns, ttl_ms } = fact {
                leases.push((*time_ns, *line, session, *sent_ns, *ttl_ms));
            } else if let Fact::Lost { session, why, token: None } = fact {
                let reason = match &**why {
                    "expired" => "session_expired",
                    "unknown" => "session_unknown",
                    "closed" => "session_closed",
                    _ => continue,
                };
                self.sessions.entry(session).or_default().over(mark, reason);
            } else if let Fact::Died { process } = fact {
                for session in processes.get(&**process).into_iter().flatten() {
                    self.sessions.entry(session).or_default().died.get_or_insert(mark);
                }
            }
        }

        leases.sort_unstable_by_key(|(acked_ns, line, ..)| (*acked_ns, *line));
        for (acked_ns, line, session, sent_ns, ttl_ms) in leases {
            self.sessions.entry(session).or_default().renewed(acked_ns, line, sent_ns, ttl_ms, self.meta.stamp_ns);
        }
    }
}

fn told(line: usize, event: &Event) -> Option<Told<'_>> {
    match &event.what {
        What::Fact(fact) => Some(Told { line, time_ns: event.time_ns, fact }),
        What::Invoke(_) | What::Ok(_) | What::Fail { .. } | What::Info { .. } => None,
    }
}

impl<'a> SessionRecord<'a> {
    fn renewed(&mut self, acked_ns: u64, line: usize, sent_ns: u64, ttl_ms: Option<u64>, stamp_ns: u64) {
        if let Some(ttl_ms) = ttl_ms {
            self.ttl_ns = ttl_ms.saturating_mul(MS);
        }
        let until_ns = sent_ns.saturating_add(self.ttl_ns).saturating_sub(stamp_ns);
        let lease = Acknowledged { sent_ns, acked_ns, until_ns, line };
        self.leases.push(lease);
        self.alive_ns = self.alive_ns.max(sent_ns);
        if self.trusted.is_none_or(|longest| longest.until_ns < until_ns) {
            self.trusted = Some(lease);
        }
    }

    fn closing(&mut self, operation: &Operation<'_>) {
        // A close that certainly failed had no effect.
        if matches!(operation.call, Call::Close { .. }) && !matches!(operation.ended, Ended::Fail(_)) {
            self.closing.get_or_insert((operation.invoked_ns, operation.invoked_line));
            if let Ended::Ok(_) = operation.ended {
                self.closed_ns = Some(self.closed_ns.unwrap_or(u64::MAX).min(operation.ended_ns));
            }
        }
    }

    fn over(&mut self, mark: Mark, reason: &'a str) {
        if self.over.is_none_or(|(known, _)| known > mark) {
            self.over = Some((mark, reason));
        }
    }

    /// The deadline that the session certainly had at this moment, from earlier acknowledgements, if it had one.
    pub(super) fn deadline_at(&self, at_ns: u64) -> Option<Acknowledged> {
        let known = self.leases.partition_point(|lease| lease.acked_ns <= at_ns);
        self.leases[..known].iter().copied().max_by_key(|lease| lease.until_ns)
    }
}
