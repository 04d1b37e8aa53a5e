//! What a node can be asked, in no protocol's terms: typed requests, their replies, one error, and the caller.
//!
//! Values are those of [`lockkeeper_machine`]: a [`LockName`](lockkeeper_machine::LockName) or a [`Ttl`](lockkeeper_machine::Ttl) that
//! exists is valid, so whatever builds a request has checked its fields, and refuses bad ones with [`Error::invalid`]. Nothing here knows
//! gRPC, protobuf, Raft or the network.
//!
//! * [`requests`]: a struct for each request and each reply, and [`Call`], which pairs them;
//! * [`Error`], [`Reason`] and [`Retry`]: why a request failed, and whether it may be repeated;
//! * [`Caller`] and [`Deadline`]: where a request comes from, and until when its answer is of use.

mod caller;
mod error;
pub(crate) mod requests;

pub(crate) use caller::{Caller, Deadline};
pub(crate) use error::{Error, Reason, Retry};
pub(crate) use requests::Call;
