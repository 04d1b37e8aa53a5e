//! The items of a deleted table are removed where a policy refuses strangers, and their locks are in nobody's way.

use std::fs;

use lockkeeper::{
    client::Client,
    config::AuthConfig,
    local::{ClusterOptions, LocalCluster},
};
use serde_json::json;
use tempfile::TempDir;

use super::{
    LONG,
    operators::{NAME, acquire, create_table, fails, heartbeat, ok},
};

/// For the table's own keys and locks alone.
fn policy() -> String {
    let prefixes = ["dynamodb/table/locks", "dynamodb/item/locks/", "dynamodb/dropped/locks/", "dynamodb/locks/"];
    let rule = |prefix: &str| {
        format!(
            "[[rule]]\nwho = [\"anonymous\"]\nmay = [\"acquire\", \"read\", \"force-release\"]\nprefix = \"{prefix}\"\n"
        )
    };
    prefixes.map(rule).concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_takes_back_the_lock_of_the_new_table_and_no_ghost() {
    let directory = TempDir::new().expect("a directory");
    let file = directory.path().join("policy.toml");
    fs::write(&file, policy()).expect("written");
    let auth = AuthConfig { policy: file, ..AuthConfig::default() };
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let options = ClusterOptions { dynamodb: true, timeout: LONG, auth, ..ClusterOptions::new(program) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let client = Client::builder(&cluster.endpoints().join(",")).build().expect("endpoints");
    let endpoints = cluster.dynamodb_endpoints();
    let [ann, bob] = [&*endpoints[0], &*endpoints[1]];

    create_table(ann).await;
    ok(ann, "PutItem", acquire("ann", "1", false)).await;
    ok(ann, "DeleteTable", json!({"TableName": "locks"})).await;
    create_table(bob).await;
    ok(bob, "PutItem", acquire("bob", "2", false)).await;

    let lock = client.get(NAME).await.expect("read").lock;
    let holders: Vec<_> = lock.holders.iter().map(|holder| holder.label.as_str()).collect();
    assert_eq!((holders, lock.queue_length), (vec!["bob"], 0));
    let forced = client.force_release(NAME, "stuck").await.expect("the policy allows it");
    assert_eq!(forced.len(), 1);
    fails(bob, "UpdateItem", heartbeat("bob", "2", "3")).await;
    drop(client);
    cluster.stop().await;
}
