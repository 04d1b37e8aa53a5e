//! Holders that learn of their loss in time, and cancelled acquires that leave no grant.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper::{
    client::{BootClock, Client, Clock, Error, Loss, SessionOptions},
    proto::v1::{GetRequest, locks_client::LocksClient},
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{task::JoinSet, time::sleep};

use super::cable::Cable;
use crate::support::{LONG, client, cluster, leader, long_session, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_holder_knows_its_loss_before_another_is_granted() {
    let cluster = cluster().await;
    let cable = Cable::default();
    let builder = Client::builder(&cluster.endpoints().join(",")).connect(cable.connect());
    let options = SessionOptions { ttl: Duration::from_secs(3), label: "cut off".to_string() };
    let session = builder.build().expect("the endpoints are valid").open(options).await.expect("a session");
    let held = Arc::new(session.acquire("seat").await.expect("free"));
    let lost = tokio::spawn({
        let held = Arc::clone(&held);
        async move { (held.lost().await, BootClock.now()) }
    });
    let (tell, told) = tokio::sync::oneshot::channel();
    held.on_danger(Duration::from_secs(1), move |danger| {
        // An error means that the test has failed already.
        let _ = tell.send((danger, BootClock.now()));
    });

    let others = long_session(&client(&cluster)).await;
    let waiting = others.acquire("seat").into_future();
    cable.cut();
    let next = waiting.await.expect("granted when the session of the one that is cut off is over");
    let granted = BootClock.now();

    let (loss, lost) = tokio::time::timeout(LONG, lost).await.expect("by then, it knows").expect("no panic");
    assert_eq!(loss, Loss::OutOfContact);
    assert!(lost < granted, "lost at {lost:?}, another one was granted at {granted:?}");
    assert!(held.deadline() < granted, "trusted until {:?}", held.deadline());
    let (danger, warned) = told.await.expect("it was warned");
    assert!(warned < lost && danger.loss.is_none() && danger.left > Duration::ZERO, "{danger:?}");
    assert!(next.token() > held.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_kill_of_all_nodes_loses_no_guard() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    // Longer than an election, and far shorter than the test.
    let options = SessionOptions { ttl: Duration::from_secs(10), label: "throughout".to_string() };
    let session = client.open(options).await.expect("a session");
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(session.acquire(&format!("kept/{number}")).await.expect("free"));
    }
    for id in 1..=3 {
        cluster.node_mut(id).kill().await;
        // A client notices a delay and nothing else.
        session.acquire("another").await.expect("free").release().await.expect("it was held");
        cluster.node_mut(id).spawn().expect("it starts again");
        cluster.ready(LONG).await.expect("it serves again");
    }
    for guard in &guards {
        assert_eq!(guard.loss(), None, "{guard:?}");
        let name = guard.names()[0].as_str();
        assert!(client.check(name, guard.token()).await.expect("it answers").held, "{name}");
        guard.release().await.expect("it was held throughout");
    }
}

/// Counts of grants, and of waiters at one time.
#[derive(Default)]
struct Cancellations {
    granted: AtomicU64,
    seen_waiting: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_cancellations_leave_nothing_behind() {
    const WORKERS: u64 = 10;
    const EACH: u64 = 100;
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let counts = Arc::new(Cancellations::default());
    let mut workers = JoinSet::new();
    for worker in 0..WORKERS {
        let client = client.clone();
        let session = session.clone();
        let counts = Arc::clone(&counts);
        workers.spawn(async move {
            let mut random = StdRng::seed_from_u64(worker);
            let mut left = EACH;
            while left > 0 {
                let names = ["a", "b", "c", "d", "e", "f"];
                let first = random.random_range(0..names.len());
                let acquire = if random.random_bool(0.3) {
                    session.acquire_all([names[first], names[(first + 1) % names.len()]])
                } else {
                    session.acquire(names[first])
                };
                // Cancel at any moment, from before the sending to long after the grant; one in ten is not cancelled.
                let patience = if random.random_bool(0.1) {
                    LONG
                } else {
                    Duration::from_secs_f64(10_f64.powf(random.random_range(-4.0..-0.7)))
                };
                tokio::select! {
                    held = acquire.into_future() => {
                        let held = held.expect("a session that lives gets what it waits for");
                        counts.granted.fetch_add(1, Ordering::Relaxed);
                        sleep(Duration::from_micros(random.random_range(0..4_000))).await;
                        drop(held);
                    }
                    () = sleep(patience) => {
                        assert!(patience < LONG, "an orphaned grant holds the lock");
                        left -= 1;
                    }
                }
                if random.random_bool(0.05) {
                    let lock = client.get(names[first]).await.expect("it answers").lock;
                    counts.seen_waiting.fetch_max(lock.queue_length, Ordering::Relaxed);
                }
            }
        });
    }
    while let Some(worker) = workers.join_next().await {
        worker.expect("no worker failed");
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let granted = count(&counts.granted);
    let waiting = count(&counts.seen_waiting);
    println!("{granted} granted beside {} dropped, up to {waiting} waiting", WORKERS * EACH);
    assert!(granted >= 50 && waiting > 0, "{granted} granted, {waiting} waiting: too few to show anything");

    // The session lives, without grants or waits.
    until("nothing that is held or waits", async || {
        let sessions = client.sessions("").await.ok()?.sessions;
        let session = sessions.iter().find(|other| other.session_id == session.id())?;
        (session.grants == 0 && session.waits == 0).then_some(())
    })
    .await;
    assert!(client.list("", "").await.expect("it answers").locks.is_empty());
    assert_eq!(session.loss(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_of_one_session_exclude_each_other() {
    let cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("seat").await.expect("free");
    let error = session.acquire("seat").no_wait().await.expect_err("a task of the same session has it");
    assert!(matches!(error, Error::NotAcquired(_)), "{error:?}");
    let lock = session.acquire("seat").reentrant();
    held.release().await.expect("it was held");
    let outer = lock.enter().await.expect("free");
    let inner = lock.enter().await.expect("it is inside");
    assert_eq!(outer.token(), inner.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_refuses_at_once() {
    let mut cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let _held = session.acquire("seat").await.expect("free");
    let leading = leader(&cluster).await;
    let mut locks = LocksClient::new(cluster.node(leading).channel().await.expect("it serves"));
    for id in (1..=3).filter(|id| *id != leading) {
        cluster.node_mut(id).kill().await;
    }
    let get = GetRequest { name: "seat".to_string(), ..GetRequest::default() };
    let refusal = until("a refusal", async || {
        let refusal = locks.get(get.clone()).await.err()?;
        refusal.message().contains("cannot reach a majority of the members").then_some(refusal)
    })
    .await;
    assert_eq!(refusal.code(), tonic::Code::Unavailable);
    assert!(refusal.metadata().get("lockkeeper-leader").is_none(), "it names itself, and cannot serve");

    let impatient = Client::builder(&cluster.endpoints().join(",")).call_limit(Duration::from_secs(1));
    let error = impatient.build().expect("valid").get("seat").await.expect_err("no node can answer");
    assert!(matches!(error, Error::NoCluster { .. }), "a read has changed nothing: {error:?}");
}
