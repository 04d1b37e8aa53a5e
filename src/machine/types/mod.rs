//! The types that cross the table's boundary: values, and the commands, replies, events and views that are made of them.

mod commands;
mod events;
mod replies;
mod requests;
#[cfg(test)]
mod tests;
mod views;
mod words;

pub use commands::*;
pub use events::*;
pub use replies::*;
pub use requests::*;
pub use views::*;
pub use words::*;
