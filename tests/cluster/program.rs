//! What the program prints, and what it ends with.

use std::process::{Output, Stdio};

use lockkeeper::local::LocalCluster;
use tokio::process::Command;

use crate::support::{LONG, client, cluster, long_session, program};

async fn run(cluster: &LocalCluster, arguments: &[&str]) -> Output {
    let child = Command::new(program())
        .args(arguments)
        .env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    tokio::time::timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("its output")
}

fn text(output: &Output) -> (i32, String, String) {
    let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), string(&output.stdout), string(&output.stderr))
}

fn json(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", text(output)))
}

#[tokio::test(flavor = "multi_thread")]
async fn dev_runs_a_command_in_a_cluster_of_its_own() {
    let child = Command::new(program())
        .args(["dev", "--", "lockkeeper", "lock", "tickets/A5", "--", "sh", "-c"])
        .arg("echo \"seat A5, token $LOCKKEEPER_TOKEN, lock $LOCKKEEPER_LOCK\"; exit 7")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the program runs");
    let output = tokio::time::timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("its output");
    let (code, out, err) = text(&output);
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

#[tokio::test(flavor = "multi_thread")]
async fn without_a_cluster_it_says_so() {
    let (code, _, err) = text(
        &Command::new(program())
            .args(["list", "--endpoints", "127.0.0.1:1"])
            .stdin(Stdio::null())
            .output()
            .await
            .expect("the program runs"),
    );
    assert_eq!(code, 12, "{err}");
    assert!(err.contains("127.0.0.1:1"), "{err}");
}
