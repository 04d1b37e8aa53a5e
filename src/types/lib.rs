//! The words that the table, the client and a fence share, and the limits of their values.
//!
//! Values that cannot be valid cannot be made: a [`LockName`] is never empty, a [`Ttl`] is never zero. Every limit of the table is a
//! constant here, so that a client can refuse a value with the same words as a node.
//!
//! Left out: the commands, replies and events of the table, which only nodes know (`lockkeeper-machine`).
//!
//! A value has two kinds of rules. Its *form* is what the table relies on: a name is not empty, a TTL is not zero. Its *limits* are what a
//! client may ask for, and another version may have others. `new` asks for both. `from_log` asks for the form alone: what the log or a
//! snapshot has is applied as it is, since a node that refused it would stop, and all others with it. `check_limits` asks for the limits
//! of a value that exists, before it is proposed.

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
