//! Whoever is told that his write succeeded, and left a lock that is not released, holds it.

use serde_json::json;

use super::{
    Api,
    locks::{GET, acquire, put_of_python, token},
};

async fn refuses(api: &Api, operation: &str, body: &str) {
    let error = api.error(operation, body).await;
    assert!(error.starts_with("ConditionalCheckFailed"), "{error}");
}

/// An SDK that lost the answer sends the put again, after the lease.
#[tokio::test]
async fn a_put_that_comes_again_after_its_lease_acquires_the_lock() {
    // Where the item is deleted with its lease, and where it has data of its own and stays.
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let of_ann = put_of_python("ann", "");
    api.ok("PutItem", &of_ann).await;
    let first = token(&api).await;
    api.0.store.end_leases();
    api.ok("PutItem", &of_ann).await;
    assert!(token(&api).await > first);
    refuses(&api, "PutItem", &put_of_python("bob", "")).await;
    api.0.store.end_leases();
    api.ok("PutItem", &put_of_python("bob", "")).await;
}

#[tokio::test]
async fn a_put_of_a_released_lock_by_the_same_words_acquires_it() {
    for forced in [false, true] {
        let api = Api::with_tables(&[("locks", &["key"])]).await;
        api.ok("PutItem", &acquire("ann", "1", false)).await;
        let first = token(&api).await;
        if forced {
            api.0.store.revoke_leases()
        } else {
            api.0.store.end_leases()
        }
        api.ok("PutItem", &acquire("ann", "1", true)).await;
        assert_eq!(api.ok("GetItem", GET).await["Item"].get("isReleased"), None);
        assert!(token(&api).await > first);
        refuses(&api, "PutItem", &acquire("bob", "2", true)).await;
        api.0.store.end_leases();
        api.ok("PutItem", &acquire("bob", "2", true)).await;
    }
}

/// The Java client acquires so, if it was told to.
#[tokio::test]
async fn an_update_of_a_released_lock_by_the_same_words_acquires_it() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    api.0.store.end_leases();
    let update = r##"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"UpdateExpression":"SET #k0=:v0 REMOVE #ir",
        "ConditionExpression":"attribute_exists(#pk) AND #ir = :ir","ExpressionAttributeNames":{"#pk":"key","#k0":"ownerName",
        "#ir":"isReleased"},"ExpressionAttributeValues":{":ir":{"S":"1"},":v0":{"S":"ann"}}}"##;
    api.ok("UpdateItem", update).await;
    refuses(&api, "PutItem", &acquire("bob", "2", true)).await;
    api.0.store.end_leases();
    api.ok("PutItem", &acquire("bob", "2", true)).await;
}

#[tokio::test]
async fn a_note_on_a_lock_that_is_over_acquires_nothing() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    api.0.store.end_leases();
    let note = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"UpdateExpression":"SET note = :n",
        "ExpressionAttributeValues":{":n":{"S":"x"}},"ReturnValues":"ALL_NEW"}"#;
    let told = api.ok("UpdateItem", note).await;
    assert_eq!(told["Attributes"]["isReleased"], json!({"S": "1"}), "{told}");
    api.ok("PutItem", &acquire("bob", "2", true)).await;
}

/// A lock with data of its own reads as it is when its lease is over, and loses nothing.
#[tokio::test]
async fn an_item_with_other_attributes_is_neither_hidden_nor_replaced() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &put_of_python("ann", r#","salary":{"N":"9"}"#)).await;
    api.0.store.end_leases();
    assert_eq!(api.ok("GetItem", GET).await["Item"]["salary"], json!({"N": "9"}));
    assert_eq!(api.ok("Scan", r#"{"TableName":"locks"}"#).await["Count"], 1);
    refuses(&api, "PutItem", &put_of_python("bob", "")).await;
    let note = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"UpdateExpression":"SET note = :n",
        "ExpressionAttributeValues":{":n":{"S":"x"}}}"#;
    api.ok("UpdateItem", note).await;
    let item = api.ok("GetItem", GET).await;
    assert_eq!((&item["Item"]["salary"], &item["Item"]["note"]), (&json!({"N": "9"}), &json!({"S": "x"})));
}

#[tokio::test]
async fn a_lock_that_reads_as_absent_leaves_no_item() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &put_of_python("ann", "")).await;
    api.0.store.end_leases();
    let left = api.0.store.keys();
    assert!(!left.iter().any(|key| key.contains("/item/")), "{left:?}");
}
