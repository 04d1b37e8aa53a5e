//! The messages of the API, as generated from `proto/`. What nodes say to each other is in `lockkeeper-raft`.
//!
//! A program in Rust has less work with `lockkeeper-client`, which retries, renews sessions and knows when a lock is lost. These messages
//! are for what it leaves out: a proxy, a test, another client.
//!
//! ```
//! use lockkeeper_proto::v1::{AcquireRequest, RequestId, Want};
//!
//! let want = Want { name: "reports/nightly".to_owned(), ..Default::default() };
//! let request = AcquireRequest {
//!     session_id: "00000000000000000000000000000001".to_owned(),
//!     request: Some(RequestId { id: 1, lowest: 1, ..Default::default() }),
//!     locks: vec![want],
//!     ..Default::default()
//! };
//! // An unset field has the meaning that the .proto file gives it: here an exclusive lock, and no wait.
//! assert!(request.locks[0].mode.is_none() && request.wait.is_none());
//! ```

#![allow(missing_docs, reason = "generated code: what the .proto files explain is carried over, the rest is not")]

pub mod codec;

/// The public API, `lockkeeper.v1`.
pub mod v1 {
    tonic::include_proto!("lockkeeper.v1");
}

/// The metadata key under which every answer of a node that knows the leader names it: where clients reach it, host:port.
pub const LEADER_KEY: &str = "lockkeeper-leader";

/// The descriptors of [`v1`], for gRPC reflection.
#[cfg(feature = "server")]
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/public_descriptors.bin"));

#[cfg(test)]
mod tests;
