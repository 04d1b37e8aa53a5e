//! What the program says to people: tables that fit, and, where something is wrong, what it is and what to do.

use std::process::Output;

use futures::future::join_all;
use lockkeeper::local::LocalCluster;
use tokio::{process::Command, time::Instant};

use super::terminal::Terminal;
use crate::support::{
    LONG, client, cluster, cluster_with, leader, lockkeeper, long_session, output, program, text, until,
};

async fn run(cluster: &LocalCluster, arguments: &[&str]) -> Output {
    output(lockkeeper(arguments).env("LOCKKEEPER_ENDPOINTS", plain(cluster))).await
}

/// The endpoints without their schemes, as people type them.
fn plain(cluster: &LocalCluster) -> String {
    let endpoints = cluster.endpoints().join(",");
    endpoints.replace("https://", "").replace("http://", "")
}

/// Runs a command that cannot succeed, until it ends with 12 (nothing can have happened), says the text so many times, and calls no node
/// down.
///
/// One run is not enough: on a busy machine an attempt may not be over within the command's time, and then that is what the command says.
async fn run_until_told(said: &str, times: usize, mut run: impl AsyncFnMut() -> Output) {
    let deadline = Instant::now() + LONG;
    loop {
        let (code, out, err) = text(&run().await);
        assert_ne!(code, 0, "{out}{err}");

        let all = format!("{out}{err}");
        if code == 12 && all.matches(said).count() >= times && !all.contains("down: ") {
            return;
        }
        assert!(Instant::now() < deadline, "it ends with {code}, and does not say {said:?} {times} times: {all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_each_node_is_a_line_and_the_reason_is_a_conclusion() {
    let mut cluster = cluster().await;
    for node in [2, 3] {
        cluster.node_mut(node).kill().await;
    }
    let said = until("node 1 does not serve", async || {
        let (code, _, err) = text(&run(&cluster, &["list", "--timeout", "1s"]).await);
        assert_eq!(code, 12, "{err}");
        // Until it notices that nobody answers it, node 1 leads.
        (err.contains("no quorum") && err.contains("does not serve: ")).then_some(err)
    })
    .await;
    assert!(said.contains("lockkeeper: no node of the cluster could answer before the deadline"), "{said}");
    let address = |node: u64| cluster.node(node).config().client_listen.clone();
    let of_first = said.lines().find(|line| line.starts_with(&format!("  node 1  {}  ", address(1))));
    assert!(of_first.is_some_and(|line| line.contains("does not serve: ")), "{said}");
    for node in [2, 3] {
        assert!(said.contains(&format!("  node {node}  {}  down: ", address(node))), "{said}");
    }
    assert!(said.contains("no quorum: 1 of 3 voters answers, 2 are needed: start node 2 or node 3\n"), "{said}");

    let (code, page, err) = text(&run(&cluster, &["doctor"]).await);
    assert!(code == 1 && page.contains("  PROBLEM  no quorum: 1 of 3 voters answers"), "{page}{err}");
    for node in [2, 3] {
        cluster.node_mut(node).spawn().expect("it starts");
    }
    cluster.ready(LONG).await.expect("it serves again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_speaks_tls_is_not_down_and_nothing_happens_there() {
    let cluster = cluster_with(|options| options.tls = true).await;
    let not_down = "no TLS: the node speaks TLS, and no --ca is given";
    run_until_told(not_down, 3, async || run(&cluster, &["status"]).await).await;

    let session = "0123456789abcdef0123456789abcdef";
    let refused = [
        &["lock", "seat", "--", "true"][..],
        &["session", "open"],
        &["acquire", "seat", "--session", session, "--wait", "1s"],
        &["release", "7", "--session", session],
        &["force-release", "seat", "--reason", "test"],
        &["transfer-leader"],
    ];
    // Side by side: each waits for its timeout.
    join_all(refused.map(async |arguments| {
        let arguments = [arguments, &["--timeout", "2s"]].concat();
        let advice = "the cluster speaks TLS: name its authority with --ca";
        run_until_told(advice, 1, async || run(&cluster, &arguments).await).await;
    }))
    .await;

    // With its certificates, the page names them.
    let files = cluster.client_files().expect("it has certificates");
    let (certificate, key) = files.own.expect("a client's");
    let mut doctor = lockkeeper(&["doctor", "-o", "json"]);
    doctor.env("LOCKKEEPER_ENDPOINTS", plain(&cluster)).arg("--ca").arg(files.ca);
    doctor.arg("--cert").arg(certificate).arg("--key").arg(key);
    // A busy machine may rightly be called one with a slow disk.
    let page = until("a machine without a problem", async || {
        let (code, page, err) = text(&output(&mut doctor).await);
        eprint!("{err}");
        (code == 0).then_some(page)
    })
    .await;
    let page: serde_json::Value = serde_json::from_str(&page).expect("a document");
    let named = page["chapters"][2].to_string();
    assert!(named.contains("authority for ") && named.contains("/client/"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_for_a_cluster_in_plain_text_are_told() {
    let cluster = cluster().await;
    let directory = tempfile::tempdir().expect("a directory");
    lockkeeper::certs::Authority::create(directory.path(), "other").expect("an authority");
    let authority = directory.path().join("ca.pem");
    for arguments in [&["status"][..], &["lock", "seat", "--timeout", "2s", "--", "true"]] {
        run_until_told("no TLS: the node speaks none, and --ca is given", 3, async || {
            let mut command = lockkeeper(arguments);
            command.env("LOCKKEEPER_ENDPOINTS", plain(&cluster)).env("LOCKKEEPER_CA", &authority);
            output(&mut command).await
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_no_members_is_named() {
    let cluster = cluster().await;
    let known = cluster.node(1).config().client_listen.clone();
    let endpoints = format!("{known},127.0.0.1:1");
    let (code, out, err) = text(&run(&cluster, &["status", "--endpoints", &endpoints]).await);
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("no member has the address 127.0.0.1:1: correct the endpoints; the members are at "), "{out}");

    // A node of another cluster, too, whose name says the rest.
    let other = cluster_with(|options| options.nodes = Some(1)).await;
    let endpoints = format!("{known},{}", other.node(1).config().client_listen);
    let (_, out, _) = text(&run(&cluster, &["status", "--endpoints", &endpoints]).await);
    assert!(out.contains("these nodes belong to different clusters: "), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_fit_a_terminal_and_are_whole_elsewhere() {
    let cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let long = "n".repeat(512);
    let held = session.acquire_all([long.as_str(), "a"]).await.expect("free");

    let (code, out, err) = text(&run(&cluster, &["list"]).await);
    let lines: Vec<&str> = out.lines().collect();
    assert!(code == 0 && lines.len() == 3, "{out}{err}");
    assert!(lines[1].len() < 150, "the long name pads the row of the short one: {out}");
    assert!(lines[2].starts_with(&long), "{out}");
    let (_, names, _) = text(&run(&cluster, &["list", "-o", "name"]).await);
    assert_eq!(names, format!("a\n{long}\n"));
    let (_, bare, _) = text(&run(&cluster, &["list", "a", "--no-headers"]).await);
    assert!(bare.starts_with("a ") && bare.lines().count() == 1, "{bare}");
    let (_, wide, _) = text(&run(&cluster, &["list", "a", "-o", "wide"]).await);
    assert!(wide.lines().next().is_some_and(|titles| titles.contains("SINCE")), "{wide}");
    let (_, ids, _) = text(&run(&cluster, &["member", "list", "-o", "name"]).await);
    assert_eq!(ids, "1\n2\n3\n");

    for command in ["list", "sessions", "status", "member list", "get a"] {
        let script =
            format!("stty cols 80; \"$LOCKKEEPER\" {command} | cat > whole; \"$LOCKKEEPER\" {command}; echo the end");
        let script = format!("cd {} && {script}", cluster.path().display());
        let Some(mut terminal) = Terminal::open(&cluster, &script).await else { return };
        let shown = terminal.shows("the end").await;
        let widest = shown.lines().map(|line| line.trim_end().chars().count()).max().unwrap_or(0);
        assert!((40..=80).contains(&widest), "{command}: {widest} columns:\n{shown}");
        terminal.ends_with(0).await;
    }
    held.release().await.expect("it was held");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_removed_after_a_question_or_with_yes() {
    let mut cluster = cluster().await;
    let leads = leader(&cluster).await;
    let gone = leads % 3 + 1;
    let id = gone.to_string();

    // Nobody can answer: nothing happens.
    let (code, out, err) = text(&run(&cluster, &["member", "remove", &id]).await);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    let consequence = "the cluster has 2 voters instead of 3: it can lose 0 nodes instead of 1";
    assert!(err.contains(consequence) && err.contains("give --yes"), "{err}");
    let (code, _, err) = text(&run(&cluster, &["member", "remove", "9", "--yes"]).await);
    assert!(code == 13 && err.contains("node 9 is not a member; the members are 1, 2, 3"), "{err}");

    let script = format!("\"$LOCKKEEPER\" member remove {id}");
    if let Some(mut terminal) = Terminal::open(&cluster, &script).await {
        terminal.shows(consequence).await;
        terminal.shows("[y/N] ").await;
        terminal.types("n\n").await;
        terminal.shows("nothing was changed").await;
        terminal.ends_with(1).await;
    }
    assert_eq!(cluster.statuses().await[&leads].members.len(), 3);

    let (code, out, err) = text(&run(&cluster, &["member", "remove", &id, "--yes"]).await);
    assert!(code == 0 && out.contains(consequence), "{out}{err}");
    let (ended, status) = tokio::time::timeout(LONG, cluster.next_death()).await.expect("the removed node ends");
    assert_eq!((ended, status.code()), (gone, Some(24)));
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_locks_are_completed_and_silence_follows_a_failure() {
    let cluster = cluster().await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire_all(["reports/nightly", "reports/a b", "tickets:a5", "tickets:b7"]).await.expect("free");
    let script = "source <($LOCKKEEPER completions bash); \
        complete_line() { COMP_LINE=$1 COMP_POINT=${#1}; COMP_WORDS=($1); COMP_CWORD=${#COMP_WORDS[@]}; \
            _lockkeeper_with_names $LOCKKEEPER \"$2\" get; printf '%s\\n' \"${COMPREPLY[@]}\"; }; \
        complete_line 'lockkeeper get rep' rep; echo; complete_line 'lockkeeper check tickets:b' b";
    let bash = |script: &str, endpoints: &str| {
        let mut bash = Command::new("bash");
        bash.args(["-c", script]).env("LOCKKEEPER", program()).env("LOCKKEEPER_ENDPOINTS", endpoints);
        bash.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        bash
    };
    let (code, out, err) = text(&output(&mut bash(script, &plain(&cluster))).await);
    // Bash puts what follows the colon in the place of what was typed after it.
    assert_eq!((code, out.as_str(), err.as_str()), (0, "reports/a\\ b\nreports/nightly\n\nb7\n", ""));

    // Without an answer, and where no name can stand.
    let began = std::time::Instant::now();
    let silent = "$LOCKKEEPER complete-names -- lockkeeper get rep";
    assert_eq!(text(&output(&mut bash(silent, "127.0.0.1:1")).await), (0, String::new(), String::new()));
    assert!(began.elapsed() < std::time::Duration::from_secs(5), "it waits for {:?}", began.elapsed());
    let elsewhere = "$LOCKKEEPER complete-names -- lockkeeper lock --ttl rep";
    assert_eq!(text(&output(&mut bash(elsewhere, &plain(&cluster))).await).1, "");
    held.release().await.expect("it was held");
}

#[tokio::test]
async fn errors_have_one_prefix_and_help_has_groups() {
    for (arguments, said) in [
        (
            &["lock", "jobs", "sleep", "60"][..],
            "hint: the command to run stands after `--`: lockkeeper lock jobs -- sleep 60",
        ),
        (&["nonsense"], "unrecognized subcommand 'nonsense'"),
        (&["get", "--nonsense"], "unexpected argument '--nonsense'"),
        (&["serve", "--config", "/nowhere.toml"], "the configuration /nowhere.toml cannot be used"),
        (&["get", "a", "--endpoints", "here"], "\"here\" is not of the form host:port"),
    ] {
        let (code, out, err) = text(&output(lockkeeper(arguments).env_remove("LOCKKEEPER_ENDPOINTS")).await);
        assert_eq!((code, out.as_str()), (2, ""), "{arguments:?}: {err}");
        assert!(err.starts_with("lockkeeper: ") && err.contains(said), "{arguments:?}: {err}");
        assert!(!err.contains("error: "), "{arguments:?}: {err}");
    }

    let (code, help, _) = text(&output(&mut lockkeeper(&["--help"])).await);
    assert!(code == 0 && help.contains("\nLocks and elections:\n  lock ") && help.contains("\nOperators:\n"), "{help}");
    let (_, help, _) = text(&output(&mut lockkeeper(&["list", "--help"])).await);
    let (own, connection) = help.split_once("\nConnection:\n").expect("a heading");
    assert!(own.contains("--stale") && !own.contains("--endpoints"), "{help}");
    for option in ["--endpoints", "--timeout", "--ca", "--cert", "--key", "--bearer-token-file"] {
        assert!(connection.contains(option), "{option}: {help}");
    }
    assert!(!connection.contains("--stale") && !connection.contains("--output"), "{help}");

    let (code, version, _) = text(&output(&mut lockkeeper(&["version"])).await);
    let (_, flag, _) = text(&output(&mut lockkeeper(&["--version"])).await);
    assert!(code == 0 && version.starts_with(&flag) && version.contains("supports cluster version"), "{version}");
}
