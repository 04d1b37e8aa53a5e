//! Selects the operation of a request.

use crate::{
    DynamoCaller, DynamoStore,
    database::Database,
    error::{Error, ErrorType, Result},
    items::WriteKind,
    once,
};

/// Maximum number of bytes of a body about items. An item has at most 400 KiB, and six times as many in JSON if each byte is escaped.
const ITEM_BODY_BYTES_MAX: usize = 4 << 20;
/// Maximum number of bytes of a body about tables, or of an operation that does not exist.
const TABLE_BODY_BYTES_MAX: usize = 256 << 10;

/// Maximum number of bytes of the body of an operation. `most` is the limit of any body.
pub(crate) fn body_bytes_max(operation: &str, most: usize) -> usize {
    match operation {
        "BatchWriteItem" | "TransactWriteItems" => most,
        "GetItem" | "PutItem" | "UpdateItem" | "DeleteItem" | "Query" | "Scan" | "BatchGetItem"
        | "TransactGetItems" => most.min(ITEM_BODY_BYTES_MAX),
        _ => most.min(TABLE_BODY_BYTES_MAX),
    }
}

impl<S: DynamoStore> Database<S> {
    /// Executes an operation and returns the body of its answer. `invocation` is the same for all attempts of an SDK.
    pub(crate) async fn call(
        &self,
        caller: &DynamoCaller,
        operation: &str,
        invocation: Option<&str>,
        body: &[u8],
    ) -> Result<Vec<u8>> {
        let mark = || once::mark(caller, operation, invocation, body);

        let json = match operation {
            "GetItem" => return self.get_item(caller, body).await,
            "PutItem" => return self.write_item(caller, body, WriteKind::Put, mark()).await,
            "UpdateItem" => return self.write_item(caller, body, WriteKind::Update, mark()).await,
            "DeleteItem" => return self.write_item(caller, body, WriteKind::Delete, mark()).await,
            "Query" => return self.query(caller, body).await,
            "Scan" => return self.scan(caller, body).await,
            "BatchGetItem" => return self.batch_get_item(caller, body).await,
            "BatchWriteItem" => return self.batch_write_item(caller, body, mark()).await,
            "TransactWriteItems" => return self.transact_write_items(caller, body).await,
            "TransactGetItems" => return self.transact_get_items(caller, body).await,
            "CreateTable" => self.create_table(caller, body).await?,
            "DescribeTable" => self.describe_table(caller, body).await?,
            "UpdateTable" => self.update_table(caller, body).await?,
            "ListTables" => self.list_tables(caller, body).await?,
            "DeleteTable" => self.delete_table(caller, body).await?,
            "UpdateTimeToLive" => self.update_time_to_live(caller, body).await?,
            "DescribeTimeToLive" => self.describe_time_to_live(caller, body).await?,
            "TagResource" => self.tag_resource(caller, body).await?,
            "UntagResource" => self.untag_resource(caller, body).await?,
            "ListTagsOfResource" => self.list_tags_of_resource(caller, body).await?,
            other => {
                return Err(Error::new(
                    ErrorType::UnknownOperation,
                    format!("the operation {other} is not supported here"),
                ));
            }
        };

        Ok(serde_json::to_vec(&json).expect("texts and numbers are JSON"))
    }
}
