//! Sessions in shell scripts: used by many processes, none of which lives as long as the session.

use std::{
    fs,
    process::{Output, Stdio},
    time::Duration,
};

use futures::future::join_all;
use lockkeeper::{
    client::{Client, Error, LockInfo},
    local::LocalCluster,
    machine::{Acquire, LockName, Mode, SessionId, Token, Wait, Want},
    proto::v1::{OpenSessionRequest, sessions_client::SessionsClient},
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, Command},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tonic::{Request, transport::Endpoint};

use crate::support::{LONG, client, cluster, leader, lockkeeper, long_session, output, program, text, until};

fn command(cluster: &LocalCluster, arguments: &[&str]) -> Command {
    let mut command = lockkeeper(arguments);
    command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
    command
}

async fn run(cluster: &LocalCluster, arguments: &[&str]) -> Output {
    output(&mut command(cluster, arguments)).await
}

/// Runs a command that must exit with 0. Returns its output.
async fn succeed(cluster: &LocalCluster, arguments: &[&str]) -> String {
    let (code, out, err) = text(&run(cluster, arguments).await);
    assert_eq!(code, 0, "{arguments:?}: {err}");
    out.trim_end().to_owned()
}

async fn fail(cluster: &LocalCluster, arguments: &[&str], expected: i32) -> String {
    let (code, out, err) = text(&run(cluster, arguments).await);
    assert_eq!(code, expected, "{arguments:?}: {out}{err}");
    assert_eq!(out, "", "{arguments:?}");
    err
}

async fn open(cluster: &LocalCluster, ttl: &str) -> String {
    succeed(cluster, &["session", "open", "--ttl", ttl]).await
}

async fn lock(client: &Client, name: &str) -> LockInfo {
    client.get(name).await.expect("the cluster answers").lock
}

fn signal(child: &Child, signal: Signal) {
    let pid = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it runs");
    kill_process(pid, signal).expect("it runs");
}

async fn ended(child: Child) -> (i32, String, String) {
    text(&timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("its output"))
}

fn want(name: &str) -> Want {
    let name = LockName::new(name).expect("a name");
    Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false }
}

/// Two instances count in one file. Reading and writing are separate steps: without the lock, counts are lost.
const COUNTER: &str = r#"
set -eu
export LOCKKEEPER_SESSION=$("$LOCKKEEPER" session open --ttl 5s)
"$LOCKKEEPER" session keep --while $$ & keeper=$!
trap 'kill $keeper; "$LOCKKEEPER" session close' EXIT
for turn in 1 2 3 4 5 6 7 8; do
    token=$("$LOCKKEEPER" acquire count)
    count=$(cat "$COUNT")
    echo $((count + 1)) > "$COUNT"
    echo "$token" >> "$COUNT.tokens"
    "$LOCKKEEPER" release "$token"
done
"#;

