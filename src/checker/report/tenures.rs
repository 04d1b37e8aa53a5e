//! Tenures: which grant held which lock and when, as known to holders.
//!
//! A tenure is certain from the answer to its acquire until the earliest of these: the sending of its release, its session's deadline, a
//! noticed loss, a forced release. The time between the sending of a release and its answer is uncertain, and shown separately.
//!
//! Deliberately absent: grants that are known only from reads. The checker uses those.

use std::collections::{BTreeMap, HashMap};

use super::leases::{ClientLease, LeaseEnd};
use crate::history::{Acquire, Answer, Call, CancelFound, Ended, Fact, History, Mode, Operation, What};

/// A grant's tenure of one lock.
#[derive(Clone, Debug)]
pub(super) struct Tenure<'h> {
    pub(super) lock: &'h str,
    pub(super) token: u64,
    pub(super) session: &'h str,
    pub(super) client: &'h str,
    pub(super) mode: Mode,
    /// The time at which the grant was answered.
    pub(super) from_ns: u64,
    /// The time until which the tenure is certain.
    pub(super) until_ns: u64,
    /// The time at which the tenure was certainly over, if that is known. It is not before `until_ns`.
    pub(super) over_ns: u64,
    pub(super) end: TenureEnd,
    pub(super) granted_line: usize,
    /// The line of the end.
    pub(super) ended_line: usize,
}

/// The kind of a tenure's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TenureEnd {
    Released,
    Closed,
    Revoked,
    Lost,
    Expired,
    /// The tenure had not ended at the end of the history.
    Open,
}

/// An event that may end a tenure.
#[derive(Clone, Copy, Debug)]
struct Ending {
    until_ns: u64,
    over_ns: u64,
    end: TenureEnd,
    line: usize,
}

/// A forced release of one token or of all holders, and whether it takes effect at once.
#[derive(Clone, Copy, Debug)]
struct ForcedEnding {
    token: Option<u64>,
    now: bool,
    ending: Ending,
}

/// The events that end grants before their sessions end.
#[derive(Default)]
struct Endings<'h> {
    by_grant: HashMap<(&'h str, u64), Vec<Ending>>,
    /// The cancels, by session and request.
    by_request: HashMap<(&'h str, u64), Vec<Ending>>,
    by_op: HashMap<(&'h str, u64), Vec<Ending>>,
    /// The forced releases, by lock.
    forced: HashMap<&'h str, Vec<ForcedEnding>>,
}

/// All tenures, in the order of the answers.
pub(super) fn tenures<'h>(
    history: &'h History,
    operations: &[Operation<'h>],
    leases: &BTreeMap<&'h str, ClientLease<'h>>,
) -> Vec<Tenure<'h>> {
    let last_ns = history.events.last().map_or(0, |(_, event)| event.time_ns);
    let endings = endings(history, operations);

    let mut tenures = Vec::new();
    for grant in grants(operations) {
        let Some(lease) = leases.get(grant.session) else { continue };
        for (place, lock) in grant.locks.iter().enumerate() {
            let ending = endings.first(&grant, lock, lease, last_ns);
            tenures.push(Tenure {
                lock,
                token: grant.token,
                session: grant.session,
                client: lease.client,
                mode: grant.acquire.mode.mode_at(place).unwrap_or_default(),
                from_ns: grant.from_ns,
                until_ns: ending.until_ns.max(grant.from_ns),
                over_ns: ending.over_ns.max(ending.until_ns).max(grant.from_ns).min(last_ns),
                end: ending.end,
                granted_line: grant.line,
                ended_line: ending.line,
            });
        }
    }
    tenures.sort_by_key(|tenure| (tenure.from_ns, tenure.token));
    tenures
}

/// A granted acquire, answered directly or by a retry.
struct AnsweredGrant<'h> {
    session: &'h str,
    token: u64,
    locks: &'h [String],
    acquire: &'h Acquire,
    process: &'h str,
    op: Option<u64>,
    from_ns: u64,
    line: usize,
}

