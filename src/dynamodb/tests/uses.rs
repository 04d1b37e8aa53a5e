//! What tables are used for: locks, or plain items.

use serde_json::json;

use super::{
    Api,
    locks::{GET, acquire, put_of_python},
    options, table,
};
use crate::database::Database;

const PLAIN: &str = r#"{"TableName":"locks","Item":{"key":{"S":"a"},"n":{"N":"1"}}}"#;
const ARN: &str = "arn:aws:dynamodb:us-east-1:000000000000:table/locks";

async fn tags(api: &Api) -> serde_json::Value {
    api.ok("ListTagsOfResource", &format!(r#"{{"ResourceArn":"{ARN}"}}"#)).await["Tags"].clone()
}

async fn tag(api: &Api, value: &str) -> Result<serde_json::Value, serde_json::Value> {
    let body = format!(r#"{{"ResourceArn":"{ARN}","Tags":[{{"Key":"lockkeeper:items","Value":"{value}"}}]}}"#);
    api.call("TagResource", &body).await
}

/// The attributes of an item that looks like a lock, and whose lease would be over.
async fn attributes_after(api: &Api) -> usize {
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    api.0.store.end_leases();
    let item = api.ok("GetItem", GET).await;
    api.ok("DeleteItem", r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}}}"#).await;
    item["Item"].as_object().expect("it is there").len()
}

#[tokio::test]
async fn the_first_item_decides() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", PLAIN).await;
    assert_eq!(attributes_after(&api).await, 4, "an item in a table of other items");
    assert_eq!(tags(&api).await, json!([{"Key": "lockkeeper:items", "Value": "plain"}]));
    api.ok("PutItem", &put_of_python("ann", "")).await;
    assert_eq!(api.ok("GetItem", GET).await["Item"].get("fencingToken"), None);

    let api = Api::with_tables(&[("locks", &["key"])]).await;
    assert_eq!(attributes_after(&api).await, 6, "with a token, and released");
    api.ok("PutItem", PLAIN).await;
    assert_eq!(attributes_after(&api).await, 6);
    assert_eq!(tags(&api).await, json!([{"Key": "lockkeeper:items", "Value": "locks"}]));
}

#[tokio::test]
async fn a_transaction_decides_too() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("TransactWriteItems", &format!(r#"{{"TransactItems":[{{"Put":{PLAIN}}}]}}"#)).await;
    assert_eq!(tags(&api).await, json!([{"Key": "lockkeeper:items", "Value": "plain"}]));
}

#[tokio::test]
async fn the_operator_decides_for_all_nodes() {
    let api = Api::new();
    let tagged = r#""Tags":[{"Key":"lockkeeper:items","Value":"plain"},{"Key":"team","Value":"x"}],"BillingMode""#;
    api.ok("CreateTable", &table("locks", &["key"]).replace(r#""BillingMode""#, tagged)).await;
    let other_node = Api(Database::new(api.0.store.clone(), options()));
    assert_eq!((attributes_after(&api).await, attributes_after(&other_node).await), (4, 4));

    assert_eq!(tag(&other_node, "locks").await, Ok(json!({})));
    assert_eq!((attributes_after(&api).await, attributes_after(&other_node).await), (6, 6));
    assert_eq!(tags(&api).await, json!([{"Key": "lockkeeper:items", "Value": "locks"}, {"Key": "team", "Value": "x"}]));

    let untag = format!(r#"{{"ResourceArn":"{ARN}","TagKeys":["team","lockkeeper:items"]}}"#);
    api.ok("UntagResource", &untag).await;
    assert_eq!(tags(&api).await, json!([]), "the next item decides");
    api.ok("PutItem", PLAIN).await;
    assert_eq!(attributes_after(&other_node).await, 4);
}

#[tokio::test]
async fn a_tag_that_means_nothing_is_refused() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let error = super::shown_error(&tag(&api, "lock").await.unwrap_err());
    assert!(error.contains("lockkeeper:items") && error.contains("'lock'") && error.contains("plain"), "{error}");
    let elsewhere = r#"{"ResourceArn":"arn:aws:s3:::bucket"}"#;
    assert!(api.error("ListTagsOfResource", elsewhere).await.starts_with("ValidationException"));
    let many: Vec<_> = (0..51).map(|n| format!(r#"{{"Key":"{n}","Value":""}}"#)).collect();
    let many = format!(r#"{{"ResourceArn":"{ARN}","Tags":[{}]}}"#, many.join(","));
    assert!(api.error("TagResource", &many).await.contains("50"));
}
