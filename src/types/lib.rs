//! The words that the table, the client and a fence share, and the limits of their values.
//!
//! Values that cannot be valid cannot be made: a [`LockName`] is never empty, a [`Ttl`] is never zero. Every limit of the table is a
//! constant here, so that a client can refuse a value with the same words as a node.
//!
//! Left out: the commands, replies and events of the table, which only nodes know (`lockkeeper-machine`).

mod acquire;
mod limits;
mod requests;
#[cfg(test)]
mod tests;
mod values;

pub use acquire::*;
pub use limits::*;
pub use requests::*;
pub use values::*;
