//! Proposing renewals: many sessions in one command.
//!
//! Renewals are by far the most frequent requests, small, and not urgent: a client counts its lease from the moment at which it sent the
//! renewal. So the leader lets them share: renewals take a twentieth of the log's time ([`PART_OF_TIME`]), and what arrives meanwhile is
//! one command, unless that would delay one by more than a hundredth of its session's TTL. One that comes alone is proposed at once. A
//! renewal under load then costs one round trip of a message, and almost nothing in the log, on the disk and on the followers.

use std::time::Duration;

use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};

use crate::proposals::proposer::{NoReply, Proposer, ReplySender, ask};
use lockkeeper_machine::{Command, Renewal, Reply, SessionId, Ttl};

/// After a command of renewals that took a time T, none is proposed for T times this: an idle cluster answers renewals within some 20 ms,
/// a busy one spends its log on others.
const PART_OF_TIME: u32 = 20;
/// The delay of a renewal is at most the session's TTL divided by this, and [`GATHERED_FOR_MAX`].
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
pub(crate) struct Renewals {
    queue: mpsc::Sender<PendingRenewal>,
}

impl Renewals {
    pub(crate) fn new() -> (Self, RenewalQueue) {
        let (queue, intake) = mpsc::channel(QUEUE);
        (Self { queue }, RenewalQueue(intake))
    }

    /// Renews a session together with others. `ttl` is the session's TTL, as far as known. Waits until the renewal is applied, for at most
    /// `patience`.
    ///
    /// Dropping the future withdraws a renewal that is not proposed yet.
    pub(crate) async fn renew(
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
pub(crate) struct RenewalQueue(mpsc::Receiver<PendingRenewal>);

/// Gathers renewals and proposes them. Returns when all [`Renewals`] are gone.
pub(crate) async fn run(intake: RenewalQueue, proposer: Proposer, patience: Duration) {
    let mut gathering = Gathering::new(intake);
    while let Some(mut gathered) = gathering.next().await {
        gathered.retain(|wanted| !wanted.renewed.is_closed());
        if gathered.is_empty() {
            continue;
        }
        while gathering.commands.len() >= IN_FLIGHT {
            if let Some(ended) = gathering.commands.join_next().await {
                gathering.ended(ended);
            }
        }
        let proposer = proposer.clone();
        gathering.begin(async move { propose(gathered, &proposer, patience).await });
    }
}

struct Gathering {
    intake: mpsc::Receiver<PendingRenewal>,
    /// The commands without an answer. Each returns when the log has time for the next one.
    commands: JoinSet<Instant>,
    not_before: Instant,
}

impl Gathering {
    fn new(intake: RenewalQueue) -> Self {
        Self { intake: intake.0, commands: JoinSet::new(), not_before: Instant::now() }
    }

    fn begin(&mut self, command: impl Future<Output = ()> + Send + 'static) {
        self.commands.spawn(async move {
            let began = Instant::now();
            command.await;
            let ended = Instant::now();
            ended + (ended - began) * PART_OF_TIME
        });
    }

    /// The renewals that arrive until the log has time for them, or the earliest [`PendingRenewal::by`]; `None` once all senders are gone.
    async fn next(&mut self) -> Option<Vec<PendingRenewal>> {
        let mut gathered = Vec::new();
        if self.intake.recv_many(&mut gathered, SESSIONS).await == 0 {
            return None;
        }

        let mut seen = 0;
        let mut by = gathered[0].by;
        while gathered.len() < SESSIONS {
            by = gathered[seen..].iter().map(|wanted| wanted.by).min().map_or(by, |newest| newest.min(by));
            seen = gathered.len();
            while let Some(ended) = self.commands.try_join_next() {
                self.ended(ended);
            }
            let until = if self.commands.is_empty() { by.min(self.not_before) } else { by };
            tokio::select! {
                biased;
                Some(ended) = self.commands.join_next() => self.ended(ended),
                count = self.intake.recv_many(&mut gathered, SESSIONS - seen) => if count == 0 { break },
                () = sleep_until(until) => break,
            }
        }

        Some(gathered)
    }

    fn ended(&mut self, next: Result<Instant, JoinError>) {
        // A panic has been reported by its task.
        self.not_before = next.map_or(self.not_before, |next| self.not_before.max(next));
    }
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
    use std::sync::Arc;

    use tokio::sync::watch;

    use super::*;
    use crate::proposals::proposer::ProposalLimits;

    #[tokio::test(start_paused = true)]
    async fn renewals_that_cannot_be_served_get_an_error() {
        let (_leadership, led) = watch::channel(None);
        let (proposer, _proposals) = Proposer::new(led, Arc::default(), ProposalLimits::REAL);
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

    /// Asks for a renewal after some time.
    fn ask(renewals: &Renewals, id: u128, ttl_ms: Option<u32>, after_ms: u64) {
        let renewals = renewals.clone();
        let ttl = ttl_ms.map(|ttl_ms| Ttl::from_millis(ttl_ms).expect("a good ttl"));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            renewals.renew(SessionId(id), ttl, Duration::from_secs(60)).await
        });
    }

    async fn ids(gathering: &mut Gathering) -> Vec<u128> {
        gathering.next().await.expect("there are renewals").iter().map(|wanted| wanted.session.0).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_while_a_command_runs_shares_the_next_one() {
        let (renewals, intake) = Renewals::new();
        let mut gathering = Gathering::new(intake);
        let began = Instant::now();
        // One that does not end.
        gathering.begin(std::future::pending());
        for (id, ttl_ms, after_ms) in [(1, 20_000, 0), (2, 20_000, 60), (3, 3_000, 80), (4, 20_000, 105)] {
            ask(&renewals, id, Some(ttl_ms), after_ms);
        }
        assert_eq!(ids(&mut gathering).await, [1, 2, 3]);
        assert_eq!(began.elapsed(), Duration::from_millis(100), "the first waits no longer");
        ask(&renewals, 5, Some(1_000), 10);
        ask(&renewals, 6, None, 12);
        assert_eq!(ids(&mut gathering).await, [4, 5, 6]);
        assert_eq!(began.elapsed(), Duration::from_millis(112), "a session that is not known is answered at once");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_comes_alone_waits_for_nobody() {
        let (renewals, intake) = Renewals::new();
        let mut gathering = Gathering::new(intake);
        let began = Instant::now();
        let since = |began: Instant| began.elapsed().as_millis();
        ask(&renewals, 1, Some(20_000), 0);
        assert_eq!((ids(&mut gathering).await, since(began)), (vec![1], 0));
        gathering.begin(tokio::time::sleep(Duration::from_millis(2)));
        ask(&renewals, 2, Some(20_000), 1);
        ask(&renewals, 3, Some(20_000), 40);
        // 2 ms, and twenty times as long.
        assert_eq!((ids(&mut gathering).await, since(began)), (vec![2, 3], 42));
        gathering.begin(tokio::time::sleep(Duration::from_millis(2)));
        ask(&renewals, 4, Some(20_000), 5_000);
        assert_eq!((ids(&mut gathering).await, since(began)), (vec![4], 5_042));
        // Slow commands make none wait longer than its session allows.
        gathering.begin(tokio::time::sleep(Duration::from_millis(10)));
        ask(&renewals, 5, Some(3_000), 0);
        assert_eq!((ids(&mut gathering).await, since(began)), (vec![5], 5_072));
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
