//! What the runner itself does to the locks: reads them, takes some back, and asks after each heal whether they are served.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use crate::{
    chaos::{
        history::{Acquire, Answer, Call, Lease, Mode, Modes, Wait},
        record::Recorder,
        workload::{locks, words},
    },
    client::{Client, Error, Session, SessionOptions},
};

const EVERY: std::ops::Range<u64> = 150..600;
const REASON: &str = "the run has it so";
/// Longer than a dead session lives.
const INHERIT: Duration = Duration::from_millis(4_000);
/// Longer than all probes of one heal take.
const PROBE_TTL: Duration = Duration::from_secs(20);

/// The runner's own client.
#[derive(Clone, Debug)]
pub struct Operator {
    client: Client,
    recorder: Recorder,
}

impl Operator {
    /// With this way to the cluster, which gives up as those of the workload do.
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self { client, recorder }
    }

    /// Reads locks, and takes some back, in the background until this is dropped.
    pub fn go_round(&self, seed: u64) -> AbortOnDropHandle<()> {
        let (operator, mut random) = (self.clone(), StdRng::seed_from_u64(seed));
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(random.random_range(EVERY))).await;
                let lock = locks::of(locks::round(operator.recorder.timeline()), random.random_range(0..locks::COUNT));
                let tokens = operator.get(&lock.name).await;
                if let (Some(token), true) = (tokens.choose(&mut random), random.random_range(0..100) < 25) {
                    operator.take_back(&lock.name, *token, random.random_range(0..100) < 25).await;
                }
            }
        }))
    }

    /// The tokens that hold it.
    async fn get(&self, lock: &str) -> Vec<u64> {
        let begun = self.recorder.begin(&[lock.to_owned()], Call::Get {});
        match self.client.get(lock, false).await {
            Ok(answer) => {
                let view = words::view(&answer);
                let tokens = view.holders.iter().map(|holder| holder.token).collect();
                begun.ok(Answer::Get(view));
                tokens
            }
            Err(error) => {
                words::end(begun, &error);
                Vec::new()
            }
        }
    }

    async fn take_back(&self, lock: &str, token: u64, now: bool) {
        let begun = self.recorder.begin(&[lock.to_owned()], Call::ForceRelease { token: Some(token), now });
        match self.client.force_release(lock, Some(token), REASON, now).await {
            Ok(forced) => {
                begun.ok(Answer::ForceRelease { revoked: forced.iter().map(|forced| forced.token).collect() })
            }
            Err(error) => words::end(begun, &error),
        }
    }

    /// Queues for all locks at once, whoever has them: the dead too.
    pub async fn wait_for_all(&self) {
        let Some(session) = self.open(Instant::now()).await else { return };
        let round = locks::round(self.recorder.timeline());
        let waits = (0..locks::COUNT).map(|place| self.acquire(&session, locks::of(round, place), INHERIT));
        futures::future::join_all(waits).await;
        self.close(session).await;
    }

    /// Whether fresh acquires of all locks are answered by then.
    pub async fn probe(&self, by: Instant) -> bool {
        let Some(session) = self.open(by).await else { return false };
        let round = locks::round(self.recorder.timeline());
        let mut all = true;
        for place in 0..locks::COUNT {
            all &= self.is_served(&session, &locks::of(round, place), by).await;
        }
        self.close(session).await;
        all
    }

    async fn close(&self, session: Session) {
        let begun = self.recorder.begin(&[], Call::Close { session: session.id().to_string() });
        match session.close().await {
            Ok(()) => begun.ok(Answer::Close {}),
            Err(error) => words::end(begun, &error),
        }
    }

    async fn open(&self, by: Instant) -> Option<Session> {
        loop {
            let options = SessionOptions { ttl: PROBE_TTL, label: "probe".to_owned() };
            if let Ok(session) = self.client.open(options).await {
                let renewal = *session.renewals().borrow();
                let ttl_ms = u64::try_from(PROBE_TTL.as_millis()).unwrap_or(u64::MAX);
                let trusted_ms = u64::try_from((renewal.deadline.0 - renewal.sent.0).as_millis()).unwrap_or(ttl_ms);
                let begun = self.recorder.begin(&[], Call::Open { session: session.id().to_string(), ttl_ms });
                let sent_ns = Some(self.recorder.timeline().at_ns(renewal.sent));
                begun.ok(Answer::Open(Lease { ttl_ms: Some(trusted_ms), sent_ns }));
                return Some(session);
            }
            if Instant::now() >= by {
                return None;
            }
        }
    }

    async fn is_served(&self, session: &Session, lock: &locks::Lock, by: Instant) -> bool {
        loop {
            if self.acquire(session, lock.clone(), Duration::ZERO).await {
                return true;
            }
            if Instant::now() >= by {
                return false;
            }
        }
    }

    /// Acquires it, and gives it back. Whether there was a definite answer.
    async fn acquire(&self, session: &Session, lock: locks::Lock, patience: Duration) -> bool {
        let names = [lock.name.clone()];
        let wait = match u64::try_from(patience.as_millis()) {
            Ok(ms @ 1..) => Wait::AtMostMs(ms),
            Ok(0) | Err(_) => Wait::None,
        };
        let call =
            Acquire { session: session.id().to_string(), mode: Modes::All(lock.mode), wait, ..Acquire::default() };
        let acquire = session.acquire(&lock.name).wait_at_most(patience);
        let acquire = match lock.mode {
            Mode::Exclusive => acquire,
            Mode::Shared => acquire.shared(),
            Mode::Permits(limit) => acquire.permits(limit),
        };
        let begun = self.recorder.begin(&names, Call::Acquire(call));
        let guard = match acquire.await {
            Ok(guard) => guard,
            Err(error) => {
                let is_definite = matches!(error, Error::NotAcquired(_) | Error::Refused(_));
                words::end(begun, &error);
                return is_definite;
            }
        };
        let token = guard.token().0;
        begun.ok(Answer::Acquire { token, place_lost: false });
        let call = Call::Release { session: session.id().to_string(), token };
        let begun = self.recorder.begin(&names, call);
        match guard.release().await {
            Ok(()) => begun.ok(Answer::Release {}),
            Err(error) => words::end(begun, &error),
        }
        true
    }

    /// Reads the locks that are, or were last, in use: what the run ends with.
    pub async fn read_all(&self) {
        let round = locks::round(self.recorder.timeline());
        for round in round.saturating_sub(4)..=round {
            for place in 0..locks::COUNT {
                self.get(&locks::of(round, place).name).await;
            }
        }
    }
}
