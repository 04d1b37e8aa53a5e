//! Sessions and their deadlines, as known to their clients.
//!
//! A session is certainly alive from the answer to its open until its deadline, which is the sending of the last acknowledged open or
//! renewal plus the TTL.

use std::collections::BTreeMap;

use crate::history::{Answer, Call, Ended, Fact, History, Operation, What};

/// One session.
#[derive(Clone, Debug)]
pub(super) struct ClientLease<'h> {
    /// The client that opened it.
    pub(super) client: &'h str,
    /// The time and the line of the answer.
    pub(super) opened: (u64, usize),
    /// The acknowledgements in the order of their arrival.
    acknowledged: Vec<LeaseAck>,
    /// The start and the end of the close that may have ended it, and its line.
    pub(super) closed: Option<(u64, u64, usize)>,
    /// The time at which the client noticed the loss of the whole session, and the line.
    pub(super) lost: Option<(u64, usize)>,
}

/// An acknowledged open or renewal.
#[derive(Clone, Copy, Debug)]
struct LeaseAck {
    at_ns: u64,
    line: usize,
    /// The latest deadline known at that time.
    deadline_ns: u64,
}

/// The end of a session, as known to its client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LeaseEnd {
    Closed,
    Lost,
    Expired,
    /// The session had not ended at the end of the history.
    Open,
}

impl ClientLease<'_> {
    /// The deadline as it was known at a moment, and the line of the acknowledgement.
    pub(super) fn deadline_at(&self, moment_ns: u64) -> (u64, usize) {
        let known = self.acknowledged.partition_point(|one| one.at_ns <= moment_ns);
        self.acknowledged[..known].last().map_or(self.opened, |one| (one.deadline_ns, one.line))
    }

    /// The time until which it was certainly alive, how that ended, and the line.
    pub(super) fn until(&self, last_ns: u64) -> (u64, LeaseEnd, usize) {
        let (deadline_ns, line) = self.deadline_at(u64::MAX);
        let closed = self.closed.map(|(invoked_ns, _, line)| (invoked_ns, LeaseEnd::Closed, line));
        let lost = self.lost.map(|(at_ns, line)| (at_ns, LeaseEnd::Lost, line));
        let ends = [closed, lost, Some((deadline_ns, LeaseEnd::Expired, line)), Some((last_ns, LeaseEnd::Open, line))];
        // If several ends have the same time, the first in this list counts: a close at the deadline is a close.
        ends.into_iter().flatten().min_by_key(|(at_ns, ..)| *at_ns).unwrap_or((last_ns, LeaseEnd::Open, line))
    }

    fn acknowledge(&mut self, at_ns: u64, line: usize, sent_ns: u64, ttl_ms: u64) {
        let best = self.acknowledged.last().map_or(0, |one| one.deadline_ns);
        let deadline_ns = sent_ns.saturating_add(ttl_ms.saturating_mul(1_000_000));
        // An older acknowledgement that arrives late does not move the deadline.
        if deadline_ns > best {
            self.acknowledged.push(LeaseAck { at_ns, line, deadline_ns });
        }
    }
}

/// All sessions with an answered open, by name.
pub(super) fn leases<'h>(history: &'h History, operations: &[Operation<'h>]) -> BTreeMap<&'h str, ClientLease<'h>> {
    let mut answers: BTreeMap<usize, &Operation<'h>> = BTreeMap::new();
    for operation in operations {
        if matches!(operation.call, Call::Open { .. } | Call::Renew { .. } | Call::Close { .. }) {
            answers.insert(operation.ended_line, operation);
        }
    }

    let mut leases = BTreeMap::new();
    let mut ttls: BTreeMap<&str, u64> = BTreeMap::new();
    for (line, event) in &history.events {
        if let Some(operation) = answers.get(line) {
            answered(&mut leases, &mut ttls, operation, event.time_ns);
        }

        let What::Fact(fact) = &event.what else { continue };
        if let Fact::Renewed { session, sent_ns, ttl_ms } = fact
            && let (Some(lease), Some(ttl)) = (leases.get_mut(&**session), ttls.get_mut(&**session))
        {
            *ttl = ttl_ms.unwrap_or(*ttl);
            lease.acknowledge(event.time_ns, *line, *sent_ns, *ttl);
        }

        if let Fact::Lost { session, token: None, .. } = fact
            && let Some(lease) = leases.get_mut(&**session)
        {
            lease.lost.get_or_insert((event.time_ns, *line));
        }
    }

    leases
}

fn answered<'h>(
    leases: &mut BTreeMap<&'h str, ClientLease<'h>>,
    ttls: &mut BTreeMap<&'h str, u64>,
    operation: &Operation<'h>,
    at_ns: u64,
) {
    let line = operation.ended_line;
    let Some(session) = operation.call.session() else { return };

    match (operation.call, operation.ended) {
        (Call::Open { ttl_ms, .. }, Ended::Ok(Answer::Open(answer))) => {
            let client = operation.process;
            let mut lease =
                ClientLease { client, opened: (at_ns, line), acknowledged: vec![], closed: None, lost: None };
            let ttl_ms = answer.ttl_ms.unwrap_or(*ttl_ms);
            lease.acknowledge(at_ns, line, answer.sent_ns.unwrap_or(operation.invoked_ns), ttl_ms);
            ttls.insert(session, ttl_ms);
            leases.insert(session, lease);
        }
        (Call::Renew { .. }, Ended::Ok(Answer::Renew(answer))) => {
            let (Some(lease), Some(ttl)) = (leases.get_mut(&**session), ttls.get_mut(&**session)) else { return };
            *ttl = answer.ttl_ms.unwrap_or(*ttl);
            lease.acknowledge(at_ns, line, answer.sent_ns.unwrap_or(operation.invoked_ns), *ttl);
        }
        // A failed close does not end the session. After a close without an answer, the session is no longer certain.
        (Call::Close { .. }, Ended::Ok(_) | Ended::Info | Ended::Open) => {
            if let Some(lease) = leases.get_mut(&**session) {
                lease.closed.get_or_insert((operation.invoked_ns, at_ns, line));
            }
        }
        _ => {}
    }
}
