//! Linearizability: a sequential order explains all answers.
//!
//! This cross-checks the other properties by independent means: it has no tenures, only a sequential model of one lock with grants,
//! releases, reads and expiries. An expiry is a step that may happen once the session's last trusted moment has passed. An acquire of
//! several locks is checked on each of them.
//!
//! The search is exponential in the concurrency. So only the first [`OPERATIONS_MAX`] operations of each lock are checked; operations that
//! end later than the next one starts count as unknown. A search that exceeds its budget leaves the property undecided.
//!
//! Registers are checked in the same way: see `registers`.
//!
//! The model does not include the order of the queue. A concurrent wait explains any busy answer.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
};

use super::{
    grants::{Cancels, Grants},
    lock_model::{LockModel, LockStep, Seat},
    registers::{self, Register},
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
    wgl::{Model, OPERATIONS_MAX, SearchOutcome, Timed, search},
};
use crate::history::{Acquire, Answer, Call, CancelFound, Ended, Operation, Wait};

/// Budget of states per lock. It takes some seconds without optimization.
const TRIES_MAX: u64 = 300_000;

/// Budget of states for each attempt to shrink a violation.
const SHRINK_TRIES_MAX: u64 = 300;

struct NoOrder<'r> {
    kind: &'static str,
    name: &'r str,
    lines: Vec<usize>,
}

impl fmt::Display for NoOrder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: no sequential order explains these answers", self.kind, self.name)
    }
}

impl Evidence for NoOrder<'_> {
    fn lines(&self) -> Vec<usize> {
        self.lines.clone()
    }
}

pub(super) fn check(run: &Run<'_>, grants: &Grants<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::Linearizability);
    investigation.count("operations", 0);
    let known = AcquireKnowledge::from_run(run, grants);
    for (lock, operations) in operations_by_lock(run, grants) {
        let (model, timed, lines) = known.steps(lock, &operations);
        let count = operations.len().min(OPERATIONS_MAX);
        decide(&mut investigation, ("lock", "locks", lock), &model, (&timed, &lines), count);
    }

    for (register, (timed, lines)) in registers::steps(run) {
        let count = timed.len();
        decide(&mut investigation, ("register", "registers", register), &Register, (&timed, &lines), count);
    }

    investigation.close()
}

/// Searches for an order of the steps of one object, whose kind is named in singular and plural.
fn decide<M: Model<Step: Clone, State: Default>>(
    investigation: &mut Investigation,
    (kind, kinds, name): (&'static str, &'static str, &str),
    model: &M,
    (timed, lines): (&[Timed<M::Step>], &[[usize; 2]]),
    operations: usize,
) {
    match search(model, M::State::default(), timed, TRIES_MAX) {
        SearchOutcome::Found => {
            investigation.count("operations", operations as u64);
            investigation.count(kinds, 1);
        }
        SearchOutcome::TooLong => {
            investigation.undecided(format!("the search for {kind} {name:?} exceeded its budget of states"));
        }
        SearchOutcome::None => {
            let lines = shrink(model, timed, lines);
            investigation.report(&NoOrder { kind, name, lines });
        }
    }
}

/// Shrinks a violation: takes the steps until the first moment that cannot be explained, then drops every end without which there is still
/// no order. Returns the lines of the steps that remain.
fn shrink<M: Model<Step: Clone, State: Default>>(
    model: &M,
    timed: &[Timed<M::Step>],
    lines: &[[usize; 2]],
) -> Vec<usize> {
    let has_none =
        |steps: &[Timed<M::Step>]| search(model, M::State::default(), steps, SHRINK_TRIES_MAX) == SearchOutcome::None;

    let mut ends: Vec<u64> = timed.iter().map(|step| step.end_ns).filter(|end_ns| *end_ns != u64::MAX).collect();
    ends.sort_unstable();
    // A history without an order stays without one when more of it is known. So the first moment is found by halving, with few searches.
    let last = ends.partition_point(|end_ns| !has_none(&until(timed, *end_ns)));
    let mut steps = ends.get(last).map_or_else(|| timed.to_vec(), |end_ns| until(timed, *end_ns));

    // An end that is taken away frees its step to come at any later time, or never: the weakest form of an answer. What still has no order
    // then did not need that answer.
    for at in (0..steps.len()).rev() {
        let end_ns = std::mem::replace(&mut steps[at].end_ns, u64::MAX);
        if end_ns != u64::MAX && !has_none(&steps) {
            steps[at].end_ns = end_ns;
        }
    }

    let needed = steps.iter().zip(lines).filter(|(step, _)| step.end_ns != u64::MAX);
    needed.flat_map(|(_, lines)| *lines).collect()
}

