//! Linearizability: there is an order of single steps that explains all answers.
//!
//! A cross-check of the other properties by other means: it knows no tenures, only a model of one lock, on which grants, releases, reads
//! and expiries happen one after the other. An expiry is a step like others, which may happen once the session's last trusted moment has
//! passed. An acquire of several locks is looked at on each of them.
//!
//! The search is exponential where much happened at a time. So of each lock the first [`OPERATIONS_MAX`] operations are looked at: what
//! ends later than those begin counts as unknown. A search that takes too long leaves this undecided.
//!
//! What the model leaves out: the order of the queue. A try that was refused as busy is explained by any wait at that time.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use super::{
    grants::{Cancels, Grants},
    lock_model::{LockModel, Seat, State, Step},
    run::Run,
    verdict::{Conviction, Finding, Inquiry, Property},
    wgl::{Outcome, Timed, search},
};
use crate::chaos::history::{Acquire, Answer, Call, Ended, Found, Operation, Wait};

/// More operations of a lock are not looked at.
pub(super) const OPERATIONS_MAX: usize = 200;

/// More states are not visited: some seconds, unoptimized.
const TRIES_MAX: u64 = 200_000;

/// As many for each try to show less.
const SHRINK_TRIES_MAX: u64 = 5_000;

struct NoOrder<'r> {
    lock: &'r str,
    lines: Vec<usize>,
}

impl fmt::Display for NoOrder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?}: no order of single steps explains these answers", self.lock)
    }
}

impl Conviction for NoOrder<'_> {
    fn lines(&self) -> Vec<usize> {
        self.lines.clone()
    }
}

pub(super) fn judge(run: &Run<'_>, grants: &Grants<'_>) -> Finding {
    let mut inquiry = Inquiry::into(Property::Linearizability);
    inquiry.saw("operations", 0);
    let known = Known::of(run, grants);
    for (lock, operations) in of_locks(run) {
        let (model, timed, lines) = known.steps(lock, &operations);
        match search(&model, State::default(), &timed, TRIES_MAX) {
            Outcome::Found => {
                inquiry.saw("operations", operations.len().min(OPERATIONS_MAX) as u64);
                inquiry.saw("locks", 1);
            }
            Outcome::TooLong => inquiry.undecided(format!("the search for lock {lock:?} took too long")),
            Outcome::None => {
                let lines = shrink(&model, timed, &lines);
                inquiry.convict(&NoOrder { lock, lines });
            }
        }
    }
    inquiry.close()
}

/// The lines of the fewest steps whose ends matter: an end that can be forgotten, and there is still no order, shows nothing.
fn shrink(model: &LockModel, mut timed: Vec<Timed<Step>>, lines: &[[usize; 2]]) -> Vec<usize> {
    for at in (0..timed.len()).rev() {
        let end_ns = std::mem::replace(&mut timed[at].end_ns, u64::MAX);
        if end_ns != u64::MAX && search(model, State::default(), &timed, SHRINK_TRIES_MAX) != Outcome::None {
            timed[at].end_ns = end_ns;
        }
    }
    let needed = timed.iter().zip(lines).filter(|(step, _)| step.end_ns != u64::MAX);
    needed.flat_map(|(_, lines)| *lines).collect()
}

/// The operations that concern each lock, by their beginnings.
fn of_locks<'r>(run: &'r Run<'_>) -> BTreeMap<&'r str, Vec<usize>> {
    let mut locks: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let mut sessions: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut tokens: HashMap<u64, &[String]> = HashMap::new();
    for (_, operation, acquire) in run.acquires() {
        let known = sessions.entry(&acquire.session).or_default();
        for lock in operation.locks {
            if !known.contains(&&**lock) {
                known.push(lock);
            }
        }
        if let Ended::Ok(Answer::Acquire { token, .. }) = operation.ended {
            tokens.insert(*token, operation.locks);
        }
    }
    for (place, operation) in run.operations.iter().enumerate() {
        let of_token =
            |token: &u64| tokens.get(token).copied().unwrap_or_default().iter().map(|lock| &**lock).collect();
        let concerned: Vec<&str> = match operation.call {
            Call::Close { session } | Call::Cancel { session, .. } => {
                sessions.get(&**session).cloned().unwrap_or_default()
            }
            Call::Release { token, .. } => of_token(token),
            Call::Acquire(_) | Call::Get {} | Call::Check { .. } | Call::Update { .. } | Call::ForceRelease { .. } => {
                operation.locks.iter().map(|lock| &**lock).collect()
            }
            Call::Open { .. } | Call::Renew { .. } | Call::Retry { .. } | Call::Write { .. } => Vec::new(),
        };
        for lock in concerned {
            locks.entry(lock).or_default().push(place);
        }
    }
    locks
}

