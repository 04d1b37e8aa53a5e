//! What nodes say to each other and write to disk: the messages and calls of `lockkeeper.internal.v1`, as generated from `proto/`. The
//! messages of commands and records are in [`lockkeeper_table::messages`].
//!
//! Only nodes use them, so they are not in `lockkeeper-proto`.

#![allow(missing_docs, reason = "generated code: what the .proto files explain is carried over, the rest is not")]

tonic::include_proto!("lockkeeper.internal.v1");

// The service of the keyspace.
tonic::include_proto!("keyspace/lockkeeper.internal.v1");
