//! First come, first served.
//!
//! Reads show the order of arrival. An acquire that a `get` shows in the queue of a lock precedes all acquires that start after the answer
//! to that `get`, and all that the same `get` shows behind it. It is granted before them, with a lower token, unless it ends in another
//! way: it timed out, was cancelled, or was queued again (`place_lost`; it then has another ticket). Being overtaken by an acquire that
//! does not wait is a violation too.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use super::{
    run::{MS, Run},
    verdict::{Evidence, Finding, Investigation, Property},
    waiters::WaitMatcher,
};
use crate::history::{Answer, Call, Ended, Operation, Wait, Waiter};

/// An acquire that a read showed in a queue.
#[derive(Clone, Copy)]
struct QueuedWait<'r> {
    operation: &'r Operation<'r>,
    /// The moment from which it waited, according to `line`.
    since_ns: u64,
    line: usize,
    /// A moment at which it certainly still waited.
    until_ns: u64,
}

impl QueuedWait<'_> {
    /// Its token, if it kept its place until the grant.
    fn token(&self) -> Option<u64> {
        token(self.operation)
    }
}

struct Passed<'r> {
    lock: &'r str,
    first: QueuedWait<'r>,
    then: &'r Operation<'r>,
}

impl fmt::Display for Passed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.first.operation.process;
        let then = self.then.process;
        let token = token(self.then).unwrap_or_default();
        write!(f, "lock {:?}: {first:?} was in the queue before {then:?} arrived, ", self.lock)?;
        match self.first.token() {
            Some(later) => write!(f, "but {then:?} got token {token} and {first:?} the later token {later}"),
            None => write!(f, "but {then:?} got token {token} while {first:?} still waited"),
        }
    }
}

impl Evidence for Passed<'_> {
    fn lines(&self) -> Vec<usize> {
        let first = self.first.operation;
        let then = self.then;
        let ended = self.first.token().map(|_| first.ended_line);
        let lines = [first.invoked_line, self.first.line, then.invoked_line, then.ended_line];
        lines.into_iter().chain(ended).collect()
    }
}

pub(super) fn check(run: &Run<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::FirstComeFirstServed);
    investigation.count("waits seen in a queue", 0);
    let matcher = WaitMatcher::from_run(run);
    let mut queues: BTreeMap<&str, HashMap<(usize, Option<u64>), QueuedWait<'_>>> = BTreeMap::new();

    for read in &run.operations {
        let Ended::Ok(Answer::Get(view)) = read.ended else { continue };
        let place = |waiter: &Waiter| Some((matcher.waiter(read, &waiter.session)?, waiter.ticket));
        let places: Vec<_> = view.waiters.iter().filter_map(place).collect();
        in_one_view(run, read, &places, &mut investigation);

        let queue = queues.entry(&read.locks[0]).or_default();
        for (place, ticket) in places {
            let fresh = || QueuedWait {
                operation: &run.operations[place],
                since_ns: read.ended_ns,
                line: read.ended_line,
                until_ns: until_its_limit(&run.operations[place], run.meta.stamp_ns),
            };

            let queued = queue.entry((place, ticket)).or_insert_with(fresh);
            if read.ended_ns < queued.since_ns {
                queued.since_ns = read.ended_ns;
                queued.line = read.ended_line;
            }
            queued.until_ns = queued.until_ns.max(read.invoked_ns);
        }
    }

    let mut granted = granted(run);
    for (lock, queue) in queues {
        investigation.count("waits seen in a queue", queue.len() as u64);
        compare(lock, queue, granted.remove(lock).unwrap_or_default(), &mut investigation);
    }

    investigation.close()
}

/// The token of an acquire that kept its place.
fn token(operation: &Operation<'_>) -> Option<u64> {
    match operation.ended {
        Ended::Ok(Answer::Acquire { token, place_lost: false }) => Some(*token),
        Ended::Ok(_) | Ended::Fail(_) | Ended::Info | Ended::Open => None,
    }
}

/// The moment until which an acquire certainly waited: one that timed out waited at least until its limit, by a clock of the cluster's.
fn until_its_limit(operation: &Operation<'_>, stamp_ns: u64) -> u64 {
    match (operation.call, operation.ended) {
        (Call::Acquire(acquire), Ended::Fail("timed_out")) => match acquire.wait {
            Wait::AtMostMs(ms) => operation.invoked_ns.saturating_add(ms.saturating_mul(MS)).saturating_sub(stamp_ns),
            Wait::None | Wait::Forever => 0,
        },
        _ => 0,
    }
}

/// The grants of each lock, in the order of their requests.
fn granted<'r>(run: &'r Run<'_>) -> HashMap<&'r str, Vec<&'r Operation<'r>>> {
    let mut granted: HashMap<&str, Vec<&Operation<'_>>> = HashMap::new();
    for (_, operation, _) in run.acquires() {
        if let Ended::Ok(Answer::Acquire { .. }) = operation.ended {
            operation.locks.iter().for_each(|lock| granted.entry(lock).or_default().push(operation));
        }
    }
    granted
}

/// Compares the waiters within one read.
fn in_one_view<'r>(
    run: &'r Run<'_>,
    read: &'r Operation<'_>,
    places: &[(usize, Option<u64>)],
    investigation: &mut Investigation,
) {
    let mut highest: Option<&Operation<'_>> = None;

    for then in places.iter().map(|(place, _)| &run.operations[*place]).filter(|operation| token(operation).is_some()) {
        if let Some(first) = highest.filter(|first| token(first) > token(then)) {
            let since_ns = read.ended_ns;
            let line = read.ended_line;
            let first = QueuedWait { operation: first, since_ns, line, until_ns: 0 };
            investigation.report(&Passed { lock: &read.locks[0], first, then });
        } else {
            highest = Some(then);
        }
    }
}

/// Compares waiters with acquires that started after they were read.
fn compare<'r>(
    lock: &'r str,
    queue: HashMap<(usize, Option<u64>), QueuedWait<'r>>,
    granted: Vec<&'r Operation<'r>>,
    investigation: &mut Investigation,
) {
    let mut queue: Vec<_> = queue.into_values().collect();
    queue.sort_unstable_by_key(|queued| (queued.since_ns, queued.operation.invoked_line));
    let mut queue = queue.into_iter().peekable();
    let mut last_granted = None::<QueuedWait<'_>>;
    let mut last_waiting = None::<QueuedWait<'_>>;

    for then in granted {
        while let Some(queued) = queue.next_if(|queued| queued.since_ns < then.invoked_ns) {
            if last_granted.is_none_or(|known| known.token() < queued.token()) {
                last_granted = Some(queued);
            }
            if last_waiting.is_none_or(|known| known.until_ns < queued.until_ns) {
                last_waiting = Some(queued);
            }
        }

        let later = last_granted.filter(|first| first.token() > token(then).or(Some(u64::MAX)));
        let waiting = last_waiting.filter(|first| first.until_ns > then.ended_ns);
        if last_granted.is_some() || last_waiting.is_some() {
            investigation.count("later grants", 1);
        }

        if let Some(first) = later.or(waiting) {
            investigation.report(&Passed { lock, first, then });
        }
    }
}