/// What is known of acquires beside their own lines.
struct Known<'r> {
    run: &'r Run<'r>,
    /// By the acquire's place: its token, when it was told, and until when the grant can be trusted.
    granted: HashMap<usize, (u64, u64, u64)>,
    tokens: HashMap<u64, usize>,
    cancelled: HashMap<usize, usize>,
}

impl<'r> Known<'r> {
    fn of<'a>(run: &'r Run<'a>, grants: &Grants<'_>) -> Self {
        let mut granted = HashMap::new();
        let mut tokens = HashMap::new();
        for grant in &grants.by_token {
            let trusted =
                run.session(grant.session).and_then(|session| session.trusted).map_or(0, |lease| lease.until_ns);
            let until_ns = grant.revoked_ns.map_or(trusted, |revoked_ns| revoked_ns.min(trusted));
            granted.insert(grant.operation, (grant.token, grant.answered_ns, until_ns));
            tokens.insert(grant.token, grant.operation);
        }
        let cancels = Cancels::of(run);
        let mut cancelled = HashMap::new();
        for (place, operation, acquire) in run.acquires() {
            if let Some(cancel) = cancels.cancel(operation, acquire) {
                cancelled.insert(cancel.invoked_line, place);
            }
        }
        Self { run, granted, tokens, cancelled }
    }

    /// The model of a lock, its steps, and the lines of each.
    fn steps(&self, lock: &str, operations: &[usize]) -> (LockModel, Vec<Timed<Step>>, Vec<[usize; 2]>) {
        let horizon_ns = operations.get(OPERATIONS_MAX).map_or(u64::MAX, |at| self.run.operations[*at].invoked_ns);
        let mut builder =
            Builder { known: self, lock, model: LockModel::default(), steps: Vec::new(), seats: HashMap::new() };
        let kept: Vec<_> = operations.iter().take(OPERATIONS_MAX).copied().collect();
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

/// Turns the operations of one lock into steps.
struct Builder<'r> {
    known: &'r Known<'r>,
    lock: &'r str,
    model: LockModel,
    steps: Vec<(Timed<Step>, [usize; 2])>,
    /// The acquires, by their places among all operations.
    seats: HashMap<usize, u16>,
}

