//! Proposing renewals: many sessions in one command.
//!
//! Renewals are by far the most frequent requests, small, and not urgent: a client counts its lease from the moment at which it sent the
//! renewal. So the leader delays each one by a hundredth of its session's TTL, and proposes all that arrived meanwhile as one command. A
//! renewal then costs one round trip of a message, and almost nothing in the log, on the disk and on the followers.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, timeout_at},
};

use super::proposer::{NoReply, Proposer, ReplySender, ask};
use lockkeeper_machine::{Command, Renewal, Reply, SessionId, Ttl};

/// The delay of a renewal is the session's TTL divided by this, at most [`GATHERED_FOR_MAX`].
const PART_OF_TTL: u32 = 100;
const GATHERED_FOR_MAX: Duration = Duration::from_millis(100);
/// Maximum sessions in one command. A full command is proposed at once.
const SESSIONS: usize = 1024;
/// Capacity of the queue, in renewals. When it is full, renewals are refused.
const QUEUE: usize = 16 * 1024;
/// Commands that are proposed but not applied. At this limit, renewals wait.
const IN_FLIGHT: usize = 4;

struct PendingRenewal {
    session: SessionId,
    /// The latest time at which it is proposed.
    by: Instant,
    renewed: ReplySender<Renewal>,
}

/// Proposes renewals.
#[derive(Clone, Debug)]
pub(super) struct Renewals {
    queue: mpsc::Sender<PendingRenewal>,
}

impl Renewals {
    pub(super) fn new() -> (Self, RenewalQueue) {
        let (queue, intake) = mpsc::channel(QUEUE);
        (Self { queue }, RenewalQueue(intake))
    }

    /// Renews a session together with others. `ttl`: the session's TTL, as far as known. Waits until the renewal is applied, for at most
    /// `patience`.
    ///
    /// Dropping the future withdraws a renewal that is not proposed yet.
    pub(super) async fn renew(
        &self,
        session: SessionId,
        ttl: Option<Ttl>,
        patience: Duration,
    ) -> Result<Renewal, NoReply> {
        let by = Instant::now() + ttl.map_or(Duration::ZERO, gathered_for);
        ask(&self.queue, |renewed| PendingRenewal { session, by, renewed }, patience).await
    }
}

fn gathered_for(ttl: Ttl) -> Duration {
    (Duration::from_millis(u64::from(ttl.as_millis())) / PART_OF_TTL).min(GATHERED_FOR_MAX)
}

/// The receiving end of the queue.
pub(super) struct RenewalQueue(mpsc::Receiver<PendingRenewal>);

/// Gathers renewals and proposes them. Returns when all [`Renewals`] are gone.
pub(super) async fn run(mut intake: RenewalQueue, proposer: Proposer, patience: Duration) {
    let mut commands = JoinSet::new();
    loop {
        let Some(mut gathered) = gather(&mut intake.0).await else { return };
        gathered.retain(|wanted| !wanted.renewed.is_closed());
        if gathered.is_empty() {
            continue;
        }
        while commands.len() >= IN_FLIGHT {
            commands.join_next().await;
        }
        let proposer = proposer.clone();
        commands.spawn(async move { propose(gathered, &proposer, patience).await });
    }
}

/// The renewals that arrive until the earliest [`PendingRenewal::by`]; `None` once all senders are gone.
async fn gather(intake: &mut mpsc::Receiver<PendingRenewal>) -> Option<Vec<PendingRenewal>> {
    let mut gathered = Vec::new();
    if intake.recv_many(&mut gathered, SESSIONS).await == 0 {
        return None;
    }
    let mut seen = 0;
    let mut by = gathered[0].by;
    while gathered.len() < SESSIONS {
        by = gathered[seen..].iter().map(|wanted| wanted.by).min().map_or(by, |newest| newest.min(by));
        seen = gathered.len();
        let room = SESSIONS - seen;
        match timeout_at(by, intake.recv_many(&mut gathered, room)).await {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
    }
    Some(gathered)
}

async fn propose(gathered: Vec<PendingRenewal>, proposer: &Proposer, patience: Duration) {
    let sessions = gathered.iter().map(|wanted| wanted.session).collect();
    let answer = proposer.propose(Command::Renew { sessions }, patience).await;
    let renewals = match answer.map(|delivery| delivery.reply) {
        Ok(Reply::Renewed(renewals)) => {
            assert_eq!(renewals.len(), gathered.len(), "otherwise a session would be told of another's lease");
            Ok(renewals)
        }
        Ok(other) => {
            debug_assert!(false, "a renewal is answered by {other:?}");
            Err(NoReply::Unknown)
        }
        Err(no) => Err(no),
    };
    // An error means that the caller is gone.
    match renewals {
        Ok(renewals) => gathered.into_iter().zip(renewals).for_each(|(wanted, renewal)| {
            let _ = wanted.renewed.send(Ok(renewal));
        }),
        Err(no) => gathered.into_iter().for_each(|wanted| {
            let _ = wanted.renewed.send(Err(no));
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn renewals_that_cannot_be_served_get_an_error() {
        let (_leadership, led) = watch::channel(None);
        let (proposer, _proposals) = Proposer::new(led);
        let (renewals, intake) = Renewals::new();
        let patience = Duration::from_secs(1);
        assert!(
            matches!(renewals.renew(SessionId(1), None, patience).await, Err(NoReply::Unknown)),
            "nobody gathers yet"
        );
        let gathering = tokio::spawn(run(intake, proposer, patience));
        assert!(matches!(renewals.renew(SessionId(1), None, patience).await, Err(NoReply::NotLeader)));
        drop(renewals);
        gathering.await.expect("it ends by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_come_in_time_share_a_command() {
        let (renewals, mut intake) = Renewals::new();
        let began = Instant::now();
        let ask = |id: u128, ttl_ms: Option<u32>, after_ms: u64| {
            let renewals = renewals.clone();
            let ttl = ttl_ms.map(|ttl_ms| Ttl::from_millis(ttl_ms).expect("a good ttl"));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after_ms)).await;
                renewals.renew(SessionId(id), ttl, Duration::from_secs(60)).await
            })
        };
        let ids = |gathered: Option<Vec<PendingRenewal>>| -> Vec<u128> {
            gathered.expect("there are renewals").iter().map(|wanted| wanted.session.0).collect()
        };
        let _asked = [(1, Some(20_000), 0), (2, Some(20_000), 60), (3, Some(3_000), 80), (4, Some(20_000), 105)]
            .map(|(id, ttl_ms, after_ms)| ask(id, ttl_ms, after_ms));
        assert_eq!(ids(gather(&mut intake.0).await), [1, 2, 3]);
        assert_eq!(began.elapsed(), Duration::from_millis(100), "the first waits no longer");
        let _asked = [ask(5, Some(1_000), 10), ask(6, None, 12)];
        assert_eq!(ids(gather(&mut intake.0).await), [4, 5, 6]);
        assert_eq!(began.elapsed(), Duration::from_millis(112), "a session that is not known is answered at once");
    }

    #[tokio::test]
    async fn a_full_queue_refuses() {
        let (renewals, _intake) = Renewals::new();
        let mut waiting = Vec::new();
        for id in 0..QUEUE as u128 {
            let mut renewal = Box::pin(renewals.renew(SessionId(id), None, Duration::from_secs(60)));
            assert!(futures::poll!(&mut renewal).is_pending());
            waiting.push(renewal);
        }
        assert!(matches!(renewals.renew(SessionId(0), None, Duration::from_secs(60)).await, Err(NoReply::Overloaded)));
    }
}
