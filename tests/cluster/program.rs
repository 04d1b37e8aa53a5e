//! Output and exit codes of the program.

use std::{
    process::{Output, Stdio},
    time::Duration,
};

use lockkeeper::{
    client::{ChangeKind, Error, Refusal, WatchMessage},
    local::LocalCluster,
    machine::{Mode, Permits},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    time::timeout,
};

use crate::support::{LONG, client, cluster, leader, lockkeeper, long_session, output, program, text, until};

async fn run(cluster: &LocalCluster, arguments: &[&str]) -> Output {
    output(lockkeeper(arguments).env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","))).await
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", text(output)))
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_runs_a_command_with_a_new_cluster() {
    let script = "echo \"seat A5, token $LOCKKEEPER_TOKEN, lock $LOCKKEEPER_LOCK\"; exit 7";
    let arguments = ["dev", "--", "lockkeeper", "lock", "tickets/A5", "--", "sh", "-c", script];
    let (code, out, err) = text(&output(&mut lockkeeper(&arguments)).await);
    assert_eq!((code, out.as_str()), (7, "seat A5, token 1, lock tickets/A5\n"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_exits_with_10_when_it_is_not_acquired() {
    let cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("seat").await.expect("free");
    let (code, out, err) = text(&run(&cluster, &["lock", "seat", "--try", "--", "echo", "inside"]).await);
    assert_eq!((code, out.as_str()), (10, ""), "{err}");
    assert!(err.contains("seat") && err.contains(&held.token().0.to_string()), "it names what holds it: {err}");
    let (code, _, err) = text(&run(&cluster, &["lock", "seat", "--wait", "50ms", "--", "echo", "inside"]).await);
    assert_eq!(code, 10, "{err}");
    held.release().await.expect("it was held");
    let (code, out, err) = text(&run(&cluster, &["lock", "seat", "--", "echo", "inside"]).await);
    assert_eq!((code, out.as_str()), (0, "inside\n"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn get_list_sessions_and_verify_show_the_state() {
    let cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire("seat/A5").data(b"buyer 17").await.expect("free");
    let token = held.token().0;

    let get = json(&run(&cluster, &["get", "seat/A5", "-o", "json"]).await);
    assert!(get.to_string().contains(&format!("\"token\":{token}")), "{get}");
    let (code, out, _) = text(&run(&cluster, &["get", "seat/A5"]).await);
    assert!(code == 0 && out.contains("buyer 17") && out.contains("seat/A5"), "{out}");
    let (code, out, _) = text(&run(&cluster, &["list", "seat/"]).await);
    assert!(code == 0 && out.contains("seat/A5"), "{out}");
    let (code, out, _) = text(&run(&cluster, &["sessions"]).await);
    assert!(code == 0 && out.contains("test"), "{out}");

    let token_text = token.to_string();
    assert_eq!(text(&run(&cluster, &["check", "seat/A5", &token_text]).await).0, 0);
    assert_ne!(text(&run(&cluster, &["check", "seat/A5", "999999"]).await).0, 0);

    let (code, out, err) = text(&run(&cluster, &["force-release", "seat/A5", "--reason", "test", "--now"]).await);
    assert_eq!(code, 0, "{out}{err}");
    assert_ne!(text(&run(&cluster, &["check", "seat/A5", &token_text]).await).0, 0, "it was taken back");
}

/// Runs a command whose stdout nobody reads any more. Returns its exit code, and its stderr.
async fn unread(cluster: &LocalCluster, arguments: &[&str]) -> (i32, String) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = lockkeeper(arguments);
    command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(",")).stdout(writer);
    let (code, _, err) = text(&output(&mut command).await);
    (code, err)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_stdout_changes_no_exit_code_that_is_an_answer() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat/A5").await.expect("free");
    let token = held.token().0.to_string();
    for format in ["text", "json"] {
        assert_eq!(unread(&cluster, &["check", "seat/A5", "999999", "-o", format]).await, (10, String::new()));
        assert_eq!(unread(&cluster, &["check", "seat/A5", &token, "-o", format]).await, (0, String::new()));
    }
    // A list is read as far as its reader likes.
    assert_eq!(unread(&cluster, &["list"]).await, (0, String::new()));
    // A grant or a session that nobody knows of would be held by nobody.
    let (code, err) = unread(&cluster, &["session", "open"]).await;
    assert!(code == 1 && err.contains("the session was closed"), "{code}: {err}");
    // What is printed on the way does not end a command before it has done its work.
    let (code, err) = unread(&cluster, &["force-release", "seat/A5", "--reason", "test", "--now"]).await;
    assert_eq!((code, err.as_str()), (0, ""));
    assert_eq!(client.get("seat/A5").await.expect("it serves").lock.holder_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_waiter_gets_an_error_and_does_not_queue_again() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seat").await.expect("free");
    let waits = tokio::spawn({
        let session = session.clone();
        async move { session.acquire("seat").await.map(drop) }
    });
    let ticket = until("a waiter", async || Some(client.get("seat").await.ok()?.lock.waiters.first()?.ticket.0)).await;
    // At each node: followers forward the call.
    for endpoint in cluster.endpoints() {
        let arguments = ["remove-waiter", "other", "--ticket", &ticket.to_string(), "--endpoints", &endpoint];
        let (code, out, err) = text(&run(&cluster, &arguments).await);
        assert_eq!((code, out), (0, format!("no acquire with ticket {ticket} waits for lock other\n")), "{err}");
    }
    let removed = json(&run(&cluster, &["remove-waiter", "seat", "--ticket", &ticket.to_string(), "-o", "json"]).await);
    assert_eq!(removed["removed"]["ticket"], ticket, "{removed}");
    let told = timeout(LONG, waits).await.expect("it is told").expect("it ran").expect_err("it was removed");
    assert!(matches!(&told, Error::Refused(refused) if refused.reason == Refusal::WaitRemoved), "{told:?}");
    assert_eq!(client.get("seat").await.expect("a lock").lock.queue_length, 0);
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_delay_is_lifted() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let lost = session.acquire("seat").lock_delay(Duration::from_secs(3600)).await.expect("free");
    client.force_release("seat", "dead").token(lost.token()).now().await.expect("an operator may");
    let (code, out, err) = text(&run(&cluster, &["lock", "seat", "--try", "--", "true"]).await);
    assert_eq!(code, 10, "it is closed: {out}{err}");
    let lifted = json(&run(&cluster, &["lift-delay", "seat", "-o", "json"]).await);
    assert!(lifted["lifted_ms"].as_u64().is_some_and(|ms| (1..=3_600_000).contains(&ms)), "{lifted}");
    let (code, out, err) = text(&run(&cluster, &["lock", "seat", "--try", "--", "true"]).await);
    assert_eq!(code, 0, "it is open: {out}{err}");
    // At each node: followers forward the call.
    for endpoint in cluster.endpoints() {
        let (code, out, err) = text(&run(&cluster, &["lift-delay", "seat", "--endpoints", &endpoint]).await);
        assert_eq!((code, out.as_str()), (0, "lock seat has no lock-delay\n"), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_in_use_is_resized() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("seats").permits(1).await.expect("free");
    let mut watch = client.watch("seats");
    let mut next = async || timeout(LONG, watch.next()).await.expect("in time").expect("it goes on");
    while !matches!(next().await, WatchMessage::State(state) if state.last) {}
    let waits = tokio::spawn({
        let session = session.clone();
        async move { session.acquire("seats").permits(1).await }
    });
    until("a waiter", async || Some(client.get("seats").await.ok()?.lock.waiters.first()?.ticket.0)).await;
    for (arguments, code, said) in [
        (&["resize", "nothing", "2"][..], 13, "\"nothing\" is not a semaphore in use"),
        (&["resize", "seats", "0"], 2, "the number of permits is 0: give it 1 to 1000000"),
        (&["resize", "seats", "1000001"], 2, "the number of permits is 1000001: give it 1 to 1000000"),
        (&["lock", "seats", "--permits", "2", "--try", "--", "true"], 13, "in use as a semaphore of 1"),
    ] {
        let (ended, out, err) = text(&run(&cluster, arguments).await);
        assert!(ended == code && err.contains(said), "{arguments:?}: {ended} {out}{err}");
    }
    let resized = json(&run(&cluster, &["resize", "seats", "2", "-o", "json"]).await);
    let expected = serde_json::json!({ "permits": 2, "permits_before": 1, "holder_count": 2, "queue_length": 0 });
    assert_eq!(resized, expected);
    let other = timeout(LONG, waits).await.expect("it is let in").expect("it ran").expect("it is granted");
    let told = loop {
        let WatchMessage::Changes(changes) = next().await else { continue };
        if let Some(change) = changes.changes.into_iter().find(|change| change.kind == ChangeKind::Resized) {
            break change.mode;
        }
    };
    assert_eq!(told, Some(Mode::Permit(Permits::new(2).expect("a size"))));
    // At each node: followers forward the call.
    for endpoint in cluster.endpoints() {
        let (code, out, err) = text(&run(&cluster, &["resize", "seats", "1", "--endpoints", &endpoint]).await);
        assert_eq!(code, 0, "{err}");
        assert!(out.ends_with("no permit is granted until none is held\n"), "{out}");
    }
    let (_, out, _) = text(&run(&cluster, &["get", "seats"]).await);
    assert!(out.contains("held by 2, permit of 1\nsize     permit of 1, set by an operator\n"), "{out}");
    other.release().await.expect("it was held");
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_data_are_counted_and_then_dropped() {
    // More locks than one command of the state machine checks.
    const KEPT: usize = 1500;
    let cluster = cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("a/held").data(b"held").keep_data().await.expect("free");
    for number in 0..KEPT / 50 {
        let names: Vec<_> = (0..50).map(|lock| format!("a/{number}/{lock}")).collect();
        let kept = session.acquire_all(names.iter().map(String::as_str)).data(b"kept").keep_data().await.expect("free");
        kept.release().await.expect("it was held");
    }
    let counted = json(&run(&cluster, &["drop-data", "a/", "-o", "json"]).await);
    assert_eq!(counted, serde_json::json!({ "locks": KEPT, "dropped": false }));
    for (endpoint, dropped) in cluster.endpoints().into_iter().zip([KEPT, 0, 0]) {
        let arguments = ["drop-data", "a/", "--yes", "--endpoints", &endpoint];
        let (code, out, err) = text(&run(&cluster, &arguments).await);
        assert_eq!((code, out), (0, format!("dropped the data of {dropped} locks\n")), "{err}");
    }
    let left = client.get("a/held").await.expect("a lock").lock;
    assert_eq!(left.data.as_deref(), Some(&b"held"[..]));
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_is_readable_when_a_node_is_down() {
    let mut cluster = cluster().await;
    let (code, out, err) = text(&run(&cluster, &["status"]).await);
    assert!(code == 0 && out.contains("leader") && !out.contains("down"), "{out}{err}");
    cluster.node_mut(3).kill().await;
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        let (code, out, err) = text(&run(&cluster, &["status"]).await);
        if code == 0 && out.contains("leader") && out.contains("down") {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{out}{err}");
    }
}

#[tokio::test]
async fn shells_complete_its_commands() {
    let script = "source <($LOCKKEEPER completions bash) && COMP_WORDS=(lockkeeper session k) COMP_CWORD=2 \
        && _lockkeeper lockkeeper k session && echo \"${COMPREPLY[@]}\"";
    let mut bash = tokio::process::Command::new("bash");
    let bash = bash.args(["-c", script]).env("LOCKKEEPER", program()).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert_eq!(text(&output(bash).await), (0, "keep\n".to_owned(), String::new()));
    for shell in ["zsh", "fish"] {
        let (code, out, _) = text(&output(&mut lockkeeper(&["completions", shell])).await);
        assert!(code == 0 && out.contains("force-release"), "{shell}: {out}");
    }
}

#[tokio::test]
async fn each_command_has_a_manual_page() {
    let (code, page, err) = text(&output(&mut lockkeeper(&["man"])).await);
    assert!(code == 0 && page.contains(".SH NOTES\n.nf\nExit codes:\n") && page.contains("\n.fi\n"), "{page}{err}");
    let directory = tempfile::tempdir().expect("a directory");
    let pages = directory.path().join("man1");
    let (code, _, err) = text(&output(lockkeeper(&["man", "--out"]).arg(&pages)).await);
    assert_eq!(code, 0, "{err}");
    for name in ["lockkeeper.1", "lockkeeper-lock.1", "lockkeeper-session-keep.1"] {
        let page = std::fs::read_to_string(pages.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_cluster_is_reported_with_exit_code_12() {
    let (code, _, err) =
        text(&output(&mut lockkeeper(&["list", "--endpoints", "127.0.0.1:1", "--timeout", "2s"])).await);
    assert_eq!(code, 12, "{err}");
    assert!(err.contains("127.0.0.1:1"), "{err}");
}

/// The first line on stderr, printed before the call's deadline. The program is killed after it.
async fn says(arguments: &[&str], endpoints: Option<&str>) -> String {
    let mut command = lockkeeper(arguments);
    match endpoints {
        Some(endpoints) => command.env("LOCKKEEPER_ENDPOINTS", endpoints),
        None => command.env_remove("LOCKKEEPER_ENDPOINTS"),
    };
    let mut child = command.args(["--timeout", "10m"]).spawn().expect("it runs");
    let mut said = BufReader::new(child.stderr.take().expect("it is kept")).lines();
    let line = timeout(LONG, said.next_line()).await.expect("it does not wait in silence").expect("read");
    child.kill().await.expect("it still tries");
    line.unwrap_or_default()
}

#[tokio::test]
async fn without_an_answer_the_program_names_the_endpoints_and_their_source() {
    let from_flag = says(&["get", "a", "--endpoints", "127.0.0.1:1,127.0.0.1:2"], Some("127.0.0.1:3")).await;
    assert!(from_flag.contains("no answer yet from 127.0.0.1:1,127.0.0.1:2 (from --endpoints)"), "{from_flag}");
    assert!(from_flag.contains("refused"), "it says why: {from_flag}");
    let from_environment = says(&["session", "open"], Some("127.0.0.1:3")).await;
    assert!(from_environment.contains("127.0.0.1:3 (from LOCKKEEPER_ENDPOINTS)"), "{from_environment}");
    let id = "0123456789abcdef0123456789abcdef";
    let waits = says(&["acquire", "--session", id, "a"], Some("127.0.0.1:3")).await;
    assert!(waits.contains("127.0.0.1:3 (from LOCKKEEPER_ENDPOINTS)"), "{waits}");
    // A host that accepts connections and sends nothing.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = mute.local_addr().expect("it has one").to_string();
    let unanswered = says(&["lock", "a", "--", "true"], Some(&address)).await;
    assert!(unanswered.contains(&format!("no answer yet from {address}")), "{unanswered}");
}

/// The words of a text, whatever lines they were wrapped into.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn help_and_errors_name_the_source_of_the_endpoints() {
    // Other programs may use the default ports, so this test makes no call to them.
    let (code, out, err) = text(&output(lockkeeper(&["get", "--help"]).env_remove("LOCKKEEPER_ENDPOINTS")).await);
    assert!(
        code == 0 && words(&out).contains("[default: 127.0.0.1:7101") && out.contains("[env: LOCKKEEPER_ENDPOINTS]"),
        "{out}{err}"
    );
    let (code, _, err) = text(&output(lockkeeper(&["get", "a"]).env("LOCKKEEPER_ENDPOINTS", "here")).await);
    assert!(
        code == 2
            && err.contains("\"here\" is not of the form host:port")
            && err.contains("(from LOCKKEEPER_ENDPOINTS)"),
        "{err}"
    );
    let (code, _, err) = text(&output(lockkeeper(&["get"]).env("LOCKKEEPER_ENDPOINTS", "127.0.0.1:1")).await);
    assert!(code == 2 && err.contains("Usage: lockkeeper get <NAME>"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_lock_prints_no_warning_of_a_missing_answer() {
    let cluster = cluster().await;
    let client = client(&cluster);
    let held = long_session(&client).await.acquire("seat").await.expect("free");
    let id = text(&run(&cluster, &["session", "open", "--ttl", "1m"]).await).1.trim().to_owned();
    let (code, _, err) = text(&run(&cluster, &["acquire", "--session", &id, "seat", "--wait", "2500ms"]).await);
    assert!(code == 10 && !err.contains("no answer yet"), "{err}");
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_reports_a_leader_without_a_quorum_and_names_the_missing_nodes() {
    let mut cluster = cluster().await;
    let leader = leader(&cluster).await;
    let others: Vec<u64> = (1..=3).filter(|id| *id != leader).collect();
    for node in &others {
        cluster.node_mut(*node).kill().await;
    }
    until("it notices", async || {
        let (code, out, err) = text(&run(&cluster, &["status"]).await);
        let named = others.iter().all(|node| out.contains(&format!("node {node} (127.0.0.1:")));
        assert!(named && out.contains("1 of 3 voters answers, 2 are needed"), "{out}{err}");
        assert!(matches!(code, 0 | 1), "it goes on leading: {code} {out}{err}");
        (code == 1).then_some(())
    })
    .await;
    let status = json(&run(&cluster, &["status", "-o", "json"]).await);
    let down =
        |node: &serde_json::Value| node["health"] == "down" && others.contains(&node["node_id"].as_u64().unwrap_or(0));
    assert_eq!(status["nodes"].as_array().expect("nodes").iter().filter(|node| down(node)).count(), 2, "{status}");
}

#[tokio::test]
async fn an_output_directory_that_cannot_be_written_is_an_argument_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    std::fs::write(&file, "mine").expect("written");
    let below = file.join("below");
    for arguments in [["man", "--out"], ["dev", "--data"]] {
        let (code, _, err) = text(&output(lockkeeper(&arguments).arg(&below)).await);
        assert!(code == 2 && err.contains(&below.display().to_string()), "{arguments:?}: {code} {err}");
    }
}

#[tokio::test]
async fn dev_refuses_a_directory_with_foreign_files() {
    let directory = tempfile::tempdir().expect("a directory");
    for name in ["thesis.tex", "notes"] {
        std::fs::write(directory.path().join(name), "mine").expect("written");
    }
    let mut dev = lockkeeper(&["dev", "--data"]);
    let (code, _, err) = text(&output(dev.arg(directory.path()).args(["--", "true"])).await);
    assert!(code == 2 && err.contains("\"notes\""), "it names the first: {code} {err}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("read").count(), 2, "dev wrote into a foreign directory");
}
