//! Operations on tables and items.

use serde_json::json;

use super::{Api, NOW_MS, shown_error, table};
use crate::{DynamoLease, DynamoTxn, DynamoWrite};

#[tokio::test]
async fn a_table_is_there_at_once_and_gone_at_once() {
    let api = Api::new();
    let described = api.ok("CreateTable", &table("locks", &["key", "sk"])).await;
    assert_eq!(described["TableDescription"]["TableStatus"], "ACTIVE");
    assert_eq!(
        api.error("CreateTable", &table("locks", &["key"])).await,
        "ResourceInUseException: Table already exists: locks"
    );
    let described = api.ok("DescribeTable", r#"{"TableName":"locks"}"#).await;
    let described = &described["Table"];
    assert_eq!(described["KeySchema"][1], json!({"AttributeName": "sk", "KeyType": "RANGE"}));
    assert_eq!(described["BillingModeSummary"]["BillingMode"], "PAY_PER_REQUEST");
    assert_eq!(described["CreationDateTime"], json!(NOW_MS as f64 / 1000.0));
    let by_arn = format!(r#"{{"TableName":{}}}"#, described["TableArn"]);
    assert_eq!(api.ok("DescribeTable", &by_arn).await["Table"]["TableName"], "locks");
    api.ok("UpdateTable", r#"{"TableName":"locks","BillingMode":"PROVISIONED","ProvisionedThroughput":{"ReadCapacityUnits":2,"WriteCapacityUnits":3}}"#).await;
    let described = api.ok("DescribeTable", r#"{"TableName":"locks"}"#).await;
    assert_eq!(described["Table"]["ProvisionedThroughput"]["WriteCapacityUnits"], 3);
    api.ok("DeleteTable", r#"{"TableName":"locks"}"#).await;
    assert_eq!(
        api.error("DescribeTable", r#"{"TableName":"locks"}"#).await,
        "ResourceNotFoundException: Requested resource not found: Table: locks not found"
    );
    assert_eq!(
        api.error("GetItem", r#"{"TableName":"locks","Key":{"key":{"S":"a"},"sk":{"S":"b"}}}"#).await,
        "ResourceNotFoundException: Requested resource not found"
    );
}

#[tokio::test]
async fn a_new_table_has_none_of_the_items_of_a_deleted_one_and_these_are_removed() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    for key in 0..9 {
        api.ok("PutItem", &format!(r#"{{"TableName":"locks","Item":{{"key":{{"S":"{key}"}}}}}}"#)).await;
    }
    api.ok("DeleteTable", r#"{"TableName":"locks"}"#).await;
    // The schema that is known in memory changes: the key is called otherwise.
    api.ok("CreateTable", &table("locks", &["id"])).await;
    assert_eq!(api.ok("Scan", r#"{"TableName":"locks"}"#).await["Count"], 0);
    api.ok("PutItem", r#"{"TableName":"locks","Item":{"id":{"S":"a"}}}"#).await;
    while api.0.sweep(super::caller().deadline).await.unwrap() {}
    let left = api.0.store.keys();
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(api.ok("Scan", r#"{"TableName":"locks"}"#).await["Items"], json!([{"id": {"S": "a"}}]));
}

#[tokio::test]
async fn tables_are_listed_in_pages() {
    let api = Api::with_tables(&[("ccc", &["k"]), ("aaa", &["k"]), ("bbb", &["k"])]).await;
    assert_eq!(api.ok("ListTables", "{}").await, json!({"TableNames": ["aaa", "bbb", "ccc"]}));
    let page = api.ok("ListTables", r#"{"Limit":2}"#).await;
    assert_eq!(page, json!({"TableNames": ["aaa", "bbb"], "LastEvaluatedTableName": "bbb"}));
    let page = api.ok("ListTables", r#"{"Limit":2,"ExclusiveStartTableName":"bbb"}"#).await;
    assert_eq!(page, json!({"TableNames": ["ccc"]}));
}

#[tokio::test]
async fn time_to_live_is_kept_and_described() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let describe = r#"{"TableName":"locks"}"#;
    let status = json!({"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}});
    assert_eq!(api.ok("DescribeTimeToLive", describe).await, status);
    let on = r#"{"TableName":"locks","TimeToLiveSpecification":{"AttributeName":"ttl","Enabled":true}}"#;
    api.ok("UpdateTimeToLive", on).await;
    assert_eq!(api.error("UpdateTimeToLive", on).await, "ValidationException: TimeToLive is already enabled");
    let status = json!({"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}});
    assert_eq!(api.ok("DescribeTimeToLive", describe).await, status);
    api.ok("UpdateTimeToLive", &on.replace("true", "false")).await;
    assert!(api.error("DescribeTimeToLive", r#"{"TableName":"none"}"#).await.starts_with("ResourceNotFoundException"));
}

#[tokio::test]
async fn what_is_wrong_with_a_table_is_said() {
    let api = Api::new();
    for (from, to, problem) in [
        ("locks", "lo", "TableName must be at least 3 characters long"),
        (
            "locks",
            "lo cks",
            "failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9_.-]+",
        ),
        (r#""KeyType":"HASH""#, r#""KeyType":"HUSH""#, "Member must satisfy enum value set: [HASH, RANGE]"),
        (r#""KeyType":"HASH""#, r#""KeyType":"RANGE""#, "The first KeySchemaElement is not a HASH key type"),
        (r#""AttributeType":"S""#, r#""AttributeType":"BOOL""#, "Member must satisfy enum value set: [B, N, S]"),
        ("PAY_PER_REQUEST", "PROVISIONED", "ReadCapacityUnits and WriteCapacityUnits must both be specified"),
        ("PAY_PER_REQUEST", "FREE", "Member must satisfy enum value set: [PROVISIONED, PAY_PER_REQUEST]"),
        (r#""BillingMode""#, r#""LocalSecondaryIndexes":[],"BillingMode""#, "secondary indexes are not supported here"),
        (
            r#""BillingMode""#,
            r#""StreamSpecification":{"StreamEnabled":true,"StreamViewType":"NEW_IMAGE"},"BillingMode""#,
            "streams are not supported here: leave out StreamSpecification, or set StreamEnabled to false",
        ),
        (r#""BillingMode""#, r#""StreamSpecification":{},"BillingMode""#, "streams are not supported here"),
        (r#""BillingMode""#, r#""ResourcePolicy":"{}","BillingMode""#, "resource policies are not supported here"),
        (
            r#""KeySchema""#,
            r#""Schema""#,
            "Value null at 'keySchema' failed to satisfy constraint: Member must not be null",
        ),
    ] {
        let error = api.error("CreateTable", &table("locks", &["key"]).replace(from, to)).await;
        assert!(error.contains(problem), "{to}: {error}");
    }
    assert!(api.error("CreateTable", &table("locks", &["k", "k"])).await.contains("have the same name"));
    let without_stream = r#""StreamSpecification":{"StreamEnabled":false},"BillingMode""#;
    api.ok("CreateTable", &table("plain", &["k"]).replace(r#""BillingMode""#, without_stream)).await;
    for (update, problem) in [
        (r#""StreamSpecification":{"StreamEnabled":true}"#, "streams are not supported here"),
        (r#""ReplicaUpdates":[{"Create":{"RegionName":"eu-west-1"}}]"#, "replicas in other regions are not supported"),
    ] {
        let error = api.error("UpdateTable", &format!(r#"{{"TableName":"plain",{update}}}"#)).await;
        assert!(error.contains(problem), "{update}: {error}");
    }
    api.ok(
        "CreateTable",
        &table("safe", &["k"]).replace("\"BillingMode\"", "\"DeletionProtectionEnabled\":true,\"BillingMode\""),
    )
    .await;
    assert!(api.error("DeleteTable", r#"{"TableName":"safe"}"#).await.contains("protected against deletion"));
    assert_eq!(
        api.error("Nothing", "{}").await,
        "UnknownOperationException: the operation Nothing is not supported here"
    );
}

#[tokio::test]
async fn an_item_is_put_read_updated_and_deleted() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let get = r#"{"TableName":"locks","Key":{"key":{"S":"a"}},"ConsistentRead":true,"ReturnConsumedCapacity":"TOTAL"}"#;
    let nothing = api.ok("GetItem", get).await;
    assert_eq!(nothing, json!({"ConsumedCapacity": {"TableName": "locks", "CapacityUnits": 1.0}}));
    let put = r#"{"TableName":"locks","Item":{"key":{"S":"a"},"n":{"N":"1.50"}},"ReturnValues":"ALL_OLD"}"#;
    assert_eq!(api.ok("PutItem", put).await, json!({}));
    assert_eq!(api.ok("PutItem", put).await, json!({"Attributes": {"key": {"S": "a"}, "n": {"N": "1.5"}}}));
    assert_eq!(api.ok("GetItem", get).await["Item"], json!({"key": {"S": "a"}, "n": {"N": "1.5"}}));
    let projected = get.replace("\"ConsistentRead\"", "\"ProjectionExpression\":\"n, nix\",\"ConsistentRead\"");
    assert_eq!(api.ok("GetItem", &projected).await["Item"], json!({"n": {"N": "1.5"}}));
    let update = |values: &str| {
        format!(
            r#"{{"TableName":"locks","Key":{{"key":{{"S":"a"}}}},"UpdateExpression":"SET n = n + :one, m = :one","ExpressionAttributeValues":{{":one":{{"N":"1"}}}},"ReturnValues":"{values}"}}"#
        )
    };
    assert_eq!(api.ok("UpdateItem", &update("UPDATED_OLD")).await["Attributes"], json!({"n": {"N": "1.5"}}));
    assert_eq!(
        api.ok("UpdateItem", &update("UPDATED_NEW")).await["Attributes"],
        json!({"n": {"N": "3.5"}, "m": {"N": "1"}})
    );
    let all = api.ok("UpdateItem", &update("ALL_NEW")).await;
    assert_eq!(all["Attributes"], json!({"key": {"S": "a"}, "n": {"N": "4.5"}, "m": {"N": "1"}}));
    let delete = r#"{"TableName":"locks","Key":{"key":{"S":"a"}},"ReturnValues":"ALL_OLD"}"#;
    assert_eq!(api.ok("DeleteItem", delete).await["Attributes"], all["Attributes"]);
    assert_eq!(api.ok("DeleteItem", delete).await, json!({}));
    let upsert = r#"{"TableName":"locks","Key":{"key":{"S":"b"}},"ReturnValues":"ALL_NEW"}"#;
    assert_eq!(api.ok("UpdateItem", upsert).await["Attributes"], json!({"key": {"S": "b"}}));
}

#[tokio::test]
async fn a_false_condition_changes_nothing_and_shows_the_item_where_asked() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = r##"{"TableName":"locks","Item":{"key":{"S":"a"}},"ConditionExpression":"attribute_not_exists(#k)","ExpressionAttributeNames":{"#k":"key"}}"##;
    api.ok("PutItem", put).await;
    let commits = api.0.store.commits();
    assert_eq!(api.error("PutItem", put).await, "ConditionalCheckFailedException: The conditional request failed");
    let asked = put.replace("\"Condition", "\"ReturnValuesOnConditionCheckFailure\":\"ALL_OLD\",\"Condition");
    let error = api.call("PutItem", &asked).await.unwrap_err();
    assert_eq!(error["Item"], json!({"key": {"S": "a"}}));
    assert_eq!(api.0.store.commits(), commits, "a condition that is false costs no commit");
}

#[tokio::test]
async fn a_change_in_between_is_seen() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = |n: u32, condition: &str| {
        format!(
            r#"{{"TableName":"locks","Item":{{"key":{{"S":"a"}},"n":{{"N":"{n}"}}}},"ConditionExpression":"{condition}"}}"#
        )
    };
    api.ok("PutItem", &put(1, "attribute_not_exists(n)")).await;
    let key = api.0.store.keys().into_iter().find(|key| key.contains("/item/")).unwrap();
    let intruder = DynamoTxn { expected: vec![], writes: vec![DynamoWrite::Delete { key: key.clone().into_bytes() }] };
    api.0.store.intrude(intruder);
    let error = api.error("PutItem", &put(2, "attribute_exists(n)")).await;
    assert_eq!(error, "ConditionalCheckFailedException: The conditional request failed");
    // A table that is deleted in between has no new item.
    let table = b"dynamodb/table/locks".to_vec();
    api.0.store.intrude(DynamoTxn { expected: vec![], writes: vec![DynamoWrite::Delete { key: table }] });
    assert!(api.error("PutItem", &put(2, "attribute_not_exists(n)")).await.starts_with("ResourceNotFoundException"));
    assert!(!api.0.store.keys().contains(&key));
}

#[tokio::test]
async fn writers_of_one_item_all_succeed() {
    let api = std::sync::Arc::new(Api::with_tables(&[("locks", &["key"])]).await);
    let update = r#"{"TableName":"locks","Key":{"key":{"S":"a"}},"UpdateExpression":"ADD n :one","ExpressionAttributeValues":{":one":{"N":"1"}}}"#;
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..200 {
        let api = std::sync::Arc::clone(&api);
        writers.spawn(async move { api.ok("UpdateItem", update).await });
    }
    writers.join_all().await;
    let get = r#"{"TableName":"locks","Key":{"key":{"S":"a"}}}"#;
    assert_eq!(api.ok("GetItem", get).await["Item"]["n"], json!({"N": "200"}));
}

#[tokio::test]
async fn bad_requests_have_the_known_texts() {
    let api = Api::with_tables(&[("one", &["key"]), ("two", &["key", "sk"])]).await;
    let long = "x".repeat(2049);
    let large = "x".repeat(401 << 10);
    let deep = format!("{}{}{}", r#"{"L":["#.repeat(40), r#"{"S":""}"#, "]}".repeat(40));
    let deeper = format!("{}{}{}", r#"{"L":["#.repeat(1000), r#"{"S":""}"#, "]}".repeat(1000));
    for (operation, body, problem) in [
        ("GetItem", "{".to_owned(), "SerializationException: "),
        ("GetItem", "[]".to_owned(), "SerializationException: "),
        ("GetItem", r#"{"TableName":5}"#.to_owned(), "SerializationException: "),
        ("GetItem", "{}".to_owned(), "ValidationException: The parameter 'TableName' is required but was not present in the request"),
        ("GetItem", r#"{"TableName":"one"}"#.to_owned(), "ValidationException: 1 validation error detected: Value null at 'key'"),
        ("GetItem", r#"{"TableName":"one","Key":{"key":{"N":"1"}}}"#.to_owned(), "ValidationException: The provided key element does not match the schema"),
        ("GetItem", r#"{"TableName":"two","Key":{"key":{"S":"a"}}}"#.to_owned(), "ValidationException: The provided key element does not match the schema"),
        ("GetItem", r#"{"TableName":"one","Key":{"key":{"S":""}}}"#.to_owned(), "ValidationException: One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an empty string value. Key: key"),
        ("GetItem", format!(r#"{{"TableName":"one","Key":{{"key":{{"S":"{long}"}}}}}}"#), "ValidationException: One or more parameter values were invalid: Size of hashkey has exceeded the maximum size limit of2048 bytes"),
        ("GetItem", format!(r#"{{"TableName":"two","Key":{{"key":{{"S":"a"}},"sk":{{"S":"{long}"}}}}}}"#), "Aggregated size of all range keys has exceeded the size limit of 1024 bytes"),
        ("PutItem", r#"{"TableName":"two","Item":{"key":{"S":"a"}}}"#.to_owned(), "ValidationException: One or more parameter values were invalid: Missing the key sk in the item"),
        ("PutItem", r#"{"TableName":"one","Item":{"key":{"N":"1"}}}"#.to_owned(), "ValidationException: One or more parameter values were invalid: Type mismatch for key key expected: S actual: N"),
        ("PutItem", format!(r#"{{"TableName":"one","Item":{{"key":{{"S":"a"}},"x":{{"S":"{large}"}}}}}}"#), "ValidationException: Item size has exceeded the maximum allowed size"),
        ("PutItem", format!(r#"{{"TableName":"one","Item":{{"key":{{"S":"a"}},"x":{deep}}}}}"#), "ValidationException: Nesting Levels have exceeded supported limits"),
        ("PutItem", format!(r#"{{"TableName":"one","Item":{{"key":{{"S":"a"}},"x":{deeper}}}}}"#), "SerializationException: recursion limit exceeded"),
        ("PutItem", r#"{"TableName":"one","Item":{"key":{"S":"a"}},"ReturnValues":"ALL_NEW"}"#.to_owned(), "ValidationException: Return values set to invalid value"),
        ("PutItem", r#"{"TableName":"one","Item":{"key":{"S":"a"},"n":{"N":"one"}}}"#.to_owned(), "ValidationException: The parameter cannot be converted to a numeric value: one"),
        ("PutItem", r#"{"TableName":"one","Item":{"key":{"S":"a"}},"ConditionExpression":"a = "}"#.to_owned(), "ValidationException: Invalid ConditionExpression: Syntax error; token: \"<EOF>\", near: \"= \""),
        ("PutItem", r#"{"TableName":"one","Item":{"key":{"S":"a"}},"ConditionExpression":"attribute_exists(a)","Expected":{}}"#.to_owned(), "ValidationException: Can not use both expression and non-expression parameters in the same request: Non-expression parameters: {Expected} Expression parameters: {ConditionExpression}"),
        ("UpdateItem", r#"{"TableName":"one","Key":{"key":{"S":"a"}},"UpdateExpression":"REMOVE key"}"#.to_owned(), "Attribute name is a reserved keyword; reserved keyword: key"),
        ("UpdateItem", r##"{"TableName":"one","Key":{"key":{"S":"a"}},"UpdateExpression":"REMOVE #k","ExpressionAttributeNames":{"#k":"key"}}"##.to_owned(), "ValidationException: One or more parameter values were invalid: Cannot update attribute key. This attribute is part of the key"),
        ("UpdateItem", r#"{"TableName":"one","Key":{"key":{"S":"a"}},"UpdateExpression":"SET a = b"}"#.to_owned(), "ValidationException: The provided expression refers to an attribute that does not exist in the item"),
        ("Query", r#"{"TableName":"two","KeyConditionExpression":"sk = :s","ExpressionAttributeValues":{":s":{"S":"a"}}}"#.to_owned(), "ValidationException: Query condition missed key schema element: key"),
        ("Query", r#"{"TableName":"two"}"#.to_owned(), "Either the KeyConditions or KeyConditionExpression parameter must be specified"),
        ("Query", r#"{"TableName":"two","IndexName":"by-owner","KeyConditionExpression":"sk = :s","ExpressionAttributeValues":{":s":{"S":"a"}}}"#.to_owned(), "The table does not have the specified index: by-owner"),
        ("Scan", r#"{"TableName":"two","Limit":0}"#.to_owned(), "Member must have value greater than or equal to 1"),
        ("Scan", r#"{"TableName":"two","Segment":3,"TotalSegments":2}"#.to_owned(), "is zero-based and must be less than parameter TotalSegments"),
        ("Scan", r#"{"TableName":"two","ExclusiveStartKey":{"key":{"S":"a"}}}"#.to_owned(), "The provided starting key is invalid: The provided key element does not match the schema"),
        ("BatchWriteItem", r#"{"RequestItems":{}}"#.to_owned(), "Member must have length greater than or equal to 1"),
        ("TransactWriteItems", r#"{"TransactItems":[{}]}"#.to_owned(), "TransactItems can only contain one of Check, Put, Update or Delete"),
    ] {
        let error = api.error(operation, &body).await;
        assert!(error.contains(problem), "{operation} {body:.150}: {error}");
    }
}

#[tokio::test]
async fn overload_and_an_unknown_outcome_make_sdks_try_again() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.0.store.overload(true);
    let get = r#"{"TableName":"locks","Key":{"key":{"S":"a"}}}"#;
    assert_eq!(api.error("GetItem", get).await, "ProvisionedThroughputExceededException: too many requests");
    api.0.store.overload(false);
    api.0.store.lose_the_next_answer();
    let put = r#"{"TableName":"locks","Item":{"key":{"S":"a"}}}"#;
    assert_eq!(api.error("PutItem", put).await, "InternalServerError: no answer in time");
}

#[tokio::test]
async fn queries_read_a_partition_in_order() {
    let api = Api::with_tables(&[("locks", &["key", "sk"])]).await;
    for (key, sk) in [("a", "1"), ("a", "10"), ("a", "2"), ("a", "21"), ("a", "3"), ("b", "1"), ("a\\u0000", "1")] {
        api.ok(
            "PutItem",
            &format!(
                r#"{{"TableName":"locks","Item":{{"key":{{"S":"{key}"}},"sk":{{"S":"{sk}"}},"n":{{"N":"{sk}"}}}}}}"#
            ),
        )
        .await;
    }
    let query = |condition: &str, more: &str| {
        format!(
            r##"{{"TableName":"locks","KeyConditionExpression":"#k = :k{condition}","ExpressionAttributeNames":{{"#k":"key"}},"ExpressionAttributeValues":{{":k":{{"S":"a"}}{more}}}"##
        )
    };
    let two = r#",":s":{"S":"2"}"#;
    for (condition, values, more, expected) in [
        ("", "", "", "1 10 2 21 3"),
        ("", "", r#","ScanIndexForward":false"#, "3 21 2 10 1"),
        (" AND sk = :s", two, "", "2"),
        (" AND sk < :s", two, "", "1 10"),
        (" AND sk <= :s", two, "", "1 10 2"),
        (" AND sk > :s", two, "", "21 3"),
        (" AND sk >= :s", two, r#","ScanIndexForward":false"#, "3 21 2"),
        (" AND begins_with(sk, :s)", two, "", "2 21"),
        (" AND sk BETWEEN :s AND :t", r#",":s":{"S":"10"},":t":{"S":"21"}"#, "", "10 2 21"),
        ("", "", r#","Limit":2"#, "1 10"),
        ("", "", r#","ExclusiveStartKey":{"key":{"S":"a"},"sk":{"S":"10"}}"#, "2 21 3"),
        ("", "", r#","ScanIndexForward":false,"ExclusiveStartKey":{"key":{"S":"a"},"sk":{"S":"2"}}"#, "10 1"),
        ("", r#",":f":{"N":"3"}"#, r#","FilterExpression":"n >= :f""#, "10 21 3"),
    ] {
        let body = query(condition, values) + more + "}";
        let answer = api.ok("Query", &body).await;
        let found: Vec<_> =
            answer["Items"].as_array().unwrap().iter().map(|item| item["sk"]["S"].as_str().unwrap()).collect();
        assert_eq!(found.join(" "), expected, "{condition} {more}");
        assert_eq!(answer["Count"], found.len());
    }
    let page = api.ok("Query", &(query("", "") + r#","Limit":2}"#)).await;
    assert_eq!(page["LastEvaluatedKey"], json!({"key": {"S": "a"}, "sk": {"S": "10"}}));
    let count = api.ok("Query", &(query("", "") + r#","Select":"COUNT"}"#)).await;
    assert_eq!(count, json!({"Count": 5, "ScannedCount": 5}));
}

#[tokio::test]
async fn a_scan_reads_everything_in_pages_and_segments() {
    let api = Api::with_tables(&[("locks", &["key"]), ("others", &["key"])]).await;
    for key in 0..20 {
        api.ok("PutItem", &format!(r#"{{"TableName":"locks","Item":{{"key":{{"S":"{key:02}"}}}}}}"#)).await;
    }
    let mut seen = Vec::new();
    let mut start = String::new();
    let mut pages = 0;
    loop {
        let page = api.ok("Scan", &format!(r#"{{"TableName":"locks","Limit":7{start}}}"#)).await;
        seen.extend(page["Items"].as_array().unwrap().iter().map(|item| item["key"]["S"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(last) = page.get("LastEvaluatedKey") else { break };
        start = format!(r#","ExclusiveStartKey":{last}"#);
    }
    assert_eq!((seen.len(), pages), (20, 3));
    assert!(seen.is_sorted());
    let mut of_segments = 0;
    for segment in 0..3 {
        let body = format!(r#"{{"TableName":"locks","Segment":{segment},"TotalSegments":3}}"#);
        of_segments += api.ok("Scan", &body).await["Count"].as_u64().unwrap();
    }
    assert_eq!(of_segments, 20);
    assert_eq!(api.ok("Scan", r#"{"TableName":"others"}"#).await["Count"], 0);
}

#[tokio::test]
async fn a_page_ends_at_a_megabyte() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let large = "x".repeat(300_000);
    for key in 0..5 {
        api.ok(
            "PutItem",
            &format!(r#"{{"TableName":"locks","Item":{{"key":{{"S":"{key}"}},"x":{{"S":"{large}"}}}}}}"#),
        )
        .await;
    }
    let page = api.ok("Scan", r#"{"TableName":"locks"}"#).await;
    assert_eq!((&page["Count"], &page["LastEvaluatedKey"]), (&json!(4), &json!({"key": {"S": "3"}})));
}

#[tokio::test]
async fn batches_read_and_write_each_for_itself() {
    let api = Api::with_tables(&[("one", &["key"]), ("two", &["key"])]).await;
    let write = r#"{"RequestItems":{"one":[{"PutRequest":{"Item":{"key":{"S":"a"},"n":{"N":"1"}}}},{"DeleteRequest":{"Key":{"key":{"S":"b"}}}}],"two":[{"PutRequest":{"Item":{"key":{"S":"a"}}}}]}}"#;
    assert_eq!(api.ok("BatchWriteItem", write).await, json!({"UnprocessedItems": {}}));
    let get = r#"{"RequestItems":{"one":{"Keys":[{"key":{"S":"a"}},{"key":{"S":"b"}}],"ProjectionExpression":"n"},"two":{"Keys":[{"key":{"S":"a"}}]}},"ReturnConsumedCapacity":"TOTAL"}"#;
    let answer = api.ok("BatchGetItem", get).await;
    assert_eq!(answer["Responses"], json!({"one": [{"n": {"N": "1"}}], "two": [{"key": {"S": "a"}}]}));
    assert_eq!(answer["ConsumedCapacity"][0], json!({"TableName": "one", "CapacityUnits": 1.0}));
    let twice = r#"{"RequestItems":{"one":{"Keys":[{"key":{"S":"a"}},{"key":{"S":"a"}}]}}}"#;
    assert!(api.error("BatchGetItem", twice).await.contains("contains duplicates"));
    let missing = get.replace("two", "three");
    assert!(api.error("BatchGetItem", &missing).await.starts_with("ResourceNotFoundException"));
    let keys: Vec<_> = (0..101).map(|key| format!(r#"{{"key":{{"S":"{key}"}}}}"#)).collect();
    let many = format!(r#"{{"RequestItems":{{"one":{{"Keys":[{}]}}}}}}"#, keys.join(","));
    assert!(api.error("BatchGetItem", &many).await.contains("Too many items requested for the BatchGetItem call"));
}

#[tokio::test]
async fn a_transaction_happens_wholly_or_says_why_not() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let put = |key: &str| {
        format!(
            r##"{{"Put":{{"TableName":"locks","Item":{{"key":{{"S":"{key}"}}}},"ConditionExpression":"attribute_not_exists (#0)","ExpressionAttributeNames":{{"#0":"key"}}}}}}"##
        )
    };
    let body = |parts: &[String], more: &str| format!(r#"{{"TransactItems":[{}]{more}}}"#, parts.join(","));
    api.ok("TransactWriteItems", &body(&[put("a"), put("b")], "")).await;
    let error = api.call("TransactWriteItems", &body(&[put("c"), put("b")], "")).await.unwrap_err();
    assert_eq!(
        shown_error(&error),
        "TransactionCanceledException: Transaction cancelled, please refer cancellation reasons for specific reasons [None, \
         ConditionalCheckFailed]"
    );
    assert_eq!(
        error["CancellationReasons"],
        json!([{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"}])
    );
    let keys: Vec<_> =
        ["a", "c"].map(|key| format!(r#"{{"Get":{{"TableName":"locks","Key":{{"key":{{"S":"{key}"}}}}}}}}"#)).into();
    let got = api.ok("TransactGetItems", &body(&keys, "")).await;
    assert_eq!(got, json!({"Responses": [{"Item": {"key": {"S": "a"}}}, {}]}));
    let twice = api.error("TransactWriteItems", &body(&[put("x"), put("x")], "")).await;
    assert_eq!(twice, "ValidationException: Transaction request cannot include multiple operations on one item");
    // The same token: the same answer, although the condition would be false by now; and another body is an error.
    let token = r#","ClientRequestToken":"t1""#;
    let first = api.ok("TransactWriteItems", &body(&[put("d")], token)).await;
    assert_eq!(api.ok("TransactWriteItems", &body(&[put("d")], token)).await, first);
    let other = api.error("TransactWriteItems", &body(&[put("e")], token)).await;
    assert!(other.starts_with("IdempotentParameterMismatchException"), "{other}");
    let mixed = [
        r#"{"Update":{"TableName":"locks","Key":{"key":{"S":"a"}},"UpdateExpression":"SET n = :n","ExpressionAttributeValues":{":n":{"N":"1"}}}}"#.to_owned(),
        r#"{"Delete":{"TableName":"locks","Key":{"key":{"S":"b"}}}}"#.to_owned(),
        r##"{"ConditionCheck":{"TableName":"locks","Key":{"key":{"S":"d"}},"ConditionExpression":"attribute_exists(#k)","ExpressionAttributeNames":{"#k":"key"}}}"##.to_owned(),
    ];
    api.ok("TransactWriteItems", &body(&mixed, "")).await;
    assert_eq!(api.ok("Scan", r#"{"TableName":"locks"}"#).await["Count"], 2);
}

#[tokio::test]
async fn an_entry_that_is_no_item_is_reported() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    api.ok("PutItem", r#"{"TableName":"locks","Item":{"key":{"S":"a"}}}"#).await;
    let key = api.0.store.keys().into_iter().find(|key| key.contains("/item/")).unwrap().into_bytes();
    let put = DynamoWrite::Put { key, value: vec![99], lease: DynamoLease::None };
    api.0.store.intrude(DynamoTxn { expected: vec![], writes: vec![put] });
    let _ = api.call("PutItem", r#"{"TableName":"locks","Item":{"key":{"S":"b"}}}"#).await;
    let error = api.error("GetItem", r#"{"TableName":"locks","Key":{"key":{"S":"a"}}}"#).await;
    assert_eq!(error, "InternalServerError: an entry of 1 bytes has an item format that this version cannot read");
}

#[tokio::test]
async fn deletions_of_the_older_parameter_make_no_item() {
    let api = Api::with_tables(&[("locks", &["key"])]).await;
    let update = |updates: &str| {
        format!(
            r#"{{"TableName":"locks","Key":{{"key":{{"S":"a"}}}},"ReturnValues":"ALL_NEW","AttributeUpdates":{updates}}}"#
        )
    };
    let get = r#"{"TableName":"locks","Key":{"key":{"S":"a"}}}"#;
    let deletions = r#"{"owner":{"Action":"DELETE"},"tags":{"Action":"DELETE","Value":{"SS":["x"]}}}"#;
    assert_eq!(api.ok("UpdateItem", &update(deletions)).await, json!({}));
    assert_eq!(api.ok("GetItem", get).await, json!({}));

    // Beside another change they do.
    let both = r#"{"owner":{"Action":"DELETE"},"n":{"Action":"ADD","Value":{"N":"1"}}}"#;
    api.ok("UpdateItem", &update(both)).await;
    api.ok("UpdateItem", &update(deletions)).await;
    assert_eq!(api.ok("GetItem", get).await, json!({"Item": {"key": {"S": "a"}, "n": {"N": "1"}}}));

    // And so does a `REMOVE`.
    api.ok("DeleteItem", get).await;
    let remove = r#"{"TableName":"locks","Key":{"key":{"S":"a"}},"UpdateExpression":"REMOVE owner"}"#;
    api.error("UpdateItem", remove).await;
    api.ok("UpdateItem", &remove.replace("owner", "n")).await;
    assert_eq!(api.ok("GetItem", get).await, json!({"Item": {"key": {"S": "a"}}}));
}