#[tokio::test(flavor = "multi_thread")]
async fn two_scripts_exclude_each_other() {
    let cluster = cluster().await;
    let directory = tempfile::tempdir().expect("a directory");
    let count = directory.path().join("count");
    fs::write(&count, "0\n").expect("written");
    let script = || {
        let mut script = Command::new("bash");
        script.args(["-c", COUNTER]).env("LOCKKEEPER", program()).env("COUNT", &count);
        script.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(",")).kill_on_drop(true);
        script.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        script
    };
    let mut first = script();
    let mut second = script();
    let (first, second) = tokio::join!(output(&mut first), output(&mut second));
    for (code, out, err) in [text(&first), text(&second)] {
        assert_eq!((code, &*out, &*err), (0, "", ""));
    }
    assert_eq!(fs::read_to_string(&count).expect("read"), "16\n");
    let tokens = fs::read_to_string(directory.path().join("count.tokens")).expect("read");
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().expect("a token")).collect();
    assert!(tokens.len() == 16 && tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let sessions = client(&cluster).sessions("").await.expect("the cluster answers").sessions;
    assert!(sessions.is_empty(), "they were closed: {sessions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_has_its_output_and_exit_codes() {
    let cluster = cluster().await;
    let id = open(&cluster, "1m").await;
    assert!(id.parse::<SessionId>().is_ok(), "{id}");
    let within = ["--session", &id];
    let all = |arguments: &[&'static str]| [arguments, &within[..]].concat();

    let token = succeed(&cluster, &all(&["acquire", "b", "a", "--data", "mine"])).await;
    fail(&cluster, &all(&["acquire", "a", "--try"]), 10).await;
    fail(&cluster, &all(&["acquire", "a", "--wait", "50ms"]), 10).await;
    fail(&cluster, &all(&["acquire", "a", "--permits", "3"]), 13).await;
    fail(&cluster, &all(&["acquire", ""]), 2).await;
    let of_token = |arguments: &[&'static str]| [&all(arguments), &[&*token][..]].concat().into_boxed_slice();
    let update = |what: &[&'static str]| [&of_token(&["update"])[..], what].concat();
    succeed(&cluster, &update(&["a", "--data", "done", "--keep-data"])).await;
    succeed(&cluster, &update(&["b", "--remove"])).await;
    fail(&cluster, &update(&["c", "--data", "done"]), 11).await;
    fail(&cluster, &update(&["a"]), 2).await;
    for zero in [&["release", "0"][..], &["update", "0", "a", "--remove"]] {
        let err = fail(&cluster, &all(zero), 2).await;
        assert!(err.contains("there is no token 0"), "{err}");
    }
    let err = fail(&cluster, &["check", "a", "0"], 2).await;
    assert!(err.contains("there is no token 0"), "{err}");
    succeed(&cluster, &of_token(&["release"])).await;
    fail(&cluster, &of_token(&["release"]), 11).await;
    let client = client(&cluster);
    assert_eq!(lock(&client, "a").await.data.as_deref(), Some(&b"done"[..]));
    assert_eq!(lock(&client, "b").await.data, None);

    succeed(&cluster, &["session", "close", &id]).await;
    succeed(&cluster, &["session", "close", &id]).await;
    fail(&cluster, &all(&["acquire", "a"]), 11).await;
    fail(&cluster, &["session", "renew", &id], 11).await;
    fail(&cluster, &["session", "keep", &id], 11).await;
    fail(&cluster, &["session", "close", "1"], 2).await;
}

/// Removes the sessions of a dead client, by its label.
#[tokio::test(flavor = "multi_thread")]
async fn all_sessions_of_a_label_are_closed() {
    let cluster = cluster().await;
    for label in ["dead", "dead", "alive"] {
        succeed(&cluster, &["session", "open", "--ttl", "10m", "--label", label]).await;
    }
    let closed = succeed(&cluster, &["session", "close", "--label", "dead"]).await;
    assert_eq!(closed, "closed 2 sessions");
    let left = client(&cluster).sessions("").await.expect("it answers").sessions;
    assert_eq!(left.iter().map(|session| session.label.as_str()).collect::<Vec<_>>(), ["alive"]);
    assert_eq!(succeed(&cluster, &["session", "close", "--label", "dead"]).await, "closed 0 sessions");
    fail(&cluster, &["session", "close"], 2).await;
}

/// A session has the address of the connection that opened it, also through a follower, and not an address that the client claims.
#[tokio::test(flavor = "multi_thread")]
async fn all_sessions_from_an_address_are_closed() {
    let cluster = cluster().await;
    for node in cluster.nodes() {
        let from = format!("127.0.0.1{}", node.id()).parse().expect("an address");
        let endpoint = Endpoint::from_shared(node.endpoint()).expect("an endpoint").local_address(Some(from));
        let open = OpenSessionRequest { ttl_ms: 600_000, label: format!("node {}", node.id()), ..Default::default() };
        let mut open = Request::new(open);
        open.metadata_mut().insert("lockkeeper-client-address", "10.0.0.7:1".parse().expect("a value"));
        let channel = endpoint.connect().await.expect("it listens");
        SessionsClient::new(channel).open(open).await.expect("it opens");
    }
    let client = client(&cluster);
    let sessions = client.sessions("").await.expect("it answers").sessions;
    for node in 1..=3 {
        let session = sessions.iter().find(|session| session.label == format!("node {node}")).expect("it is there");
        let ip = session.address.expect("it is known").ip();
        assert_eq!(ip.to_string(), format!("127.0.0.1{node}"), "{session:?}");
    }
    let table = succeed(&cluster, &["sessions", "-o", "wide"]).await;
    for address in sessions.iter().filter_map(|session| session.address) {
        assert!(table.contains(&address.to_string()), "{table}");
    }

    let close = async |arguments: &[&str]| succeed(&cluster, &[&["session", "close"], arguments].concat()).await;
    assert_eq!(close(&["--address", "10.0.0.0/8"]).await, "closed 0 sessions");
    assert_eq!(close(&["--address", "127.0.0.11", "--label", "node 2"]).await, "closed 0 sessions");
    assert_eq!(close(&["--address", "127.0.0.11"]).await, "closed 1 session");
    assert_eq!(close(&["--address", "127.0.0.0/8"]).await, "closed 2 sessions");
    assert!(client.sessions("").await.expect("it answers").sessions.is_empty());
    fail(&cluster, &["session", "close", "--address", "127.0.0.11/8"], 2).await;

    let log = cluster.node(leader(&cluster).await).log_file();
    let line = until("a line in the log", async || {
        let log = fs::read_to_string(log).ok()?;
        log.lines().find(|line| line.contains("an operator closed a session")).map(ToOwned::to_owned)
    });
    let line = line.await;
    assert!(line.contains("from=127.0.0.1:") && line.contains("all sessions from 127.0.0.11/32"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_output_of_sessions_and_acquires() {
    let cluster = cluster().await;
    let json = async |arguments: &[&str]| -> serde_json::Value {
        let out = succeed(&cluster, arguments).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    };
    let opened = json(&["session", "open", "--ttl", "20s", "--label", "nightly", "-o", "json"]).await;
    let id = opened["session_id"].as_str().expect("its id").to_owned();
    assert_eq!(opened["ttl_ms"], 20_000);
    // The TTL minus 1 %, counted from the sending.
    let remaining_ms = opened["remaining_ms"].as_u64().expect("how long it may be trusted");
    assert!((10_000..=19_800).contains(&remaining_ms), "{opened}");
    let renewed = json(&["session", "renew", &id, "-o", "json"]).await;
    assert!(renewed["deadline_uptime_ms"].as_u64() > opened["deadline_uptime_ms"].as_u64(), "{opened} {renewed}");

    let acquired = json(&["acquire", "--session", &id, "b", "a", "-o", "json"]).await;
    assert_eq!(acquired["names"], serde_json::json!(["a", "b"]));
    assert_eq!(acquired["session_id"], *id);
    let token = acquired["token"].as_u64().expect("its token").to_string();
    succeed(&cluster, &["force-release", "a", "--reason", "maintenance"]).await;
    let renewed = json(&["session", "renew", &id, "-o", "json"]).await;
    assert_eq!(renewed["revoked"][0]["token"].to_string(), token);
    assert_eq!(renewed["revoked"][0]["reason"], "maintenance");

    let listed = json(&["session", "list", "-o", "json"]).await;
    let same = json(&["sessions", "-o", "json"]).await;
    assert!(listed[0]["label"] == "nightly" && listed[0]["session_id"] == *id, "{listed}");
    assert_eq!(listed[0]["session_id"], same[0]["session_id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_interrupted_leaves_nothing_behind() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let holder = long_session(&client).await;
    let held = holder.acquire("seat").await.expect("free");
    let id = open(&cluster, "1m").await;
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let waiting = command(&cluster, &["acquire", "--session", &id, "seat"]).spawn().expect("it runs");
        until("the wait", async || (lock(&client, "seat").await.queue_length == 1).then_some(())).await;
        signal(&waiting, sent);
        let (ended_with, out, err) = ended(waiting).await;
        assert_eq!((ended_with, &*out, &*err), (code, "", ""));
        // At once, without the grace period of a call whose connection broke.
        assert_eq!(lock(&client, "seat").await.queue_length, 0);
    }
    held.release().await.expect("it was held");
    assert_eq!(lock(&client, "seat").await.holder_count, 0);
    succeed(&cluster, &["acquire", "--session", &id, "seat", "--try"]).await;
}

/// The signal arrives at any moment: before the acquire is sent, while it is granted, or after.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_acquire_prints_its_token_or_is_undone() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let id = open(&cluster, "10m").await;
    for turn in 0..40 {
        let acquiring = command(&cluster, &["acquire", "--session", &id, "seat"]).spawn().expect("it runs");
        // Not a wait for a condition: the delay varies the moment of the signal.
        sleep(Duration::from_micros(500 * turn)).await;
        signal(&acquiring, Signal::TERM);
        let (code, out, err) = ended(acquiring).await;
        let held = lock(&client, "seat").await.holders;
        match code {
            0 => {
                assert_eq!(format!("{}\n", held[0].token.0), out);
                succeed(&cluster, &["release", "--session", &id, out.trim_end()]).await;
            }
            // -1: the signal came before the program had installed its handlers.
            143 | -1 => assert!(held.is_empty() && out.is_empty(), "{code} {out} {held:?}"),
            other => panic!("{other}: {err}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_printed_is_released() {
    let cluster = cluster().await;
    let id = open(&cluster, "1m").await;
    let mut acquiring = command(&cluster, &["acquire", "--session", &id, "seat"]).spawn().expect("it runs");
    drop(acquiring.stdout.take());
    let (code, _, err) = ended(acquiring).await;
    assert!(code == 1 && err.contains("released"), "{code} {err}");
    assert_eq!(lock(&client(&cluster), "seat").await.holder_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn session_keep_renews_while_a_process_runs() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let id = open(&cluster, "2s").await;
    let mut script = Command::new("sleep").arg("600").kill_on_drop(true).spawn().expect("it runs");
    let pid = script.id().expect("it runs").to_string();
    let mut keeper = command(&cluster, &["session", "keep", &id, "--while", &pid]).spawn().expect("it runs");
    let token = succeed(&cluster, &["acquire", "--session", &id, "seat"]).await;
    let others = long_session(&client).await;
    // Without the keeper, this would be granted after 2 s.
    let waited = others.acquire("seat").wait_at_most(Duration::from_secs(3)).await;
    assert!(matches!(waited, Err(Error::NotAcquired(_))), "{waited:?}");
    assert!(keeper.try_wait().expect("it is ours").is_none(), "it goes on");

    let waiting = others.acquire("seat").into_future();
    script.kill().await.expect("it ran");
    let (code, out, err) = ended(keeper).await;
    assert_eq!((code, &*out, &*err), (0, "", ""));
    let next = timeout(LONG, waiting).await.expect("the session was not closed, but expires").expect("granted");
    assert!(next.token() > Token(token.parse().expect("a token")));
    fail(&cluster, &["session", "close", &id], 11).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_keep_reports_revocations_and_a_loss_of_contact() {
    let mut cluster = cluster().await;
    let id = open(&cluster, "6s").await;
    fail(&cluster, &["session", "keep", &id, "--margin", "3100ms"], 2).await;
    let mut keeper = command(&cluster, &["session", "keep", &id, "--margin", "3s"]).spawn().expect("it runs");
    let mut said = BufReader::new(keeper.stderr.take().expect("it was kept")).lines();
    let token = succeed(&cluster, &["acquire", "--session", &id, "seat"]).await;
    succeed(&cluster, &["force-release", "seat", "--reason", "maintenance at 9"]).await;
    let line = timeout(LONG, said.next_line()).await.expect("it says so").expect("read").expect("a line");
    assert!(line.contains(&format!("token {token}")) && line.contains("maintenance at 9"), "{line}");

    for node in 1..=3 {
        cluster.node_mut(node).kill().await;
    }
    assert_eq!(ended(keeper).await.0, 11);
    let line = timeout(LONG, said.next_line()).await.expect("it says so").expect("read").expect("a line");
    assert!(line.contains(&id) && line.contains("no contact"), "{line}");
    assert!(line.contains("it may be trusted for another "), "it ends while there is time to stop: {line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn session_keep_ends_on_a_signal() {
    let cluster = cluster().await;
    tokio::join!(keeps_until(&cluster, Signal::INT, 130), keeps_until(&cluster, Signal::TERM, 143));
}

/// A keeper renews its session until this signal, and ends with this code.
async fn keeps_until(cluster: &LocalCluster, sent: Signal, code: i32) {
    let id = open(cluster, "12s").await;
    let keeper = command(cluster, &["session", "keep", &id]).spawn().expect("it runs");
    let client = client(cluster);
    let remaining = async || {
        let sessions = client.sessions("").await.expect("the cluster answers").sessions;
        let session = sessions.into_iter().find(|session| session.session_id.to_string() == id);
        session.expect("it is kept").remaining
    };
    let mut least = Duration::MAX;
    until("a renewal", async || {
        let now = remaining().await;
        least = least.min(now);
        (now > least).then_some(())
    })
    .await;
    signal(&keeper, sent);
    assert_eq!(ended(keeper).await.0, code);
    succeed(cluster, &["session", "close", &id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_acquire_is_granted_once_across_a_change_of_leader() {
    let mut cluster = cluster().await;
    let client = client(&cluster);
    let session = client.attach(open(&cluster, "10m").await.parse().expect("an id"));
    let holder = long_session(&client).await;
    let held = holder.acquire("seat").await.expect("free");
    let mut waiting =
        command(&cluster, &["acquire", "--session", &session.id().to_string(), "seat"]).spawn().expect("it runs");
    until("the wait", async || (lock(&client, "seat").await.queue_length == 1).then_some(())).await;
    let leader = leader(&cluster).await;
    cluster.node_mut(leader).kill().await;
    held.release().await.expect("it was held");
    let mut token = String::new();
    let stdout = waiting.stdout.as_mut().expect("it was kept");
    timeout(LONG, stdout.read_to_string(&mut token)).await.expect("granted").expect("read");
    let holders = lock(&client, "seat").await.holders;
    assert_eq!(holders.iter().map(|holder| format!("{}\n", holder.token.0)).collect::<Vec<_>>(), [token]);
}

/// More requests than a session has replies in memory, one after the other; a wait in flight all the while keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn an_attached_session_never_runs_out_of_requests() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let holder = long_session(&client).await;
    let held = holder.acquire("awaited").await.expect("free");
    let session = client.attach(open(&cluster, "10m").await.parse().expect("an id"));
    let mut waits = session.acquire(Acquire::new(vec![want("awaited")], Wait::Forever, 0).expect("valid"));
    let waits = tokio::spawn(async move { waits.granted().await });
    until("the wait", async || (lock(&client, "awaited").await.queue_length == 1).then_some(())).await;
    // Replies are kept for at least 5 s, and a session keeps 1,024: the rate of requests must stay below.
    let mut next_round = interval(Duration::from_millis(96));
    next_round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0..75 {
        let turns = (0..8).map(|number| {
            let name = format!("seat/{number}");
            let mut acquire = session.acquire(Acquire::new(vec![want(&name)], Wait::Never, 0).expect("valid"));
            let session = &session;
            async move {
                let token = acquire.granted().await?;
                session.release(token).await
            }
        });
        for turn in join_all(turns).await {
            turn.unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
        next_round.tick().await;
    }
    assert!(!waits.is_finished(), "it is held");
    held.release().await.expect("it was held");
    let granted = timeout(LONG, waits).await.expect("it still waits").expect("no panic").expect("granted");
    session.release(granted).await.expect("it was held");
}
