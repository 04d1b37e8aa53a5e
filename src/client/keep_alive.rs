//! Renews a session in the background and receives its losses.
//!
//! One stream to one node, one renewal every third of the TTL, or up to a tenth of that earlier, at random. If the node
//! does not answer a renewal in time, ends the stream or knows no leader, the next node is used. So a session survives
//! the loss of a node if the cluster elects a leader within the rest of the TTL.
//!
//! The cluster repeats with every renewal a grant that was taken by force, until that grant is released. This module
//! releases it as soon as it is reported, so that the cluster can drop its record.
//!
//! The deadline is watched here too: the session *ends* when it passes, and no later answer revives it. The cluster is
//! then told, best effort, so that the locks open before the TTL has passed there.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use super::{
    Loss, Moment, Revocation,
    backoff::Backoff,
    core::Core,
    lease::{RenewalAnswer, counted_from},
    nodes::Node,
    release,
};
use lockkeeper_proto::v1::{
    KeepAliveRequest, KeepAliveResponse, SessionEnd, keep_alive_response::What, sessions_client::SessionsClient,
};

/// Renewals queued for the connection. A full queue means that the connection is stuck.
const PIPE: usize = 2;

/// Sent renewals whose answers are still expected.
const UNANSWERED_MAX: usize = 8;

/// Concurrent releases of grants that were taken by force.
const ACKNOWLEDGED_AT_ONCE: usize = 16;

/// Keeps the session alive until it ends.
pub(super) async fn run(core: Arc<Core>) {
    tokio::select! {
        biased;
        () = core.lease.ended() => {}
        // Answers are polled first: one that was received while this process was stopped may still save the session.
        () = keep_alive(&core) => {}
        () = acknowledge(&core) => {}
        loss = core.lease.lost(None) => {
            tracing::warn!(session = %core.id, %loss, "the session is lost");
            core.lease.end(loss);
            core.clone().close_in_background().await;
        }
    }
}

/// Releases the grants that were taken by force, as they are reported. Never returns.
async fn acknowledge(core: &Core) {
    let taken = stream::unfold((), async |()| Some((core.lease.next_taken().await, ())));
    taken.for_each_concurrent(ACKNOWLEDGED_AT_ONCE, |token| release::acknowledge(core, token)).await;
}

/// Renews the session until it has ended, on each node for as long as it answers. Does not watch the deadline.
pub(super) async fn keep_alive(core: &Core) {
    let nodes = &core.client.caller.nodes;
    let mut backoff = Backoff::default();
    let mut failed = 0;

    while !core.lease.is_ended() {
        let node = nodes.preferred();
        let answered = follow(core, &node).await;
        nodes.pass_over(&node);

        failed += 1;
        if answered {
            backoff = Backoff::default();
            failed = 0;
        }

        if failed >= nodes.count() {
            failed = 0;
            sleep(backoff.next(core.client.caller.jitter()).min(interval(core.ttl))).await;
        }
    }
}

/// Longest interval between two renewals.
fn interval(ttl: Duration) -> Duration {
    ttl / 3
}

/// Part of an interval that jitter takes off, at most.
const JITTER_MAX: f64 = 0.1;

/// The next interval, by a random number in 0 to 1. Clients that lost a node together renew at another one together, and
/// must not stay in step.
fn jittered(ttl: Duration, random: f64) -> Duration {
    interval(ttl).mul_f64(1.0 - JITTER_MAX * random.clamp(0.0, 1.0))
}

/// How long an answer may take before the next node is asked. The interval and this timeout leave time for three more
/// nodes.
fn answer_timeout(ttl: Duration) -> Duration {
    (ttl / 6).min(Duration::from_secs(2))
}

/// Renews on one node until that fails. Returns whether at least one renewal was acknowledged.
async fn follow(core: &Core, node: &Node) -> bool {
    let mut stream = StreamedRenewals::new(core);
    let answers = match stream.open(node).await {
        Ok(answers) => answers,
        Err(why) => {
            tracing::debug!(session = %core.id, node = %node.address, why, "no keep-alive stream");
            return false;
        }
    };
    core.client.caller.nodes.note_leader(answers.metadata());
    let why = stream.run(answers.into_inner()).await;
    tracing::debug!(session = %core.id, node = %node.address, why, "the keep-alive stream ended");
    stream.answered
}

/// The renewals of one stream.
struct StreamedRenewals<'a> {
    core: &'a Core,
    pipe: mpsc::Sender<KeepAliveRequest>,
    receiver: Option<mpsc::Receiver<KeepAliveRequest>>,
    sequence: u64,
    /// Sequence and sending time of the unanswered renewals, oldest first.
    unanswered: VecDeque<(u64, Moment)>,
    /// When the oldest of them must be answered.
    answer_by: Option<Instant>,
    answered: bool,
}

