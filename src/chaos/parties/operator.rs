//! The runner's own operations: reads locks, revokes grants, acquires the locks of stopped clients, and checks after
//! each heal that locks are served.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Channel;

use lockkeeper_client::{Client, Error, Guard, Holder, LockInfo, Session, SessionOptions};
use lockkeeper_machine::Token;

use crate::{
    dial::Dial,
    history::{Acquire, Answer, Call, Lease, Mode, Modes, Wait},
    record::Recorder,
    workload::{ATTEMPT_LIMIT, CALL_LIMIT, channels, locks, outcomes, resource::RegisterPlace, writes::Writes},
};

const EVERY: std::ops::Range<u64> = 150..600;
/// Pause after a backup that failed.
const BETWEEN_SAVES: Duration = Duration::from_millis(150);
const REASON: &str = "the run has it so";
/// A wait that is longer than the TTL of a dead session plus its bound, so that a session that lives longer is detected.
const TAKE_OVER_WAIT: Duration = Duration::from_millis(4_000 + super::EXPIRY_BOUND_MS);
/// A TTL that is longer than all probes of one heal.
pub(crate) const PROBE_TTL: Duration = Duration::from_secs(20);
/// A TTL that is longer than the time before a fault, its duration and the recovery.
pub(crate) const LASTING_TTL: Duration = super::LIVENESS_BOUND.saturating_mul(3);

/// The channels to the nodes by id. Clones share them, because nodes come and go.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeChannels(Arc<Mutex<BTreeMap<u64, Channel>>>);

impl NodeChannels {
    pub(crate) fn insert(&self, node: u64, channel: Channel) {
        self.lock().insert(node, channel);
    }

    pub(crate) fn remove(&self, node: u64) {
        self.lock().remove(&node);
    }

    /// The channel to this node. Panics if the node does not exist.
    pub(crate) fn channel(&self, node: u64) -> Channel {
        self.lock()[&node].clone()
    }

    pub(crate) fn all(&self) -> Vec<Channel> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Channel>> {
        self.0.lock().expect("no code panics while it holds this lock")
    }
}

/// The runner's own client.
#[derive(Clone, Debug)]
pub struct RunOperator {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    /// A channel to each node.
    pub(crate) nodes: NodeChannels,
    /// The protected registers.
    place: RegisterPlace,
}

impl RunOperator {
    /// An operator with this client and these channels to the nodes 1, 2, …. Their limits are those of the workload.
    pub fn new(client: Client, nodes: Vec<Channel>, place: RegisterPlace, recorder: Recorder) -> Self {
        let nodes = NodeChannels(Arc::new(Mutex::new((1..).zip(nodes).collect())));
        Self { client, recorder, nodes, place }
    }

    /// Adds a channel to one more node.
    pub fn insert(&self, node: u64, channel: Channel) {
        self.nodes.insert(node, channel);
    }

    /// Stops to use the channel to this node.
    pub fn forget(&self, node: u64) {
        self.nodes.remove(node);
    }

    pub(crate) fn for_cluster(dial: &Dial, endpoints: &str, socket: &Path, recorder: Recorder) -> Result<Self, Error> {
        let nodes = channels(dial, endpoints);
        let client = dial.client(endpoints).call_limit(CALL_LIMIT).attempt_limit(ATTEMPT_LIMIT).build()?;
        Ok(Self::new(client, nodes, RegisterPlace::Socket(socket.to_owned()), recorder))
    }

    /// Saves a backup of the cluster as it is now. Repeats the request until this time, as an operator does.
    pub async fn save_backup(&self, by: Instant) -> Result<Vec<u8>, Error> {
        loop {
            match timeout_at(by, self.save_once()).await {
                Ok(Err(_)) if Instant::now() + BETWEEN_SAVES < by => sleep(BETWEEN_SAVES).await,
                Ok(saved) => return saved,
                Err(_) => return Err(Error::NoCluster { why: "no backup arrived in time".to_owned() }),
            }
        }
    }

