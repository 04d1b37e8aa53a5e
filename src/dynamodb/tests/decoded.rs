//! The memory of requests and items that are decoded: what there is no room for is refused, and lock clients always have room.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::{
    Api, caller,
    locks::{GET, acquire},
    shown_error,
};
use crate::{
    DynamoCaller,
    budget::SharedBytes,
    decoded::{DecodedShare, SMALL_DECODED_BYTES},
};

/// Some 400 KiB of memory, and 13 KB of JSON.
const MAPS: usize = 500;
/// Room for a few of them.
const BUDGET_BYTES: usize = 1500 << 10;

fn put(key: usize) -> String {
    let maps = vec![json!({"M": {"a": {"NULL": true}}}); MAPS];
    json!({"TableName": "locks", "Item": {"key": {"S": key.to_string()}, "maps": {"L": maps}}}).to_string()
}

async fn call(api: &Api, budget: &Arc<SharedBytes>, operation: &str, body: &str) -> Result<Json, String> {
    let caller = caller();
    let decoded = DecodedShare::new(budget, caller.address.ip());
    let answer = api.0.call(&DynamoCaller { decoded, ..caller }, operation, None, body.as_bytes()).await;
    answer.map(|body| serde_json::from_slice(&body).unwrap()).map_err(|error| shown_error(&json!(error)))
}

#[tokio::test]
async fn a_page_and_a_batch_end_where_there_is_no_room_for_the_next_item() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    for key in 0..8 {
        api.ok("PutItem", &put(key)).await;
    }

    let budget = SharedBytes::new(BUDGET_BYTES, BUDGET_BYTES);
    let mut counts = Vec::new();
    let mut start = String::new();
    loop {
        let page = call(&api, &budget, "Scan", &format!(r#"{{"TableName":"locks"{start}}}"#)).await.expect("a page");
        assert_eq!(budget.in_use(), (0, 0), "all is free behind a request");
        counts.push(page["Count"].as_u64().unwrap());
        let Some(last) = page.get("LastEvaluatedKey") else { break };
        start = format!(r#","ExclusiveStartKey":{last}"#);
    }
    assert_eq!(counts.iter().sum::<u64>(), 8);
    assert!(counts.len() > 2, "{counts:?}");

    // All of them are read from the store at a time.
    let mut keys: Vec<_> = (0..8).map(|key| json!({"key": {"S": key.to_string()}})).collect();
    let mut counts = Vec::new();
    while !keys.is_empty() {
        let batch = json!({"RequestItems": {"locks": {"Keys": keys}}}).to_string();
        let answer = call(&api, &budget, "BatchGetItem", &batch).await.expect("a part of them");
        assert_eq!(budget.in_use(), (0, 0));
        counts.push(answer["Responses"]["locks"].as_array().unwrap().len());
        let left = answer["UnprocessedKeys"]["locks"]["Keys"].as_array();
        assert_eq!(left.map_or(0, Vec::len) + counts.last().unwrap(), keys.len(), "none is lost");
        keys = left.cloned().unwrap_or_default();
    }
    assert!(counts.iter().all(|count| *count > 0) && counts.len() > 1, "{counts:?}");
}

/// As DynamoDB does: keys that are left are for an answer that has some.
#[tokio::test]
async fn a_batch_without_room_for_one_item_is_throttled() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &put(0)).await;
    let budget = SharedBytes::new(BUDGET_BYTES, BUDGET_BYTES);
    let greedy = DecodedShare::new(&budget, caller().address.ip());
    let _all = greedy.charge(SMALL_DECODED_BYTES + BUDGET_BYTES).expect("it is free");

    let batch = r#"{"RequestItems":{"locks":{"Keys":[{"key":{"S":"0"}}]}}}"#;
    let error = call(&api, &budget, "BatchGetItem", batch).await.expect_err("no room");
    assert!(error.starts_with("ProvisionedThroughputExceeded") && error.contains("bytes of memory"), "{error}");
    let batch = r#"{"RequestItems":{"locks":{"Keys":[{"key":{"S":"none"}},{"key":{"S":"0"}}]}}}"#;
    let answer = call(&api, &budget, "BatchGetItem", batch).await.expect("it says that one of them is absent");
    assert_eq!(answer["UnprocessedKeys"]["locks"]["Keys"], json!([{"key": {"S": "0"}}]));
}

#[tokio::test]
async fn a_lock_is_held_and_given_back_while_others_use_up_the_memory() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let budget = SharedBytes::new(BUDGET_BYTES, BUDGET_BYTES);
    let greedy = DecodedShare::new(&budget, caller().address.ip());
    let _all = greedy.charge(SMALL_DECODED_BYTES + BUDGET_BYTES).expect("it is free");

    let error = call(&api, &budget, "PutItem", &put(1)).await.expect_err("no room");
    assert!(error.starts_with("ProvisionedThroughputExceeded") && error.contains("bytes of memory"), "{error}");
    let transaction = format!(r#"{{"TransactItems":[{{"Put":{}}}]}}"#, put(1));
    let error = call(&api, &budget, "TransactWriteItems", &transaction).await.expect_err("no room");
    assert!(error.starts_with("ProvisionedThroughputExceeded"), "{error}");

    let release = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}}}"#;
    for (operation, body) in [("PutItem", &*acquire("ann", "1", false)), ("GetItem", GET), ("DeleteItem", release)] {
        call(&api, &budget, operation, body).await.expect(operation);
    }
}

/// The first ones show that they are too many. Each would take two kilobytes.
#[tokio::test]
async fn further_parts_of_a_transaction_are_not_decoded() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    for (operation, part) in [("TransactWriteItems", "{}"), ("TransactGetItems", r#"{"Get":{}}"#)] {
        let body = format!(r#"{{"TransactItems":[{},"no part"]}}"#, vec![part; 101].join(","));
        let error = api.error(operation, &body).await;
        assert!(error.contains("Member must have length less than or equal to 100"), "{error}");
    }
}
