//! Renewals on their way into the log: many sessions in one command.
//!
//! They are by far the most frequent requests, small, and in no hurry: a client counts its lease from the moment at which it asked. So
//! the leader holds them back for [`GATHERED_FOR`], and proposes all that came meanwhile as one command. What a renewal costs is then a
//! message to and fro; the log, the disk and the followers hardly see it.

use std::time::Duration;

use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use super::proposer::{Answer, NoReply, Proposer, ask};
use crate::machine::{Command, Renewal, Reply, SessionId};

/// How long the first of a command waits for others. A tenth of the shortest TTL.
const GATHERED_FOR: Duration = Duration::from_millis(10);
/// Sessions in one command. So many do not wait.
const SESSIONS: usize = 1024;
/// Renewals that may wait for the next command. Beyond, callers are refused.
const QUEUE: usize = 16 * 1024;
/// Commands between here and the table. While all are, renewals wait.
const IN_FLIGHT: usize = 4;

struct Wanted {
    session: SessionId,
    renewed: Answer<Renewal>,
}

/// The way for a renewal into the log.
#[derive(Clone, Debug)]
pub(super) struct Renewals {
    queue: mpsc::Sender<Wanted>,
}

impl Renewals {
    pub(super) fn new() -> (Self, Intake) {
        let (queue, intake) = mpsc::channel(QUEUE);
        (Self { queue }, Intake(intake))
    }

    /// Renews a session, with others. Waits until that is applied, for at most `patience`.
    ///
    /// Dropping the future withdraws a renewal that is not proposed yet.
    pub(super) async fn renew(&self, session: SessionId, patience: Duration) -> Result<Renewal, NoReply> {
        ask(&self.queue, |renewed| Wanted { session, renewed }, patience).await
    }
}

/// The other end of the queue.
pub(super) struct Intake(mpsc::Receiver<Wanted>);

/// Gathers renewals and proposes them. Ends when nobody can ask for any more.
pub(super) async fn run(mut intake: Intake, proposer: Proposer, patience: Duration) {
    let mut commands = JoinSet::new();
    loop {
        let mut gathered = Vec::new();
        if intake.0.recv_many(&mut gathered, SESSIONS).await == 0 {
            return;
        }
        if gathered.len() < SESSIONS {
            sleep(GATHERED_FOR).await;
            while gathered.len() < SESSIONS
                && let Ok(wanted) = intake.0.try_recv()
            {
                gathered.push(wanted);
            }
        }
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

async fn propose(gathered: Vec<Wanted>, proposer: &Proposer, patience: Duration) {
    let sessions = gathered.iter().map(|wanted| wanted.session).collect();
    let answer = proposer.propose(Command::Renew { sessions }, patience).await;
    let renewals = match answer.map(|delivery| delivery.reply) {
        Ok(Reply::Renewed(renewals)) => Ok(renewals),
        Ok(other) => {
            debug_assert!(false, "a renewal is answered by {other:?}");
            Err(NoReply::Unknown)
        }
        Err(no) => Err(no),
    };
    // An error says that the caller is gone.
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
    async fn who_cannot_be_served_is_told_so() {
        let (_leadership, led) = watch::channel(None);
        let (proposer, _proposals) = Proposer::new(led);
        let (renewals, intake) = Renewals::new();
        let patience = Duration::from_secs(1);
        assert!(matches!(renewals.renew(SessionId(1), patience).await, Err(NoReply::Unknown)), "nobody gathers yet");
        let gathering = tokio::spawn(run(intake, proposer, patience));
        assert!(matches!(renewals.renew(SessionId(1), patience).await, Err(NoReply::NotLeader)));
        drop(renewals);
        gathering.await.expect("it ends by itself");
    }

    #[tokio::test]
    async fn a_full_queue_refuses() {
        let (renewals, _intake) = Renewals::new();
        let mut waiting = Vec::new();
        for id in 0..QUEUE as u128 {
            let mut renewal = Box::pin(renewals.renew(SessionId(id), Duration::from_secs(60)));
            assert!(futures::poll!(&mut renewal).is_pending());
            waiting.push(renewal);
        }
        assert!(matches!(renewals.renew(SessionId(0), Duration::from_secs(60)).await, Err(NoReply::Overloaded)));
    }
}