impl Builder<'_> {
    /// Gives each acquire that may hold the lock a seat.
    fn sit(&mut self, place: usize) {
        let operation = &self.known.run.operations[place];
        let Call::Acquire(acquire) = operation.call else { return };
        if matches!(operation.ended, Ended::Fail(_)) {
            return;
        }
        let at = operation.locks.iter().position(|name| name == self.lock).unwrap_or_default();
        let session = self.model.session(&acquire.session);
        let token = self.known.granted.get(&place).map(|(token, ..)| *token);
        let seat = Seat { mode: acquire.mode.of(at).unwrap_or_default(), token, session };
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
            (Call::Close { session }, Ended::Ok(_) | Ended::Info | Ended::Open) => {
                let session = self.model.session(session);
                self.push(operation, Step::LeaveAll(session));
            }
            (Call::Cancel { .. }, ended) => {
                let acquire = self.known.cancelled.get(&operation.invoked_line);
                let Some(seat) = acquire.and_then(|place| self.seats.get(place)).copied() else { return };
                match ended {
                    Ended::Ok(Answer::Cancel { found: Found::Grant }) | Ended::Info | Ended::Open => {
                        self.push(operation, Step::Leave(seat));
                    }
                    Ended::Ok(_) => self.push(operation, Step::Absent(seat)),
                    Ended::Fail(_) => {}
                }
            }
            (Call::Release { token, .. }, ended) => self.add_of_token(operation, *token, ended, Step::Leave),
            (Call::Update { token, .. }, ended @ (Ended::Ok(_) | Ended::Fail(_))) => {
                self.add_of_token(operation, *token, ended, Step::Present);
            }
            (Call::Check { token }, Ended::Ok(Answer::Check { held: true })) => {
                self.add_of_token(operation, *token, operation.ended, Step::Present);
            }
            (Call::Check { token }, Ended::Ok(Answer::Check { held: false })) => {
                self.add_of_token(operation, *token, Ended::Fail("not_held"), Step::Present);
            }
            (Call::ForceRelease { now: true, .. }, Ended::Ok(Answer::ForceRelease { revoked })) => {
                for token in revoked {
                    self.add_of_token(operation, *token, operation.ended, Step::Leave);
                }
            }
            (Call::Get {}, Ended::Ok(Answer::Get(view))) => {
                let holders = view.holders.iter().map(|holder| (holder.token, self.model.session(&holder.session)));
                let mut holders: Vec<_> = holders.collect();
                holders.sort_unstable();
                self.push(operation, Step::View(holders));
            }
            _ => {}
        }
    }

    /// Its grant, and its expiry.
    fn add_acquire(&mut self, place: usize, seat: u16, acquire: &Acquire) {
        let run = self.known.run;
        let operation = &run.operations[place];
        let lines = [operation.invoked_line, operation.ended_line];
        let trusted = run.session(&acquire.session).and_then(|session| session.trusted);
        let (end_ns, until_ns) = match self.known.granted.get(&place) {
            Some((_, told_ns, until_ns)) => (*told_ns, *until_ns),
            None => (u64::MAX, trusted.map_or(0, |lease| lease.until_ns)),
        };
        let grant = Timed { step: Step::Take(seat), begin_ns: operation.invoked_ns, end_ns };
        self.steps.push((grant, lines));
        let begin_ns = until_ns.max(operation.invoked_ns);
        self.steps.push((Timed { step: Step::Leave(seat), begin_ns, end_ns: u64::MAX }, lines));
        // Without a known token, an operator's order to open the lock may have met it.
        if !self.known.granted.contains_key(&place) {
            self.steps
                .push((Timed { step: Step::Leave(seat), begin_ns: operation.invoked_ns, end_ns: u64::MAX }, lines));
        }
    }

    /// A try that was refused, unless somebody may have waited, or the lock may have been closed by a delay.
    fn add_busy(&mut self, operation: &Operation<'_>, acquire: &Acquire, all: &[usize]) {
        let explained = all.iter().map(|place| &self.known.run.operations[*place]).any(|other| {
            let Call::Acquire(theirs) = other.call else { return false };
            let together = other.invoked_ns < operation.ended_ns && operation.invoked_ns < other.ended_ns;
            theirs.lock_delay_ms > 0 || (theirs.wait != Wait::None && together)
        });
        if !explained {
            self.push(operation, Step::Busy(acquire.mode.of(0).unwrap_or_default()));
        }
    }

    fn add_of_token(&mut self, operation: &Operation<'_>, token: u64, ended: Ended<'_>, step: fn(u16) -> Step) {
        let acquire = self.known.tokens.get(&token);
        let Some(seat) = acquire.and_then(|place| self.seats.get(place)).copied() else { return };
        match ended {
            Ended::Fail("not_held") => self.push(operation, Step::Absent(seat)),
            Ended::Fail(_) => {}
            Ended::Ok(_) | Ended::Info | Ended::Open => self.push(operation, step(seat)),
        }
    }

    fn push(&mut self, operation: &Operation<'_>, step: Step) {
        let Operation { invoked_ns, ended_ns, invoked_line, ended_line, .. } = *operation;
        self.steps.push((Timed { step, begin_ns: invoked_ns, end_ns: ended_ns }, [invoked_line, ended_line]));
    }
}

fn ended_busy(ended: Ended<'_>) -> bool {
    matches!(ended, Ended::Fail("busy"))
}