    async fn save_once(&self) -> Result<Vec<u8>, Error> {
        let mut backup = self.client.backup(false).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = backup.next().await? {
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    /// Reads locks and revokes some grants, in the background until it is dropped.
    pub fn read_and_revoke(&self, seed: u64) -> AbortOnDropHandle<()> {
        let operator = self.clone();
        let mut random = StdRng::seed_from_u64(seed);
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                sleep(Duration::from_millis(random.random_range(EVERY))).await;
                let round = locks::round(operator.recorder.timeline());
                let lock = locks::lock_at(round, random.random_range(0..locks::COUNT));
                let tokens: Vec<_> = operator.holders(&lock.name).await.iter().map(|holder| holder.token.0).collect();

                if let (Some(token), true) = (tokens.choose(&mut random), random.random_range(0..100) < 25) {
                    operator.force_release(&lock.name, *token, random.random_range(0..100) < 25).await;
                }
            }
        }))
    }

    /// Returns the holders of the lock, or none if there was no answer.
    pub(crate) async fn holders(&self, lock: &str) -> Vec<Holder> {
        self.look(lock).await.map_or_else(Vec::new, |lock| lock.holders)
    }

    /// Returns the state of the lock, or `None` if there was no answer.
    pub(crate) async fn look(&self, lock: &str) -> Option<LockInfo> {
        let begun = self.recorder.begin(&[lock.to_owned()], Call::Get {});
        match self.client.get(lock).await {
            Ok(answer) => {
                begun.ok(Answer::Get(outcomes::view(&answer.lock)));
                Some(answer.lock)
            }
            Err(error) => {
                outcomes::end(begun, &error);
                None
            }
        }
    }

    /// Returns the locks of the current set that these clients hold and another client can acquire exclusively. Permits are left out.
    pub async fn held_by(&self, clients: &[String]) -> Vec<locks::Lock> {
        let round = locks::round(self.recorder.timeline());
        let present = (0..locks::COUNT).map(|place| locks::lock_at(round, place));
        let looks = present.filter(|lock| !matches!(lock.mode, Mode::Permits(_))).map(async |lock| {
            let holders = self.holders(&lock.name).await;
            let theirs = holders.iter().any(|holder| clients.contains(&holder.label));
            theirs.then_some(locks::Lock { mode: Mode::Exclusive, ..lock })
        });
        futures::future::join_all(looks).await.into_iter().flatten().collect()
    }

    pub(crate) async fn force_release(&self, lock: &str, token: u64, now: bool) {
        let begun = self.recorder.begin(&[lock.to_owned()], Call::ForceRelease { token: Some(token), now });
        let release = self.client.force_release(lock, REASON).token(Token(token));
        match if now { release.now() } else { release }.await {
            Ok(forced) => {
                begun.ok(Answer::ForceRelease { revoked: forced.iter().map(|forced| forced.token.0).collect() })
            }
            Err(error) => outcomes::end(begun, &error),
        }
    }

    /// Acquires these locks and all others of the current set concurrently, including those of dead holders. Returns whether all were
    /// granted.
    pub async fn wait_for_all(&self, theirs: &[locks::Lock]) -> bool {
        let round = locks::round(self.recorder.timeline());
        let present = (0..locks::COUNT).map(|place| locks::lock_at(round, place));
        let others = present.filter(|lock| theirs.iter().all(|known| known.name != lock.name));
        self.take_over(&theirs.iter().cloned().chain(others).collect::<Vec<_>>()).await
    }

    /// Acquires these locks concurrently, and writes to each resource as soon as its lock is granted. Returns whether
    /// all were granted.
    pub async fn take_over(&self, locks: &[locks::Lock]) -> bool {
        let Some(session) = self.open(Instant::now() + super::LIVENESS_BOUND).await else { return false };
        let takes = locks.iter().map(async |lock| match self.acquire(&session, lock, TAKE_OVER_WAIT).await {
            Ok(guard) => {
                let mut registers = Writes::new(&self.place, self.recorder.clone());
                registers.write_all(std::slice::from_ref(lock), guard.token().0).await;
                self.release(guard).await;
                true
            }
            Err(_) => {
                // Record the holder that did not release.
                self.look(&lock.name).await;
                false
            }
        });

        let all = futures::future::join_all(takes).await.into_iter().all(|taken| taken);
        self.close(session).await;
        all
    }

    /// Whether new acquires of all locks are answered by this time.
    pub async fn probe(&self, by: Instant) -> bool {
        let Some(session) = self.open(by).await else { return false };
        let round = locks::round(self.recorder.timeline());
        let served =
            (0..locks::COUNT).map(async |place| self.is_served(&session, &locks::lock_at(round, place), by).await);
        let all = futures::future::join_all(served).await.into_iter().all(|served| served);
        self.close(session).await;
        all
    }

    pub(crate) async fn close(&self, session: Session) {
        let begun = self.recorder.begin(&[], Call::Close { session: session.id().to_string() });
        match session.close().await {
            Ok(()) => begun.ok(Answer::Close {}),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    async fn open(&self, by: Instant) -> Option<Session> {
        self.open_for(PROBE_TTL, by).await
    }

    pub(crate) async fn open_for(&self, ttl: Duration, by: Instant) -> Option<Session> {
        loop {
            let options = SessionOptions { ttl, label: "probe".to_owned() };
            if let Ok(session) = self.client.open(options).await {
                let renewal = *session.renewals().borrow();
                let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
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

    /// Whether an acquire gets a final answer: a grant or a refusal.
    async fn is_served(&self, session: &Session, lock: &locks::Lock, by: Instant) -> bool {
        loop {
            match self.acquire(session, lock, Duration::ZERO).await {
                Ok(guard) => {
                    self.release(guard).await;
                    return true;
                }
                Err(Error::NotAcquired(_) | Error::Refused(_)) => return true,
                Err(_) if Instant::now() >= by => return false,
                Err(_) => {}
            }
        }
    }

    pub(crate) async fn acquire(
        &self,
        session: &Session,
        lock: &locks::Lock,
        patience: Duration,
    ) -> Result<Guard, Error> {
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

        let begun = self.recorder.begin(std::slice::from_ref(&lock.name), Call::Acquire(call));
        match acquire.await {
            Ok(guard) => {
                begun.ok(Answer::Acquire { token: guard.token().0, place_lost: guard.place_lost() });
                Ok(guard)
            }
            Err(error) => {
                outcomes::end(begun, &error);
                Err(error)
            }
        }
    }

    pub(crate) async fn release(&self, guard: Guard) {
        let names: Vec<_> = guard.names().iter().map(|name| name.as_str().to_owned()).collect();
        let call = Call::Release { session: guard.session().id().to_string(), token: guard.token().0 };
        let begun = self.recorder.begin(&names, call);
        match guard.release().await {
            Ok(()) => begun.ok(Answer::Release {}),
            Err(error) => outcomes::end(begun, &error),
        }
    }

    /// Renews a session repeatedly until `is_enough` or `by`: this adds log entries and changes nothing else.
    pub async fn renew_until(&self, by: Instant, is_enough: impl AsyncFn() -> bool) {
        let Some(session) = self.open(by).await else { return };
        while Instant::now() < by && !is_enough().await {
            // The next renewal follows a failed one.
            let _ = session.renew().await;
        }
        self.close(session).await;
    }

    /// Reads the locks of the last rounds, which are the final state of the run.
    pub async fn read_all(&self) {
        let round = locks::round(self.recorder.timeline());
        for round in round.saturating_sub(4)..=round {
            for place in 0..locks::COUNT {
                self.look(&locks::lock_at(round, place).name).await;
            }
        }
    }
}
