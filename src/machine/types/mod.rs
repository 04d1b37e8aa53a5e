//! The types that cross the table's boundary: values, and the commands, replies, events and views that are made of them.

mod commands;
mod events;
mod keyspace;
mod replies;
mod transactions;
mod views;

pub use commands::*;
pub use events::*;
pub use keyspace::*;
pub use lockkeeper_types::*;
pub use replies::*;
pub use transactions::*;
pub use views::*;
