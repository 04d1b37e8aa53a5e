//! What becomes of the items of deleted tables.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{Api, caller, table};
use crate::DynamoCaller;

const DELETE: &str = r#"{"TableName":"locks"}"#;

async fn with_items(count: usize) -> Api {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    for key in 0..count {
        api.ok("PutItem", &format!(r#"{{"TableName":"locks","Item":{{"key":{{"S":"{key}"}}}}}}"#)).await;
    }
    api
}

fn items(api: &Api) -> usize {
    api.0.store.keys().iter().filter(|key| key.contains("/item/")).count()
}

#[tokio::test]
async fn they_are_removed_where_strangers_are_refused() {
    let api = with_items(9).await;
    api.0.store.obey_policy();
    api.ok("DeleteTable", DELETE).await;
    while api.0.sweep(caller().deadline).await.expect("the endpoint may") {}
    assert_eq!(api.0.store.keys(), Vec::<String>::new());
}

#[tokio::test]
async fn a_table_of_the_same_name_is_not_before_they_are_removed() {
    let api = with_items(9).await;
    api.ok("DeleteTable", DELETE).await;
    assert_eq!(items(&api), 9);
    assert_eq!(api.ok("ListTables", "{}").await, json!({"TableNames": []}));
    api.ok("CreateTable", &table("locks", &["key"])).await;
    assert_eq!(items(&api), 0, "their locks would be in the way of those of the new table");
    assert_eq!(api.ok("ListTables", "{}").await, json!({"TableNames": ["locks"]}));
    // The sweep does not take the new table for the old one.
    while api.0.sweep(caller().deadline).await.expect("swept") {}
    api.ok("DescribeTable", DELETE).await;
}

#[tokio::test]
async fn whoever_comes_too_early_is_told_to_come_again() {
    let api = with_items(9).await;
    api.ok("DeleteTable", DELETE).await;
    let hasty = DynamoCaller { deadline: Instant::now() + Duration::from_millis(500), ..caller() };
    let error = api.0.call(&hasty, "CreateTable", None, table("locks", &["key"]).as_bytes()).await.unwrap_err();
    let error = super::shown_error(&serde_json::to_value(&error).unwrap());
    assert!(error.starts_with("ResourceInUseException: Table is being deleted: locks"), "{error}");
    for operation in ["DescribeTable", "DeleteTable", "DescribeTimeToLive"] {
        assert!(api.error(operation, DELETE).await.starts_with("ResourceNotFoundException"), "{operation}");
    }
    api.ok("CreateTable", &table("locks", &["key"])).await;
    let error = api.error("CreateTable", &table("locks", &["key"])).await;
    assert_eq!(error, "ResourceInUseException: Table already exists: locks");
}
