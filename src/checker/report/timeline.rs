//! The contents of the page's timeline: lanes of bars and marks, each with its lines of the history.
//!
//! Bars and marks are arrays in the order of the tuple types below, because a page can have a hundred thousand of them. Times are in
//! nanoseconds. Names are numbers of interned texts.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use super::{
    faults::{self, InjectedFault, MomentKind, Span},
    leases::{self, ClientLease, LeaseEnd},
    packed::{PackedEvents, Texts},
    tenures::{self, Tenure, TenureEnd},
};
use crate::history::{Call, Ended, Fact, Function, History, Mode, Operation, Wait, What};

/// All contents of the timeline.
#[derive(Debug, Default, Serialize)]
pub(super) struct Timeline {
    first_ns: u64,
    last_ns: u64,
    faults: Vec<FaultLane>,
    nodes: Vec<NodeLane>,
    clients: Vec<ClientLane>,
    /// The locks of the clients.
    locks: Vec<LockLane>,
    /// The locks of the run itself, by purpose.
    probes: Vec<ProbeLocks>,
    #[serde(flatten)]
    packed: PackedEvents,
    texts: Texts,
}

#[derive(Debug, Serialize)]
struct FaultLane {
    name: String,
    spans: Vec<InjectedFault>,
}

#[derive(Debug, Serialize)]
struct NodeLane {
    name: String,
    led: Vec<(u64, Span)>,
    down: Vec<Span>,
    /// The times before it joined, and after it was removed.
    absent: Vec<Span>,
    /// The faults that hit it. Concurrent ones are in separate rows.
    faulty: Vec<(String, InjectedFault, usize)>,
    marks: Vec<TimelineMark>,
}

#[derive(Debug, Default, Serialize)]
struct LockLane {
    name: String,
    tenures: Vec<TenureBar>,
    waits: Vec<OperationBar>,
    marks: Vec<TimelineMark>,
}

impl LockLane {
    fn begins_ns(&self) -> Option<u64> {
        let bars = self.tenures.first().map(|bar| bar.0).into_iter().chain(self.waits.first().map(|bar| bar.0));
        bars.chain(self.marks.first().map(|mark| mark.0)).min()
    }
}

/// The locks of one kind of probe: the prefix of their names, and its meaning.
#[derive(Debug, Serialize)]
struct ProbeLocks {
    name: &'static str,
    says: &'static str,
    locks: Vec<LockLane>,
}

/// The kinds of probes in a run of `lockkeeper chaos run`, by prefix of the lock names.
const PROBES: [(&str, &str); 4] = [
    ("fresh", "short-lived locks, read directly from every node: does a deposed leader still answer?"),
    ("sentinel", "held and awaited across a fault: are the holder and the queue still there?"),
    ("retried", "acquired before a fault and retried with the same request id after it: is the answer the same?"),
    ("forced", "taken by force before a fault: is the holder told of it after the fault?"),
];

/// The process that uses the probes.
const PROBER: &str = "operator";

#[derive(Debug, Default, Serialize)]
struct ClientLane {
    name: String,
    sessions: Vec<SessionBar>,
    operations: Vec<OperationBar>,
    marks: Vec<TimelineMark>,
}

/// The fields: start, certain end, known end, row, token, session, client, mode, end, line of the grant, line of the end.
type TenureBar = (u64, u64, u64, usize, u64, usize, usize, usize, usize, usize, usize);

/// The fields: start, end, row, name, kind of end, line of the answer to the open, line of the end.
type SessionBar = (u64, u64, usize, usize, usize, usize, usize);

/// The fields: start, end, row, operation, outcome (see [`outcome`]), client, line of the start, line of the end.
type OperationBar = (u64, u64, usize, usize, usize, usize, usize, usize);

