//! `lockkeeper bench`: every workload runs, reports its results, and leaves no file or process. No test asserts a speed.
//!
//! The tests run in sequence, since each starts enough processes to load the machine.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use lockkeeper::{
    client::TlsFiles,
    local::{ClusterOptions, LocalCluster},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

use crate::turns;

/// Deadline: longer than any of these tests takes on a busy machine.
const LONG: Duration = Duration::from_secs(240);
const PROGRAM: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// The command, with its temporary files in `folder`.
fn bench(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("bench").args(line.split_whitespace()).env("TMPDIR", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(folder: &Path, line: &str) -> (i32, String, String) {
    ended(bench(folder, line)).await
}

async fn ended(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = timeout(LONG, command.output()).await.expect("it ends").expect("it runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (status.code().unwrap_or(-1), text(stdout), text(stderr))
}

/// Runs a benchmark in its own cluster, asserts that nothing is left over, and returns the JSON document.
async fn document(line: &str) -> Value {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().expect("a place for temporary files");
    let (code, out, err) = run(folder.path(), &format!("{line} -o json")).await;
    assert_eq!(code, 0, "{err}");
    assert_eq!(left_over(folder.path()), [] as [String; 0]);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
}

/// Files and processes that are left over.
fn left_over(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path().display().to_string());
    let name = folder.to_string_lossy().into_owned();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    files.chain(lines.filter(|line| line.contains(&name))).collect()
}

/// The median of a figure in each series.
fn medians(document: &Value, figure: &str) -> Vec<f64> {
    let series = document["series"].as_array().expect("there are series");
    let median = |series: &Value| series["figures"][figure]["median"].as_f64();
    series.iter().map(|series| median(series).unwrap_or_else(|| panic!("no {figure}: {series}"))).collect()
}

const SHORT: &str = "--warm-up 100ms --duration 400ms --repetitions 2";

#[tokio::test]
async fn each_closed_loop_has_figures_for_each_number_of_workers() {
    for work in ["uncontended", "contended", "read"] {
        let document = document(&format!("{work} --workers 1,4 {SHORT}")).await;
        assert_eq!((&document["work"], &document["cluster"]["nodes"]), (&work.into(), &3.into()));
        let workers: Vec<_> = document["series"].as_array().unwrap().iter().map(|series| &series["workers"]).collect();
        assert_eq!(workers, [1, 4]);
        for figure in ["per_second", "p50_us", "p99_us", "servers_cpu_us_per_operation"] {
            assert!(medians(&document, figure).iter().all(|&value| value > 0.0), "{work}: {figure}: {document}");
        }
        // In such a short time one worker may take less than the kernel counts.
        assert!(medians(&document, "generator_cpus").iter().any(|&value| value > 0.0), "{work}: {document}");
        assert_eq!(document["series"][0]["repetitions"].as_array().map(Vec::len), Some(2));
    }
}

#[tokio::test]
#[ignore = "nightly: a benchmark"]
async fn sessions_are_renewed_at_a_rate_and_as_fast_as_it_goes() {
    let line = "keepalive --tls --sessions 20 --streams 3 --rate 50,max --workers 6";
    let document = document(&format!("{line} {SHORT}")).await;
    assert_eq!(document["cluster"]["tls"], true);
    assert_eq!(document["series"][0]["rate"], "50");
    assert!(medians(&document, "per_second").iter().all(|&rate| rate > 0.0), "{document}");
    assert_eq!(medians(&document, "errors"), [0.0, 0.0], "{document}");
}

#[tokio::test]
#[ignore = "nightly: a benchmark"]
async fn leaders_are_killed_or_frozen_one_after_the_other() {
    for line in ["failover --repetitions 2 --warm-up 100ms", "failover --silent --repetitions 2 --warm-up 100ms"] {
        let document = document(line).await;
        assert_eq!(document["series"][0]["repetitions"].as_array().map(Vec::len), Some(2));
        assert!(medians(&document, "failover_ms")[0] > 0.0, "{document}");
    }
}

#[tokio::test]
#[ignore = "nightly: a benchmark"]
async fn locks_are_held_and_a_node_comes_back_with_them() {
    let document = document("held --locks 100 --workers 4").await;
    assert_eq!(medians(&document, "held"), [100.0]);
    assert!(medians(&document, "restart_ms")[0] > 0.0, "{document}");
    assert!(document["series"][0]["figures"]["memory_bytes_per_lock"].is_object(), "{document}");
}

#[tokio::test]
#[ignore = "nightly: a benchmark"]
async fn what_is_in_the_table_grows_from_case_to_case() {
    let document = document(&format!("uncontended --workers 2 --beside-locks 10,300 {SHORT}")).await;
    let beside: Vec<_> = document["series"].as_array().unwrap().iter().map(|series| &series["beside"]).collect();
    assert_eq!(beside, ["10 locks", "300 locks"]);
    assert!(medians(&document, "per_second").iter().all(|&rate| rate > 0.0), "{document}");
}

#[tokio::test]
#[ignore = "nightly: a benchmark"]
async fn too_much_is_sent_and_what_can_be_is_served() {
    let document = document(&format!("overload --workers 8 --factor 3 {SHORT}")).await;
    let loads: Vec<_> = document["series"].as_array().unwrap().iter().map(|series| &series["load"]).collect();
    assert_eq!(loads, ["8 workers", "3 × the best"]);
    assert!(medians(&document, "per_second").iter().all(|&rate| rate > 0.0), "{document}");
    let over = &document["series"][1]["figures"];
    assert!(over["sent_per_second"]["median"].as_f64() > Some(0.0), "{document}");
    // Three builds without optimizations share few processors, and overload may cause an election: then calls may fail.
    assert!(over["errors"]["max"] == 0.0 || over["elections"]["max"].as_f64() > Some(0.0), "{document}");
}

#[tokio::test]
async fn a_cluster_that_runs_is_measured_from_outside_and_left_as_it_was() {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let options = ClusterOptions { tls: true, timeout: LONG, ..ClusterOptions::new(PROGRAM) };
    let cluster = LocalCluster::start(options).await.expect("it starts");
    let TlsFiles { ca, own } = cluster.client_files().expect("it has TLS");
    let (certificate, key) = own.expect("a client has a certificate");
    let picture = folder.path().join("picture.svg");
    let endpoints = cluster.endpoints().join(",");
    let line = format!("uncontended -w 2 {SHORT} --endpoints {endpoints} --svg {}", picture.display());
    let mut command = bench(folder.path(), &line);
    command.env("LOCKKEEPER_CA", ca).env("LOCKKEEPER_CERT", certificate).env("LOCKKEEPER_KEY", key);
    let (code, out, err) = ended(command).await;
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("PER SECOND") && out.contains("not known") && out.contains(&endpoints), "{out}");
    let svg = fs::read_to_string(&picture).expect("it was drawn");
    assert!(svg.contains("<polyline") && svg.contains("workers 2"), "{svg}");

    let (node, status) =
        cluster.statuses().await.into_iter().find(|(_, status)| status.leader_id == status.node_id).unwrap();
    assert_eq!((status.sessions, status.locks), (0, 0), "node {node} still has sessions or locks of the benchmark");
}

#[tokio::test]
async fn ctrl_c_ends_it_and_its_cluster() {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let mut child =
        bench(folder.path(), "uncontended -w 1,2 --warm-up 1ms --duration 200ms --repetitions 1000").spawn().unwrap();
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
    // The first line comes when the cluster starts. The program must end whether or not the cluster serves yet.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    timeout(LONG, lines.next_line()).await.expect("it prints a line").unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let status = timeout(LONG, child.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(130));
    assert_eq!(left_over(folder.path()), [] as [String; 0]);
}

#[tokio::test]
async fn what_cannot_be_measured_is_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    for (line, named) in [
        ("", "Usage"),
        ("everything", "everything"),
        ("uncontended --beside-locks 5,3", "give rising numbers"),
        ("uncontended --beside-locks 5 --beside-sessions 3", "cannot be used with"),
        ("overload --factor 0", "no load"),
        ("uncontended -w 0", "0 workers"),
        ("uncontended -w many", "many"),
        ("uncontended -w 1000000", "1000000 workers"),
        ("uncontended --repetitions 0", "between 1 and 1000"),
        ("uncontended --duration 0s", "no duration"),
        ("uncontended --duration soon", "soon"),
        ("uncontended --endpoints nowhere", "nowhere"),
        ("uncontended --endpoints a:1 --nodes 3", "--nodes"),
        ("uncontended --nodes 9", "9"),
        ("uncontended --endpoints a:1 --tls", "--tls"),
        ("uncontended --endpoints a:1 --ca /no/such/ca.pem", "/no/such/ca.pem"),
        ("keepalive --sessions 0", "streams for 0 sessions"),
        ("keepalive --sessions 1000 --rate 10", "expire"),
        ("keepalive --rate fast", "max"),
        ("keepalive --ttl 1ms --rate max", "TTL"),
        ("keepalive --sessions 1000000000", "exceed the maximum of 100000"),
        ("failover --endpoints a:1", "--endpoints"),
        ("failover --nodes 1", "at least 3"),
        ("held --locks 0", "0 locks"),
        ("held --workers 0", "0 workers"),
    ] {
        let (code, out, err) = run(folder.path(), line).await;
        assert_eq!((code, out.as_str()), (2, ""), "{line:?}: {err}");
        assert!(err.contains(named), "{line:?}: {err}");
    }
    let (code, _, err) = run(folder.path(), "read --svg /no/such/place.svg").await;
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("/no/such/place.svg"), "{err}");
    assert_eq!(left_over(folder.path()), [] as [String; 0]);
}
