//! One request that causes much work: sessions with many locks end, many sessions expire together, many waiters are granted one lock.
//! The server does the work in bounded pieces and serves other clients between them.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use lockkeeper::{
    local::ClusterOptions,
    proto::v1::{self, acquire_response::Outcome, locks_client::LocksClient, mode, sessions_client::SessionsClient},
};
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};

use super::{
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::{LONG, leader, until};

/// Calls under way at one time.
const AT_ONCE: usize = 64;
/// Locks in one acquire: the maximum.
const LOCKS: usize = 64;
/// Locks of one session, of 100,000 at most.
const LOCKS_PER_SESSION: usize = 99_968;
/// Waits of one session, of 1,024 at most.
const WAITS_PER_SESSION: usize = 1_000;
/// A TTL that is longer than any case.
const TTL_MS: u32 = 3_600_000;

/// The gRPC clients of the leader.
#[derive(Clone)]
struct Leader {
    sessions: SessionsClient<Channel>,
    locks: LocksClient<Channel>,
}

impl Leader {
    async fn of(stage: &Stage) -> Self {
        let endpoint = format!("http://{}", stage.leader().await);
        let channel = Endpoint::from_shared(endpoint).expect("an address").connect().await.expect("it serves");
        Self { sessions: SessionsClient::new(channel.clone()), locks: LocksClient::new(channel) }
    }

    async fn open(&self, ttl_ms: u32) -> String {
        let request = v1::OpenSessionRequest { ttl_ms, label: "bulk".to_owned(), ..Default::default() };
        let answer = timeout(LONG, self.sessions.clone().open(request)).await.expect("answered in time");
        answer.expect("a session").into_inner().session_id
    }

    async fn close(&self, session_id: String) {
        let request = v1::CloseSessionRequest { session_id, ..Default::default() };
        timeout(LONG, self.sessions.clone().close_session(request)).await.expect("answered in time").expect("closed");
    }

    /// Acquires, with a wait without a limit.
    async fn acquire(&self, session_id: &str, locks: Vec<v1::Want>) {
        let wait = Some(v1::acquire_request::Wait::WaitForever(true));
        let request = v1::AcquireRequest { session_id: session_id.to_owned(), locks, wait, ..Default::default() };
        let answer = self.locks.clone().acquire(request).await.expect("an answer").into_inner();
        assert!(matches!(answer.outcome, Some(Outcome::Granted(_))), "{answer:?}");
    }

    /// Opens sessions that hold `locks` locks together.
    async fn hold(&self, locks: usize) -> Vec<String> {
        let mut sessions = Vec::new();
        for first in (0..locks).step_by(LOCKS_PER_SESSION) {
            let session = self.open(TTL_MS).await;
            let (number, last) = (sessions.len(), locks.min(first + LOCKS_PER_SESSION) - first);
            let acquire = async |from: usize| {
                let want = |lock: usize| want(&format!("bulk/{number}/{lock}"));
                self.acquire(&session, (from..last.min(from + LOCKS)).map(want).collect()).await;
            };
            let acquires = stream::iter((0..last).step_by(LOCKS)).map(acquire).buffer_unordered(AT_ONCE);
            acquires.collect::<()>().await;
            sessions.push(session);
        }
        sessions
    }
}

fn want(name: &str) -> v1::Want {
    v1::Want { name: name.to_owned(), ..Default::default() }
}

/// The numbers of sessions and locks.
async fn counts(stage: &Stage) -> (u64, u64) {
    until("a leader that reports its counts", async || {
        let statuses = stage.cluster.statuses().await;
        statuses.values().find(|status| status.serving).map(|status| (status.sessions, status.locks))
    })
    .await
}

/// Waits until the numbers of sessions and locks are back to those before.
async fn cleared(stage: &Stage, before: (u64, u64)) {
    let began = Instant::now();
    timeout(5 * LONG, async {
        until("sessions and locks to be removed", async || {
            let now = counts(stage).await;
            // The bystander holds one lock more or less at any time.
            (now.0 <= before.0 && now.1 <= before.1 + 1).then_some(())
        })
        .await;
    })
    .await
    .expect("removed in time");
    println!("removed after {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn bulk_closes_expiries_and_grants_harm_no_other_client() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let before = counts(&stage).await;
    let own = Leader::of(&stage).await;

    let sessions = own.hold(sized(20_000, 1_000_000)).await;
    stage.remember_memory();
    stage
        .survives("sessions with many locks close", async |stage: &Stage| {
            stream::iter(sessions).map(|session| own.close(session)).buffer_unordered(AT_ONCE).collect::<()>().await;
            cleared(stage, before).await;
        })
        .await;

    stage
        .survives("sessions expire together", async |stage: &Stage| {
            let ends = Instant::now() + Duration::from_secs(sized(4, 40) as u64);
            let open = async |_| {
                let ttl_ms = (ends - Instant::now()).as_millis().max(1_000) as u32;
                own.open(ttl_ms).await;
            };
            let opens = stream::iter(0..sized(2_000, 100_000)).map(open).buffer_unordered(AT_ONCE);
            opens.collect::<()>().await;
            assert!(counts(stage).await.0 > before.0);
            cleared(stage, before).await;
        })
        .await;

    stage
        .survives("many wait for one lock, which they can share", async |stage: &Stage| {
            // One connection may have 10,240 open calls.
            let (waits, holder) = (sized(2_000, 8_000), own.open(TTL_MS).await);
            own.acquire(&holder, vec![want("awaited")]).await;
            let sessions: Vec<_> =
                stream::iter(0..waits.div_ceil(WAITS_PER_SESSION)).then(|_| own.open(TTL_MS)).collect().await;
            let shared = v1::Mode { kind: Some(mode::Kind::Shared(mode::Shared {})) };
            let shared = v1::Want { mode: Some(shared), ..want("awaited") };
            let wait = async |number: usize| {
                own.acquire(&sessions[number / WAITS_PER_SESSION], vec![shared.clone()]).await;
            };
            let waiting = stream::iter(0..waits).map(wait).buffer_unordered(waits).collect::<()>();
            let releases = async {
                until("all to wait", async || {
                    let statuses = stage.cluster.statuses().await;
                    statuses.values().any(|status| status.serving && status.waiters == waits as u64).then_some(())
                })
                .await;
                own.close(holder).await;
            };
            timeout(5 * LONG, async { tokio::join!(waiting, releases) }).await.expect("all are granted");
            stream::iter(sessions).map(|session| own.close(session)).buffer_unordered(AT_ONCE).collect::<()>().await;
            cleared(stage, before).await;
        })
        .await;
}

/// A follower that was down while the table grew installs a snapshot of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_snapshot_is_installed() {
    let change = |options: &mut ClusterOptions| (options.raft.snapshot_entries, options.raft.keep_entries) = (50, 10);
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, change).await;
    let own = Leader::of(&stage).await;
    let leader = leader(&stage.cluster).await;
    let follower = (1..=3).find(|node| *node != leader).expect("three nodes");
    let status = stage.cluster.node(follower).status().await.expect("it runs");
    let has = status.last_log_index;
    stage.cluster.node_mut(follower).kill().await;
    own.hold(sized(20_000, 1_000_000)).await;

    let newest = until("a snapshot on the leader, beyond the log of the follower", async || {
        let status = stage.cluster.node(leader).status().await.ok()?;
        (status.purged_index > has).then_some(status.snapshot_index)
    })
    .await;
    stage.expect_memory_as_large_as_others();
    stage.cluster.node_mut(follower).spawn().expect("it starts");
    stage
        .survives("a large snapshot is installed", async |stage: &Stage| {
            let began = Instant::now();
            timeout(5 * LONG, async {
                until("the follower to catch up", async || {
                    let status = stage.cluster.node(follower).status().await.ok()?;
                    (status.snapshot_index >= newest && status.applied_index >= newest).then_some(())
                })
                .await;
            })
            .await
            .expect("it catches up in time");
            println!("caught up after {:?}", began.elapsed());
        })
        .await;
}
