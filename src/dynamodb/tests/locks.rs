//! What a lock service adds: leases, tokens, and retries that happen once.

use serde_json::json;

use super::Api;

const PUT: &str = r##"{"TableName":"locks","Item":{"key":{"S":"jobs"},"ownerName":{"S":"OWNER"},"recordVersionNumber":{"S":"VERSION"},
    "leaseDuration":{"S":"20000"}},"ConditionExpression":"CONDITION","ExpressionAttributeNames":{"#pk":"key"IR}VALUES}"##;
pub(super) const GET: &str = r#"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConsistentRead":true}"#;

/// A version as its clients write it.
pub(super) fn uuid(version: &str) -> String {
    format!("00000000-0000-4000-8000-{version:0>12}")
}

/// An acquire of the Java client: of a lock that is not there, or of one that reads as released.
pub(super) fn acquire(owner: &str, version: &str, of_released: bool) -> String {
    let (condition, names, values) = if of_released {
        (
            "attribute_exists(#pk) AND #ir = :ir",
            r##","#ir":"isReleased""##,
            r#","ExpressionAttributeValues":{":ir":{"S":"1"}}"#,
        )
    } else {
        ("attribute_not_exists(#pk)", "", "")
    };
    let body = PUT.replace("OWNER", owner).replace("VERSION", &uuid(version)).replace("CONDITION", condition);
    body.replace("IR", names).replace("VALUES", values)
}

fn heartbeat(owner: &str, from: &str, to: &str) -> String {
    let from = uuid(from);
    let to = uuid(to);
    format!(
        r##"{{"TableName":"locks","Key":{{"key":{{"S":"jobs"}}}},"UpdateExpression":"SET #ld = :ld, #rvn = :newRvn",
        "ConditionExpression":"attribute_exists(#pk) AND #rvn = :rvn AND #on = :on","ExpressionAttributeNames":{{"#pk":"key",
        "#ld":"leaseDuration","#rvn":"recordVersionNumber","#on":"ownerName"}},"ExpressionAttributeValues":{{":ld":{{"S":"20000"}},
        ":rvn":{{"S":"{from}"}},":newRvn":{{"S":"{to}"}},":on":{{"S":"{owner}"}}}}}}"##
    )
}

pub(super) async fn token(api: &Api) -> u64 {
    let item = api.ok("GetItem", GET).await;
    item["Item"]["fencingToken"]["N"].as_str().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_dead_holders_lock_is_free_when_its_lease_is_over() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    let first = token(&api).await;
    assert!(api.error("PutItem", &acquire("bob", "2", true)).await.starts_with("ConditionalCheckFailed"));
    tokio::time::advance(std::time::Duration::from_secs(15)).await;
    api.ok("UpdateItem", &heartbeat("ann", "1", "1b")).await;
    tokio::time::advance(std::time::Duration::from_secs(15)).await;
    assert_eq!(api.ok("GetItem", GET).await["Item"].get("isReleased"), None, "renewed");
    assert_eq!(token(&api).await, first, "a renewal is no acquisition");
    tokio::time::advance(std::time::Duration::from_secs(6)).await;
    assert_eq!(api.ok("GetItem", GET).await["Item"]["isReleased"], json!({"S": "1"}));
    api.ok("PutItem", &acquire("bob", "2", true)).await;
    let item = api.ok("GetItem", GET).await;
    assert_eq!((&item["Item"]["ownerName"], item["Item"].get("isReleased")), (&json!({"S": "bob"}), None));
    assert!(token(&api).await > first);
    // The old holder finds out.
    assert!(api.error("UpdateItem", &heartbeat("ann", "1b", "1c")).await.starts_with("ConditionalCheckFailed"));
}

/// Otherwise somebody who goes on writing an item, slowly, ends the lease of its holder.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_gets_through_beside_a_writer_that_does_not_end() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    let key = api.0.store.item_key("jobs");
    let slow = api.0.turns.take_if_free(&key).expect("nobody writes it");
    let beat = heartbeat("ann", "1", "2");
    let renewed = tokio::time::timeout(std::time::Duration::from_secs(5), api.ok("UpdateItem", &beat));
    renewed.await.expect("it does not wait for ever");
    drop(slow);
}

#[tokio::test(start_paused = true)]
async fn a_late_heartbeat_holds_the_lock_again_if_nobody_took_it() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    tokio::time::advance(std::time::Duration::from_secs(21)).await;
    api.ok("UpdateItem", &heartbeat("ann", "1", "2")).await;
    let item = api.ok("GetItem", GET).await;
    assert_eq!(item["Item"].get("isReleased"), None, "what was only shown is not stored");
    assert!(api.error("PutItem", &acquire("bob", "2", true)).await.starts_with("ConditionalCheckFailed"));
}

#[tokio::test]
async fn the_holder_that_an_operator_took_a_lock_from_finds_out_and_the_next_caller_has_it() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", &acquire("ann", "1", false)).await;
    let first = token(&api).await;
    api.0.store.revoke_leases();
    assert!(api.error("UpdateItem", &heartbeat("ann", "1", "2")).await.starts_with("ConditionalCheckFailed"));
    let release = r##"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConditionExpression":"#rvn = :rvn",
        "ExpressionAttributeNames":{"#rvn":"recordVersionNumber"},"ExpressionAttributeValues":{":rvn":{"S":"VERSION"}}}"##;
    assert!(
        api.error("DeleteItem", &release.replace("VERSION", &uuid("1"))).await.starts_with("ConditionalCheckFailed")
    );
    let item = api.ok("GetItem", GET).await;
    assert_eq!(item["Item"]["isReleased"], json!({"S": "1"}));
    assert_ne!(item["Item"]["recordVersionNumber"], json!({"S": uuid("1")}));
    api.ok("PutItem", &acquire("bob", "2", true)).await;
    assert!(token(&api).await > first);
    assert_eq!(api.ok("GetItem", GET).await["Item"]["recordVersionNumber"], json!({"S": uuid("2")}));
}

