//! DynamoDB's API over a keyspace with revisions and transactions, for the lock clients that speak it.
//!
//! ```text
//! http  bodies  unread  decoded  budget  large_work
//!             a request: its body, its signature, its time, its memory, its turn, and how long its answer waits to be read
//! call        which operation
//! tables  items  query  batch  turns
//!             what it means: read, decide, commit if nothing has changed in between, or again
//! recipes  lock_name  once
//!             what a lock service adds: leases, tokens, names for operators, retries that happen once
//! expression  legacy  request  error
//!             DynamoDB's own words, in and out
//! value  number  item  key
//!             attributes, and how they lie in the store
//! work        what a request may cost
//! store       the keyspace: a parameter
//! ```
//!
//! The store knows nothing of this API, and this crate knows nothing of replication: a program that implements [`DynamoStore`] gets the
//! endpoint by [`serve`].
//!
//! Errors have DynamoDB's types and, as far as they are known, its texts. If two things are wrong with a request, this crate may name
//! another one than DynamoDB does. If the expressions of a request are wrong and its table is missing, the error names the expression.
//!
//! Deliberately absent: secondary indexes, streams, PartiQL, backups, global tables, statistics of tables. The answer to an operation that
//! does not exist names it. The time to live of items is kept and described, but it deletes no item.

mod batch;
mod bodies;
mod budget;
mod call;
mod database;
mod decoded;
mod error;
mod expression;
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod item;
mod items;
mod key;
mod large_work;
mod legacy;
mod lock_name;
mod number;
mod once;
mod options;
mod query;
mod recipes;
mod request;
mod schema;
mod sigv4;
mod store;
mod tables;
#[cfg(test)]
mod tests;
mod turns;
mod unread;
mod value;
mod work;

pub use http::serve;
pub use lockkeeper_http1::{ConnectionSource, HttpListen};
pub use number::{Number, NumberError};
pub use options::{DynamoLimits, DynamoOptions, UnreadLimits};
pub use sigv4::Secrets;
pub use store::{
    AtEnd, DynamoCaller, DynamoCommitted, DynamoEntry, DynamoLease, DynamoPage, DynamoStore, DynamoStoreError,
    DynamoTxn, DynamoWrite,
};
pub use value::{AttributeValue, Item};