impl<'a> StreamedRenewals<'a> {
    fn new(core: &'a Core) -> Self {
        let (pipe, receiver) = mpsc::channel(PIPE);
        Self {
            core,
            pipe,
            receiver: Some(receiver),
            sequence: 0,
            unanswered: VecDeque::new(),
            answer_by: None,
            answered: false,
        }
    }

    /// Opens the stream with the first renewal in it, which saves a round trip.
    async fn open(&mut self, node: &Node) -> Result<Response<Streaming<KeepAliveResponse>>, String> {
        self.renew()?;
        let receiver = self.receiver.take().ok_or("a stream is opened once")?;
        let mut service = SessionsClient::new(node.channel.clone());
        match timeout(answer_timeout(self.core.ttl), service.keep_alive(ReceiverStream::new(receiver))).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(status)) => {
                self.core.client.caller.nodes.note_leader(status.metadata());
                Err(status.message().to_owned())
            }
            Err(_) => Err("it did not answer in time".to_owned()),
        }
    }

    /// Runs until the stream is of no more use; returns the reason.
    async fn run(&mut self, mut answers: Streaming<KeepAliveResponse>) -> String {
        let mut renew_at = self.next_renewal();
        loop {
            let answer_by = self.answer_by.unwrap_or(renew_at);
            let step = tokio::select! {
                biased;
                answer = answers.message() => self.hear(answer),
                () = sleep_until(answer_by), if self.answer_by.is_some() => Err("it did not answer in time".to_owned()),
                () = sleep_until(renew_at) => {
                    renew_at = self.next_renewal();
                    self.renew()
                }
            };

            if let Err(why) = step {
                return why;
            }
        }
    }

    fn next_renewal(&self) -> Instant {
        Instant::now() + jittered(self.core.ttl, self.core.client.caller.jitter())
    }

    fn renew(&mut self) -> Result<(), String> {
        self.sequence += 1;
        // Read the clock before the sending: in the other order, the deadline would be too late.
        let sent = self.core.lease.now();
        let request = KeepAliveRequest { session_id: self.core.id.to_string(), sequence: self.sequence };
        self.pipe.try_send(request).map_err(|_| "the connection is stuck".to_owned())?;
        if self.unanswered.len() == UNANSWERED_MAX {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((self.sequence, sent));
        self.answer_by.get_or_insert(Instant::now() + answer_timeout(self.core.ttl));
        Ok(())
    }

    fn hear(&mut self, answer: Result<Option<KeepAliveResponse>, Status>) -> Result<(), String> {
        match answer {
            Ok(Some(KeepAliveResponse { session_id, what: Some(what) })) if session_id == self.core.id.to_string() => {
                self.heed(what);
                Ok(())
            }
            // Ignore a message for another session, or of a kind that only a later version knows.
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("it ended the stream".to_owned()),
            Err(status) => {
                self.core.client.caller.nodes.note_leader(status.metadata());
                Err(status.message().to_owned())
            }
        }
    }

    fn heed(&mut self, what: What) {
        let lease = &self.core.lease;
        match what {
            What::Renewed(renewed) => {
                if !renewed.members.is_empty() {
                    self.core.client.caller.nodes.note_members(&renewed.members);
                }
                self.acknowledge(renewed.sequence, Duration::from_millis(renewed.ttl_ms.into()));
            }
            What::Revoked(revoked) => lease.revoked(Revocation::from_wire(revoked)),
            What::Ended(ended) => lease.end(match ended.why() {
                SessionEnd::Closed => Loss::Closed,
                SessionEnd::Expired => Loss::Expired,
                SessionEnd::Unknown | SessionEnd::Unspecified => Loss::Unknown,
            }),
        }
    }

    fn acknowledge(&mut self, sequence: u64, ttl: Duration) {
        let Some(&(_, sent)) = self.unanswered.iter().find(|(sent, _)| *sent == sequence) else { return };
        self.answered = true;
        let sent = counted_from(sent, &*self.core.client.caller.clock);
        // Earlier revocations were delivered before this answer, on the same stream.
        self.core.lease.renewed(RenewalAnswer { sent, ttl, revoked: Vec::new(), more_revoked: false });
        self.unanswered.retain(|(sent, _)| *sent > sequence);
        let answer_timeout = answer_timeout(self.core.ttl);
        self.answer_by = (!self.unanswered.is_empty()).then(|| Instant::now() + answer_timeout);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_third_of_the_ttl_less_up_to_a_tenth() {
        let ttl = Duration::from_secs(30);
        assert_eq!(jittered(ttl, 0.0), Duration::from_secs(10));
        assert_eq!(jittered(ttl, 0.5), Duration::from_millis(9_500));
        assert_eq!(jittered(ttl, 1.0), Duration::from_secs(9));
    }
}
