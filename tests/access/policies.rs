//! The policy: default deny, reloading, limits.

use std::fs;

use lockkeeper::{
    client::{Error, Refusal},
    machine::{Data, LockName, Mode, Want},
    proto::v1::{
        SaveSnapshotRequest, StatusRequest, cluster_client::ClusterClient, maintenance_client::MaintenanceClient,
    },
};
use tokio::time::timeout;
use tonic::Status;

use super::stage::{POLICY, Stage, acquire, end, from, open, options, reason, refusal, waits_at_all_nodes};
use crate::support::{LONG, lockkeeper, output, text, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_no_rule_allows_is_refused_and_the_refusal_says_which_rule_would() {
    let stage = Stage::new(Some(POLICY)).await;
    let session = stage.session(Some("shop-1")).await;
    let held = session.acquire("seats/1").await.expect("allowed");
    let shop = stage.client(Some("shop-1"));
    let denied = [
        refusal(session.acquire("orders/1").await.map(drop)),
        refusal(shop.list("", "").await),
        refusal(shop.list("seat", "").await),
        refusal(shop.get("orders/1").await),
        refusal(shop.force_release("seats/1", "mine").await),
        refusal(shop.lift_delay("seats/1").await),
        refusal(shop.transfer_leader(None).await),
        refusal(stage.client(None).get("seats/1").await),
        refusal(stage.client(None).open(options()).await),
    ];
    assert!(denied.iter().all(|refusal| *refusal == Refusal::PermissionDenied), "{denied:?}");
    let message = shop.list("", "").await.expect_err("too wide").to_string();
    let expected =
        "it has this right only under \"seats/\"; an operator can add a rule with who = [\"shop-1\"], may = [\"read\"]";
    assert!(message.contains(expected), "{message}");

    let listed = shop.list("seats/", "").await.expect("allowed");
    assert_eq!(listed.locks.len(), 1);
    let forced = stage.client(Some("ops")).force_release("seats/1", "for maintenance").now().await.expect("ops may");
    assert_eq!(forced.len(), 1);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_policy_is_in_force_within_seconds_and_a_bad_one_changes_nothing() {
    let mut stage = Stage::new(Some(POLICY)).await;
    let shop = stage.client(Some("shop-1"));
    assert_eq!(refusal(shop.get("orders/1").await), Refusal::PermissionDenied);
    fs::write(stage.policy_file(), POLICY.replace("\"seats/\"", "\"orders/\"")).expect("written");
    until("the new policy at the leader", async || shop.get("orders/1").await.ok()).await;
    assert_eq!(refusal(shop.get("seats/1").await), Refusal::PermissionDenied);

    // Half written, or mistyped.
    fs::write(stage.policy_file(), POLICY.replace("acquire", "aquire")).expect("written");
    let leader = crate::support::leader(&stage.cluster).await;
    let log = stage.cluster.node(leader).log_file().to_owned();
    let line = until("the complaint", async || {
        let log = fs::read_to_string(&log).ok()?;
        log.lines().find(|line| line.contains("aquire")).map(str::to_owned)
    })
    .await;
    assert!(line.contains("policy.toml") && line.contains("line=4"), "{line}");
    shop.get("orders/1").await.expect("the policy before stays in force");

    // The same file stops a node at its start.
    stage.cluster.node_mut(leader).kill().await;
    let config = stage.cluster.node(leader).config_file().to_owned();
    let (code, _, said) = text(&output(lockkeeper(&["serve", "--config"]).arg(config)).await);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("auth.policy") && said.contains("line 4") && said.contains("aquire"), "{said}");
}

/// Also through a follower, which only passes the watch on.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_the_policy_does_not_allow_it_any_more() {
    let stage = Stage::new(Some(POLICY)).await;
    let watch = async |node: u64, who: &'static str| {
        let request = lockkeeper::proto::v1::WatchRequest { prefix: "seats/".to_owned(), after_index: 0 };
        let mut request = from(Some(who), request);
        request.set_timeout(2 * LONG);
        stage.locks(node).await.watch(request).await.expect("allowed").into_inner()
    };
    let shops = [watch(1, "shop-1").await, watch(2, "shop-1").await, watch(3, "shop-1").await];
    let mut operators = watch(1, "ops").await;
    fs::write(stage.policy_file(), POLICY.replace("\"read\", \"watch\"]\nprefix", "\"read\"]\nprefix"))
        .expect("written");
    for events in shops {
        let status = end(events).await;
        assert_eq!(reason(&status), "PERMISSION_DENIED", "{status:?}");
    }
    for _ in 0..3 {
        operators.message().await.expect("another identity is not concerned").expect("it goes on");
    }
}

