//! What operators see of locks that are held through this port: in the list, in the audit, and among the metrics.

use std::{fs, time::Duration};

use lockkeeper::{
    client::{LockInfo, LockKind},
    config::AuditConfig,
    local::LocalCluster,
};
use lockkeeper_audit::{AuditEvent, files_in, verify};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{Connection, LONG, RELEASE, Reply, ok};
use crate::support::{client, cluster_with, until};

const NAME: &str = "redis/0/jobs";

/// A connection of a client that says what it is.
async fn known_client(cluster: &LocalCluster, name: &str) -> Connection {
    let endpoints = cluster.redis_endpoints();
    let mut connection = until("the port serves", async || {
        let mut connection = Connection::open(&endpoints[0]).await?;
        let set = connection.call(&["SET", "ready", "1", "PX", "60000"]).await?;
        (set == ok()).then_some(connection)
    })
    .await;
    for (what, value) in [("LIB-NAME", "redis-py(django-redis_v7)"), ("LIB-VER", "8.1.0")] {
        assert_eq!(connection.ask(&["CLIENT", "SETINFO", what, value]).await, ok());
    }
    assert_eq!(connection.ask(&["CLIENT", "SETNAME", name]).await, ok());
    connection
}

async fn take(connection: &mut Connection, value: &str) -> u64 {
    assert_eq!(connection.ask(&["SET", "jobs", value, "NX", "PX", "600000"]).await, ok());
    let reply = connection.ask(&["GET", "lockkeeper:token:jobs"]).await;
    let Reply::Text(token) = reply else { panic!("no token: {reply:?}") };
    token.parse().expect("a number")
}

/// The page of metrics of the node that the clients here use.
async fn metrics(cluster: &LocalCluster) -> String {
    let url = cluster.http_endpoints().remove(0);
    let address = url.split_once("//").map_or(&*url, |(_, address)| address);
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let asked = async {
        let mut page = String::new();
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        stream.read_to_string(&mut page).await.expect("a page");
        page
    };
    timeout(LONG, asked).await.expect("a page in time")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_listed_with_its_client_taken_back_and_in_the_audit() {
    let directory = TempDir::new().expect("a directory");
    let audit = AuditConfig { directory: directory.path().to_owned(), ..AuditConfig::default() };
    let mut cluster = cluster_with(|options| {
        options.redis = true;
        options.http = true;
        options.audit = audit;
    })
    .await;
    let operator = client(&cluster);
    let mut ann = known_client(&cluster, "ann").await;
    let mut bob = known_client(&cluster, "bob").await;

    let first = take(&mut ann, "secret-of-ann").await;
    let held: LockInfo = operator.get(NAME).await.expect("read").lock;
    let holder = &held.holders[0];
    assert_eq!((held.kind, held.holder_count, holder.token.0), (LockKind::Entry, 1, first));
    let label = holder.label.clone();
    assert!(label.starts_with("ann, redis-py(django-redis_v7) 8.1.0, 127.0.0.1:"), "{label}");
    let remaining = holder.remaining;
    assert!(remaining > Duration::from_secs(500) && remaining <= Duration::from_secs(600), "{remaining:?}");
    assert_eq!(bob.ask(&["SET", "jobs", "other", "NX", "PX", "600000"]).await, Reply::Nil);

    let forced = operator.force_release(NAME, "stuck").await.expect("an operator may");
    assert_eq!((forced.len(), forced[0].token.0), (1, first));
    assert_eq!(ann.ask(&["EVAL", RELEASE, "1", "jobs", "secret-of-ann"]).await, Reply::Number(0));
    let second = take(&mut bob, "secret-of-bob").await;
    assert_eq!(bob.ask(&["EVAL", RELEASE, "1", "jobs", "secret-of-bob"]).await, Reply::Number(1));
    let third = take(&mut ann, "secret-of-ann").await;
    assert!(first < second && second < third);
    assert_eq!(ann.ask(&["PEXPIRE", "jobs", "1"]).await, Reply::Number(1));
    until("it has ended", async || (bob.ask(&["GET", "jobs"]).await == Reply::Nil).then_some(())).await;

    let told = metrics(&cluster).await;
    let value = |series: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix("{library=\"redis-py\"} "));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("no {series}: {told}"))
    };
    assert_eq!(value("lockkeeper_redis_connections"), 2.0);
    assert!(value("lockkeeper_redis_commands_total") >= 10.0);
    assert_eq!(value("lockkeeper_redis_errors_total"), 0.0);

    let page = include_str!("../../cluster-configs/monitoring.md");
    let families = told.lines().filter_map(|line| line.strip_prefix("# TYPE lockkeeper_redis_"));
    let names: Vec<_> = families.filter_map(|family| family.split(' ').next()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("`lockkeeper_redis_{name}")), "{name} is not on the page");
    }
    drop(operator);
    cluster.stop().await;

    let mut story = Vec::new();
    for node in 1..=3 {
        let mut told = Vec::new();
        let files = files_in(&directory.path().join(format!("node-{node}"))).expect("files");
        for file in &files {
            let text = fs::read_to_string(file).expect("readable");
            assert!(!text.contains("secret"), "the key to release a lock is in the audit");
        }
        verify(&files, None, |line| {
            if line.lock.as_deref() == Some(NAME) {
                told.push((line.what, line.token, line.label.as_deref().map(str::to_owned)));
            }
        })
        .expect("sound");
        // A node that stopped first may lack the last lines.
        if told.len() > story.len() {
            story = told;
        }
    }
    let events: Vec<_> = story.iter().map(|(what, token, _)| (*what, *token)).collect();
    let expected = [
        (AuditEvent::Granted, Some(first)),
        (AuditEvent::ForcedRelease, None),
        (AuditEvent::Lost, Some(first)),
        (AuditEvent::Granted, Some(second)),
        (AuditEvent::Released, Some(second)),
        (AuditEvent::Granted, Some(third)),
        (AuditEvent::Lost, Some(third)),
    ];
    assert_eq!(events, expected);
    assert_eq!(story[0].2.as_deref(), Some(&*label));
}
