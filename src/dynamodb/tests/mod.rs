//! Whole operations, over a store in memory.

mod decoded;
mod endpoint;
mod expressions;
mod locks;
mod memory;
mod once;
mod operations;
mod pressure;
mod python;
mod removal;
mod requests;
#[path = "../../../tests/skipped/mod.rs"]
mod skipped;
mod tenure;
mod two_holders;
mod uses;
mod work;

use std::time::Duration;

use serde_json::Value as Json;
use tokio::time::Instant;

use crate::{DynamoCaller, DynamoOptions, database::Database, decoded::DecodedShare};
use memory::Memory;

/// 2025-01-01.
const NOW_MS: u64 = 1_735_689_600_000;

fn caller() -> DynamoCaller {
    let deadline = Instant::now() + Duration::from_secs(60);
    let address = ([127, 0, 0, 1], 4000).into();
    let decoded = DecodedShare::default();
    DynamoCaller { identity: Some("AKIDANN".to_owned()), address, deadline, is_port: false, decoded }
}

fn options() -> DynamoOptions {
    DynamoOptions::new(|| NOW_MS, 7)
}

/// The operations, without HTTP.
struct Api(Database<Memory>);

impl Api {
    fn new() -> Self {
        Self(Database::new(Memory::default(), options()))
    }

    /// With some tables: `name`, partition, and a sort key if there is one; all of them texts.
    async fn with_tables(tables: &[(&str, &[&str])]) -> Self {
        let api = Self::new();
        for (name, keys) in tables {
            api.ok("CreateTable", &table(name, keys)).await;
        }
        api
    }

    async fn call_again(&self, operation: &str, invocation: Option<&str>, body: &str) -> Result<Json, Json> {
        let answer = self.0.call(&caller(), operation, invocation, body.as_bytes()).await;
        match answer {
            Ok(body) => Ok(serde_json::from_slice(&body).unwrap()),
            Err(error) => Err(serde_json::to_value(&error).unwrap()),
        }
    }

    async fn call(&self, operation: &str, body: &str) -> Result<Json, Json> {
        self.call_again(operation, None, body).await
    }

    async fn ok(&self, operation: &str, body: &str) -> Json {
        self.call(operation, body).await.unwrap_or_else(|error| panic!("{operation} {body}: {error}"))
    }

    /// The type and the text of the error.
    async fn error(&self, operation: &str, body: &str) -> String {
        shown_error(&self.call(operation, body).await.expect_err(body))
    }
}

fn shown_error(error: &Json) -> String {
    let kind = error["__type"].as_str().unwrap().rsplit('#').next().unwrap().to_owned();
    format!("{kind}: {}", error["message"].as_str().unwrap())
}

fn table(name: &str, keys: &[&str]) -> String {
    let definitions: Vec<_> =
        keys.iter().map(|key| format!(r#"{{"AttributeName":"{key}","AttributeType":"S"}}"#)).collect();
    let schema: Vec<_> = keys
        .iter()
        .zip(["HASH", "RANGE"])
        .map(|(key, role)| format!(r#"{{"AttributeName":"{key}","KeyType":"{role}"}}"#))
        .collect();
    format!(
        r#"{{"TableName":"{name}","AttributeDefinitions":[{}],"KeySchema":[{}],"BillingMode":"PAY_PER_REQUEST"}}"#,
        definitions.join(","),
        schema.join(",")
    )
}