/// Also one that a follower has passed on. What is refused has left the queue: its client will not release it.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_waits_ends_when_the_policy_does_not_allow_it_any_more() {
    let stage = Stage::new(Some(POLICY)).await;
    let session = stage.session(Some("ops")).await;
    let held = session.acquire("seats/1").await.expect("free");
    let waits = waits_at_all_nodes(&stage, "shop-1", "seats/1").await;

    fs::write(stage.policy_file(), POLICY.replace("\"acquire\", \"read\", \"watch\"]\nprefix", "\"read\"]\nprefix"))
        .expect("written");
    for wait in waits {
        let status = timeout(LONG, wait).await.expect("it ends").expect("no panic");
        assert_eq!(reason(&status), "PERMISSION_DENIED", "{status:?}");
    }
    let found = stage.client(Some("ops")).get("seats/1").await.expect("allowed");
    assert_eq!((found.lock.queue_length, found.lock.holders.len()), (0, 1));
    drop(held);
}

/// The beginning of it is sent before, and the rest is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_backup_ends_when_the_policy_does_not_allow_it_any_more() {
    let stage = Stage::new(Some(POLICY)).await;
    let session = stage.session(Some("ops")).await;
    // More than the windows of a connection hold.
    let held = futures::future::join_all((0..16).map(async |part| {
        let want = |number| Want {
            name: LockName::new(&format!("big/{part}/{number}")).expect("short"),
            mode: Mode::Exclusive,
            data: Some(Data::new(&[7; 16 * 1024]).expect("as much as there may be")),
            keep_data: false,
            must_exist: false,
        };
        session.acquire_wants((0..64).map(want).collect()).await.expect("free")
    }))
    .await;

    let mut operator = MaintenanceClient::new(stage.cluster.node(1).channel().await.expect("it serves"));
    let request = || {
        let mut request = from(Some("ops"), SaveSnapshotRequest::default());
        request.set_timeout(2 * LONG);
        request
    };
    let backup = operator.save_snapshot(request()).await.expect("allowed").into_inner();
    fs::write(stage.policy_file(), POLICY.replace(", \"administer\"", "")).expect("written");
    let is_refused = |status: Status| (reason(&status) == "PERMISSION_DENIED").then_some(());
    until("the new policy", async || operator.save_snapshot(request()).await.err().and_then(is_refused)).await;

    let status = end(backup).await;
    assert_eq!(reason(&status), "PERMISSION_DENIED", "{status:?}");
    drop(held);
}

/// An identity that floods is refused with its limit, and another one is served meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_limit_of_an_identity_are_refused_and_others_are_served() {
    let stage = Stage::new(Some(POLICY)).await;
    let mut locks = stage.locks(1).await;
    let id = "000000000000000000000000000000aa";
    stage.sessions(1).await.open(from(Some("shop-2"), open(id))).await.expect("opened");
    let get = || lockkeeper::proto::v1::GetRequest { name: "seats/1".to_owned(), ..Default::default() };
    let (mut served, mut refused) = (0, 0);
    // The burst is ten calls: far more than the limit allows, even if a busy machine takes seconds.
    for _ in 0..500 {
        match locks.get(from(Some("shop-limited"), get())).await {
            Ok(_) => served += 1,
            // A machine that stalls may elect another leader.
            Err(status) if reason(&status) == "NO_LEADER" => {}
            Err(status) => {
                assert_eq!(reason(&status), "LIMIT_REACHED", "{status:?}");
                assert!(status.message().contains("limit of 5 for calls-per-second"), "{status:?}");
                refused += 1;
                if let Err(status) = locks.acquire(from(Some("shop-2"), acquire(id, "seats/9"))).await {
                    assert_eq!(reason(&status), "NO_LEADER", "another identity is served: {status:?}");
                }
            }
        }
    }
    assert!(served >= 10 && refused >= 100, "{served} served, {refused} refused");
}

/// A node answers these by itself. They count like all others, since the hash of a large table costs more than any of them.
#[tokio::test(flavor = "multi_thread")]
async fn calls_for_the_status_of_a_node_count_for_the_limit_of_an_identity() {
    let stage = Stage::new(Some(POLICY)).await;
    let mut asked = ClusterClient::new(stage.cluster.node(1).channel().await.expect("it serves"));
    let mut refused = 0;
    for _ in 0..500 {
        if let Err(status) = asked.status(from(Some("shop-limited"), StatusRequest::default())).await {
            assert_eq!(reason(&status), "LIMIT_REACHED", "{status:?}");
            refused += 1;
        }
    }
    assert!((100..500).contains(&refused), "{refused} refused");
    asked.status(from(Some("shop-2"), StatusRequest::default())).await.expect("another identity is served");
}

