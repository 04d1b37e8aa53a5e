//! The types that cross the table's boundary: values, and the commands, replies, events and views that are made of them.

mod commands;
mod conditions;
mod events;
mod keyspace;
mod puts;
mod replies;
mod selection;
mod transactions;
mod views;

pub use commands::*;
pub use conditions::*;
pub use events::*;
pub use keyspace::*;
pub use lockkeeper_types::*;
pub use puts::*;
pub use replies::*;
pub use selection::*;
pub use transactions::*;
pub use views::*;
