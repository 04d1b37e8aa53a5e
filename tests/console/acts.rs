//! What operators do from the console, without a browser: the same rights as on the command line, and the same lines in the audit trail.

use std::{fs, time::Duration};

use lockkeeper::{
    client::{Client, Session, SessionOptions},
    config::{AuditConfig, AuthConfig},
    local::{LocalCluster, Signal},
};
use lockkeeper_audit::{Reader, files_in};
use lockkeeper_policy::BearerToken;
use lockkeeper_types::{Identity, Token as LockToken};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::requests::call;
use crate::support::{cluster_with, leader, lockkeeper, output, text, until};

pub(super) const POLICY: &str = r#"
[[rule]]
who = ["ops"]
may = ["acquire", "read", "watch", "force-release", "administer"]

[[rule]]
who = ["shop"]
may = ["acquire", "read", "watch"]
prefix = "seats/"

[[rule]]
who = ["eyes"]
may = ["read", "watch"]
"#;

pub(super) fn secret(byte: u8) -> String {
    BearerToken::from_random([byte; 32]).reveal().to_owned()
}

pub(super) const OPS: u8 = 1;
const SHOP: u8 = 2;
pub(super) const EYES: u8 = 3;

/// A cluster with a policy, and with audit files in this directory.
async fn guarded(directory: &TempDir, nodes: usize) -> LocalCluster {
    guarded_by(directory, nodes, POLICY).await
}

pub(super) async fn guarded_by(directory: &TempDir, nodes: usize, policy: &str) -> LocalCluster {
    let entry = |name: &str, byte| BearerToken::from_random([byte; 32]).entry(&Identity::new(name).expect("valid"));
    let auth = AuthConfig {
        tokens: directory.path().join("tokens.toml"),
        policy: directory.path().join("policy.toml"),
        ..AuthConfig::default()
    };
    fs::write(&auth.tokens, entry("ops", OPS) + &entry("shop", SHOP) + &entry("eyes", EYES)).expect("written");
    fs::write(&auth.policy, policy).expect("written");

    let audit = directory.path().join("audit");
    cluster_with(|options| {
        options.http = true;
        options.nodes = Some(nodes);
        options.auth = auth;
        options.audit = AuditConfig { directory: audit, ..AuditConfig::default() };
    })
    .await
}

fn client(cluster: &LocalCluster, byte: u8) -> Client {
    let builder = Client::builder(&cluster.endpoints().join(",")).token(&secret(byte));
    builder.build().expect("valid")
}

async fn session(cluster: &LocalCluster, byte: u8, label: &str) -> Session {
    let options = SessionOptions { ttl: Duration::from_secs(600), label: label.to_owned() };
    client(cluster, byte).open(options).await.expect("a session")
}

/// The lines of node 1's audit files about what ops did.
fn acts_in(directory: &TempDir) -> Vec<Value> {
    let mut acts = Vec::new();
    for path in files_in(&directory.path().join("audit").join("node-1")).unwrap_or_default() {
        let mut reader = Reader::open(&path).expect("an audit file");
        while let Some(line) = reader.next().expect("it can be read") {
            let line: Value = serde_json::from_str(line).expect("JSON");
            if line["by"] == "ops" {
                acts.push(line);
            }
        }
    }
    acts
}

/// The lines after the first `before`, once there are as many as this: a node answers before they are in its files.
async fn acts_since(directory: &TempDir, before: usize, count: usize) -> Vec<Value> {
    let since = async || Some(acts_in(directory).split_off(before)).filter(|acts| acts.len() >= count);
    until("the lines of what was done", since).await
}

/// A line without its numbers and the reason, which the command line makes by itself.
fn shape(line: &Value) -> Value {
    json!({"what": line["what"], "how": line["how"], "by": line["by"], "lock": line["lock"], "owner": line["owner"]})
}

async fn lock(cluster: &LocalCluster, byte: u8, name: &str) -> Value {
    let (status, told) = call(cluster, 1, "lock", Some(&secret(byte)), &json!({ "name": name })).await;
    assert_eq!(status, 200, "{told}");
    told
}

/// Waits until the lock is as wanted, at the node whose page is asked.
async fn lock_is(cluster: &LocalCluster, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    until(name, async || Some(lock(cluster, OPS, name).await).filter(|told| is_so(&told["lock"]))).await
}

