//! Who asks: names and passwords of etcd's clients are identities and tokens, and the policy counts for their keys.

use std::{env, fs, path::Path};

use lockkeeper::config::AuthConfig;
use lockkeeper_machine::Identity;
use lockkeeper_policy::BearerToken;

use super::{etcdctl::Ctl, with_timing};
use crate::unmodified::{
    debian,
    packages::{command, run},
};

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
        Err(problem) => return crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    };
    let directory = tempfile::tempdir().expect("a directory");
    let token = BearerToken::from_random([7; 32]);
    let tokens = directory.path().join("tokens.toml");
    fs::write(&tokens, token.entry(&Identity::new("ann").expect("valid"))).expect("written");
    let policy = directory.path().join("policy.toml");
    fs::write(&policy, POLICY).expect("written");
    let auth = AuthConfig { tokens, policy, anonymous: true };
    let mut cluster = with_timing(10_000, |options| options.auth = auth).await;
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

/// What is run in a cluster with TLS: `etcdctl` finds it by its variables, and JSON has the same port.
const WITH_TLS: &str = r#"
set -eu
etcdctl put a 1
etcdctl get a --print-value-only
until [ "$(etcdctl member list | grep -c 'https:.*https:')" = 3 ]; do sleep 0.1; done
etcdctl member list
etcdctl endpoint health
env -u ETCDCTL_CERT -u ETCDCTL_KEY etcdctl put a 2 2>&1 && exit 1
etcdctl lock jobs -- etcdctl get --prefix jobs/ --keys-only
python3 - <<'JSON'
import json, os, ssl, urllib.request
context = ssl.create_default_context(cafile=os.environ["LOCKKEEPER_CA"])
context.load_cert_chain(os.environ["LOCKKEEPER_CERT"], os.environ["LOCKKEEPER_KEY"])
url = "https://" + os.environ["LOCKKEEPER_ETCD_ENDPOINTS"].split(",")[1]
print(urllib.request.urlopen(url + "/health", context=context).read().decode())
read = urllib.request.urlopen(url + "/v3/kv/range", json.dumps({"key": "YQ=="}).encode(), context=context)
print("JSON", json.load(read)["kvs"][0]["value"])
JSON
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_a_certificate_is_an_identity_and_commands_find_the_cluster() {
    let programs = match debian::etcd().await {
        Ok(programs) => programs,
        Err(problem) => return crate::skipped::skipped(format_args!("Debian's etcd cannot be had: {problem}")),
    };
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    let mut dev = command(Path::new(env!("CARGO_BIN_EXE_lockkeeper")), &["dev", "--tls", "--etcd", "--"]);
    dev.args(["bash", "-c", WITH_TLS]).env("PATH", path);
    let text = run(dev).await.unwrap_or_else(|problem| panic!("{problem}"));
    let says = |wanted: &str, times: usize| assert_eq!(text.matches(wanted).count(), times, "{wanted}: {text}");
    says("OK\n1\n", 1);
    // Where clients reach each member, and where the others do.
    says(", https://127.0.0.1:", 6);
    says("is healthy", 3);
    says("Error: etcdserver: user name is empty", 1);
    says("\njobs/", 1);
    says("{\"health\":\"true\"}", 1);
    says("JSON MQ==", 1);
}