/// The fields: time, kind, line, and a second line, which may be the same.
type TimelineMark = (u64, &'static str, usize, usize);

/// Maximum number of rows of one kind in a lane. Further bars share the last row.
const ROWS_MAX: usize = 12;

pub(super) fn timeline(history: &History, operations: &[Operation<'_>]) -> Timeline {
    let leases = leases::leases(history, operations);
    let tenures = tenures::tenures(history, operations, &leases);
    let mut timeline = Timeline {
        first_ns: history.events.first().map_or(0, |(_, event)| event.time_ns),
        last_ns: history.events.last().map_or(0, |(_, event)| event.time_ns),
        faults: fault_lanes(history),
        nodes: node_lanes(history),
        ..Timeline::default()
    };

    timeline.packed = PackedEvents::from_history(history, &mut timeline.texts);
    let builder = LaneBuilder { history, last_ns: timeline.last_ns, dead: dead(history) };
    let used_by_clients: HashSet<&str> = operations
        .iter()
        .filter(|operation| operation.process != PROBER)
        .flat_map(|operation| operation.locks.iter().map(String::as_str))
        .collect();

    let locks = builder.lock_lanes(operations, &tenures, &mut timeline.texts);
    (timeline.locks, timeline.probes) = without_probes(locks, &used_by_clients);
    timeline.clients = builder.client_lanes(operations, &leases, &mut timeline.texts);
    timeline
}

/// Separates the locks of probes from those of clients. A lock that a client used does not count as a probe, whatever its name.
fn without_probes(locks: Vec<LockLane>, used_by_clients: &HashSet<&str>) -> (Vec<LockLane>, Vec<ProbeLocks>) {
    let mut probes: Vec<_> = PROBES.map(|(name, says)| ProbeLocks { name, says, locks: Vec::new() }).into();
    let mut others = Vec::new();

    for lock in locks {
        let is_probe = |probe: &&mut ProbeLocks| lock.name.split_once('/').is_some_and(|(kind, _)| kind == probe.name);
        match probes.iter_mut().find(is_probe) {
            Some(probe) if !used_by_clients.contains(&*lock.name) => probe.locks.push(lock),
            Some(_) | None => others.push(lock),
        }
    }

    probes.retain(|probe| !probe.locks.is_empty());
    (others, probes)
}

fn fault_lanes(history: &History) -> Vec<FaultLane> {
    faults::faults(history).into_iter().map(|(name, spans)| FaultLane { name: name.to_owned(), spans }).collect()
}

fn node_lanes(history: &History) -> Vec<NodeLane> {
    let mark = |(moment, at_ns, line): (MomentKind, u64, usize)| match moment {
        MomentKind::Snapshot => (at_ns, "snapshot", line, line),
        MomentKind::Table => (at_ns, "table", line, line),
    };
    let in_rows = |mut faulty: Vec<(String, InjectedFault)>| {
        let mut rows = LaneRows::default();
        faulty.sort_by_key(|(_, one)| one.span.from_ns);
        let placed = faulty.into_iter().map(|(name, one)| {
            let row = rows.place(one.span.from_ns, one.span.to_ns);
            (name, one, row)
        });
        placed.collect()
    };

    let lane = |(node, known): (u64, faults::NodeHistory)| NodeLane {
        name: format!("node {node}"),
        led: known.led,
        down: known.down,
        absent: known.absent,
        faulty: in_rows(known.faulty),
        marks: known.moments.into_iter().map(mark).collect(),
    };
    faults::nodes(history).into_iter().map(lane).collect()
}

/// The times at which clients were killed.
fn dead(history: &History) -> HashMap<&str, u64> {
    let mut dead = HashMap::new();
    for (_, event) in &history.events {
        if let What::Fact(Fact::Died { process }) = &event.what {
            dead.insert(&**process, event.time_ns);
        }
    }
    dead
}

struct LaneBuilder<'h> {
    history: &'h History,
    last_ns: u64,
    dead: HashMap<&'h str, u64>,
}

impl<'h> LaneBuilder<'h> {
    fn lock_lanes(&self, operations: &[Operation<'h>], tenures: &[Tenure<'h>], texts: &mut Texts) -> Vec<LockLane> {
        let mut lanes: BTreeMap<&str, LockLane> = BTreeMap::new();
        let mut rows: HashMap<&str, (LaneRows, LaneRows)> = HashMap::new();

        for tenure in tenures {
            let row = rows.entry(tenure.lock).or_default().0.place(tenure.from_ns, tenure.until_ns);
            let lane = lanes.entry(tenure.lock).or_default();
            lane.tenures.push(tenure_bar(tenure, row, texts));
            if matches!(tenure.end, TenureEnd::Lost | TenureEnd::Revoked) {
                let what = if tenure.end == TenureEnd::Lost { "lost" } else { "revoked" };
                lane.marks.push((tenure.until_ns, what, tenure.ended_line, tenure.granted_line));
            }
        }

        for operation in operations {
            for lock in operation.locks {
                let lane = lanes.entry(lock).or_default();
                if matches!(operation.call, Call::Acquire(acquire) if acquire.wait != Wait::None) {
                    let to_ns = self.end_of(operation);
                    let row = rows.entry(lock).or_default().1.place(operation.invoked_ns, to_ns);
                    lane.waits.push(self.operation_bar(operation, row, texts));
                } else {
                    lane.marks.push((
                        self.end_of(operation),
                        mark(operation),
                        operation.ended_line,
                        operation.invoked_line,
                    ));
                }
            }
        }

        let mut lanes: Vec<_> =
            lanes.into_iter().map(|(name, lane)| LockLane { name: name.to_owned(), ..lane }).collect();
        lanes.iter_mut().for_each(|lane| lane.marks.sort_unstable());
        lanes.sort_by_key(LockLane::begins_ns);
        lanes
    }

    fn client_lanes(
        &self,
        operations: &[Operation<'h>],
        leases: &BTreeMap<&'h str, ClientLease<'h>>,
        texts: &mut Texts,
    ) -> Vec<ClientLane> {
        let mut lanes: BTreeMap<&str, ClientLane> = BTreeMap::new();
        let mut rows: HashMap<&str, (LaneRows, LaneRows)> = HashMap::new();
        let mut in_order: Vec<_> = leases.iter().collect();
        in_order.sort_by_key(|(_, lease)| lease.opened);

        for (session, lease) in in_order {
            let (from_ns, line) = lease.opened;
            let (until_ns, end, ended) = lease.until(self.last_ns);
            let row = rows.entry(lease.client).or_default().0.place(from_ns, until_ns);
            let name = texts.number(session);
            let bar = (from_ns, until_ns.max(from_ns), row, name, texts.number(lease_end(end)), line, ended);
            lanes.entry(lease.client).or_default().sessions.push(bar);
        }

        for operation in operations {
            let row = rows.entry(operation.process).or_default().1.place(operation.invoked_ns, self.end_of(operation));
            let bar = self.operation_bar(operation, row, texts);
            lanes.entry(operation.process).or_default().operations.push(bar);
        }

        for (line, event) in &self.history.events {
            let What::Fact(fact) = &event.what else { continue };
            let what = match fact {
                Fact::Renewed { .. } => "renewed",
                Fact::Lost { .. } => "lost",
                Fact::Died { .. } => "died",
                Fact::Other { .. } => "other",
                Fact::Meta(_) | Fact::Fault { .. } | Fact::Heal { .. } | Fact::Killed { .. } | Fact::Started { .. } => {
                    continue;
                }
                Fact::Stopped { .. } | Fact::Joined { .. } | Fact::Removed { .. } | Fact::Transferred { .. } => {
                    continue;
                }
                Fact::Elected { .. } | Fact::SnapshotInstalled { .. } | Fact::Table { .. } => continue,
                Fact::Bystander { .. } | Fact::Speaks { .. } | Fact::Restored | Fact::End => continue,
                Fact::Watching { .. }
                | Fact::Watched { .. }
                | Fact::WatchProgress { .. }
                | Fact::WatchEnded { .. }
                | Fact::RefusedEntry { .. }
                | Fact::LongestTurn { .. }
                | Fact::LongestApply { .. } => continue,
            };

            let who = if let Fact::Died { process } = fact { process } else { &event.process };
            if let Some(lane) = lanes.get_mut(&**who) {
                lane.marks.push((event.time_ns, what, *line, *line));
            }
        }

        lanes.into_iter().map(|(name, lane)| ClientLane { name: name.to_owned(), ..lane }).collect()
    }

    fn operation_bar(&self, operation: &Operation<'h>, row: usize, texts: &mut Texts) -> OperationBar {
        let what = texts.number(operation.call.function().name());
        let how = texts.number(outcome(operation));
        let client = texts.number(operation.process);
        let to_ns = self.end_of(operation);
        (operation.invoked_ns, to_ns, row, what, how, client, operation.invoked_line, operation.ended_line)
    }

    /// The time at which it was answered or given up, its client died, or the history ends.
    fn end_of(&self, operation: &Operation<'h>) -> u64 {
        if !operation.is_unknown() {
            return operation.ended_ns;
        }
        let told = self.history.events.binary_search_by_key(&operation.ended_line, |(line, _)| *line);
        match told {
            Ok(place) if operation.ended_line != operation.invoked_line => self.history.events[place].1.time_ns,
            _ => self.dead.get(operation.process).copied().unwrap_or(self.last_ns).max(operation.invoked_ns),
        }
    }
}

/// The outcome in a word: `ok`, `unknown`, or the reason of the failure.
fn outcome<'h>(operation: &Operation<'h>) -> &'h str {
    match operation.ended {
        Ended::Ok(_) => "ok",
        Ended::Fail(reason) => reason,
        Ended::Info | Ended::Open => "unknown",
    }
}

