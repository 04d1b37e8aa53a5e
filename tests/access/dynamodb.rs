//! A policy for the items of a table is enough for a client of DynamoDB's to acquire and to release.

use lockkeeper::config::AuthConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::support::{LONG, cluster_with};

/// Without secrets no access key is proven: everybody is anonymous to the policy. The table was made by an operator.
const ALL: &str = r#"
[[rule]]
who = ["anonymous"]
may = ["acquire", "read"]
prefix = "dynamodb/"
"#;
const ITEMS: &str = r#"
[[rule]]
who = ["anonymous"]
may = ["acquire", "read"]
prefix = "dynamodb/item/locks/"
"#;

/// The status and the body of an answer. `attempt`: the id by which an SDK repeats a request.
async fn call(endpoint: &str, attempt: &str, operation: &str, body: &str) -> (u16, String) {
    let host = endpoint.trim_start_matches("http://");
    let mut stream = TcpStream::connect(host).await.expect("it listens");
    let head = format!(
        "POST / HTTP/1.1\r\nhost: {host}\r\nx-amz-target: DynamoDB_20120810.{operation}\r\namz-sdk-invocation-id: {attempt}\r\n\
         authorization: AWS4-HMAC-SHA256 Credential=ann/19700101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("it reads");
    let mut answer = Vec::new();
    timeout(LONG, stream.read_to_end(&mut answer)).await.expect("in time").expect("an answer");
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_for_items_lets_a_client_acquire_and_release() {
    let directory = tempfile::tempdir().expect("a directory");
    let policy = directory.path().join("policy.toml");
    std::fs::write(&policy, ALL).expect("written");
    let auth = AuthConfig { policy: policy.clone(), ..AuthConfig::default() };
    let mut cluster = cluster_with(|options| {
        options.auth = auth;
        options.dynamodb = true;
    })
    .await;
    let endpoints = cluster.dynamodb_endpoints();
    let create = r#"{"TableName":"locks","KeySchema":[{"AttributeName":"key","KeyType":"HASH"}],
        "AttributeDefinitions":[{"AttributeName":"key","AttributeType":"S"}],"BillingMode":"PAY_PER_REQUEST"}"#;
    let made = call(&endpoints[0], "create", "CreateTable", create).await;
    assert_eq!(made.0, 200, "{made:?}");

    std::fs::write(&policy, ITEMS).expect("written");
    let other = r#"{"TableName":"other","KeySchema":[{"AttributeName":"key","KeyType":"HASH"}],
        "AttributeDefinitions":[{"AttributeName":"key","AttributeType":"S"}],"BillingMode":"PAY_PER_REQUEST"}"#;
    crate::support::until("the narrow policy at all nodes", async || {
        let mut denied = 0;
        for (number, endpoint) in endpoints.iter().enumerate() {
            // Each by a name of its own: one that is still allowed makes a table.
            let body = other.replace("other", &format!("other-{number}-{}", fresh()));
            denied += u32::from(call(endpoint, &fresh(), "CreateTable", &body).await.0 != 200);
        }
        (denied == 3).then_some(())
    })
    .await;

    // As python-dynamodb-lock does it, at each node, and with the request that an SDK sends again.
    for (number, endpoint) in endpoints.iter().enumerate() {
        let put = r##"{"TableName":"locks","Item":{"key":{"S":"jobs"},"lease_duration":{"N":"30"},"owner_name":{"S":"ann"},
            "record_version_number":{"S":"0c9d1f36-3c64-4b43-8a4c-0d6f2f3f3c11"},"expiry_time":{"N":"99999999999"}},
            "ConditionExpression":"attribute_not_exists(#k)","ExpressionAttributeNames":{"#k":"key"}}"##;
        let get = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConsistentRead":true}"#;
        let delete = r##"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConditionExpression":"attribute_exists(#k)",
            "ExpressionAttributeNames":{"#k":"key"}}"##;
        let described = call(endpoint, &fresh(), "DescribeTable", r#"{"TableName":"locks"}"#).await;
        assert_eq!(described.0, 200, "{described:?}");
        let acquired = call(endpoint, &format!("put-{number}"), "PutItem", put).await;
        assert_eq!(acquired.0, 200, "{acquired:?}");
        let shown = call(endpoint, &fresh(), "GetItem", get).await;
        assert!(shown.0 == 200 && shown.1.contains("ann"), "{shown:?}");
        let released = call(endpoint, &format!("delete-{number}"), "DeleteItem", delete).await;
        assert_eq!(released.0, 200, "{released:?}");
        let again = call(endpoint, &format!("delete-{number}"), "DeleteItem", delete).await;
        assert_eq!(again, released, "the answer was kept");
        // What the rule does not name is still refused.
        let elsewhere = call(endpoint, &fresh(), "ListTables", "{}").await;
        assert!(elsewhere.0 == 400 && elsewhere.1.contains("AccessDenied"), "{elsewhere:?}");
    }
    cluster.stop().await;
}

/// An id that no other request has.
fn fresh() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("request-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