/// The steps that started by this moment. Those that have not ended by then count as unknown.
fn until<S: Clone>(timed: &[Timed<S>], at_ns: u64) -> Vec<Timed<S>> {
    let begun = timed.iter().take_while(|step| step.begin_ns <= at_ns).cloned();
    let known = |step: Timed<S>| Timed { end_ns: if step.end_ns <= at_ns { step.end_ns } else { u64::MAX }, ..step };
    begun.map(known).collect()
}

/// The operations that concern each lock, sorted by start.
fn operations_by_lock<'r>(run: &'r Run<'_>, grants: &'r Grants<'_>) -> BTreeMap<&'r str, Vec<usize>> {
    let by_token = grants.by_token.iter().map(|grant| ((grant.session, grant.token), grant.locks));
    let by_token: HashMap<(&str, u64), &[String]> = by_token.collect();

    let cancels = Cancels::from_run(run);
    let mut by_session: HashMap<&str, BTreeSet<&str>> = HashMap::new();
    let mut cancelled: HashMap<usize, &[String]> = HashMap::new();
    for (_, operation, acquire) in run.acquires() {
        by_session.entry(&acquire.session).or_default().extend(operation.locks.iter().map(String::as_str));
        if let Some(cancel) = cancels.cancel(operation, acquire) {
            cancelled.insert(cancel.invoked_line, operation.locks);
        }
    }

    let mut locks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, operation) in run.operations.iter().enumerate() {
        let mut concerns = |lock| locks.entry(lock).or_default().push(place);
        let names = match operation.call {
            Call::Close { session } => {
                by_session.get(&**session).into_iter().flatten().for_each(|lock| concerns(*lock));
                continue;
            }
            // A cancellation names a request, not locks. They are those of the acquire that it cancels.
            Call::Cancel { .. } => cancelled.get(&operation.invoked_line).copied(),
            Call::Release { session, token } => by_token.get(&(&**session, *token)).copied(),
            Call::Acquire(_) | Call::Get {} | Call::Check { .. } | Call::Update { .. } | Call::ForceRelease { .. } => {
                Some(operation.locks)
            }
            Call::Open { .. }
            | Call::Renew { .. }
            | Call::Retry { .. }
            | Call::Write { .. }
            | Call::Read {}
            | Call::Set { .. }
            | Call::Txn(_) => None,
        };
        names.unwrap_or_default().iter().for_each(|lock| concerns(lock));
    }
    locks
}

/// Knowledge about acquires from other operations.
struct AcquireKnowledge<'r> {
    run: &'r Run<'r>,
    /// For each acquire, by its index: its token, when it was told, and until when the grant can be trusted.
    granted: HashMap<usize, (u64, u64, u64)>,
    tokens: HashMap<u64, Vec<usize>>,
    cancelled: HashMap<usize, usize>,
}

