//! `etcdctl`, version 3.4.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

use super::{LONG, locks::Contender, steady_cluster};
use crate::unmodified::debian;

/// `etcdctl` with the endpoints of a cluster.
pub(crate) struct Ctl<'a> {
    pub(crate) programs: &'a Path,
    pub(crate) endpoints: String,
}

impl Ctl<'_> {
    async fn with_input(&self, arguments: &[&str], input: &str) -> (bool, String) {
        let mut command = Command::new(self.programs.join("etcdctl"));
        command.args(arguments).env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &self.endpoints);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("etcdctl starts");
        let mut to_child = child.stdin.take().expect("it is piped");
        to_child.write_all(input.as_bytes()).await.expect("it reads");
        drop(to_child);
        let output = timeout(LONG, child.wait_with_output()).await.expect("in time").expect("it ends");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), text)
    }

    /// What it says.
    pub(crate) async fn ok(&self, arguments: &[&str]) -> String {
        let (succeeded, text) = self.with_input(arguments, "").await;
        assert!(succeeded, "{arguments:?}: {text}");
        text.trim().to_owned()
    }

    /// The last line of what it says when it fails.
    pub(crate) async fn error(&self, arguments: &[&str]) -> String {
        let (succeeded, text) = self.with_input(arguments, "").await;
        assert!(!succeeded, "{arguments:?}: {text}");
        text.lines().last().unwrap_or_default().to_owned()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn etcdctl_reads_writes_leases_and_shows_the_members() {
    let programs = match debian::etcd().await {
        Ok(programs) => programs,
        Err(problem) => return crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    };
    let mut cluster = steady_cluster().await;
    let ctl = Ctl { programs: &programs, endpoints: cluster.etcd_endpoints().join(",") };
    assert_eq!(ctl.ok(&["put", "a", "1"]).await, "OK");
    assert_eq!(ctl.ok(&["put", "b", "2"]).await, "OK");
    assert_eq!(ctl.ok(&["get", "a"]).await, "a\n1");
    assert_eq!(ctl.ok(&["get", "--prefix", "", "--keys-only"]).await, "a\n\nb");
    let sorted = ["get", "--prefix", "", "--sort-by=CREATE", "--order=DESCEND", "--limit=1", "--print-value-only"];
    assert_eq!(ctl.ok(&sorted).await, "2");
    let txn = "value(\"a\") = \"1\"\n\nput a 3\nget a\n\nget b\n\n";
    let (succeeded, text) = ctl.with_input(&["txn"], txn).await;
    assert!(succeeded && text.trim() == "SUCCESS\n\nOK\n\na\n3", "{text}");
    let (succeeded, text) = ctl.with_input(&["txn"], txn).await;
    assert!(succeeded && text.trim() == "FAILURE\n\nb\n2", "{text}");
    assert_eq!(ctl.ok(&["del", "--prev-kv", "a"]).await, "1\na\n3");
    assert_eq!(ctl.ok(&["del", "--prefix", ""]).await, "1");

    let granted = ctl.ok(&["lease", "grant", "60"]).await;
    let lease = granted.split(' ').nth(1).expect("an id").to_owned();
    assert_eq!(granted, format!("lease {lease} granted with TTL(60s)"));
    assert_eq!(ctl.ok(&["put", "--lease", &lease, "locks/x", "v"]).await, "OK");
    assert!(ctl.ok(&["lease", "timetolive", "--keys", &lease]).await.ends_with("attached keys([locks/x])"));
    assert_eq!(ctl.ok(&["lease", "list"]).await, format!("found 1 leases\n{lease}"));
    let kept = ctl.ok(&["lease", "keep-alive", "--once", &lease]).await;
    assert_eq!(kept, format!("lease {lease} keepalived with TTL(60)"));
    assert_eq!(ctl.ok(&["lease", "revoke", &lease]).await, format!("lease {lease} revoked"));
    assert_eq!(ctl.ok(&["get", "--prefix", "locks"]).await, "");
    assert!(ctl.ok(&["lease", "timetolive", &lease]).await.ends_with("already expired"));

    let error = ctl.error(&["put", "--lease=77", "a", "1"]).await;
    assert_eq!(error, "Error: etcdserver: requested lease not found");
    let error = ctl.error(&["get", "a", "--rev=999999999"]).await;
    assert_eq!(error, "Error: etcdserver: mvcc: required revision is a future revision");

    let members = ctl.ok(&["member", "list", "--write-out=simple"]).await;
    for endpoint in cluster.etcd_endpoints() {
        assert!(members.contains(&format!("http://{endpoint}")), "{members}");
    }
    let status = ctl.ok(&["endpoint", "status", "--write-out=simple"]).await;
    assert_eq!(status.lines().count(), 3, "{status}");
    assert_eq!(status.matches(", true, false,").count(), 1, "one of them leads: {status}");
    // By the addresses that the members tell, and with a scheme, which its client sends in the authority of each request.
    let status = ctl.ok(&["endpoint", "status", "--cluster", "--write-out=simple"]).await;
    assert_eq!(status.lines().count(), 3, "{status}");
    assert_eq!(status.matches("http://").count(), 3, "{status}");
    let with_scheme = Ctl { programs: &programs, endpoints: format!("http://{}", cluster.etcd_endpoints()[0]) };
    assert_eq!(with_scheme.ok(&["alarm", "list"]).await, "");
    assert!(ctl.ok(&["endpoint", "health"]).await.matches("is healthy").count() == 3);
    cluster.stop().await;
}

/// The lines that a program says next.
async fn next(program: &mut Contender, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for _ in 0..count {
        lines.push(program.line().await);
    }
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a package of Debian"]
async fn etcdctl_watches_observes_and_compacts() {
    let programs = match debian::etcd().await {
        Ok(programs) => programs,
        Err(problem) => return crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    };
    let mut cluster = steady_cluster().await;
    let endpoints = cluster.etcd_endpoints().join(",");
    let ctl = Ctl { programs: &programs, endpoints: endpoints.clone() };
    for put in [["w/1", "one"], ["w/1", "two"], ["other", "x"], ["w/2", "y"]] {
        assert_eq!(ctl.ok(&["put", put[0], put[1]]).await, "OK");
    }
    assert_eq!(ctl.ok(&["del", "w/1"]).await, "1");
    // From the past: each change with what was there before.
    let mut watch = Contender::start(&programs, &endpoints, &["watch", "--rev=1", "--prefix", "--prev-kv", "w/"]);
    let past =
        ["PUT", "w/1", "one", "PUT", "w/1", "one", "w/1", "two", "PUT", "w/2", "y", "DELETE", "w/1", "two", "w/1", ""];
    assert_eq!(next(&mut watch, past.len()).await, past);
    // And from now on, of one key.
    let mut of_one = Contender::start(&programs, &endpoints, &["watch", "w/3"]);
    let mut number = 0;
    let first = loop {
        // It says nothing until there is a change.
        number += 1;
        assert_eq!(ctl.ok(&["put", "w/3", &number.to_string()]).await, "OK");
        if let Ok(line) = timeout(Duration::from_millis(100), of_one.line()).await {
            break line;
        }
    };
    assert_eq!((first.as_str(), of_one.line().await.as_str()), ("PUT", "w/3"));
    // Killed: unlike its other commands, this one heeds SIGINT only where this program's parent does.
    drop((watch, of_one));

    let mut leader = Contender::start(&programs, &endpoints, &["elect", "boss", "ann"]);
    let key = leader.line().await;
    assert_eq!(leader.line().await, "ann");
    let mut observer = Contender::start(&programs, &endpoints, &["elect", "--listen", "boss"]);
    assert_eq!(next(&mut observer, 2).await, [key, "ann".to_owned()]);
    drop(observer);
    leader.end().await;

    let read = ctl.ok(&["get", "w/2", "--write-out=json"]).await;
    let read: serde_json::Value = serde_json::from_str(&read).expect("JSON");
    let revision = read["header"]["revision"].to_string();
    assert_eq!(ctl.ok(&["compaction", &revision]).await, format!("compacted revision {revision}"));
    let error = ctl.error(&["get", "w/1", "--rev=1"]).await;
    assert_eq!(error, "Error: etcdserver: mvcc: required revision has been compacted");
    let error = ctl.error(&["compaction", "1"]).await;
    assert_eq!(error, "Error: etcdserver: mvcc: required revision has been compacted");
    cluster.stop().await;
}
