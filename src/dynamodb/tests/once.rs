//! Requests that an SDK sends again.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::time::advance;

use super::{
    Api,
    locks::{GET, acquire},
};
use crate::{DynamoTxn, DynamoWrite};

async fn again(api: &Api, operation: &str, id: &str, body: &str) -> Result<Json, String> {
    api.call_again(operation, Some(id), body).await.map_err(|error| super::shown_error(&error))
}

fn acquire_with_old(owner: &str, version: &str, of_released: bool) -> String {
    let body = acquire(owner, version, of_released);
    format!(r#"{},"ReturnValues":"ALL_OLD"}}"#, body.strip_suffix('}').expect("an object"))
}

#[tokio::test]
async fn an_answer_that_was_kept_confirms_no_lock_that_another_has() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let of_ann = acquire_with_old("ann", "1", false);
    again(&api, "PutItem", "x", &of_ann).await.expect("it is free");
    again(&api, "PutItem", "x", &of_ann).await.expect("she has it");
    api.0.store.end_leases();
    let refused = again(&api, "PutItem", "x", &of_ann).await.expect_err("nobody has it");
    assert!(refused.starts_with("ConditionalCheckFailed"), "{refused}");
    api.ok("PutItem", &acquire("bob", "2", true)).await;
    let refused = again(&api, "PutItem", "x", &of_ann).await.expect_err("bob has it");
    assert!(refused.starts_with("ConditionalCheckFailed"), "{refused}");
}

#[tokio::test]
async fn an_acquisition_that_is_judged_again_has_an_answer_of_its_own() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    api.0.store.end_leases();
    let of_bob = acquire_with_old("bob", "2", true);
    again(&api, "PutItem", "x", &of_bob).await.expect("it is free");
    api.0.store.end_leases();
    let told = again(&api, "PutItem", "x", &of_bob).await.expect("it is free again");
    assert_eq!(told["Attributes"]["ownerName"], json!({"S": "bob"}), "of the second time");
    assert_eq!(api.ok("GetItem", GET).await["Item"].get("isReleased"), None);
    assert_eq!(again(&api, "PutItem", "x", &of_bob).await.expect("he has it"), told);
}

#[tokio::test]
async fn a_deletion_does_not_delete_what_came_after_it() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = r#"{"TableName":"locks","Item":{"key":{"S":"jobs"},"Info":{"S":"NAME"}},
        "ConditionExpression":"attribute_not_exists(Info)"}"#;
    let delete = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}}}"#;
    let with_condition = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConditionExpression":"Info = :i",
        "ExpressionAttributeValues":{":i":{"S":"ann"}}}"#;
    for (delete, is_repeated) in [(delete, true), (with_condition, false)] {
        api.ok("PutItem", &put.replace("NAME", "ann")).await;
        again(&api, "DeleteItem", "x", delete).await.expect("it is there");
        again(&api, "DeleteItem", "x", delete).await.expect("the same again");
        api.ok("PutItem", &put.replace("NAME", "bob")).await;
        assert_eq!(again(&api, "DeleteItem", "x", delete).await.is_ok(), is_repeated);
        assert_eq!(api.ok("GetItem", GET).await["Item"]["Info"], json!({"S": "bob"}));
        api.ok("DeleteItem", r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}}}"#).await;
    }
}

#[tokio::test]
async fn what_is_added_is_added_once() {
    let updates = ["ADD n :one", "SET n = n + :one", "SET n = if_not_exists(nix, n) + :one"];
    for (update, returned) in updates.iter().flat_map(|update| ["NONE", "UPDATED_NEW"].map(|it| (update, it))) {
        let api = Api::with_tables(&[("locks", &["key"])]).await;
        api.ok("PutItem", r#"{"TableName":"locks","Item":{"key":{"S":"jobs"},"n":{"N":"0"}}}"#).await;
        let body = format!(
            r#"{{"TableName":"locks","Key":{{"key":{{"S":"jobs"}}}},"UpdateExpression":"{update}","ReturnValues":"{returned}",
            "ExpressionAttributeValues":{{":one":{{"N":"1"}}}}}}"#
        );
        let first = again(&api, "UpdateItem", "x", &body).await;
        assert_eq!(again(&api, "UpdateItem", "x", &body).await, first);
        again(&api, "UpdateItem", "y", &body).await.expect("added");
        assert_eq!(again(&api, "UpdateItem", "x", &body).await, first);
        assert_eq!(api.ok("GetItem", GET).await["Item"]["n"], json!({"N": "2"}), "{update} {returned}");
    }
}

#[tokio::test]
async fn a_batch_that_comes_again_writes_nothing_twice() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let batch = r#"{"RequestItems":{"locks":[{"PutRequest":{"Item":{"key":{"S":"a"}}}},{"PutRequest":{"Item":{"key":{"S":"b"}}}}]}}"#;
    let first = again(&api, "BatchWriteItem", "x", batch).await.expect("written");
    let commits = api.0.store.commits();
    assert_eq!(again(&api, "BatchWriteItem", "x", batch).await, Ok(first));
    assert_eq!(api.0.store.commits(), commits);
}

