//! What a request costs: few bytes that would ask for much work are refused, and long work ends.
//!
//! Each of these requests once took from seconds to minutes. Times are not asserted: the tests do not end where one does again.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::Api;

/// Many of something, with commas between.
fn many(count: usize, each: impl Fn(usize) -> String) -> String {
    (0..count).map(each).collect::<Vec<_>>().join(",")
}

async fn put(api: &Api, key: &str, attributes: &str) {
    api.ok("PutItem", &format!(r#"{{"TableName":"locks","Item":{{"key":{{"S":"{key}"}},{attributes}}}}}"#)).await;
}

async fn api() -> Api {
    Api::with_tables(&[("locks", &["key"])]).await
}

#[tokio::test]
async fn counts_are_looked_at_before_anything_else() {
    let api = api().await;
    let names = many(100_000, |number| format!(r#""attribute{number}""#));
    let keys = many(100_000, |number| format!(r#"{{"key":{{"S":"{number}"}}}}"#));
    let values = many(100_000, |number| format!(r#"{{"N":"{number}"}}"#));
    let placeholders = many(101, |number| format!(":v{number}"));
    let of_placeholders = many(101, |number| format!(r#"":v{number}":{{"N":"1"}}"#));
    let conditions = many(100_000, |number| {
        format!(r#""a{number}":{{"ComparisonOperator":"EQ","AttributeValueList":[{{"N":"1"}}]}}"#)
    });
    let schema = many(100_000, |number| format!(r#"{{"AttributeName":"a{number}","KeyType":"HASH"}}"#));
    let definitions = many(100_000, |number| format!(r#"{{"AttributeName":"b{number}","AttributeType":"S"}}"#));
    let tables = many(100_000, |number| format!(r#""table{number}":{{"Keys":[{{"key":{{"S":"a"}}}}]}}"#));
    for (operation, body, problem) in [
        (
            "GetItem",
            format!(r#"{{"TableName":"locks","Key":{{"key":{{"S":"a"}}}},"AttributesToGet":[{names}]}}"#),
            "Value '100000 names' at 'attributesToGet' failed to satisfy constraint: Member must have length between 1 and 255",
        ),
        (
            "BatchGetItem",
            format!(r#"{{"RequestItems":{{"locks":{{"Keys":[{keys}]}}}}}}"#),
            "Too many items requested for the BatchGetItem call",
        ),
        (
            "BatchGetItem",
            format!(r#"{{"RequestItems":{{{tables}}}}}"#),
            "Too many items requested for the BatchGetItem call",
        ),
        (
            "Scan",
            format!(
                r#"{{"TableName":"locks","ScanFilter":{{"n":{{"ComparisonOperator":"IN","AttributeValueList":[{values}]}}}}}}"#
            ),
            "number of operands: 100000, maximum number of operands: 100",
        ),
        (
            "Scan",
            format!(
                r#"{{"TableName":"locks","FilterExpression":"n IN ({placeholders})","ExpressionAttributeValues":{{{of_placeholders}}}}}"#
            ),
            "number of operands: 101, maximum number of operands: 100",
        ),
        (
            "Scan",
            format!(r#"{{"TableName":"locks","ScanFilter":{{{conditions}}}}}"#),
            "conditions for 100000 attributes, and the limit is 300",
        ),
        (
            "Query",
            format!(r#"{{"TableName":"locks","KeyConditions":{{{conditions}}}}}"#),
            "conditions for 100000 attributes, and the limit is 300",
        ),
        (
            "CreateTable",
            format!(
                r#"{{"TableName":"more","KeySchema":[{schema}],"AttributeDefinitions":[{definitions}],"BillingMode":"PAY_PER_REQUEST"}}"#
            ),
            "Value '100000 elements' at 'keySchema' failed to satisfy constraint",
        ),
    ] {
        let error = api.error(operation, &body).await;
        assert!(error.contains(problem), "{operation}: {error}");
    }
}

#[tokio::test]
async fn placeholders_have_a_limit_of_bytes_however_often_they_are_used() {
    let api = api().await;
    let large = "x".repeat(100_000);
    let uses = many(100, |_| ":v".to_owned());
    let scan = |filter: &str, names: &str, values: &str| {
        format!(
            r##"{{"TableName":"locks","FilterExpression":"{filter}","ExpressionAttributeNames":{{"#n":"{names}"}},"ExpressionAttributeValues":{{":v":{{"S":"{values}"}}}}}}"##
        )
    };
    let error = api.error("Scan", &scan(&format!("#n IN ({uses})"), "n", &large)).await;
    assert!(
        error.contains("stand for more than 4194304 bytes, each as often as it is used: use :v less often"),
        "{error}"
    );
    let error = api.error("Scan", &scan("#n = :v", "n", &"x".repeat(3 << 20))).await;
    assert!(error.contains("and the limit is 2097152"), "{error}");
    let error = api.error("Scan", &scan("#n = :v", &large, "x")).await;
    assert!(error.contains("a name of 100000 bytes, and the limit is 65535"), "{error}");
    let deep = many(40, |_| "a".to_owned()).replace(',', ".");
    let error = api.error("Scan", &scan(&format!("{deep} = :v AND #n = :v"), "n", "x")).await;
    assert!(error.contains("too many nesting elements; maximum: 32"), "{error}");
}

#[tokio::test]
async fn bytes_are_searched_in_linear_time() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let api = api().await;
    let whole = STANDARD.encode(vec![0; 380_000]);
    put(&api, "a", &format!(r#""b":{{"B":"{whole}"}}"#)).await;
    // Found nowhere, and nearly everywhere; and that twenty times.
    let part = STANDARD.encode([vec![0; 190_000], vec![1]].concat());
    let searches = vec!["contains(b, :p)"; 20].join(" OR ");
    let body = format!(
        r#"{{"TableName":"locks","FilterExpression":"{searches}","ExpressionAttributeValues":{{":p":{{"B":"{part}"}}}}}}"#
    );
    assert_eq!(api.ok("Scan", &body).await["Count"], 0);
    assert_eq!(api.ok("Scan", &body.replace(&part, &STANDARD.encode([0; 1000]))).await["Count"], 1);
}

/// A filter that searches a list that many times.
fn searching(times: usize) -> String {
    let mut filter = "contains(l, :v)".to_owned();
    (1..times).for_each(|_| write!(filter, " OR contains(l, :v)").expect("a text grows"));
    format!(r#""FilterExpression":"{filter}","ExpressionAttributeValues":{{":v":{{"S":"x"}}}}"#)
}

#[tokio::test]
async fn a_scan_of_much_work_ends_its_page_early_and_goes_on() {
    let api = api().await;
    let list = many(90_000, |_| r#"{"NULL":true}"#.to_owned());
    for key in 0..4 {
        put(&api, &key.to_string(), &format!(r#""l":{{"L":[{list}]}}"#)).await;
    }
    // 900,000 values an item, of 2,097,152.
    let mut scanned = 0;
    let mut pages = 0;
    let mut start = String::new();
    loop {
        let page = api.ok("Scan", &format!(r#"{{"TableName":"locks",{}{start}}}"#, searching(10))).await;
        scanned += page["ScannedCount"].as_u64().unwrap();
        pages += 1;
        let Some(last) = page.get("LastEvaluatedKey") else { break };
        start = format!(r#","ExclusiveStartKey":{last}"#);
    }
    assert_eq!(scanned, 4);
    assert!(pages > 1, "{pages}");

    // One item alone is too much: nothing could go on behind it.
    let error = api.error("Scan", &format!(r#"{{"TableName":"locks",{}}}"#, searching(100))).await;
    assert!(error.contains("more than 2097152 units of work, the limit"), "{error}");
    let delete = searching(100).replace("FilterExpression", "ConditionExpression");
    let error =
        api.error("DeleteItem", &format!(r#"{{"TableName":"locks","Key":{{"key":{{"S":"0"}}}},{delete}}}"#)).await;
    assert!(error.contains("more than 2097152 units of work, the limit"), "{error}");
}

#[tokio::test]
async fn a_segment_without_items_does_not_read_the_whole_table_at_once() {
    let api = api().await;
    let text = "x".repeat(380_000);
    for key in 0..50 {
        put(&api, &format!("{key:02}"), &format!(r#""x":{{"S":"{text}"}}"#)).await;
    }
    let scan = r#"{"TableName":"locks","Segment":999999,"TotalSegments":1000000"#;
    let page = api.ok("Scan", &format!("{scan}}}")).await;
    assert_eq!((&page["Count"], &page["ScannedCount"]), (&json!(0), &json!(0)));
    let start = page.get("LastEvaluatedKey").expect("16 MiB are read at a time");
    let page = api.ok("Scan", &format!(r#"{scan},"ExclusiveStartKey":{start}}}"#)).await;
    assert_eq!(page, json!({"Items": [], "Count": 0, "ScannedCount": 0}));
}

#[tokio::test]
async fn a_batch_leaves_what_its_answer_has_no_room_for() {
    let api = api().await;
    // Three bytes a number here, and 130 in JSON.
    let numbers = many(20_000, |number| format!(r#""{}E121""#, 1 + number));
    for key in 0..4 {
        put(&api, &key.to_string(), &format!(r#""n":{{"NS":[{numbers}]}}"#)).await;
    }
    let keys = many(4, |key| format!(r#"{{"key":{{"S":"{key}"}}}}"#));
    let answer = api.ok("BatchGetItem", &format!(r#"{{"RequestItems":{{"locks":{{"Keys":[{keys}]}}}}}}"#)).await;
    assert_eq!(answer["Responses"]["locks"].as_array().map(Vec::len), Some(1));
    assert_eq!(answer["UnprocessedKeys"]["locks"]["Keys"].as_array().map(Vec::len), Some(3));
    let page = api.ok("Scan", r#"{"TableName":"locks"}"#).await;
    assert_eq!((&page["Count"], &page["LastEvaluatedKey"]), (&json!(1), &json!({"key": {"S": "0"}})));
}

#[tokio::test]
async fn a_transaction_has_a_limit_of_bytes() {
    let api = api().await;
    let text = "x".repeat(390_000);
    for key in 0..12 {
        put(&api, &key.to_string(), &format!(r#""x":{{"S":"{text}"}}"#)).await;
    }
    for (operation, part) in [("TransactGetItems", "Get"), ("TransactWriteItems", "Delete")] {
        let parts = |count| {
            many(count, |key| format!(r#"{{"{part}":{{"TableName":"locks","Key":{{"key":{{"S":"{key}"}}}}}}}}"#))
        };
        let error = api.error(operation, &format!(r#"{{"TransactItems":[{}]}}"#, parts(12))).await;
        assert!(error.contains("bytes, and the limit is 4194304"), "{error}");
        api.ok(operation, &format!(r#"{{"TransactItems":[{}]}}"#, parts(10))).await;
    }
}

#[tokio::test]
async fn an_update_makes_no_more_than_fits_into_an_item() {
    let api = api().await;
    put(&api, "a", &format!(r#""b":{{"S":"{}"}}"#, "x".repeat(100_000))).await;
    let update = |expression: &str, values: &str| {
        format!(
            r#"{{"TableName":"locks","Key":{{"key":{{"S":"a"}}}},"UpdateExpression":"{expression}"{values},"ReturnValues":"ALL_NEW"}}"#
        )
    };
    let copies = many(600, |number| format!("a{number}=b"));
    let error = api.error("UpdateItem", &update(&format!("SET {copies}"), "")).await;
    assert!(error.contains("Item size to update has exceeded the maximum allowed size"), "{error}");

    let list = many(60_000, |number| format!(r#"{{"N":"{number}"}}"#));
    put(&api, "a", &format!(r#""l":{{"L":[{list},{{"SS":["x"]}},{{"S":"last"}}]}},"m":{{"M":{{"n":{{"N":"1"}}}}}}"#))
        .await;
    let removed = many(300, |number| format!("l[{}]", 200 * number + 1));
    let values = r#","ExpressionAttributeValues":{":x":{"SS":["x"]},":y":{"S":"y"}}"#;
    let expression = format!("DELETE l[60000] :x SET l[60001] = :y REMOVE m.n, l[99999], {removed}");
    let shown = api.ok("UpdateItem", &update(&expression, values)).await;
    let left: Vec<&Json> = shown["Attributes"]["l"]["L"].as_array().unwrap().iter().collect();
    assert_eq!(left.len(), 60_000 - 300 + 1);
    assert_eq!(left[..3], [&json!({"N": "0"}), &json!({"N": "2"}), &json!({"N": "3"})]);
    assert_eq!(left.last(), Some(&&json!({"S": "y"})), "each index means what it meant before");
    assert_eq!(shown["Attributes"]["m"], json!({"M": {}}));
}
