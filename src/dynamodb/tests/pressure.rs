//! A store that has no room for more.

use serde_json::json;

use super::{Api, shown_error};

const PUT: &str = r#"{"TableName":"locks","Item":{"key":{"S":"jobs"},"n":{"N":"1"}}}"#;
const RELEASE: &str = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConditionExpression":"n = :n","ReturnValues":"ALL_OLD",
    "ExpressionAttributeValues":{":n":{"N":"1"}}}"#;
const ADD: &str = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"UpdateExpression":"ADD n :n","ReturnValues":"ALL_OLD",
    "ExpressionAttributeValues":{":n":{"N":"1"}}}"#;
const TRANSACTION: &str =
    r#"{"TransactItems":[{"Delete":{"TableName":"locks","Key":{"key":{"S":"jobs"}}}}],"ClientRequestToken":"t"}"#;

#[tokio::test(start_paused = true)]
async fn a_release_is_made_though_its_answer_cannot_be_kept_and_others_are_throttled() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", PUT).await;
    api.0.store.fill_memory();
    for (operation, body) in [("UpdateItem", ADD), ("TransactWriteItems", TRANSACTION)] {
        let error = api.call_again(operation, Some("1"), body).await.expect_err(operation);
        assert!(shown_error(&error).starts_with("ProvisionedThroughputExceeded"), "{error}");
    }

    let old = api.call_again("DeleteItem", Some("2"), RELEASE).await.expect("released");
    assert_eq!(old["Attributes"], json!({"key": {"S": "jobs"}, "n": {"N": "1"}}));
    // Nothing is remembered: a retry finds no lock of its own.
    let error = api.call_again("DeleteItem", Some("2"), RELEASE).await.expect_err("it is gone");
    assert!(shown_error(&error).starts_with("ConditionalCheckFailed"), "{error}");
}