#[tokio::test]
async fn a_transaction_that_comes_again_confirms_no_lock_that_is_lost() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let acquire: Json = serde_json::from_str(&acquire("ann", "1", false)).expect("JSON");
    let count = json!({"TableName": "locks", "Key": {"key": {"S": "count"}}, "UpdateExpression": "ADD n :one",
        "ExpressionAttributeValues": {":one": {"N": "1"}}});
    let of = |parts: Json| json!({"TransactItems": parts, "ClientRequestToken": "t1"}).to_string();
    let with_lock = of(json!([{"Update": count}, {"Put": acquire}]));
    let first = api.ok("TransactWriteItems", &with_lock).await;
    assert_eq!(api.ok("TransactWriteItems", &with_lock).await, first);
    api.0.store.end_leases_of("jobs");
    let error = api.call("TransactWriteItems", &with_lock).await.unwrap_err();
    let codes: Vec<_> = error["CancellationReasons"].as_array().unwrap().iter().map(|it| &it["Code"]).collect();
    assert_eq!(codes, ["None", "ConditionalCheckFailed"]);
    let get = r#"{"TableName":"locks","Key":{"key":{"S":"count"}}}"#;
    assert_eq!(api.ok("GetItem", get).await["Item"]["n"], json!({"N": "1"}), "nothing happens twice");
}

/// Some SDKs write the fields of a map in another order each time.
#[tokio::test]
async fn a_transaction_that_comes_again_in_other_words_is_the_same() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = |item: &str, rest: &str| {
        format!(
            r#"{{{rest}"ClientRequestToken":"t","TransactItems":[{{"Put":{{"TableName":"locks","Item":{item}}}}}]}}"#
        )
    };
    let first = put(r#"{"key":{"S":"a"},"set":{"SS":["x","y"]},"list":{"L":[{"S":"x"},{"S":"y"}]}}"#, "");
    api.ok("TransactWriteItems", &first).await;
    let commits = api.0.store.commits();

    let other_order = r#"{ "list":{"L":[{"S":"x"},{"S":"y"}]}, "set":{"SS":["y","x"]}, "key":{"S":"a"} }"#;
    api.ok("TransactWriteItems", &put(other_order, r#""ReturnConsumedCapacity":"TOTAL","#)).await;
    assert_eq!(api.0.store.commits(), commits, "nothing is written again");

    let other_list = r#"{"key":{"S":"a"},"set":{"SS":["x","y"]},"list":{"L":[{"S":"y"},{"S":"x"}]}}"#;
    let refused = api.error("TransactWriteItems", &put(other_list, "")).await;
    assert!(refused.starts_with("IdempotentParameterMismatchException"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_comes_again_renews_its_locks() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let acquire: Json = serde_json::from_str(&acquire("ann", "1", false)).expect("JSON");
    let lock = |key: &str| {
        let mut put = acquire.clone();
        put["Item"]["key"]["S"] = json!(key);
        json!({"Put": put})
    };
    let body = json!({"TransactItems": [lock("jobs"), lock("seats")], "ClientRequestToken": "t"}).to_string();
    let first = api.ok("TransactWriteItems", &body).await;

    // Both leases have 20 s, and the client counts them from the answer that it gets.
    advance(Duration::from_secs(15)).await;
    assert_eq!(api.ok("TransactWriteItems", &body).await, first);
    advance(Duration::from_secs(15)).await;
    for key in ["jobs", "seats"] {
        let held = api.ok("GetItem", &GET.replace("jobs", key)).await;
        assert_eq!(held["Item"].get("isReleased"), None, "{key}");
    }

    // What another writer changes in between is looked at again: the lock is lost, and the repetition is cancelled.
    let key = api.0.store.item_key("jobs");
    api.0.store.intrude(DynamoTxn { expected: Vec::new(), writes: vec![DynamoWrite::Delete { key }] });
    let error = api.call("TransactWriteItems", &body).await.unwrap_err();
    let codes: Vec<_> = error["CancellationReasons"].as_array().unwrap().iter().map(|it| &it["Code"]).collect();
    assert_eq!(codes, ["ConditionalCheckFailed", "None"]);
}

#[tokio::test]
async fn a_release_does_not_depend_on_the_memory_of_its_answer() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    api.0.store.refuse_leases();
    let release = r##"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConditionExpression":"attribute_exists(#pk)",
        "ExpressionAttributeNames":{"#pk":"key"}}"##;
    again(&api, "DeleteItem", "x", release).await.expect("released");
    assert_eq!(api.ok("GetItem", GET).await, json!({}));
}
