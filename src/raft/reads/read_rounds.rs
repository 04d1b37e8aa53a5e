//! Rounds to a quorum, each for all reads that came before it began.
//!
//! A read index ([`read_index`]) costs a message to Raft's core, and a wake-up for each answer of a peer. So the reads of a node do not ask
//! for one each: what waits when a round begins shares its read index. A read that comes later waits for the next round, since its read
//! index must not be noted before it began.
//!
//! The rounds run on Raft's runtime, even if the reads run on another one. [`IN_FLIGHT`] of them are under way at a time: a read that comes
//! during the first one does not wait for its end, and under load the next round gathers more.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{Semaphore, mpsc},
    time::timeout,
};

use crate::{
    Raft,
    network::Acknowledgements,
    proposals::proposer::{NoReply, ReplySender, ask},
    reads::read_index::read_index,
};

/// Reads that wait for a round to begin. When they are as many, reads are refused.
const QUEUE: usize = 16 * 1024;
/// Rounds that are under way.
const IN_FLIGHT: usize = 2;
/// Time limit of a round. Callers have their own time limits; this one makes room for later rounds.
const ROUND_MAX: Duration = Duration::from_secs(5);

/// Asks for rounds.
#[derive(Clone, Debug)]
pub(crate) struct ReadRounds {
    queue: mpsc::Sender<ReplySender<()>>,
}

impl ReadRounds {
    /// The queue's two ends.
    pub(crate) fn new() -> (Self, ReadQueue) {
        let (queue, intake) = mpsc::channel(QUEUE);
        (Self { queue }, ReadQueue(intake))
    }

    /// Returns once this node's table shows everything that was acknowledged to any client before this call; waits for at most `patience`.
    /// Cancel safe.
    pub(crate) async fn read_index(&self, patience: Duration) -> Result<(), NoReply> {
        let answer = ask(&self.queue, |reply| reply, patience).await;
        // A read changes nothing: without an answer, no effect is unknown.
        answer.map_err(|why| if matches!(why, NoReply::Unknown) { NoReply::NotLeader } else { why })
    }
}

/// The receiving end of the queue.
pub(crate) struct ReadQueue(mpsc::Receiver<ReplySender<()>>);

/// Makes rounds while reads wait for one. Returns when all [`ReadRounds`] are gone.
pub(crate) async fn run(intake: ReadQueue, raft: Raft, acknowledgements: Acknowledgements) {
    let round = || {
        let raft = raft.clone();
        let acknowledgements = acknowledgements.clone();
        async move { read_index(&raft, &acknowledgements).await.is_ok() }
    };
    serve(intake, round).await;
}

/// `round` begins one, and its future returns whether it has confirmed the reads that came before.
async fn serve<F>(mut intake: ReadQueue, round: impl Fn() -> F)
where
    F: Future<Output = bool> + Send + 'static,
{
    let in_flight = Arc::new(Semaphore::new(IN_FLIGHT));
    loop {
        // Acquired first: reads that come while all places are taken share the next round.
        let place = Arc::clone(&in_flight).acquire_owned().await.expect("the semaphore is never closed");
        let mut reads = Vec::new();
        if intake.0.recv_many(&mut reads, QUEUE).await == 0 {
            return;
        }

        let round = timeout(ROUND_MAX, round());
        tokio::spawn(async move {
            let is_confirmed = round.await.unwrap_or(false);
            drop(place);
            let answer = if is_confirmed { Ok(()) } else { Err(NoReply::NotLeader) };
            for read in reads {
                // An error means that the caller is gone.
                let _ = read.send(answer);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::{
        sync::oneshot,
        task::{JoinHandle, yield_now},
    };

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Rounds that a test ends.
    #[derive(Clone, Default)]
    struct Rounds(Arc<Mutex<Vec<oneshot::Sender<bool>>>>);

    impl Rounds {
        fn start() -> (Self, ReadRounds) {
            let rounds = Self::default();
            let (reads, intake) = ReadRounds::new();
            let begun = rounds.clone();
            let round = move || {
                let (end, ended) = oneshot::channel();
                begun.0.lock().expect("no panic").push(end);
                async { ended.await.expect("a test ends it") }
            };
            tokio::spawn(serve(intake, round));
            (rounds, reads)
        }

        fn count(&self) -> usize {
            self.0.lock().expect("no panic").len()
        }

        async fn end_first(&self, is_confirmed: bool) {
            self.0.lock().expect("no panic").remove(0).send(is_confirmed).expect("it runs");
            let_others_run().await;
        }
    }

    /// On one thread, until nobody has anything to do.
    async fn let_others_run() {
        for _ in 0..100 {
            yield_now().await;
        }
    }

    async fn read(reads: &ReadRounds) -> JoinHandle<Result<(), NoReply>> {
        let reads = reads.clone();
        let read = tokio::spawn(async move { reads.read_index(PATIENCE).await });
        let_others_run().await;
        read
    }

    #[tokio::test]
    async fn a_read_is_confirmed_by_a_round_that_began_after_it() {
        let (rounds, reads) = Rounds::start();
        let first = read(&reads).await;
        let second = read(&reads).await;
        assert_eq!(rounds.count(), 2, "the second one does not wait for the end of the first");
        let third = read(&reads).await;
        let fourth = read(&reads).await;
        assert_eq!(rounds.count(), 2);

        rounds.end_first(true).await;
        assert!(first.is_finished() && !second.is_finished() && !third.is_finished());
        assert_eq!(rounds.count(), 2, "one that both of those share which came meanwhile");
        rounds.end_first(true).await;
        assert!(second.is_finished() && !third.is_finished() && !fourth.is_finished());
        assert_eq!(rounds.count(), 1);
        rounds.end_first(true).await;
        for read in [first, second, third, fourth] {
            assert!(read.await.expect("no panic").is_ok());
        }
    }

    #[tokio::test]
    async fn a_round_that_fails_is_safe_to_repeat_and_concerns_no_other() {
        let (rounds, reads) = Rounds::start();
        let first = read(&reads).await;
        let second = read(&reads).await;
        rounds.end_first(false).await;
        assert!(matches!(first.await.expect("no panic"), Err(NoReply::NotLeader)));
        rounds.end_first(true).await;
        assert!(second.await.expect("no panic").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_without_an_answer_make_room() {
        let (rounds, reads) = Rounds::start();
        let mut stuck = Vec::new();
        for _ in 0..IN_FLIGHT {
            stuck.push(read(&reads).await);
        }
        let later = read(&reads).await;
        assert_eq!(rounds.count(), IN_FLIGHT);
        for read in stuck {
            assert!(matches!(read.await.expect("no panic"), Err(NoReply::NotLeader)));
        }
        let_others_run().await;
        assert_eq!(rounds.count(), IN_FLIGHT + 1);
        rounds.0.lock().expect("no panic").pop().expect("the last one").send(true).expect("it runs");
        assert!(later.await.expect("no panic").is_ok());
    }
}
