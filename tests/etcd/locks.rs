//! `etcdctl lock` and `etcdctl elect`, which contend while the leader of the cluster is killed, and what operators see of them.

use std::{path::Path, process::Stdio, time::Duration};

use lockkeeper::{
    client::{Client, LockInfo, LockKind},
    local::{LocalCluster, Signal},
};
use rustix::process::{Pid, Signal as OsSignal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, sleep, timeout},
};

use super::{LONG, cluster};
use crate::unmodified::debian;

/// An `etcdctl` that goes on until it is told to end.
pub(crate) struct Contender {
    child: Child,
    output: Lines<BufReader<ChildStdout>>,
}

impl Contender {
    /// At these endpoints.
    pub(crate) fn start(programs: &Path, endpoints: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(programs.join("etcdctl"));
        command.args(arguments).env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", endpoints);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("etcdctl starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        Self { child, output }
    }

    /// Its next line: the first one is its key, as soon as it is elected or has the lock.
    pub(crate) async fn line(&mut self) -> String {
        self.try_line().await.expect("a line")
    }

    /// The same; `None`: it has failed.
    pub(crate) async fn try_line(&mut self) -> Option<String> {
        timeout(LONG, self.output.next_line()).await.expect("in time").expect("text")
    }

    /// Has it give up what it has, and end.
    pub(crate) async fn end(mut self) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it runs");
        kill_process(pid, OsSignal::INT).expect("it is ours");
        timeout(LONG, self.child.wait()).await.expect("in time").expect("it ends");
    }
}

/// A lock once one holds it and as many wait.
async fn queue(client: &Client, name: &str, waiters: u64) -> LockInfo {
    let deadline = Instant::now() + LONG;
    loop {
        // While there is no leader, there is no answer.
        let lock = client.get(name).await.map(|answer| answer.lock);
        if let Ok(lock) = &lock
            && (lock.holder_count, lock.queue_length) == (1, waiters)
        {
            return lock.clone();
        }
        assert!(Instant::now() < deadline, "{waiters} are to wait: {lock:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn kill_leader(cluster: &LocalCluster) {
    let statuses = cluster.statuses().await;
    let leader = statuses.values().map(|status| status.leader_id).find(|id| *id != 0).expect("a leader");
    cluster.node(leader).signal(Signal::KILL);
}

/// The contenders come one after the other, so that their order is known.
async fn hand_over(kind: &str, arguments: impl Fn(usize) -> Vec<String>) {
    let programs = match debian::etcd().await {
        Ok(programs) => programs,
        Err(problem) => return crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    };
    let mut cluster = cluster().await;
    let client = Client::builder(&cluster.endpoints().join(",")).build().expect("endpoints");
    let endpoints = cluster.etcd_endpoints().join(",");
    let start = |number: usize| {
        let arguments = arguments(number);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Contender::start(&programs, &endpoints, &arguments)
    };
    let name = format!("etcd/{kind}");
    let mut first = start(0);
    let key = first.line().await;
    assert!(key.starts_with(&format!("{kind}/")), "{key}");
    let mut others = Vec::new();
    for number in 1..4 {
        others.push(start(number));
        queue(&client, &name, number as u64).await;
    }
    let held = queue(&client, &name, 3).await;
    let lease = key.rsplit('/').next().expect("its lease");
    let holder = &held.holders[0];
    assert_eq!(held.kind, LockKind::Entry);
    assert!(holder.label.starts_with(&format!("etcd lease {lease}, grant ")), "{}", holder.label);

    kill_leader(&cluster).await;
    // etcdctl does not repeat a write whose answer was lost: a release during the election would leave the key to its lease.
    queue(&client, &name, 3).await;
    first.end().await;
    let mut second = others.remove(0);
    let key = second.line().await;
    let now = queue(&client, &name, 2).await;
    assert!(now.holders[0].token > holder.token, "tokens rise: {now:?}");
    assert!(now.holders[0].label.contains(key.rsplit('/').next().expect("its lease")), "{now:?}");

    // An operator takes it from the second one, whose lease goes on: the third one has it at once.
    client.force_release(&name, "stuck").await.expect("an operator may");
    let mut third = others.remove(0);
    third.line().await;
    let last = queue(&client, &name, 1).await;
    assert!(last.holders[0].token > now.holders[0].token);
    third.end().await;
    let mut fourth = others.remove(0);
    fourth.line().await;
    fourth.end().await;
    assert_eq!(client.get(&name).await.expect("an answer").lock.holder_count, 0);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn locks_are_handed_over_in_order_while_a_leader_dies() {
    hand_over("jobs", |_| ["lock", "jobs", "--ttl=60"].map(str::to_owned).into()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn leaders_are_elected_in_order_while_a_leader_of_the_cluster_dies() {
    hand_over("boss", |number| vec!["elect".to_owned(), "boss".to_owned(), format!("candidate-{number}")]).await;
}
