//! Below the reserve, a client that locks by writing goes on like any other: its renewals and releases are puts and deletions.

use lockkeeper_etcd::proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RequestOp, TxnRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    kv_client::KvClient,
    lease_client::LeaseClient,
    request_op::Request,
};
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::{
    mounts::{self, Disks},
    short::cluster_with_disks,
};
use crate::children;
use crate::dynamodb::operators::call_with;
use crate::support::{leader, until};

/// One request of DynamoDB's API, as an SDK names it: with an access key, and an id by which it knows a repetition.
async fn call(endpoint: &str, invocation: u64, operation: &str, body: &Value) -> (u16, Value) {
    let headers = format!(
        "amz-sdk-invocation-id: {invocation}\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=ann/20260101/r/dynamodb/aws4_request, SignedHeaders=host, Signature=0\r\n"
    );
    call_with(endpoint, operation, &headers, body).await
}

/// A version as the Java client writes it: an item without one is no lock.
fn uuid(number: u32) -> String {
    format!("00000000-0000-4000-8000-{number:012}")
}

fn acquire(key: &str) -> Value {
    json!({
        "TableName": "locks", "ConditionExpression": "attribute_not_exists(#pk)", "ExpressionAttributeNames": {"#pk": "key"},
        "Item": {
            "key": {"S": key}, "ownerName": {"S": "ann"}, "recordVersionNumber": {"S": uuid(1)}, "leaseDuration": {"S": "600000"},
        },
    })
}

/// The Java client's heartbeat, and its release of a lock whose item stays.
fn update(key: &str, from: &str, set: &str, value: &str) -> Value {
    json!({
        "TableName": "locks", "Key": {"key": {"S": key}}, "UpdateExpression": "SET #set = :value",
        "ConditionExpression": "#rvn = :rvn", "ExpressionAttributeNames": {"#set": set, "#rvn": "recordVersionNumber"},
        "ExpressionAttributeValues": {":rvn": {"S": from}, ":value": {"S": value}},
    })
}

/// The release of a lock whose item is deleted.
fn delete(key: &str, version: &str) -> Value {
    json!({
        "TableName": "locks", "Key": {"key": {"S": key}}, "ConditionExpression": "#rvn = :rvn", "ReturnValues": "ALL_OLD",
        "ExpressionAttributeNames": {"#rvn": "recordVersionNumber"}, "ExpressionAttributeValues": {":rvn": {"S": version}},
    })
}

/// A put of etcd's clients if the key was created at this revision.
fn put(lease: i64, created: i64) -> TxnRequest {
    let put = PutRequest { key: b"held".to_vec(), value: b"ann".to_vec(), lease, ..PutRequest::default() };
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: b"held".to_vec(),
        target_union: Some(TargetUnion::CreateRevision(created)),
        ..Compare::default()
    };
    let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
    TxnRequest { compare: vec![compare], success, failure: Vec::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_and_releases_by_writing_go_on_below_the_reserve() {
    if !mounts::is_inside(&children::full_name(
        module_path!(),
        "heartbeats_and_releases_by_writing_go_on_below_the_reserve",
    )) {
        return;
    }
    let disks = Disks::mount(3, 48);
    let cluster = cluster_with_disks(&disks, 16, |options| {
        options.dynamodb = true;
        options.etcd = true;
    })
    .await;
    let leads = leader(&cluster).await;
    let at = usize::try_from(leads).expect("few nodes") - 1;
    let endpoint = cluster.dynamodb_endpoints()[at].clone();
    let ok = async |invocation, operation, body: Value| {
        let (status, answer) = call(&endpoint, invocation, operation, &body).await;
        assert_eq!(status, 200, "{operation}: {answer}");
    };
    let table = json!({
        "TableName": "locks", "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST",
    });
    // Not before all members know the keyspace.
    until("a table", async || (call(&endpoint, 1, "CreateTable", &table).await.0 == 200).then_some(())).await;
    ok(2, "PutItem", acquire("stays")).await;
    ok(3, "PutItem", acquire("goes")).await;

    let channel = Channel::from_shared(format!("http://{}", cluster.etcd_endpoints()[at])).expect("a URL");
    let channel = channel.connect().await.expect("it listens");
    let mut kv = KvClient::new(channel.clone());
    let mut leases = LeaseClient::new(channel);
    let granted = leases.lease_grant(LeaseGrantRequest { ttl: 600, id: 0 }).await.expect("a lease").into_inner();
    let held = kv.txn(put(granted.id, 0)).await.expect("answered").into_inner();
    assert!(held.succeeded);
    let created = held.header.expect("a header").revision;

    (1..=3).filter(|node| *node != leads).for_each(|node| disks.fill_but(node, 8));
    let mut number = 10;
    until("a refusal", async || {
        number += 1;
        let (status, _) = call(&endpoint, number, "PutItem", &acquire(&format!("more/{number}"))).await;
        (status != 200).then_some(())
    })
    .await;
    let more = PutRequest { key: b"more".to_vec(), lease: granted.id, ..PutRequest::default() };
    kv.put(more).await.expect_err("it asks for more");

    ok(4, "UpdateItem", update("stays", &uuid(1), "recordVersionNumber", &uuid(2))).await;
    ok(5, "UpdateItem", update("stays", &uuid(2), "isReleased", "1")).await;
    ok(6, "UpdateItem", update("goes", &uuid(1), "recordVersionNumber", &uuid(2))).await;
    ok(7, "DeleteItem", delete("goes", &uuid(2))).await;
    assert!(kv.txn(put(granted.id, created)).await.expect("renewed").into_inner().succeeded);
    let key = b"held".to_vec();
    let deleted = kv.delete_range(DeleteRangeRequest { key, ..DeleteRangeRequest::default() }).await;
    assert_eq!(deleted.expect("released").into_inner().deleted, 1);
    leases.lease_revoke(LeaseRevokeRequest { id: granted.id }).await.expect("revoked");
}