fn grants<'h>(operations: &[Operation<'h>]) -> Vec<AnsweredGrant<'h>> {
    let mut by_request: HashMap<(&str, u64), (&Operation<'h>, &'h Acquire)> = HashMap::new();
    for operation in operations {
        if let Call::Acquire(acquire) = operation.call
            && let Some(request) = acquire.request
        {
            by_request.insert((&acquire.session, request), (operation, acquire));
        }
    }

    let mut grants = BTreeMap::new();
    for answered in operations {
        let (asked, acquire, token) = match (answered.call, answered.ended) {
            (Call::Acquire(acquire), Ended::Ok(Answer::Acquire { token, .. })) => (answered, acquire, *token),
            (Call::Retry { session, request }, Ended::Ok(Answer::Retry { token })) => {
                let Some(&(asked, acquire)) = by_request.get(&(&**session, *request)) else { continue };
                (asked, acquire, *token)
            }
            _ => continue,
        };

        let from_ns = answered.ended_ns;
        let line = answered.ended_line;
        let Operation { locks, process, op, .. } = *asked;
        let grant = AnsweredGrant { session: &acquire.session, token, locks, acquire, process, op, from_ns, line };

        // The first answer counts, because retries have the same answer. A token with two owners is shown as two grants.
        let known = grants.entry((grant.session, token, grant.locks));
        known.and_modify(|first: &mut AnsweredGrant<'h>| first.from_ns = first.from_ns.min(from_ns)).or_insert(grant);
    }
    grants.into_values().collect()
}

fn endings<'h>(history: &'h History, operations: &[Operation<'h>]) -> Endings<'h> {
    let mut endings = Endings::default();
    for operation in operations {
        // An operation that failed ends nothing. After the sending of one with an unknown outcome, the grant is no longer certain.
        let over_ns = match operation.ended {
            Ended::Fail(_) => continue,
            Ended::Ok(_) => operation.ended_ns,
            Ended::Info | Ended::Open => operation.invoked_ns,
        };

        let ending = |end| Ending { until_ns: operation.invoked_ns, over_ns, end, line: operation.ended_line };
        match (operation.call, operation.ended) {
            (Call::Release { session, token }, _) => {
                endings.by_grant.entry((session, *token)).or_default().push(ending(TenureEnd::Released));
            }
            (Call::Cancel { .. }, Ended::Ok(Answer::Cancel { found: CancelFound::Wait | CancelFound::Nothing })) => {}
            (Call::Cancel { session, request: Some(request), .. }, _) => {
                endings.by_request.entry((session, *request)).or_default().push(ending(TenureEnd::Released));
            }
            (Call::Cancel { op: Some(op), .. }, _) => {
                endings.by_op.entry((operation.process, *op)).or_default().push(ending(TenureEnd::Released));
            }
            (Call::ForceRelease { token, now }, _) => {
                let forced = forced(operation, *token).into_iter();
                let forced = forced.map(|token| ForcedEnding { token, now: *now, ending: ending(TenureEnd::Revoked) });
                operation.locks.iter().for_each(|lock| endings.forced.entry(lock).or_default().extend(forced.clone()));
            }
            _ => {}
        }
    }

    for (line, event) in &history.events {
        if let What::Fact(Fact::Lost { session, token: Some(token), .. }) = &event.what {
            let lost = Ending { until_ns: event.time_ns, over_ns: event.time_ns, end: TenureEnd::Lost, line: *line };
            endings.by_grant.entry((session, *token)).or_default().push(lost);
        }
    }
    endings
}

/// The tokens in the answer or, without an answer, the requested token.
fn forced(operation: &Operation<'_>, asked: Option<u64>) -> Vec<Option<u64>> {
    if let Ended::Ok(Answer::ForceRelease { revoked }) = operation.ended {
        return revoked.iter().copied().map(Some).collect();
    }
    vec![asked]
}

impl Endings<'_> {
    /// The first event that ends this grant's tenure of this lock. Events before the grant concern an earlier one.
    fn first(&self, grant: &AnsweredGrant<'_>, lock: &str, lease: &ClientLease<'_>, last_ns: u64) -> Ending {
        let (until_ns, end, line) = lease.until(last_ns);
        let over_ns = match (end, lease.closed) {
            (LeaseEnd::Closed, Some((_, ended_ns, _))) => ended_ns,
            _ => until_ns,
        };
        let mut first = Ending { until_ns, over_ns, end: tenure_end(end), line };

        let mut consider = |ending: Ending| {
            if ending.until_ns < first.until_ns && ending.over_ns >= grant.from_ns {
                first = ending;
            }
        };

        let none = Vec::new();
        self.by_grant.get(&(grant.session, grant.token)).unwrap_or(&none).iter().copied().for_each(&mut consider);
        if let Some(request) = grant.acquire.request {
            self.by_request.get(&(grant.session, request)).unwrap_or(&none).iter().copied().for_each(&mut consider);
        }
        if let Some(op) = grant.op {
            self.by_op.get(&(grant.process, op)).unwrap_or(&none).iter().copied().for_each(&mut consider);
        }

        for ForcedEnding { token, now, ending } in self.forced.get(lock).into_iter().flatten() {
            if token.is_some_and(|token| token != grant.token) || ending.over_ns < grant.from_ns {
                continue;
            }

            // Without `now`, the holder may use the lock until the deadline that its session had then. Later renewals do not extend it.
            let until_ns = if *now { ending.until_ns } else { lease.deadline_at(ending.over_ns).0 };
            consider(Ending { until_ns, over_ns: ending.over_ns.max(until_ns), ..*ending });
        }
        first
    }
}

