//! Request ids for processes that share a session without coordination.
//!
//! A [`super::super::Session`] counts its requests and names the outstanding ones in each message. Short-lived
//! processes (the commands of a shell script) cannot: none knows the pending requests of the others. So an id consists
//! of the second in which the request began and 32 random bits: two requests of the same second collide with a
//! probability of one in four billion.
//!
//! Such a process does not discard replies, since they may belong to another process. The cluster keeps the replies to
//! 1,024 requests of a session; beyond that it refuses acquires, and a little later updates. Only then are the oldest
//! replies discarded: those of requests that began more than an hour ago, and if that does not suffice, more than a
//! minute or five seconds ago. A request of that age that is still pending can no longer be retried. For a waiting
//! acquire this matters if its connection breaks: it fails with [`Error::Unknown`].
//!
//! The seconds are those of the wall clock, since the processes may run on several hosts. They only order ids. A
//! request from a clock behind the discarded ids is refused, and takes a later id.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use tonic::{Response, Status};

use super::super::{
    Error, Refusal,
    call::{RetryPolicy, SharedCaller},
    error::Refused,
    nodes::Node,
};
use lockkeeper_proto::v1::RequestId;

/// Ages in seconds at which replies are discarded when the session's reply memory is full: the first one, and the next
/// where it does not suffice.
const AGES_S: [u64; 3] = [3_600, 60, 5];

/// How often a request takes a later id. Once is enough unless other requests discard more replies at the same time.
const LATER_IDS_MAX: usize = 3;

const RANDOM_BITS: u32 = 32;

/// A request with its id.
#[derive(Debug)]
pub(super) struct Numbered {
    id: u64,
    lowest: u64,
    /// Attempts without an answer.
    unanswered: u32,
}

impl Numbered {
    pub(super) fn begin(caller: &SharedCaller) -> Self {
        #[expect(clippy::disallowed_methods, reason = "ids of a client that keeps nothing on disk rise by wall time")]
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { id: id(now.as_secs(), caller.random_id()), lowest: 1, unanswered: 0 }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Sends the request until it is answered. Each call uses the same id.
    pub(super) async fn send<A, F>(
        &mut self,
        caller: &SharedCaller,
        policy: RetryPolicy,
        send: impl Fn(&Node, RequestId) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut ages = AGES_S.into_iter();
        let mut later_ids = 0..LATER_IDS_MAX;
        loop {
            let answer = self.send_as_it_is(caller, policy, &send).await;
            let Err(Error::Refused(refused)) = &answer else { return answer };

            if refused.is_memory_full()
                && let Some(age_s) = ages.next()
            {
                self.let_go_of_older_than(age_s);
            } else if refused.reason == Refusal::RequestStale {
                // An earlier attempt may have been executed before its reply was discarded.
                if self.unanswered > 0 || later_ids.next().is_none() {
                    return Err(Error::Unknown { why: refused.message.clone() });
                }
                self.move_beyond(refused.lowest(), caller.random_id());
            } else {
                return answer;
            }
        }
    }

    async fn send_as_it_is<A, F>(
        &mut self,
        caller: &SharedCaller,
        policy: RetryPolicy,
        send: impl Fn(&Node, RequestId) -> F,
    ) -> Result<A, Error>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let sendings = Sendings { count: AtomicU32::new(0), unanswered: &mut self.unanswered };
        let message = RequestId { id: self.id, lowest: self.lowest, kept: Vec::new() };
        let answer = caller.call(policy, |node| {
            sendings.count.fetch_add(1, Ordering::Relaxed);
            send(node, message.clone())
        });
        let answer = answer.await;

        let unanswered = match &answer {
            Err(Error::Unknown { .. }) => return answer,
            // No attempt was executed.
            Err(Error::NoCluster { .. }) => 0,
            // The last attempt was answered.
            Ok(_) | Err(_) => sendings.count.load(Ordering::Relaxed).saturating_sub(1),
        };
        sendings.count.store(unanswered, Ordering::Relaxed);
        answer
    }

    fn let_go_of_older_than(&mut self, age_s: u64) {
        self.lowest = self.lowest.max(first_of_second((self.id >> RANDOM_BITS).saturating_sub(age_s)));
    }

    fn move_beyond(&mut self, lowest: u64, random: u128) {
        self.id = id((lowest >> RANDOM_BITS) + 1, random);
        self.lowest = 1;
    }
}

/// Counts the attempts that may still be answered, also when the sending future is dropped.
struct Sendings<'a> {
    count: AtomicU32,
    unanswered: &'a mut u32,
}

impl Drop for Sendings<'_> {
    fn drop(&mut self) {
        *self.unanswered = self.unanswered.saturating_add(*self.count.get_mut());
    }
}

impl Refused {
    /// The session keeps its maximum number of replies.
    pub(crate) fn is_memory_full(&self) -> bool {
        let limit = self.details.get("limit").map(String::as_str);
        self.reason == Refusal::LimitReached && limit == Some("replies_per_session")
    }

    /// The lowest id whose reply the session has not discarded.
    fn lowest(&self) -> u64 {
        self.details.get("lowest").and_then(|lowest| lowest.parse().ok()).unwrap_or(0)
    }
}

fn id(second: u64, random: u128) -> u64 {
    first_of_second(second) | (random as u64 & (u64::MAX >> RANDOM_BITS))
}

fn first_of_second(second: u64) -> u64 {
    // Seconds beyond 32 bits are past the year 2106, or come from a broken clock.
    second.clamp(1, u64::MAX >> RANDOM_BITS) << RANDOM_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_with_the_seconds_whatever_was_drawn() {
        assert!(id(5, u128::MAX) < id(6, 0));
        assert!(id(0, 0) >= 1, "the cluster wants no id 0");
        assert!(id(u64::MAX, 0) >= id(u64::from(u32::MAX), 0), "a broken clock does not start anew");
    }

    #[test]
    fn what_is_let_go_is_older_by_so_many_seconds_and_never_the_request_itself() {
        let mut request = Numbered { id: id(10_000, 7), lowest: 1, unanswered: 0 };
        request.let_go_of_older_than(60);
        assert!(request.lowest <= id(9_940, 0) && request.lowest > id(9_939, u128::MAX));
        request.let_go_of_older_than(3_600);
        assert!(request.lowest > id(9_939, u128::MAX), "what is let go stays so");
        request.let_go_of_older_than(0);
        assert!(request.lowest <= request.id);
    }

    #[test]
    fn a_clock_that_lags_takes_an_id_that_is_not_forgotten() {
        let mut request = Numbered { id: id(10, 7), lowest: 1, unanswered: 0 };
        let lowest = id(10_000, 5);
        request.move_beyond(lowest, 3);
        assert!(request.id > lowest);
    }
}
