//! What a node recorded of the last ten minutes, without a browser: for a page that is opened after an incident.

use std::time::Duration;

use lockkeeper::local::LocalCluster;
use serde_json::{Value, json};

use super::{follower, requests::call, steady};
use crate::support::{client, cluster_with, leader, long_session, until};

/// The longest name, with characters that mean something in HTML, JSON, URLs and terminals.
fn odd_name() -> String {
    let odd = "odd/<b>&amp;\"'`${x}\\\u{1b}[31m\u{202e}\u{1}%2F?#\u{10FFFF}";
    let rest = 512 - odd.len();
    format!("{odd}{}", "x".repeat(rest))
}

async fn history(cluster: &LocalCluster, node: u64, after: &Value) -> Value {
    let (status, told) = call(cluster, node, "history", None, after).await;
    assert_eq!(status, 200, "{told}");
    told
}

async fn changes(cluster: &LocalCluster, node: u64, of: &Value) -> Value {
    let (status, told) = call(cluster, node, "changes", None, of).await;
    assert_eq!(status, 200, "{told}");
    told
}

/// Waits until the node keeps what it changes: it has caught up with its log.
pub(super) async fn records(cluster: &LocalCluster, node: u64) {
    until("it records", async || (changes(cluster, node, &json!({})).await["index"] != 0).then_some(())).await;
}

fn kinds_of(told: &Value) -> Vec<String> {
    let list = told.as_array().expect("a list");
    list.iter().map(|one| one["kind"].as_str().expect("a text").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_after_an_election_sees_it_and_what_changed_before() {
    let mut cluster = steady().await;
    let killed = leader(&cluster).await;
    let node = follower(&cluster).await;
    records(&cluster, node).await;
    let session = long_session(&client(&cluster)).await;
    let held = session.acquire(&odd_name()).no_wait().await.expect("it is free");
    held.release().await.expect("it was held");
    let first = session.acquire("jobs/1").no_wait().await;
    let second = session.acquire("jobs/2").no_wait().await;
    let first = first.expect("it is free");
    drop(second.expect("it is free"));
    // The node has applied it, though nobody looked.
    until("the changes", async || {
        let told = changes(&cluster, node, &json!({"prefix": "jobs/"})).await;
        (told["changes"].as_array()?.len() >= 2).then_some(())
    })
    .await;

    cluster.node_mut(killed).kill().await;
    let told = until("another leader", async || {
        let told = history(&cluster, node, &json!({})).await;
        let leaders = kinds_of(&told["events"]).iter().filter(|kind| *kind == "leader").count();
        (leaders >= 2 && kinds_of(&told["events"]).last()? != "trouble").then_some(told)
    })
    .await;
    let leads: Vec<_> =
        told["events"].as_array().expect("a list").iter().filter(|one| one["kind"] == "leader").collect();
    assert!(leads.iter().any(|one| one["leader"] == killed), "{told}");
    assert!(leads.last().expect("some")["term"].as_u64() > leads[0]["term"].as_u64(), "{told}");
    assert_ne!(leads.last().expect("some")["leader"], killed, "{told}");

    // What changed before the incident, of one lock and of all; the newest first, with its age.
    let odd = changes(&cluster, node, &json!({"lock": odd_name()})).await;
    assert_eq!(kinds_of(&odd["changes"]), ["released", "granted"]);
    assert_eq!(odd["changes"][0]["name"], odd_name());
    let ages: Vec<_> = odd["changes"].as_array().expect("a list").iter().map(|one| one["age_ms"].as_u64()).collect();
    assert!(ages[0] <= ages[1] && ages[1] < Some(120_000), "{ages:?}");
    let jobs = changes(&cluster, node, &json!({"prefix": "jobs/"})).await;
    assert!(kinds_of(&jobs["changes"]).ends_with(&["granted".to_owned(), "granted".to_owned()]), "{jobs}");
    assert!(jobs["index"].as_u64().is_some_and(|index| index > 0));
    assert_eq!(changes(&cluster, node, &json!({"prefix": "none/"})).await["changes"], json!([]));
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_go_on_by_number_and_a_process_that_starts_again_begins_anew() {
    let mut cluster = cluster_with(|options| (options.http, options.nodes) = (true, Some(1))).await;
    let session = long_session(&client(&cluster)).await;
    // A sample may be of a time before the first grant.
    let shows_grants = |sample: &Value| {
        let is_granted = sample["grants"].as_f64().is_some_and(|rate| rate > 0.0) && sample["commit"].is_f64();
        is_granted && sample["leads"] == json!(true) && sample["serving"] == json!(true)
    };
    let told = until("a sample of a leader that grants", async || {
        let guard = session.acquire("jobs").no_wait().await.expect("it is free");
        guard.release().await.expect("it was held");
        let told = history(&cluster, 1, &json!({})).await;
        told["samples"].as_array()?.iter().any(shows_grants).then_some(told)
    })
    .await;
    let numbers = |told: &Value| -> Vec<u64> {
        let samples = told["samples"].as_array().expect("a list");
        samples.iter().map(|sample| sample["number"].as_u64().expect("a number")).collect()
    };
    let seen = numbers(&told);
    assert!(seen.iter().copied().eq(1..=seen.len() as u64), "{seen:?}");
    // A page that has some of them asks for the rest.
    let newest = seen.len() as u64;
    let rest = history(&cluster, 1, &json!({"sample": newest, "event": 1_000_000})).await;
    assert_eq!(rest["events"], json!([]));
    assert!(numbers(&rest).into_iter().all(|number| number > newest), "{rest}");

    // As somebody sees it whose page stays open over a restart: another process, whose numbers begin anew.
    cluster.node_mut(1).kill().await;
    cluster.node_mut(1).spawn().expect("it starts");
    cluster.ready(Duration::from_secs(60)).await.expect("it serves");
    let again = history(&cluster, 1, &json!({})).await;
    assert_ne!(again["start"], told["start"]);
    // What it replayed from its log did not happen now.
    let replayed = changes(&cluster, 1, &json!({})).await;
    assert_eq!(replayed["changes"], json!([]), "{replayed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_has_a_part_of_many_changes_and_losses_are_not_pushed_out() {
    let cluster = cluster_with(|options| (options.http, options.nodes) = (true, Some(1))).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    records(&cluster, 1).await;
    let lost = session.acquire("precious").no_wait().await.expect("it is free");
    client.force_release("precious", "drill").now().await.expect("forced");
    drop(lost);
    for _ in 0..40 {
        let names: Vec<String> = (0..64).map(|number| format!("many/{number}")).collect();
        let all = session.acquire_all(names.iter().map(String::as_str)).await.expect("granted");
        all.release().await.expect("it was held");
    }
    let told = changes(&cluster, 1, &json!({})).await;
    let list = told["changes"].as_array().expect("a list");
    assert!((1..=300).contains(&list.len()), "{}", list.len());
    let precious = changes(&cluster, 1, &json!({"lock": "precious"})).await;
    assert!(kinds_of(&precious["changes"]).contains(&"forced".to_owned()), "{precious}");
}
