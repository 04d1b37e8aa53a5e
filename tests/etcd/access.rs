//! Who asks: names and passwords of etcd's clients are identities and tokens, and the policy counts for their keys.

use std::fs;

use lockkeeper::{
    local::{LocalCluster, Options},
    server::config::AuthConfig,
};
use lockkeeper_machine::Identity;
use lockkeeper_policy::Token;

use crate::{LONG, etcdctl::Ctl, unmodified::debian};

const POLICY: &str = r#"
[[rule]]
who = ["ann"]
may = ["read", "acquire"]
prefix = "etcd/jobs/"
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_an_identity_and_its_password_a_token() {
    let programs = match debian::etcd().await {
        Ok(programs) => programs,
        Err(problem) => return eprintln!("!!! SKIPPED: Debian's etcd cannot be had: {problem}"),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let token = Token::of_random([7; 32]);
    let tokens = directory.path().join("tokens.toml");
    fs::write(&tokens, token.entry(&Identity::new("ann").expect("valid"))).expect("written");
    let policy = directory.path().join("policy.toml");
    fs::write(&policy, POLICY).expect("written");
    let auth = AuthConfig { tokens, policy, anonymous: true };
    let options = Options { etcd: true, timeout: LONG, auth, ..Options::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let ctl = Ctl { programs: &programs, endpoints: cluster.etcd_endpoints().join(",") };
    let user = format!("ann:{}", token.reveal());
    assert_eq!(ctl.ok(&["--user", &user, "put", "jobs/1", "v"]).await, "OK");
    assert_eq!(ctl.ok(&["--user", &user, "get", "--prefix", "jobs/"]).await, "jobs/1\nv");
    assert!(ctl.ok(&["--user", &user, "lease", "grant", "60"]).await.ends_with("granted with TTL(60s)"));
    for (arguments, error) in [
        (&["put", "jobs/1", "v"][..], "Error: etcdserver: permission denied"),
        (&["--user", &user, "put", "other", "v"], "Error: etcdserver: permission denied"),
        (&["--user", &user, "get", "--prefix", ""], "Error: etcdserver: permission denied"),
        (&["--user", &user, "compact", "1"], "Error: etcdserver: permission denied"),
        (
            &["--user", "ann:wrong", "put", "jobs/1", "v"],
            "Error: etcdserver: authentication failed, invalid user ID or password",
        ),
        (
            &["--user", &user.replace("ann:", "bob:"), "put", "jobs/1", "v"],
            "Error: etcdserver: authentication failed, invalid user ID or password",
        ),
    ] {
        assert_eq!(ctl.error(arguments).await, error, "{arguments:?}");
    }
    cluster.stop().await;
}
