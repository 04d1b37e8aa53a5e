//! The HTTP port: probes and metrics.

use std::{collections::BTreeSet, fs};

use lockkeeper::{
    client::TlsFiles,
    local::{LocalCluster, Signal},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    encrypted::{encrypted, without_certificate},
    support::{LONG, client, cluster_with, leader, long_session, output, text, until},
};

/// The status and the body of a GET at a node's HTTP port.
pub(super) async fn get(cluster: &LocalCluster, node: u64, path: &str) -> Option<(u16, String)> {
    let url = cluster.node(node).http_endpoint().expect("it is on");
    let address = url.split_once("//").expect("a URL").1;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    let asked = async {
        let mut answer = String::new();
        match cluster.client_files() {
            None => {
                let mut stream = TcpStream::connect(address).await.ok()?;
                stream.write_all(request.as_bytes()).await.ok()?;
                stream.read_to_string(&mut answer).await.ok()?;
            }
            Some(TlsFiles { ca, .. }) => {
                // A probe has no certificate of its own.
                let mut stream = encrypted(address, &without_certificate(&ca)).await?;
                stream.write_all(request.as_bytes()).await.ok()?;
                stream.read_to_string(&mut answer).await.ok()?;
            }
        }
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    };
    timeout(LONG, asked).await.expect("it answers in time")
}

/// The value of a series that has no label, or these ones.
fn value(metrics: &str, series: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().expect("a number"))
}