/// The mark on a lock's lane for an operation other than a wait.
fn mark(operation: &Operation<'_>) -> &'static str {
    match (operation.call.function(), operation.ended) {
        (_, Ended::Info | Ended::Open) => "unknown",
        (Function::ForceRelease, Ended::Ok(_)) => "force_release",
        (Function::Write, Ended::Ok(_)) => "write",
        (Function::Write, Ended::Fail("refused_token")) => "refused",
        (_, Ended::Fail(_)) => "failed",
        (function, Ended::Ok(_)) => function.name(),
    }
}

fn tenure_bar(tenure: &Tenure<'_>, row: usize, texts: &mut Texts) -> TenureBar {
    let Tenure { from_ns, until_ns, over_ns, token, granted_line, ended_line, .. } = *tenure;
    let mode = match tenure.mode {
        Mode::Exclusive => texts.number("exclusive"),
        Mode::Shared => texts.number("shared"),
        Mode::Permits(size) => texts.number(&format!("permit of {size}")),
    };

    let session = texts.number(tenure.session);
    let client = texts.number(tenure.client);
    let end = texts.number(match tenure.end {
        TenureEnd::Released => "released",
        TenureEnd::Closed => "session closed",
        TenureEnd::Revoked => "force-released",
        TenureEnd::Lost => "loss noticed",
        TenureEnd::Expired => "deadline",
        TenureEnd::Open => "end of the history",
    });

    (from_ns, until_ns, over_ns, row, token, session, client, mode, end, granted_line, ended_line)
}

fn lease_end(end: LeaseEnd) -> &'static str {
    match end {
        LeaseEnd::Closed => "closed",
        LeaseEnd::Lost => "loss noticed",
        LeaseEnd::Expired => "deadline",
        LeaseEnd::Open => "end of the history",
    }
}

/// Assigns rows to bars so that they do not overlap.
#[derive(Debug, Default)]
struct LaneRows {
    ends_ns: Vec<u64>,
}

impl LaneRows {
    /// Returns the first free row at this time, or the last row if there are too many.
    fn place(&mut self, from_ns: u64, to_ns: u64) -> usize {
        let free = self.ends_ns.iter().position(|end_ns| *end_ns <= from_ns);
        let row = free.unwrap_or(self.ends_ns.len()).min(ROWS_MAX - 1);
        match self.ends_ns.get_mut(row) {
            Some(end_ns) => *end_ns = to_ns.max(*end_ns),
            None => self.ends_ns.push(to_ns),
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_that_overlap_have_rows_of_their_own() {
        let mut rows = LaneRows::default();
        let placed: Vec<_> =
            [(0, 10), (5, 7), (7, 9), (10, 11), (10, 12)].iter().map(|(from, to)| rows.place(*from, *to)).collect();
        assert_eq!(placed, [0, 1, 1, 0, 1]);
        let crowd: Vec<_> = (0..40).map(|at| rows.place(at, 100)).collect();
        assert_eq!(crowd.iter().max(), Some(&(ROWS_MAX - 1)));
    }
}
