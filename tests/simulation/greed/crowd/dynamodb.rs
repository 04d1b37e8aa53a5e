//! DynamoDB's clients whose requests take more memory than they may.

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::super::{LIMIT, refusals::RefusalJudge};
use crate::dynamodb::{CONTENDER, exchange, table};

/// Requests at one time.
const PUTS: usize = 10;
/// Empty maps of a request: few bytes, and much memory. Bytes of a text, which are as many in memory.
const MAPS: usize = 200;
const TEXT_BYTES: usize = 24_000;
const TABLE: &str = "crowds";
const HTTP_OK: u16 = 200;

/// Comes to the limits of the port at this seat.
pub(super) async fn crowd(refusals: &RefusalJudge, id: u64, seat: u64) {
    // It may be there.
    let _ = timeout(LIMIT, exchange(seat, CONTENDER, "CreateTable", &table(TABLE), &format!("{id}-table"))).await;

    let puts = (0..PUTS).map(async |number| {
        let body = never_put(&format!("crowd-{id}-{number}"), number);
        let name = format!("{id}-{number}");
        let put = exchange(seat, CONTENDER, "PutItem", &body, &name);
        if let Ok(Ok((HTTP_OK, _))) = timeout(LIMIT, put).await {
            refusals.complain(format!("the item crowd-{id}-{number} was put, and its condition cannot hold"));
        }
    });
    join_all(puts).await;
}

/// A request to put an item if it is there already, which it never is: nothing is left of a crowd.
fn never_put(key: &str, number: usize) -> Value {
    let large = if number.is_multiple_of(2) {
        json!({"L": vec![json!({"M": {}}); MAPS]})
    } else {
        json!({"S": "t".repeat(TEXT_BYTES)})
    };
    json!({
        "TableName": TABLE, "Item": {"key": {"S": key}, "large": large},
        "ConditionExpression": "attribute_exists(#key)", "ExpressionAttributeNames": {"#key": "key"},
    })
}