/// The limit of connections holds at each node: what closes one makes room, and other identities are not concerned.
#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_limit_of_an_identity_are_refused_and_closed() {
    let policy = format!("{POLICY}\n[limits.shop-1]\nconnections = 2\n");
    let stage = Stage::new(Some(&policy)).await;
    let get = || lockkeeper::proto::v1::GetRequest { name: "seats/1".to_owned(), ..Default::default() };
    let mut within = [stage.locks(1).await, stage.locks(1).await];
    for _ in 0..3 {
        for locks in &mut within {
            locks.get(from(Some("shop-1"), get())).await.expect("a connection that is counted stays");
        }
    }
    let mut third = stage.locks(1).await;
    let status = third.get(from(Some("shop-1"), get())).await.expect_err("the third connection");
    assert_eq!(reason(&status), "LIMIT_REACHED", "{status:?}");
    assert!(status.message().contains("shop-1 has reached its limit of 2 for connections: close some"), "{status:?}");
    let mut other = stage.locks(1).await;
    other.get(from(Some("shop-2"), get())).await.expect("another identity is not concerned");
    stage.locks(2).await.get(from(Some("shop-1"), get())).await.expect("another node counts its own connections");
    assert!(stage.cluster.node(1).status().await.expect("it serves").limited_requests >= 1);

    drop(within);
    let served = async || stage.locks(1).await.get(from(Some("shop-1"), get())).await.ok();
    until("room for another connection", served).await;
}

/// Sessions, locks and waiters of one identity; what is given back can be had again, and a repetition of a request that was executed is no
/// new one.
#[tokio::test(flavor = "multi_thread")]
async fn an_identity_has_no_more_in_the_table_than_its_limits_and_others_are_not_concerned() {
    let stage = Stage::new(Some(&POLICY.replace("calls-per-second = 5\n", ""))).await;
    let limited = stage.client(Some("shop-limited"));
    let message = |error: Error| {
        let Error::Refused(refused) = error else { panic!("it was not refused: {error:?}") };
        assert_eq!(refused.reason, Refusal::LimitReached, "{refused:?}");
        refused.message
    };
    let one = limited.open(options()).await.expect("the first");
    let two = limited.open(options()).await.expect("the second");
    let said = message(limited.open(options()).await.map(drop).expect_err("the third"));
    assert!(said.contains("shop-limited has reached its limit of 2 for sessions"), "{said}");

    let mut held = Vec::new();
    for number in 0..3 {
        held.push(one.acquire(&format!("seats/{number}")).await.expect("within the limit"));
    }
    let said = message(two.acquire("seats/3").await.map(drop).expect_err("the fourth lock"));
    assert!(said.contains("its limit of 3 for locks"), "{said}");
    let other = stage.session(Some("shop-1")).await;
    std::mem::forget(other.acquire("seats/3").await.expect("another identity is not concerned"));
    held.pop().expect("one").release().await.expect("given back");
    let granted = two.acquire("seats/4").await.expect("there is room again");
    drop(granted);
    one.close().await.expect("closed");
    limited.open(options()).await.expect("there is room again");
}

/// A client that did not hear that it was granted its last lock asks again under the same id.
#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_at_the_limit_is_answered_as_the_first_time() {
    let stage = Stage::new(Some(&POLICY.replace("calls-per-second = 5\n", ""))).await;
    let (id, who) = ("000000000000000000000000000000aa", Some("shop-limited"));
    let (mut sessions, mut locks) = (stage.sessions(1).await, stage.locks(1).await);
    let numbered = |number: u64| {
        let request = Some(lockkeeper::proto::v1::RequestId { id: number, lowest: 1, ..Default::default() });
        lockkeeper::proto::v1::AcquireRequest { request, ..acquire(id, &format!("seats/{number}")) }
    };
    sessions.open(from(who, open(id))).await.expect("opened");
    sessions.open(from(who, open("000000000000000000000000000000ab"))).await.expect("opened");
    sessions.open(from(who, open(id))).await.expect("a repeated open is none of another session");
    let mut first = Vec::new();
    for number in 1..=3 {
        first.push(locks.acquire(from(who, numbered(number))).await.expect("within the limit").into_inner());
    }
    for number in 1..=3_u64 {
        let again = locks.acquire(from(who, numbered(number))).await.expect("a repetition").into_inner();
        assert_eq!(Some(&again), first.get(number as usize - 1));
    }
    let status = locks.acquire(from(who, numbered(4))).await.expect_err("the fourth");
    assert_eq!(reason(&status), "LIMIT_REACHED");
}