/// The version that the owner writes.
fn version_of(owner: &str) -> String {
    uuid(&owner.bytes().map(|byte| format!("{byte:x}")).collect::<String>())
}

/// An acquire of `python-dynamodb-lock`: of a lock that is not there.
pub(super) fn put_of_python(owner: &str, more: &str) -> String {
    let version = version_of(owner);
    format!(
        r##"{{"TableName":"locks","Item":{{"key":{{"S":"jobs"}},"owner_name":{{"S":"{owner}"}},"record_version_number":{{"S":"{version}"}},
        "lease_duration":{{"N":"30"}},"expiry_time":{{"N":"1735693200"}}{more}}},"ConditionExpression":"NOT(attribute_exists(#pk))",
        "ExpressionAttributeNames":{{"#pk":"key"}}}}"##
    )
}

#[tokio::test]
async fn where_released_is_absent_the_next_caller_creates_the_item() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = |owner: &str| put_of_python(owner, "");
    let release = |owner: &str| {
        format!(
            r##"{{"TableName":"locks","Key":{{"key":{{"S":"jobs"}}}},"ConditionExpression":"attribute_exists(#pk) AND #rvn = :rvn",
        "ExpressionAttributeNames":{{"#pk":"key","#rvn":"record_version_number"}},"ExpressionAttributeValues":{{":rvn":{{"S":"{}"}}}}}}"##,
            version_of(owner)
        )
    };
    api.ok("PutItem", &put("ann")).await;
    assert!(api.error("PutItem", &put("bob")).await.starts_with("ConditionalCheckFailed"));
    api.0.store.end_leases();
    assert_eq!(api.ok("GetItem", GET).await, json!({}));
    assert_eq!(api.ok("Scan", r#"{"TableName":"locks"}"#).await["Count"], 0);
    api.ok("PutItem", &put("bob")).await;
    assert!(api.error("DeleteItem", &release("ann")).await.starts_with("ConditionalCheckFailed"));
    api.ok("DeleteItem", &release("bob")).await;
}

#[tokio::test]
async fn a_retry_whose_first_try_took_effect_is_answered_as_that() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let release = r##"{"TableName":"locks","Key":{"key":{"S":"jobs"}},"ConditionExpression":"attribute_exists(#pk)",
        "ExpressionAttributeNames":{"#pk":"key"},"ReturnValues":"ALL_OLD"}"##;
    for (operation, body) in [("PutItem", &*acquire("ann", "1", false)), ("DeleteItem", release)] {
        api.0.store.lose_the_next_answer();
        let lost = api.call_again(operation, Some("id"), body).await;
        assert!(lost.unwrap_err()["__type"].as_str().unwrap().ends_with("InternalServerError"));
        let commits = api.0.store.commits();
        let held = api.ok("GetItem", GET).await;
        let again = api.call_again(operation, Some("id"), body).await.unwrap();
        assert_eq!(again.get("Attributes").is_some(), operation == "DeleteItem");
        // Nothing happens twice, but that a lock is renewed.
        assert_eq!(api.0.store.commits() - commits, u64::from(operation == "PutItem"));
        assert_eq!(api.ok("GetItem", GET).await, held);
        // Another call is another request.
        assert!(api.call_again(operation, Some("id2"), body).await.is_err());
        assert!(api.call_again(operation, None, body).await.is_err());
    }
}

#[tokio::test]
async fn a_retry_after_somebody_else_has_the_lock_fails() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.0.store.lose_the_next_answer();
    let of_ann = acquire("ann", "1", false);
    api.call_again("PutItem", Some("id"), &of_ann).await.unwrap_err();
    api.0.store.end_leases();
    api.ok("PutItem", &acquire("bob", "2", true)).await;
    let retried = api.call_again("PutItem", Some("id"), &of_ann).await.unwrap_err();
    assert!(retried["__type"].as_str().unwrap().ends_with("ConditionalCheckFailedException"));
}

#[tokio::test]
async fn a_retry_after_the_end_of_its_lease_does_not_hold_the_lock() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.0.store.lose_the_next_answer();
    let of_ann = acquire("ann", "1", false);
    api.call_again("PutItem", Some("id"), &of_ann).await.unwrap_err();
    api.0.store.end_leases();
    // The item reads as released, which is what its condition is about.
    let retried = api.call_again("PutItem", Some("id"), &of_ann).await.unwrap_err();
    assert!(retried["__type"].as_str().unwrap().ends_with("ConditionalCheckFailedException"), "{retried}");
    api.ok("PutItem", &acquire("bob", "2", true)).await;
}

#[tokio::test(start_paused = true)]
async fn answers_are_kept_for_a_time() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = PUT
        .replace("OWNER", "ann")
        .replace("VERSION", &uuid("1"))
        .replace("CONDITION", "attribute_not_exists(#pk)")
        .replace("IR", "")
        .replace("VALUES", r#","ReturnValues":"ALL_OLD""#);
    api.call_again("PutItem", Some("id"), &put).await.unwrap();
    assert!(api.0.store.keys().iter().any(|key| key.starts_with("dynamodb/once/")));
    tokio::time::advance(std::time::Duration::from_secs(121)).await;
    assert!(!api.0.store.keys().iter().any(|key| key.starts_with("dynamodb/once/")));
}