impl<'r> AcquireKnowledge<'r> {
    fn from_run<'a>(run: &'r Run<'a>, grants: &Grants<'_>) -> Self {
        let mut granted = HashMap::new();
        let mut tokens: HashMap<u64, Vec<usize>> = HashMap::new();
        for grant in &grants.by_token {
            let trusted =
                run.session(grant.session).and_then(|session| session.trusted).map_or(0, |lease| lease.until_ns);
            let until_ns = grant.revoked_ns.map_or(trusted, |revoked_ns| revoked_ns.min(trusted));
            granted.insert(grant.operation, (grant.token, grant.answered_ns, until_ns));
            tokens.entry(grant.token).or_default().push(grant.operation);
        }

        let cancels = Cancels::from_run(run);
        let mut cancelled = HashMap::new();
        for (place, operation, acquire) in run.acquires() {
            if let Some(cancel) = cancels.cancel(operation, acquire) {
                cancelled.insert(cancel.invoked_line, place);
            }
        }

        Self { run, granted, tokens, cancelled }
    }

    /// The model of a lock, its steps, and the lines of each step.
    fn steps(&self, lock: &str, operations: &[usize]) -> (LockModel, Vec<Timed<LockStep>>, Vec<[usize; 2]>) {
        // An operation that is cut off may have had an effect before the ends of some that are kept. From its start on, nothing is certain.
        let horizon_ns = operations.get(OPERATIONS_MAX).map_or(u64::MAX, |at| self.run.operations[*at].invoked_ns);
        let mut builder =
            StepBuilder { known: self, lock, model: LockModel::default(), steps: Vec::new(), seats: HashMap::new() };

        let kept: Vec<_> = operations.iter().take(OPERATIONS_MAX).copied().collect();
        // All seats first: a release may come in the list before the acquire that it ends, since the list is sorted by starts.
        kept.iter().for_each(|place| builder.sit(*place));
        kept.iter().for_each(|place| builder.add(*place, &kept));

        let mut steps = builder.steps;
        steps.sort_by_key(|(timed, _)| timed.begin_ns);
        for (timed, _) in &mut steps {
            if timed.end_ns >= horizon_ns {
                timed.end_ns = u64::MAX;
            }
        }

        let (timed, lines) = steps.into_iter().unzip();
        (builder.model, timed, lines)
    }
}

/// Converts the operations of one lock into steps.
struct StepBuilder<'r> {
    known: &'r AcquireKnowledge<'r>,
    lock: &'r str,
    model: LockModel,
    steps: Vec<(Timed<LockStep>, [usize; 2])>,
    /// The seats of acquires, by index among all operations.
    seats: HashMap<usize, u16>,
}

