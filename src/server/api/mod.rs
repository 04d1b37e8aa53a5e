//! The protocol-neutral interface of a node: typed requests, their replies, one error type, and the caller.
//!
//! Values have the types of [`lockkeeper_machine`]: a [`LockName`](lockkeeper_machine::LockName) or [`Ttl`](lockkeeper_machine::Ttl) is
//! always valid. So an adapter checks the fields when it builds a request, and refuses invalid ones with [`Error::invalid`]. This module
//! is independent of gRPC, protobuf, Raft and the network.
//!
//! * [`requests`]: a struct for each request and each reply, and [`ApiCall`], which pairs them;
//! * [`Error`], [`FailureReason`] and [`Retry`]: why a request failed, and whether it may be repeated;
//! * [`Caller`] and [`Deadline`]: the origin of a request, and its deadline.

mod caller;
mod error;
pub(crate) mod requests;

pub(crate) use caller::{Caller, Deadline};
pub(crate) use error::{Error, FailureReason, Retry};
pub(crate) use requests::ApiCall;