/// A lock that `dead` holds and `next` waits for: both of the identity shop. Returns the wait and its ticket, and the holder's session.
async fn stuck(cluster: &LocalCluster) -> (JoinHandle<Result<LockToken, String>>, Value, Value, Vec<Session>) {
    let dead = session(cluster, SHOP, "dead").await;
    let next = session(cluster, SHOP, "next").await;
    let guard = dead.acquire("seats/1").no_wait().await.expect("it is free");
    let waits = tokio::spawn({
        let next = next.clone();
        async move { next.acquire("seats/1").await.map(|guard| guard.token()).map_err(|error| error.to_string()) }
    });

    let told = lock_is(cluster, "seats/1", |lock| lock["queue_length"] == 1).await;
    let ticket = told["lock"]["waiters"][0]["ticket"].clone();
    let holder = told["lock"]["holders"][0]["session"].clone();
    // Its holder does not let go by itself.
    std::mem::forget(guard);
    (waits, ticket, holder, vec![dead, next])
}

/// A lock without a holder that a lock-delay keeps closed.
async fn delayed(cluster: &LocalCluster) {
    let lost = session(cluster, SHOP, "lost").await;
    let guard = lost.acquire("seats/2").no_wait().lock_delay(Duration::from_secs(300)).await.expect("it is free");
    client(cluster, OPS).force_release("seats/2", "drill").now().await.expect("an operator may");
    drop(guard);
    lock_is(cluster, "seats/2", |lock| lock["holder_count"] == 0 && lock["delay_ms"] != 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_act_with_the_rights_of_the_command_line_and_leave_the_same_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let cluster = guarded(&directory, 1).await;
    let (waits, ticket, holder, _sessions) = stuck(&cluster).await;
    delayed(&cluster).await;
    let told = lock(&cluster, OPS, "seats/1").await;
    assert_eq!((&told["may_force"], &told["sessions"][0]["may_close"]), (&json!(true), &json!(true)));
    assert_eq!(told["sessions"][0]["ttl_ms"], 600_000);

    // Somebody who may look sees why, and is offered nothing; what he sends all the same is refused.
    let seen = lock(&cluster, EYES, "seats/1").await;
    assert_eq!((&seen["may_force"], &seen["sessions"][0]["may_close"]), (&json!(false), &json!(false)));
    let remove = json!({"name": "seats/1", "ticket": ticket});
    let close = json!({"id": holder, "reason": "its host burned down"});
    let lift = json!({"name": "seats/2"});
    for (name, body) in [("remove-waiter", &remove), ("close-session", &close), ("lift-delay", &lift)] {
        for (token, refused) in [(Some(secret(EYES)), 403), (None, 403), (Some("wrong".to_owned()), 401)] {
            let (status, told) = call(&cluster, 1, name, token.as_deref(), body).await;
            assert_eq!(status, refused, "{name}: {told}");
        }
    }
    assert_eq!(lock(&cluster, OPS, "seats/1").await["lock"]["queue_length"], 1, "nothing was changed");
    assert_ne!(lock(&cluster, OPS, "seats/2").await["lock"]["delay_ms"], 0, "nothing was changed");
    // The owner of a session may close it, and may not remove those who wait for its lock.
    assert_eq!(lock(&cluster, SHOP, "seats/1").await["sessions"][0]["may_close"], true);
    assert_eq!(call(&cluster, 1, "remove-waiter", Some(&secret(SHOP)), &remove).await.0, 403);

    // From the page.
    let ops = secret(OPS);
    let before = acts_in(&directory).len();
    let removed = call(&cluster, 1, "remove-waiter", Some(&ops), &remove).await;
    assert_eq!(removed, (200, json!({"removed": "next"})));
    let refused = waits.await.expect("no panic").expect_err("an operator removed it");
    assert!(refused.contains("removed"), "{refused}");
    let (status, told) = call(&cluster, 1, "close-session", Some(&ops), &close).await;
    assert_eq!((status, &told["closed"]), (200, &holder), "{told}");
    lock_is(&cluster, "seats/1", |lock| lock["holder_count"] == 0).await;
    let (status, told) = call(&cluster, 1, "lift-delay", Some(&ops), &lift).await;
    assert!(status == 200 && told["lifted_ms"].as_u64().is_some_and(|left| left > 0), "{told}");
    let by_page = acts_since(&directory, before, 3).await;
    // What was done already is done no more, and the answer says so.
    assert_eq!(call(&cluster, 1, "remove-waiter", Some(&ops), &remove).await, (200, json!({"removed": null})));
    assert_eq!(call(&cluster, 1, "lift-delay", Some(&ops), &lift).await, (200, json!({"lifted_ms": null})));

    // The same from the command line.
    let (waits, ticket, _, _sessions) = stuck(&cluster).await;
    delayed(&cluster).await;
    let before = acts_in(&directory).len();
    let ticket = ticket.as_str().expect("a text");
    for arguments in [
        &["remove-waiter", "seats/1", "--ticket", ticket][..],
        &["session", "close", "--label", "dead"],
        &["lift-delay", "seats/2"],
    ] {
        let endpoints = cluster.endpoints().join(",");
        let arguments = [arguments, &["--endpoints", &endpoints]].concat();
        let run = output(lockkeeper(&arguments).env("LOCKKEEPER_BEARER_TOKEN", &ops)).await;
        assert!(run.status.success(), "{arguments:?}: {:?}", text(&run));
    }
    waits.await.expect("no panic").expect_err("an operator removed it");
    let by_command = acts_since(&directory, before, 3).await;

    let shapes = |acts: &[Value]| acts.iter().map(shape).collect::<Vec<_>>();
    assert_eq!(shapes(&by_page), shapes(&by_command));
    let whats: Vec<_> = by_page.iter().map(|line| line["what"].as_str().expect("a text")).collect();
    assert_eq!(whats, ["waiter-removed", "session-ended", "delay-lifted"], "{by_page:?}");
    assert_eq!(by_page[1]["reason"], "its host burned down");
}

/// A session without an owner is closed by whoever knows its id: all the more the trail must say who that was.
#[tokio::test(flavor = "multi_thread")]
async fn who_closes_the_session_of_an_anonymous_caller_is_in_the_trail() {
    let directory = tempfile::tempdir().expect("a directory");
    let anonymous = "[[rule]]\nwho = [\"anonymous\"]\nmay = [\"acquire\", \"read\"]\n";
    let cluster = guarded_by(&directory, 1, &format!("{POLICY}\n{anonymous}")).await;
    until("the trail begins", async || {
        let has_lines = cluster.statuses().await.values().any(|status| status.audit_lines > 0);
        has_lines.then_some(())
    })
    .await;
    let options = SessionOptions { ttl: Duration::from_secs(600), label: "nobody".to_owned() };
    let stranger = Client::new(&cluster.endpoints().join(",")).expect("valid").open(options).await.expect("a session");
    let _guard = stranger.acquire("jobs/nightly").no_wait().await.expect("it is free");

    let before = acts_in(&directory).len();
    let id = stranger.id().to_string();
    let close = json!({"id": id, "reason": "it holds the nightly job"});
    let (status, told) = call(&cluster, 1, "close-session", Some(&secret(OPS)), &close).await;
    assert_eq!((status, &told["closed"]), (200, &json!(id)), "{told}");

    let acts = acts_since(&directory, before, 1).await;
    assert_eq!((acts.len(), &acts[0]["what"], &acts[0]["by"]), (1, &json!("session-ended"), &json!("ops")), "{acts:?}");
    assert_eq!(acts[0]["reason"], "it holds the nightly job");

    let files = directory.path().join("audit").join("node-1").to_string_lossy().into_owned();
    let (code, story, err) = text(&output(&mut lockkeeper(&["audit", "show", "--session", &id, &files])).await);
    let wanted = "ended by ops: closed, reason: it holds the nightly job";
    assert!(code == 0 && story.contains(wanted), "{code} {story} {err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_a_lock_is_shown_as_it_was_and_nothing_can_be_done_to_it() {
    let cluster = cluster_with(|options| options.http = true).await;
    let leads = leader(&cluster).await;
    let holder = super::session(&crate::support::client(&cluster), "ann").await;
    let _guard = holder.acquire("jobs/nightly").no_wait().await.expect("it is free");
    let node = (1..=3).find(|node| *node != leads).expect("three nodes");
    until("the follower has it", async || {
        let (_, told) = call(&cluster, node, "lock", None, &json!({"name": "jobs/nightly"})).await;
        (told["lock"]["holder_count"] == 1).then_some(())
    })
    .await;

    for other in (1..=3).filter(|other| *other != node) {
        cluster.node(other).pause().await;
    }
    until("it notices", async || {
        let (_, told) = call(&cluster, node, "status", None, &json!({})).await;
        (told["node"]["serving"] == false).then_some(())
    })
    .await;
    let (status, told) = call(&cluster, node, "lock", None, &json!({"name": "jobs/nightly"})).await;
    assert_eq!((status, &told["lock"]["holders"][0]["label"]), (200, &json!("ann")), "{told}");
    assert_eq!(told["sessions"][0]["ttl_ms"], 600_000);

    let body =
        json!({"name": "jobs/nightly", "token": told["lock"]["holders"][0]["token"], "reason": "dead", "now": true});
    let (status, told) = call(&cluster, node, "force-release", None, &body).await;
    assert!([503, 504].contains(&status), "{status}: {told}");
    let (_, told) = call(&cluster, node, "history", None, &json!({})).await;
    let kinds: Vec<_> = told["events"].as_array().expect("a list").iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds.last(), Some(&&json!("trouble")), "{told}");
    for other in (1..=3).filter(|other| *other != node) {
        cluster.node(other).signal(Signal::CONT);
    }
}
