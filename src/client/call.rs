//! One request, retried where a retry is safe, until it is answered or its deadline has passed.
//!
//! Attempts go to the leader if it is known, otherwise to the nodes in turn; the leader named by an answer gets the
//! next attempt at once. After a node that does not answer, the next one is asked without backoff, until all nodes were
//! asked. A refusal by the cluster is never retried.

use std::{fmt, sync::Arc, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tonic::{Response, Status};

use super::{
    Clock, Error, Refusal, Refused,
    backoff::Backoff,
    contact::ClusterContact,
    error::AttemptFailure,
    nodes::{KnownNodes, Node},
};

/// Calls one method of a service on a node, with a copy of the request.
macro_rules! with {
    ($service:ident, $node:expr, $method:ident, $request:expr) => {{
        let channel = $node.channel.clone();
        let request = $request.clone();
        async move { $service::new(channel).$method(request).await }
    }};
}
pub(crate) use with;

/// The state that all calls of a client share.
pub(crate) struct SharedCaller {
    pub(crate) nodes: KnownNodes,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: std::sync::Mutex<StdRng>,
    /// Limit of a call, retries included, unless the call sets its own.
    pub(crate) call_limit: Duration,
    /// How long one node has to answer before the next one is asked.
    pub(crate) attempt_limit: Duration,
    /// Whether any node has answered yet.
    pub(super) contact: ClusterContact,
}

/// How a request is retried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryPolicy {
    /// Limit of the whole call, retries included.
    pub(crate) limit: Option<Duration>,
    /// Limit of one attempt. Without a limit the call may wait on the server; only a broken connection or a change of
    /// leader ends the attempt.
    pub(crate) attempt_limit: Option<Duration>,
    /// Also retry when the outcome of an attempt is unknown: the request is idempotent or has a request id.
    pub(crate) repeat_unknown: bool,
    /// The request only reads, so an unknown outcome does not matter.
    pub(crate) reads: bool,
}

/// In a waiting call, the shortest time between two changes of leader. While two nodes disagree on the leader, the call
/// must not alternate between them.
const LEADER_SETTLES: Duration = Duration::from_millis(100);

impl SharedCaller {
    /// The policy for idempotent requests.
    pub(crate) fn policy(&self) -> RetryPolicy {
        RetryPolicy {
            limit: Some(self.call_limit),
            attempt_limit: Some(self.attempt_limit),
            repeat_unknown: true,
            reads: false,
        }
    }

    /// For read-only requests.
    pub(crate) fn read_policy(&self) -> RetryPolicy {
        RetryPolicy { reads: true, ..self.policy() }
    }

    /// The policy for requests that are not idempotent.
    pub(crate) fn once_policy(&self) -> RetryPolicy {
        RetryPolicy { repeat_unknown: false, attempt_limit: Some(self.call_limit), ..self.policy() }
    }

    pub(crate) fn random_id(&self) -> u128 {
        self.rng().random()
    }

    pub(crate) fn jitter(&self) -> f64 {
        self.rng().random()
    }

    fn rng(&self) -> std::sync::MutexGuard<'_, StdRng> {
        self.random.lock().expect("no code panics while it holds this lock")
    }

    /// Sends the request until a node answers. `send` builds the request anew for each attempt.
    pub(crate) async fn call<A, F>(&self, policy: RetryPolicy, send: impl Fn(&Node) -> F) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let until = policy.limit.map(|limit| Instant::now() + limit);
        let mut progress = CallProgress::default();
        let mut said = None;
        loop {
            let node = self.nodes.preferred();
            let why = match self.attempt(&node, policy, until, &send).await {
                Ok(answer) => return Ok(answer),
                // An earlier attempt may have taken effect: then an answer that does not come from the table does not say that nothing
                // happened, and another attempt would be answered the same.
                Err(AttemptFailure::Refused(refused)) if progress.unknown && is_from_outside(&refused) => {
                    return Err(progress.give_up(format!("{}: {}", node.address, refused.message)));
                }
                Err(AttemptFailure::Refused(refused)) => return Err(refused.into()),
                // The same, but another attempt may be answered otherwise.
                Err(AttemptFailure::NotNow(refused)) if !progress.unknown => return Err(refused.into()),
                Err(AttemptFailure::NotNow(refused)) => {
                    progress.note(false, true, self.nodes.led_by_other_than(&node));
                    format!("{}: {}", node.address, refused.message)
                }
                Err(AttemptFailure::Again { unknown, node_answers, why }) => {
                    progress.note(unknown && !policy.reads, node_answers, self.nodes.led_by_other_than(&node));
                    format!("{}: {why}", node.address)
                }
            };
            if progress.unknown && !policy.repeat_unknown {
                return Err(Error::Unknown { why });
            }

            // An attempt that the deadline cut short says less than the one before it.
            let was_cut = until.is_some_and(|until| Instant::now() >= until);
            let why = said.take().filter(|_| was_cut).unwrap_or(why);
            let pause = progress.pause(self.nodes.count(), || self.jitter());
            if until.is_some_and(|until| Instant::now() + pause >= until) {
                return Err(progress.give_up(why));
            }
            said = Some(why);
            sleep(pause).await;
        }
    }

    async fn attempt<A, F>(
        &self,
        node: &Node,
        policy: RetryPolicy,
        until: Option<Instant>,
        send: impl Fn(&Node) -> F,
    ) -> Result<A, AttemptFailure>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let began = Instant::now();
        self.contact.asked(policy.attempt_limit.is_none());
        let answer = tokio::select! {
            answer = send(node) => answer,
            () = expire(policy.attempt_limit, until) => Err(Status::deadline_exceeded("no answer in time")),
            () = self.moved_on(node), if policy.attempt_limit.is_none() => return Err(AttemptFailure::leader_moved()),
        };

        let status = match answer {
            Ok(answer) => {
                self.contact.answered();
                self.nodes.note_leader(answer.metadata());
                return Ok(answer.into_inner());
            }
            Err(status) => status,
        };
        let metadata = status.metadata().clone();
        let failure = AttemptFailure::from(status);
        if let AttemptFailure::Again { why, .. } = &failure {
            self.contact.failed(began, &format!("{}: {why}", node.address));
            self.nodes.pass_over(node);
        } else {
            self.contact.answered();
        }
        self.nodes.note_leader(&metadata);
        Err(failure)
    }

    async fn moved_on(&self, node: &Node) {
        sleep(LEADER_SETTLES).await;
        self.contact.waits();
        self.nodes.leader_moved(node).await;
    }

    /// Asks only this node, once. For read-only requests.
    pub(crate) async fn ask_to_read<A, F>(&self, limit: Duration, send: F) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.contact.asked(false);
        let failure = match timeout(limit, send).await {
            Ok(Ok(answer)) => {
                self.contact.answered();
                return Ok(answer.into_inner());
            }
            Ok(Err(status)) => AttemptFailure::from(status),
            Err(_) => AttemptFailure::timed_out(),
        };

        Err(match failure {
            AttemptFailure::Refused(refused) | AttemptFailure::NotNow(refused) => Error::Refused(refused),
            AttemptFailure::Again { why, .. } => Error::NoCluster { why },
        })
    }
}

