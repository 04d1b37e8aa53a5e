//! What the program prints, and what it ends with.

use std::process::{Output, Stdio};

use lockkeeper::local::LocalCluster;

use crate::support::{LONG, client, cluster, lockkeeper, long_session, output, program, text};

async fn run(cluster: &LocalCluster, arguments: &[&str]) -> Output {
    output(lockkeeper(arguments).env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","))).await
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", text(output)))
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_runs_a_command_in_a_cluster_of_its_own() {
    let script = "echo \"seat A5, token $LOCKKEEPER_TOKEN, lock $LOCKKEEPER_LOCK\"; exit 7";
    let arguments = ["dev", "--", "lockkeeper", "lock", "tickets/A5", "--", "sh", "-c", script];
    let (code, out, err) = text(&output(&mut lockkeeper(&arguments)).await);
    assert_eq!((code, out.as_str()), (7, "seat A5, token 1, lock tickets/A5\n"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_says_when_it_is_not_acquired() {
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
async fn what_is_shown_is_what_is() {
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
    assert_eq!(text(&run(&cluster, &["verify", "seat/A5", &token_text]).await).0, 0);
    assert_ne!(text(&run(&cluster, &["verify", "seat/A5", "999999"]).await).0, 0);

    let (code, out, err) = text(&run(&cluster, &["force-release", "seat/A5", "--reason", "test", "--now"]).await);
    assert_eq!(code, 0, "{out}{err}");
    assert_ne!(text(&run(&cluster, &["verify", "seat/A5", &token_text]).await).0, 0, "it was taken back");
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
async fn without_a_cluster_it_says_so() {
    let (code, _, err) = text(&output(&mut lockkeeper(&["list", "--endpoints", "127.0.0.1:1"])).await);
    assert_eq!(code, 12, "{err}");
    assert!(err.contains("127.0.0.1:1"), "{err}");
}
