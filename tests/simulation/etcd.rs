//! etcd's clients in a simulated run: contenders for locks by etcd's lock service, at the nodes' real port for it.
//!
//! A contender is granted a lease, asks for a lock with it, keeps the lease alive while it holds the lock, and unlocks or falls silent. It
//! trusts its lease from the sending of the last answered call on, less a margin for its clock, as every client of leases must. No two
//! contenders may trust that they hold the same lock at the same time.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use lockkeeper_etcd::proto::{
    etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest, lease_client::LeaseClient},
    v3lockpb::{LockRequest, UnlockRequest, lock_client::LockClient},
};
use rand::{Rng as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{clients, network, system};

const CONTENDERS: u64 = 3;
const LOCKS: u32 = 2;
/// The TTL of leases; etcd's have whole seconds.
const TTL_S: i64 = 2;
const TTL: Duration = Duration::from_secs(2);
/// What a clock may be wrong, of a TTL.
const MARGIN: Duration = Duration::from_millis(25);
/// The time of a call, and of one that waits for a lock.
const LIMIT: Duration = Duration::from_millis(700);
const LOCK_LIMIT: Duration = Duration::from_millis(1_500);

/// Who trusts that he holds which lock, and until when.
#[derive(Default, Debug)]
pub(crate) struct Tenures(Mutex<TenuresState>);

#[derive(Default, Debug)]
struct TenuresState {
    /// By lock: the contender, the revision of its grant, and the time up to which it trusts it.
    present: BTreeMap<String, (String, i64, Duration)>,
    granted: u64,
    handed_over: u64,
    complaints: Vec<String>,
}

impl Tenures {
    fn begin(&self, lock: &str, who: &str, revision: i64, until: Duration) {
        let now = system::elapsed();
        let mut state = self.0.lock().expect("nothing panics while it has them");
        state.granted += 1;
        if let Some((other, earlier, trusts)) = state.present.get(lock).cloned() {
            if trusts > now {
                let what = format!(
                    "{who} holds etcd's lock {lock} at {now:?} (revision {revision}), and {other} trusts until {trusts:?} that it does \
                     (revision {earlier})"
                );
                state.complaints.push(what);
            }
            if revision <= earlier {
                let what = format!("etcd's lock {lock} went from {other} at revision {earlier} to {who} at {revision}");
                state.complaints.push(what);
            }
            state.handed_over += u64::from(other != who);
        }
        state.present.insert(lock.to_owned(), (who.to_owned(), revision, until));
    }

    /// It trusts the same grant until another time.
    fn trust(&self, lock: &str, who: &str, until: Duration) {
        let mut state = self.0.lock().expect("nothing panics while it has them");
        if let Some((holder, _, trusts)) = state.present.get_mut(lock)
            && holder == who
        {
            *trusts = until;
        }
    }

    /// What cannot have been.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.0.lock().expect("nothing panics while it has them").complaints.clone()
    }

    /// Grants, and those that went from one contender to another.
    pub(crate) fn counts(&self) -> [(&'static str, u64); 2] {
        let state = self.0.lock().expect("nothing panics while it has them");
        [("locks of etcd's granted", state.granted), ("locks of etcd's handed over", state.handed_over)]
    }
}

/// The client process of a run, and its successors.
pub(crate) struct EtcdClientProcess {
    seats: u64,
    seed: u64,
    tenures: Arc<Tenures>,
    finish: CancellationToken,
    generation: AtomicU32,
}

impl EtcdClientProcess {
    /// The name of its host.
    pub(crate) const HOST: &'static str = "etcd";

    pub(crate) fn new(seats: u64, seed: u64, tenures: Arc<Tenures>, finish: CancellationToken) -> Self {
        Self { seats, seed, tenures, finish, generation: AtomicU32::new(0) }
    }

    /// Contends until the run is over.
    pub(crate) async fn work(self: Arc<Self>) -> turmoil::Result {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        join_all((0..CONTENDERS).map(|number| self.contend(generation, number))).await;
        Ok(())
    }

    async fn contend(&self, generation: u32, number: u64) {
        let mut random = StdRng::seed_from_u64(self.seed ^ (u64::from(generation) << 20) ^ number);
        let seats = 1..=self.seats;
        let channels: Vec<_> = seats.map(|seat| clients::channel(&network::etcd_seat_address(seat))).collect();
        let mut round = 0;
        while !self.finish.is_cancelled() {
            round += 1;
            let channel = channels.choose(&mut random).expect("there is a node").clone();
            let who = format!("contender {number}.{generation}.{round}");
            // Without an answer, the lease ends by itself.
            let _ = self.hold(&channel, &who, &mut random).await;
            sleep(Duration::from_millis(random.random_range(10..250))).await;
        }
    }

    /// Holds a lock once. `None`: it did not get it, or lost it.
    async fn hold(&self, channel: &Channel, who: &str, random: &mut StdRng) -> Option<()> {
        let mut leases = LeaseClient::new(channel.clone());
        let mut locks = LockClient::new(channel.clone());
        let lock = format!("contended/{}", random.random_range(0..LOCKS));

        let mut sent = system::elapsed();
        let lease = answered(LIMIT, leases.lease_grant(LeaseGrantRequest { ttl: TTL_S, id: 0 })).await?.id;
        let request = LockRequest { name: lock.clone().into_bytes(), lease };
        let granted = answered(LOCK_LIMIT, locks.lock(request)).await?;
        let until = |sent: Duration| sent + TTL - MARGIN;
        if until(sent) > system::elapsed() {
            self.tenures.begin(&lock, who, granted.header?.revision, until(sent));
        }

        for _ in 0..random.random_range(0..5) {
            sleep(Duration::from_millis(random.random_range(20..700))).await;
            let asked = system::elapsed();
            let request = LeaseKeepAliveRequest { id: lease };
            let alive = leases.lease_keep_alive(tokio_stream::iter([request]));
            let mut answers = answered(LIMIT, alive).await?;
            let answer = timeout(LIMIT, answers.message()).await.ok()?.ok()??;
            if answer.ttl == 0 {
                return None;
            }
            sent = asked;
            self.tenures.trust(&lock, who, until(sent));
        }
        // Some holders fall silent: their locks pass on when their leases end.
        if random.random_range(0..100) < 70 {
            self.tenures.trust(&lock, who, Duration::ZERO);
            answered(LIMIT, locks.unlock(UnlockRequest { key: granted.key })).await?;
        }
        Some(())
    }
}

async fn answered<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Option<T> {
    Some(timeout(limit, call).await.ok()?.ok()?.into_inner())
}
