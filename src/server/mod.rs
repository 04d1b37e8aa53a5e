//! A node: the gRPC services on top of a replica.

pub mod config;
