//! The messages of commands, records and the keyspace in `lockkeeper.internal.v1`, as generated from `proto/`.

#![allow(missing_docs, reason = "generated code: what the .proto files explain is carried over, the rest is not")]

include!(concat!(env!("OUT_DIR"), "/lockkeeper.internal.v1.rs"));