/// Whether a node may refuse a request so before it looks for an earlier copy of it.
fn is_from_outside(refused: &Refused) -> bool {
    // The table looks first whether it remembers the request, and then for a place for its reply.
    if refused.is_memory_full() {
        return false;
    }
    matches!(
        refused.reason,
        Refusal::Unauthenticated
            | Refusal::PermissionDenied
            | Refusal::NotOwner
            | Refusal::LimitReached
            | Refusal::ClusterVersion
    )
}

async fn expire(attempt: Option<Duration>, until: Option<Instant>) {
    let attempt = attempt.map(|limit| Instant::now() + limit);
    match (attempt, until) {
        (Some(attempt), Some(until)) => sleep_until(attempt.min(until)).await,
        (Some(end), None) | (None, Some(end)) => sleep_until(end).await,
        (None, None) => std::future::pending().await,
    }
}

/// The state of a call after its attempts so far.
#[derive(Debug, Default)]
struct CallProgress {
    /// At least one attempt may have taken effect.
    unknown: bool,
    /// Nodes passed over since the last pause.
    passed_over: usize,
    /// The last node named another node as the leader.
    leader_named: bool,
    /// Leaders followed since the last pause.
    followed: usize,
    backoff: Backoff,
}

impl CallProgress {
    fn note(&mut self, unknown: bool, node_answers: bool, leader_named: bool) {
        self.unknown |= unknown;
        self.leader_named = leader_named;
        if !node_answers {
            self.passed_over += 1;
        }
    }

    /// No delay after a node that did not answer or that named the leader, but only a limited number of times in a row.
    fn pause(&mut self, nodes: usize, jitter: impl FnOnce() -> f64) -> Duration {
        if self.leader_named && self.followed == 0 {
            self.followed += 1;
            return Duration::ZERO;
        }
        if (1..nodes).contains(&self.passed_over) {
            return Duration::ZERO;
        }

        self.passed_over = 0;
        self.followed = 0;
        self.backoff.next(jitter())
    }

    fn give_up(&self, why: String) -> Error {
        if self.unknown { Error::Unknown { why } } else { Error::NoCluster { why } }
    }
}

impl fmt::Debug for SharedCaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("nodes", &self.nodes)
            .field("call_limit", &self.call_limit)
            .finish_non_exhaustive()
    }
}

/// The random number generator: seeded by the system, or by `seed` for a run that can be repeated.
#[expect(clippy::disallowed_methods, reason = "the one place where a client without a seed gets its random numbers")]
pub(crate) fn random(seed: Option<u64>) -> StdRng {
    match seed {
        Some(seed) => StdRng::seed_from_u64(seed),
        None => StdRng::from_os_rng(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_down_are_passed_over_at_once_until_all_had_their_turn() {
        let mut progress = CallProgress::default();
        let mut fail = || {
            progress.note(true, false, false);
            progress.pause(3, || 1.0)
        };
        let (none, first, second) = (Duration::ZERO, Duration::from_millis(20), Duration::from_millis(40));
        assert_eq!([fail(), fail(), fail()], [none, none, first]);
        assert_eq!([fail(), fail(), fail()], [none, none, second]);
    }

    #[test]
    fn a_named_leader_is_followed_at_once_but_not_in_circles() {
        let mut progress = CallProgress::default();
        let mut misled = || {
            progress.note(false, true, true);
            progress.pause(3, || 1.0)
        };
        assert_eq!([misled(), misled()], [Duration::ZERO, Duration::from_millis(20)]);
    }

    #[test]
    fn one_attempt_of_unknown_outcome_makes_the_whole_unknown() {
        let mut progress = CallProgress::default();
        progress.note(false, true, false);
        assert!(matches!(progress.give_up(String::new()), Error::NoCluster { .. }));
        progress.note(true, false, false);
        progress.note(false, true, false);
        assert!(matches!(progress.give_up(String::new()), Error::Unknown { .. }));
    }
}