fn tenure_end(end: LeaseEnd) -> TenureEnd {
    match end {
        LeaseEnd::Closed => TenureEnd::Closed,
        LeaseEnd::Lost => TenureEnd::Lost,
        LeaseEnd::Expired => TenureEnd::Expired,
        LeaseEnd::Open => TenureEnd::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{history::operations, report::leases};

    const MS: u64 = 1_000_000;

    /// A session of 100 ms, sent at 1 ms; a grant of token 1, requested at 3 ms and answered at 4 ms; then the given
    /// events; end at 500 ms.
    fn story(events: &[&str]) -> (u64, u64, TenureEnd) {
        let mut text = String::new();
        let mut line = |at_ms: u64, rest: &str| text.push_str(&format!("{{\"time_ns\":{},{rest}}}\n", at_ms * MS));
        line(0, r#""process":"nemesis","type":"info","f":"meta","value":{"format":1}"#);
        line(1, r#""process":"ann","type":"invoke","f":"open","op":0,"value":{"session":"s","ttl_ms":100}"#);
        line(2, r#""process":"ann","type":"ok","f":"open","op":0"#);
        line(
            3,
            r#""process":"ann","type":"invoke","f":"acquire","op":1,"lock":"a","value":{"session":"s","request":7}"#,
        );
        line(4, r#""process":"ann","type":"ok","f":"acquire","op":1,"value":{"token":1}"#);
        for event in events {
            let (at_ms, rest) = event.split_once(' ').expect("a time, and the rest");
            line(at_ms.parse().expect("a time"), rest);
        }
        line(500, r#""process":"nemesis","type":"info","f":"end""#);
        let history = History::read(text.as_bytes()).expect("it is a history");
        let operations = operations(&history).expect("it was read");
        let tenures = tenures(&history, &operations, &leases::leases(&history, &operations));
        let [tenure] = &*tenures else { panic!("one grant: {tenures:?}") };
        assert_eq!((tenure.lock, tenure.token, tenure.from_ns), ("a", 1, 4 * MS));
        (tenure.until_ns / MS, tenure.over_ns / MS, tenure.end)
    }

    const RELEASE: &str =
        r#"50 "process":"ann","type":"invoke","f":"release","op":2,"value":{"session":"s","token":1}"#;

    #[test]
    fn without_an_end_it_lasts_until_the_deadline_counted_from_the_sending() {
        assert_eq!(story(&[]), (101, 101, TenureEnd::Expired));
        let renewed = r#"60 "process":"ann","type":"info","f":"renewed","value":{"session":"s","sent_ns":55000000}"#;
        assert_eq!(story(&[renewed]), (155, 155, TenureEnd::Expired));
        let late = r#"60 "process":"ann","type":"info","f":"renewed","value":{"session":"s","sent_ns":0}"#;
        assert_eq!(story(&[late]), (101, 101, TenureEnd::Expired));
        let long = r#"60 "process":"ann","type":"info","f":"renewed","value":{"session":"s","sent_ns":55000000,"ttl_ms":1000}"#;
        assert_eq!(story(&[long]), (500, 500, TenureEnd::Open));
    }

    #[test]
    fn a_release_ends_what_is_certain_when_it_is_sent() {
        let ok = r#"53 "process":"ann","type":"ok","f":"release","op":2"#;
        assert_eq!(story(&[RELEASE, ok]), (50, 53, TenureEnd::Released));
        assert_eq!(story(&[RELEASE]), (50, 50, TenureEnd::Released));
        let failed = r#"53 "process":"ann","type":"fail","f":"release","op":2,"value":{"reason":"unavailable"}"#;
        assert_eq!(story(&[RELEASE, failed]), (101, 101, TenureEnd::Expired));
    }

    #[test]
    fn a_close_and_a_cancel_that_found_the_grant_end_it() {
        let close = r#"40 "process":"ann","type":"invoke","f":"close","op":3,"value":{"session":"s"}"#;
        let closed = r#"44 "process":"ann","type":"ok","f":"close","op":3"#;
        assert_eq!(story(&[close, closed]), (40, 44, TenureEnd::Closed));
        let cancel = r#"30 "process":"ann","type":"invoke","f":"cancel","op":4,"value":{"session":"s","request":7}"#;
        let found = r#"31 "process":"ann","type":"ok","f":"cancel","op":4,"value":{"found":"grant"}"#;
        assert_eq!(story(&[cancel, found]), (30, 31, TenureEnd::Released));
        let by_op = r#"30 "process":"ann","type":"invoke","f":"cancel","op":4,"value":{"session":"s","op":1}"#;
        assert_eq!(story(&[by_op, found]), (30, 31, TenureEnd::Released));
        let other = r#"30 "process":"ann","type":"invoke","f":"cancel","op":4,"value":{"session":"s","request":8}"#;
        assert_eq!(story(&[other, found]), (101, 101, TenureEnd::Expired));
    }

    #[test]
    fn a_forced_release_ends_it_at_once_or_at_the_deadline_of_then() {
        let renewed = r#"60 "process":"ann","type":"info","f":"renewed","value":{"session":"s","sent_ns":55000000}"#;
        let now = r#"20 "process":"op","type":"invoke","f":"force_release","lock":"a","value":{"now":true}"#;
        let waits = r#"20 "process":"op","type":"invoke","f":"force_release","lock":"a","value":{"now":false}"#;
        let answer = r#"22 "process":"op","type":"ok","f":"force_release","value":{"revoked":[1]}"#;
        let none = r#"22 "process":"op","type":"ok","f":"force_release","value":{"revoked":[]}"#;
        assert_eq!(story(&[now, answer, renewed]), (20, 22, TenureEnd::Revoked));
        assert_eq!(story(&[waits, answer, renewed]), (101, 101, TenureEnd::Revoked));
        assert_eq!(story(&[now, none, renewed]), (155, 155, TenureEnd::Expired));
    }

    #[test]
    fn a_loss_ends_it_when_it_is_noticed_before_the_deadline() {
        let lost = r#"70 "process":"ann","type":"info","f":"lost","value":{"session":"s","why":"revoked","token":1}"#;
        assert_eq!(story(&[lost]), (70, 70, TenureEnd::Lost));
        let late = r#"170 "process":"ann","type":"info","f":"lost","value":{"session":"s","why":"expired"}"#;
        assert_eq!(story(&[late]), (101, 101, TenureEnd::Expired));
    }
}