async fn metric(cluster: &LocalCluster, node: u64, series: &str) -> Option<f64> {
    let (status, metrics) = get(cluster, node, "/metrics").await?;
    assert_eq!(status, 200, "{metrics}");
    value(&metrics, series)
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_tell_a_node_that_serves_from_one_that_only_runs() {
    let mut cluster = cluster_with(|options| options.http = true).await;
    for node in 1..=3 {
        assert_eq!(get(&cluster, node, "/livez").await, Some((200, "the node runs\n".to_owned())));
        assert_eq!(get(&cluster, node, "/readyz").await, Some((200, "the node can serve\n".to_owned())));
        assert_eq!(get(&cluster, node, "/nowhere").await.expect("an answer").0, 404);
    }
    let (leads, others) = {
        let leads = leader(&cluster).await;
        (leads, (1..=3).filter(|node| *node != leads).collect::<Vec<_>>())
    };
    // The majority is gone.
    for node in &others[..] {
        cluster.node(*node).pause().await;
    }
    let (status, why) = until("a node that is not ready", async || {
        get(&cluster, leads, "/readyz").await.filter(|(status, _)| *status != 200)
    })
    .await;
    assert!(status == 503 && (why.contains("quorum") || why.contains("leader")), "{status}: {why}");
    assert_eq!(get(&cluster, leads, "/livez").await.expect("an answer").0, 200, "a restart would not help");
    for node in &others[..] {
        cluster.node(*node).signal(Signal::CONT);
    }
    until("a node that is ready again", async || {
        get(&cluster, leads, "/readyz").await.filter(|(status, _)| *status == 200)
    })
    .await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_happens() {
    let cluster = cluster_with(|options| options.http = true).await;
    let leads = leader(&cluster).await;
    let run = async |arguments: &[&str]| {
        let endpoints = cluster.endpoints().join(",");
        let mut command = crate::support::lockkeeper(arguments);
        text(&output(command.env("LOCKKEEPER_ENDPOINTS", endpoints)).await)
    };
    for _ in 0..3 {
        assert_eq!(run(&["lock", "jobs/nightly", "--", "true"]).await.0, 0);
    }
    // Each node counts what it applies.
    for node in 1..=3 {
        until("three grants", async || {
            metric(&cluster, node, "lockkeeper_grants_total").await.filter(|grants| *grants >= 3.0)
        })
        .await;
        until("three releases", async || {
            metric(&cluster, node, "lockkeeper_releases_total").await.filter(|releases| *releases >= 3.0)
        })
        .await;
        assert!(metric(&cluster, node, "process_resident_memory_bytes").await.expect("on Linux") > 1e6);
    }
    let (_, metrics) = get(&cluster, leads, "/metrics").await.expect("an answer");
    assert_eq!(value(&metrics, "lockkeeper_leader"), Some(1.0), "{metrics}");
    assert!(value(&metrics, "lockkeeper_calls_total{call=\"acquire_locks\",outcome=\"ok\"}") >= Some(3.0), "{metrics}");
    for stage in ["queue", "commit", "append", "sync", "replicate", "apply", "reply"] {
        let series = format!("lockkeeper_stage_duration_seconds_count{{stage=\"{stage}\"}}");
        assert!(value(&metrics, &series) > Some(0.0), "{stage}: {metrics}");
    }
    assert!(metrics.ends_with("# EOF\n") && !metrics.contains("nightly"), "{metrics}");

    let held = |end| format!("lockkeeper_hold_duration_seconds_count{{end=\"{end}\"}}");
    assert!(value(&metrics, &held("released")) >= Some(3.0), "{metrics}");
    assert_eq!(value(&metrics, &held("expired")), Some(0.0), "{metrics}");
    // Each of the runs had a connection; this scrape has one too.
    let connections = |series: &str| value(&metrics, series);
    assert!(connections("lockkeeper_connections_accepted_total{port=\"clients\"}") >= Some(1.0), "{metrics}");
    assert!(connections("lockkeeper_connections{port=\"http\"}") >= Some(1.0), "{metrics}");
    until("the leader's connections to a follower", async || {
        let open = metric(&cluster, leads % 3 + 1, "lockkeeper_connections{port=\"peers\"}").await;
        open.filter(|open| *open >= 1.0)
    })
    .await;
    assert_eq!(connections("lockkeeper_connections_refused_total{port=\"clients\"}"), Some(0.0), "{metrics}");

    // A session that expires, and a refusal.
    let (code, session, said) = run(&["session", "open", "--ttl", "2s"]).await;
    assert_eq!(code, 0, "{said}");
    let (code, _, said) = run(&["acquire", "jobs/held", "--session", session.trim()]).await;
    assert_eq!(code, 0, "{said}");
    until("an expiry", async || {
        metric(&cluster, leads, "lockkeeper_sessions_expired_total").await.filter(|expired| *expired >= 1.0)
    })
    .await;
    assert_eq!(metric(&cluster, leads, "lockkeeper_expired_grants_total").await, Some(1.0));
    // The same at all nodes.
    for node in 1..=3 {
        until("the end of the hold", async || {
            metric(&cluster, node, &held("expired")).await.filter(|ends| *ends == 1.0)
        })
        .await;
    }
    let seconds = metric(&cluster, leads, "lockkeeper_hold_duration_seconds_sum{end=\"expired\"}").await;
    assert!(seconds > Some(0.0), "{seconds:?}");
    let (_, metrics) = get(&cluster, leads, "/metrics").await.expect("an answer");
    assert_eq!(value(&metrics, "lockkeeper_calls_total{call=\"release_locks\",outcome=\"SESSION_EXPIRED\"}"), None);
    let (code, ..) = run(&["release", "1", "--session", session.trim()]).await;
    assert_ne!(code, 0, "its session has expired");
    let (_, metrics) = get(&cluster, leads, "/metrics").await.expect("an answer");
    let refused = value(&metrics, "lockkeeper_calls_total{call=\"release_locks\",outcome=\"SESSION_EXPIRED\"}");
    assert_eq!(refused, Some(1.0), "{metrics}");

    // A wait that is over.
    let one = long_session(&client(&cluster)).await;
    let _held = one.acquire("jobs/held").await.expect("it is free");
    let (code, ..) = run(&["lock", "jobs/held", "--wait", "100ms", "--", "true"]).await;
    assert_ne!(code, 0, "it is held");
    let waited = "lockkeeper_wait_duration_seconds_count{outcome=\"timed_out\"}";
    assert_eq!(metric(&cluster, leads, waited).await, Some(1.0));
    let sled = metric(&cluster, leads, "lockkeeper_data_size_bytes{part=\"sled\"}").await;
    assert!(sled > Some(0.0), "{sled:?}");

    // Another leader.
    cluster.node(leads).signal(Signal::KILL);
    let next = until("another leader", async || {
        let statuses = cluster.statuses().await;
        statuses.values().map(|status| status.leader_id).find(|id| *id != 0 && *id != leads)
    })
    .await;
    until("its count", async || {
        metric(&cluster, next, "lockkeeper_leaderships_total").await.filter(|times| *times >= 1.0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_port_speaks_tls_where_the_others_do() {
    let cluster = cluster_with(|options| (options.http, options.tls) = (true, true)).await;
    assert_eq!(get(&cluster, 1, "/readyz").await, Some((200, "the node can serve\n".to_owned())));
    let left = metric(&cluster, 1, "lockkeeper_certificate_left_seconds").await.expect("it has a certificate");
    assert!(left > 86_400.0, "{left}");
    // Plain text gets no page.
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let mut stream = TcpStream::connect(url.trim_start_matches("https://")).await.expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
    let mut answer = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("it is closed");
    assert!(!String::from_utf8_lossy(&answer).contains("lockkeeper_"), "{answer:?}");
}

/// The operators' page on monitoring names exactly the metrics that there are.
#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_documented() {
    let cluster = cluster_with(|options| (options.http, options.tls) = (true, true)).await;
    let leads = leader(&cluster).await;
    let shown: BTreeSet<String> = until("all metrics", async || {
        // What has labels has no series before the first call, and before the first answer of a member.
        client(&cluster).get("jobs/nightly").await.ok()?;
        let (_, metrics) = get(&cluster, leads, "/metrics").await?;
        let families = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let names = families.filter_map(|family| {
            let (name, kind) = family.split_once(' ')?;
            Some(if kind == "counter" { format!("{name}_total") } else { name.to_owned() })
        });
        let names: BTreeSet<String> = names.collect();
        ["lockkeeper_calls_total", "lockkeeper_member_silence_seconds"]
            .iter()
            .all(|name| names.contains(*name))
            .then_some(names)
    })
    .await;
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/cluster-configs/monitoring.md")).expect("readable");
    let rows = page.lines().filter(|line| line.starts_with("| `lockkeeper_") || line.starts_with("| `process_"));
    let named = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split(", "));
    let named = named.map(|name| name.trim().trim_matches('`').to_owned());
    // Those of Redis' port are there once it has a client: the test of its operators compares them with the page.
    let documented: BTreeSet<String> = named.filter(|name| !name.starts_with("lockkeeper_redis_")).collect();
    let only_one: Vec<_> = shown.symmetric_difference(&documented).collect();
    assert_eq!(only_one, [] as [&String; 0]);
}

/// More connections than the port takes, each of which says nothing or half a request: probes are answered all the same, later.
#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_do_not_keep_probes_out_for_long() {
    let cluster = cluster_with(|options| options.http = true).await;
    let url = cluster.node(1).http_endpoint().expect("it is on");
    let address = url.trim_start_matches("http://");
    let mut held = Vec::new();
    for number in 0..300 {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        if number % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nx: ").await.expect("there is room");
        }
        held.push(stream);
    }
    assert_eq!(get(&cluster, 1, "/livez").await.map(|(status, _)| status), Some(200));
    drop(held);
}
