//! The messages of the API, as generated from `proto/`. What nodes say to each other is in `lockkeeper-raft`.

#![allow(missing_docs, reason = "generated code: what the .proto files explain is carried over, the rest is not")]

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
