//! Parsers that are private to this crate, for `tests/fuzz`. This is not an interface: it changes with the parsers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    AttributeValue, DynamoCaller, DynamoOptions, DynamoStore, Item,
    database::Database,
    decoded::DecodedShare,
    expression::{names::Placeholders, parse_condition, parse_projection, parse_update},
    item::ItemRecord,
};

/// The operations, without HTTP.
#[derive(Clone, Debug)]
pub struct Operations<S>(Arc<Database<S>>);

impl<S: DynamoStore> Operations<S> {
    /// Makes the operations over a store.
    pub fn new(store: S) -> Self {
        Self(Arc::new(Database::new(store, DynamoOptions::new(|| 0, 7))))
    }

    /// Returns the body of the answer. Fails with the body of the error.
    pub async fn call(&self, operation: &str, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let deadline = Instant::now() + Duration::from_secs(60);
        let address = ([127, 0, 0, 1], 4000).into();
        let decoded = DecodedShare::default();
        let caller = DynamoCaller { identity: None, address, deadline, is_port: false, decoded };
        let answer = self.0.call(&caller, operation, None, body).await;
        answer.map_err(|error| serde_json::to_vec(&error).expect("texts and numbers are JSON"))
    }
}

/// Reads an expression: a condition, a projection or an update. Fails with the problem.
pub fn expression(kind: u8, text: &str) -> Result<(), String> {
    let names = BTreeMap::from(["#a", "#b"].map(|name| (name.to_owned(), name[1..].to_owned())));
    let value = |text: &str| AttributeValue::S(text.to_owned());
    let values = Item::from([":a", ":b"].map(|name| (name.to_owned(), value(name))));
    let placeholders = Placeholders::new(Some(&names), Some(&values)).map_err(|error| format!("{error:?}"))?;
    match kind % 3 {
        0 => parse_condition(text, &placeholders).map(|_| ()),
        1 => parse_projection(text, &placeholders).map(|_| ()),
        _ => parse_update(text, &placeholders).map(|_| ()),
    }
}

/// Reads an item from its bytes in the store, and returns its bytes. Panics if these are the bytes of another item.
pub fn record(bytes: &[u8]) -> Option<Vec<u8>> {
    let record = ItemRecord::decode(bytes).ok()?;
    let again = record.encode();
    assert_eq!(ItemRecord::decode(&again).as_ref(), Ok(&record));
    Some(again)
}
