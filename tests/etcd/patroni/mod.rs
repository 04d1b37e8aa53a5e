//! Patroni with PostgreSQL, three of each, whose leader key is a lock of this cluster.
//!
//! Patroni speaks the JSON gateway. Real servers: the one that is installed, or Debian's; as another user if this one is root. Where they
//! cannot be had, the test is skipped, and says so. `scripts/patroni.sh` is the long form: more rounds.

mod postgres;
mod stage;

use std::{env, path::Path, time::Duration};

use lockkeeper::{
    client::{Client, LockInfo, LockKind},
    local::{LocalCluster, Signal},
};
use tokio::time::{Instant, sleep};

use super::{LONG, cluster};
use crate::turns;
use crate::unmodified::packages::{command, run};
use stage::{KEY, Programs, Seen, Stage, TTL};

/// How many rounds.
const ROUNDS: &str = "LOCKKEEPER_PATRONI_ROUNDS";

/// The lock that the leader key is.
fn lock_name() -> String {
    format!("etcd/{KEY}")
}

async fn lock(client: &Client) -> LockInfo {
    let deadline = Instant::now() + LONG;
    loop {
        // While there is no leader, there is no answer.
        match client.get(&lock_name()).await {
            Ok(answer) => return answer.lock,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the holder has renewed its lease: more of it is left than now.
async fn renewed(client: &Client) {
    let remaining = async || lock(client).await.holders.first().expect("it is held").remaining;
    let deadline = Instant::now() + LONG;
    let mut before = remaining().await;
    loop {
        let now = remaining().await;
        if now > before {
            return;
        }
        before = now;
        assert!(Instant::now() < deadline, "no renewal: {now:?} left");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn leader(cluster: &LocalCluster) -> u64 {
    let deadline = Instant::now() + LONG;
    loop {
        let statuses = cluster.statuses().await;
        let serving = statuses.values().filter(|status| status.serving);
        if let Some(leader) = serving.map(|status| status.leader_id).find(|id| *id != 0) {
            return leader;
        }
        assert!(Instant::now() < deadline, "no leader: {statuses:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Kills the cluster's leader, waits until the leader key is renewed without it, and starts it again.
async fn kill_leader(cluster: &mut LocalCluster, client: &Client) {
    let killed = leader(cluster).await;
    cluster.node(killed).signal(Signal::KILL);
    renewed(client).await;
    renewed(client).await;
    let node = cluster.node_mut(killed);
    node.kill().await;
    node.spawn().expect("it starts");
    cluster.ready(LONG).await.expect("it serves again");
}

/// A round begins and ends with a primary and two replicas.
async fn round(stage: &mut Stage, cluster: &mut LocalCluster, client: &Client, number: usize) {
    // Nothing happens to PostgreSQL when the cluster loses its leader, or all of its nodes one after the other.
    let before = stage.until("a primary and two replicas", |seen| seen.settled().is_some()).await;
    let primary = before.settled().expect("just now").to_owned();
    let token = async || lock(client).await.holders.first().map(|holder| holder.token);
    let held = token().await;
    kill_leader(cluster, client).await;
    for node in 1..=3 {
        cluster.node_mut(node).stop().await;
        cluster.node_mut(node).spawn().expect("it starts");
        cluster.ready(LONG).await.expect("it serves again");
    }
    renewed(client).await;
    renewed(client).await;
    stage.until("it stays the primary", |seen| *seen == before).await;
    assert_eq!(token().await, held, "it has the lease that it had");
    eprintln!("{number}: {primary} stays the primary while the cluster changes its leader and restarts: {before:?}");

    // An operator takes the leader key. The primary acquires it again: its replicas see that it lives.
    let forced = client.force_release(&lock_name(), "a test").await.expect("an operator may");
    assert_eq!(Some(forced[0].token), held);
    let has_again = |seen: &Seen| seen.token > before.token && seen.settled().is_some();
    let again = stage.until("it has the key again", has_again).await;
    assert_eq!(again.settled(), Some(&*primary), "{again:?}");
    eprintln!("{number}: forced release of token {:?}: {primary} has {:?}", before.token, again.token);

    let candidate = again.replicas[0].clone();
    stage.ctl(&["switchover", "demo", "--leader", &primary, "--candidate", &candidate, "--force"]).await;
    let is_switched = |seen: &Seen| seen.settled() == Some(&*candidate) && seen.token > again.token;
    let switched = stage.until("the other one is the primary", is_switched).await;
    eprintln!("{number}: switchover from {primary} to {candidate}, token {:?}", switched.token);

    // A primary that dies: its lease ends, and another one is elected.
    let row = format!("INSERT INTO rows VALUES ('{number}')");
    stage.ask(&candidate, &row).await.expect("a primary takes it");
    let count = format!("SELECT count(*) FROM rows WHERE name = '{number}'");
    for replica in &switched.replicas {
        stage.until_answer(replica, &count, "1").await;
    }
    let killed = Instant::now();
    stage.kill(&candidate);
    let is_elected = |seen: &Seen| seen.primaries.len() == 1 && seen.primaries[0] != candidate;
    let elected = stage.until("another one is the primary", is_elected).await;
    let successor = elected.primaries[0].clone();
    eprintln!("{number}: {candidate} is killed, {successor} is the primary after {:?} (TTL {TTL} s)", killed.elapsed());
    assert_eq!(stage.ask(&successor, &count).await.as_deref(), Ok("1"));
    stage.restart(&candidate).await;
    let settled = stage.until("it comes back as a replica", |seen| seen.settled() == Some(&*successor)).await;
    assert!(settled.token > switched.token, "{settled:?}");
    // Nobody was a primary who had not the key, or without it.
    assert_eq!(settled.owners, settled.promoted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: packages of others"]
async fn patroni_elects_its_primaries_by_a_lock_of_this_cluster() {
    let programs = match Programs::new().await {
        Ok(programs) => programs,
        Err(problem) => return crate::skipped::skipped(format_args!("Patroni or PostgreSQL cannot be had: {problem}")),
    };
    let _turn = turns::whole_machine().await;
    let mut cluster = cluster().await;
    let client = Client::builder(&cluster.endpoints().join(",")).build().expect("endpoints");
    let mut stage = Stage::new(programs, &cluster);
    let primary = stage.settled("a primary and two replicas").await;
    stage.ask(&primary, "CREATE TABLE rows (name text)").await.expect("a primary takes it");

    // What operators see, in both worlds.
    let held = lock(&client).await;
    let [holder] = &held.holders[..] else { panic!("one holder: {held:?}") };
    assert_eq!((held.kind, Some(holder.token.0)), (LockKind::Entry, stage.seen().token));
    let mut list = command(Path::new(env!("CARGO_BIN_EXE_lockkeeper")), &["list", "etcd/"]);
    list.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
    let listed = run(list).await.expect("a list");
    let row = listed.lines().find(|line| line.starts_with(&lock_name())).unwrap_or_else(|| panic!("{listed}"));
    assert!(row.contains(&holder.label) && row.contains(&holder.token.0.to_string()), "{row}");
    let members = stage.ctl(&["list"]).await;
    let role = |role: &str| members.lines().filter(|line| line.contains(role)).count();
    assert_eq!((role("| Leader "), role("| Replica ")), (1, 2), "{members}");
    eprintln!("{listed}{members}");
    assert!(stage.ctl(&["pause", "--wait"]).await.contains("Success"));
    assert!(stage.ctl(&["list"]).await.contains("Maintenance mode: on"));
    assert!(stage.ctl(&["resume", "--wait"]).await.contains("Success"));

    let rounds = env::var(ROUNDS).map_or(1, |rounds| rounds.parse().expect("a number of rounds"));
    for number in 1..=rounds {
        round(&mut stage, &mut cluster, &client, number).await;
    }
    stage.stop().await;
    cluster.stop().await;
}
