//! Requests of adapters.
//!
//! A client of `lockkeeper.v1` is told that no leader is known, and its library tries again. Clients of other protocols give up, some after
//! tens of milliseconds, and an election may take longer. So an adapter waits for the leader on behalf of its client, until the deadline of
//! the call.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    api::{
        Caller, Deadline, Error, FailureReason, Retry,
        requests::{CommitEach, EachCommitted},
    },
    service::{Serve, Service},
    wire::Form,
};
use lockkeeper_machine::{Committed, Txn};
use lockkeeper_planted::Planted;

/// Pause between two attempts while no leader is known.
const PAUSE: Duration = Duration::from_millis(50);

/// Transactions of this node that are under way by [`KeyspaceClient::commit_each`], at the most. Those of all nodes must leave room in the
/// leader's queue: a client that waits its turn is better off than one that is refused since the queue is full.
const TOGETHER_MAX: usize = 1024;

/// The service, as adapters call it.
#[derive(Clone, Debug)]
pub(super) struct KeyspaceClient {
    service: Service,
    together: Arc<Semaphore>,
}

impl KeyspaceClient {
    pub(super) fn new(service: Service) -> Self {
        Self { service, together: Arc::new(Semaphore::new(TOGETHER_MAX)) }
    }

    pub(super) fn service(&self) -> &Service {
        &self.service
    }

    /// Answers a request. Waits for a leader while none is known, until the caller's deadline; a caller without one does not wait.
    ///
    /// Dropping the future breaks off the request as the service does: its outcome is then unknown.
    pub(super) async fn call<C: Serve + Clone>(&self, caller: &Caller, request: C) -> Result<C::Reply, Error> {
        let call = || self.service.call(caller, Form::Typed(request.clone()));
        with_leader(caller.deadline, call).await.and_then(Form::typed)
    }

    /// Commits the first of some transactions one after the other, each by itself: see [`CommitEach`]. Where none was begun, since there is
    /// no leader, it is from before this request, or too many are under way, there are no outcomes; none is tried again here, since it
    /// would come after those that follow it.
    ///
    /// Dropping the future breaks off all that have no answer yet.
    pub(super) async fn commit_each(
        &self,
        caller: &Caller,
        deadline: Instant,
        mut txns: Vec<Txn>,
    ) -> Vec<Result<Committed, Error>> {
        txns.truncate(self.together.available_permits());
        let count = txns.len();
        let permits = u32::try_from(count).unwrap_or(u32::MAX);
        let Ok(_under_way) = self.together.try_acquire_many(permits) else { return Vec::new() };
        if count == 0 {
            return Vec::new();
        }

        let call = self.service.call(caller, Form::Typed(CommitEach { txns }));
        let answer = timeout_at(deadline, call).await;
        let answer = answer.unwrap_or_else(|_| Err(Error::deadline_passed(true)));

        match answer.and_then(Form::typed) {
            // A leader that has lost its office just now refuses all of them.
            Ok(EachCommitted { outcomes }) => match outcomes.first() {
                Some(Err(error)) if is_leaderless(error) => Vec::new(),
                Some(_) | None => outcomes,
            },
            Err(error) if error.retry == Retry::Safe || error.reason == FailureReason::ClusterVersion => Vec::new(),
            Err(error) => vec![Err(error); count],
        }
    }

    /// Begins a stream. Waits for a leader as [`KeyspaceClient::call`] does.
    pub(super) async fn begin<T, F>(&self, deadline: Deadline, begin: impl FnMut() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        with_leader(Some(deadline), begin).await
    }
}

/// The caller of a node's own requests.
pub(super) fn this_node() -> Caller {
    Caller { is_peer: true, ..Caller::default() }
}

/// Attempts a request until it does not fail for the lack of a leader.
async fn with_leader<T, F>(deadline: Option<Deadline>, mut attempt: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    loop {
        let answer = attempt().await;
        let has_time = deadline.is_some_and(|deadline| deadline.left() > PAUSE);

        match answer {
            Err(error) if has_time && is_leaderless(&error) => sleep(PAUSE).await,
            answer => return answer,
        }
    }
}

/// Whether the request had no effect since no leader was known.
fn is_leaderless(error: &Error) -> bool {
    error.reason == FailureReason::NoLeader && error.retry == Retry::Safe || Planted::UnknownTriedAgain.is_on()
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    /// Attempts that find a leader at the `last` one. Returns how many there were, and the answer.
    async fn attempts(deadline: Option<Deadline>, last: u32, other: fn() -> Error) -> (u32, Result<u32, Error>) {
        let mut count = 0;
        let answer = with_leader(deadline, || {
            count += 1;
            ready(if count < last { Err(other()) } else { Ok(count) })
        })
        .await;
        (count, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_a_leader_until_its_deadline() {
        let soon = || Some(Deadline::at(Instant::now() + PAUSE * 3));
        assert!(attempts(soon(), 3, Error::no_leader).await.1.is_ok());
        let (count, answer) = attempts(soon(), 9, Error::no_leader).await;
        assert!(answer.is_err() && count == 3, "{count}");
        let (count, answer) = attempts(None, 2, Error::no_leader).await;
        assert!(answer.is_err() && count == 1, "without a deadline it would wait for ever: {count}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_lack_of_a_leader_is_waited_for() {
        let deadline = Some(Deadline::at(Instant::now() + PAUSE * 100));
        let (count, answer) = attempts(deadline, 2, || Error::deadline_passed(true)).await;
        assert!(answer.is_err() && count == 1, "what may have had an effect is not repeated: {count}");
    }
}