impl StepBuilder<'_> {
    /// Assigns a seat to each acquire that may hold the lock.
    fn sit(&mut self, place: usize) {
        let operation = &self.known.run.operations[place];
        let Call::Acquire(acquire) = operation.call else { return };
        // After an attempt that failed, a retry may have told a grant.
        if matches!(operation.ended, Ended::Fail(_)) && !self.known.granted.contains_key(&place) {
            return;
        }
        let at = operation.locks.iter().position(|name| name == self.lock).unwrap_or_default();
        let session = self.model.session(&acquire.session);
        let token = self.known.granted.get(&place).map(|(token, ..)| *token);
        let seat = Seat { mode: acquire.mode.mode_at(at).unwrap_or_default(), token, session };
        self.seats.insert(place, self.model.seat(seat));
    }

    fn add(&mut self, place: usize, all: &[usize]) {
        let operation = &self.known.run.operations[place];
        match (operation.call, operation.ended) {
            (Call::Acquire(acquire), ended) => match self.seats.get(&place).copied() {
                Some(seat) => self.add_acquire(place, seat, acquire),
                None if ended_busy(ended) && operation.locks.len() == 1 => self.add_busy(operation, acquire, all),
                None => {}
            },
            // A close without an answer is a step that may happen: one that failed is none.
            (Call::Close { session }, Ended::Ok(_) | Ended::Info | Ended::Open) => {
                let session = self.model.session(session);
                self.push(operation, LockStep::LeaveAll(session));
            }
            (Call::Cancel { .. }, ended) => {
                let acquire = self.known.cancelled.get(&operation.invoked_line);
                let Some(seat) = acquire.and_then(|place| self.seats.get(place)).copied() else { return };
                match ended {
                    Ended::Ok(Answer::Cancel { found: CancelFound::Grant }) | Ended::Info | Ended::Open => {
                        self.push(operation, LockStep::Leave(seat));
                    }
                    Ended::Ok(_) => self.push(operation, LockStep::Absent(seat)),
                    Ended::Fail(_) => {}
                }
            }
            (Call::Release { token, .. }, ended) => self.add_by_token(operation, *token, ended, LockStep::Leave),
            (Call::Update { token, .. }, ended @ (Ended::Ok(_) | Ended::Fail(_))) => {
                self.add_by_token(operation, *token, ended, LockStep::Present);
            }
            (Call::Check { token }, Ended::Ok(Answer::Check { held: true })) => {
                self.add_by_token(operation, *token, operation.ended, LockStep::Present);
            }
            (Call::Check { token }, Ended::Ok(Answer::Check { held: false })) => {
                self.add_by_token(operation, *token, Ended::Fail("not_held"), LockStep::Present);
            }
            (Call::ForceRelease { now: true, .. }, Ended::Ok(Answer::ForceRelease { revoked })) => {
                for token in revoked {
                    self.add_by_token(operation, *token, operation.ended, LockStep::Leave);
                }
            }
            (Call::Get {}, Ended::Ok(Answer::Get(view))) => {
                let holders = view.holders.iter().map(|holder| (holder.token, self.model.session(&holder.session)));
                let mut holders: Vec<_> = holders.collect();
                holders.sort_unstable();
                self.push(operation, LockStep::View(holders));
            }
            _ => {}
        }
    }

    /// Adds the grant of an acquire, and its expiry.
    fn add_acquire(&mut self, place: usize, seat: u16, acquire: &Acquire) {
        let run = self.known.run;
        let operation = &run.operations[place];
        let lines = [operation.invoked_line, operation.ended_line];
        let trusted = run.session(&acquire.session).and_then(|session| session.trusted);

        let (end_ns, until_ns) = match self.known.granted.get(&place) {
            Some((_, told_ns, until_ns)) => (*told_ns, *until_ns),
            None => (u64::MAX, trusted.map_or(0, |lease| lease.until_ns)),
        };

        let grant = Timed { step: LockStep::Take(seat), begin_ns: operation.invoked_ns, end_ns };
        self.steps.push((grant, lines));
        let begin_ns = until_ns.max(operation.invoked_ns);
        // The expiry: it may happen from the moment on until which the holder could trust its lease, and need not happen at all.
        self.steps.push((Timed { step: LockStep::Leave(seat), begin_ns, end_ns: u64::MAX }, lines));

        // Without a known token, a forced release may have concerned this acquire.
        if !self.known.granted.contains_key(&place) {
            self.steps
                .push((Timed { step: LockStep::Leave(seat), begin_ns: operation.invoked_ns, end_ns: u64::MAX }, lines));
        }
    }

    /// Adds a busy answer, unless another acquire may have waited or a lock-delay may have closed the lock.
    fn add_busy(&mut self, operation: &Operation<'_>, acquire: &Acquire, all: &[usize]) {
        let explained = all.iter().map(|place| &self.known.run.operations[*place]).any(|other| {
            let Call::Acquire(theirs) = other.call else { return false };
            let together = other.invoked_ns < operation.ended_ns && operation.invoked_ns < other.ended_ns;
            theirs.lock_delay_ms > 0 || (theirs.wait != Wait::None && together)
        });
        if !explained {
            self.push(operation, LockStep::Busy(acquire.mode.mode_at(0).unwrap_or_default()));
        }
    }

    fn add_by_token(&mut self, operation: &Operation<'_>, token: u64, ended: Ended<'_>, step: fn(u16) -> LockStep) {
        // Select by session too where it is known: another property reports a token that was given twice.
        let is_theirs = |place: &&usize| match operation.call.session() {
            Some(session) => self.known.run.operations[**place].call.session() == Some(session),
            None => true,
        };
        let acquires = self.known.tokens.get(&token).into_iter().flatten().filter(is_theirs);
        let Some(seat) = acquires.filter_map(|place| self.seats.get(place)).next().copied() else { return };

        match ended {
            Ended::Fail("not_held") => self.push(operation, LockStep::Absent(seat)),
            Ended::Fail(_) => {}
            Ended::Ok(_) | Ended::Info | Ended::Open => self.push(operation, step(seat)),
        }
    }

    fn push(&mut self, operation: &Operation<'_>, step: LockStep) {
        let Operation { invoked_ns, ended_ns, invoked_line, ended_line, .. } = *operation;
        self.steps.push((Timed { step, begin_ns: invoked_ns, end_ns: ended_ns }, [invoked_line, ended_line]));
    }
}

fn ended_busy(ended: Ended<'_>) -> bool {
    matches!(ended, Ended::Fail("busy"))
}
