//! Every distinct request that unmodified lock clients sent, as they were recorded: each is understood.
//!
//! One request a line in `requests.jsonl`: its operation, the clients that sent it, its body. Texts are `x`, numbers 1; tables have the
//! names of their keys.

use serde_json::Value as Json;

use super::Api;

#[tokio::test]
async fn every_recorded_request_is_understood() {
    let api = Api::new();
    let lines = include_str!("requests.jsonl").lines();
    let mut answered = 0;
    let mut conditions_failed = 0;
    for line in lines {
        let recorded: Json = serde_json::from_str(line).unwrap();
        let operation = recorded["operation"].as_str().unwrap();
        let clients = &recorded["clients"];
        let Err(error) = api.call(operation, &recorded["body"].to_string()).await else {
            answered += 1;
            continue;
        };
        let kind = error["__type"].as_str().unwrap().rsplit('#').next().unwrap();
        let message = error["message"].as_str().unwrap();
        let expected = match operation {
            // Several clients use a table of the same keys.
            "CreateTable" => kind == "ResourceInUseException",
            "UpdateTimeToLive" => message.starts_with("TimeToLive is "),
            "PutItem" | "UpdateItem" | "DeleteItem" => kind == "ConditionalCheckFailedException",
            "TransactWriteItems" => message.contains("[ConditionalCheckFailed"),
            _ => false,
        };
        assert!(expected, "{operation} of {clients}: {error}\n{}", recorded["body"]);
        conditions_failed += u32::from(kind == "ConditionalCheckFailedException");
    }
    assert!(answered > 60 && conditions_failed > 5, "{answered} answered, {conditions_failed} conditions false");
}
