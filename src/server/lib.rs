//! A node: a replica of the table, a service on top of it, and adapters for protocols on top of the service.
//!
//! # How a request travels
//!
//! An acquire that a client sends by `lockkeeper.v1`, from the socket to the table and back:
//!
//! 1. `transport` takes the connection and hands HTTP/2 requests to the layers that [`node`] puts together: `unread` limits unread answers,
//!    `v1::unreadable` and `v1::deadlines` answer for messages that cannot be decoded and for `grpc-timeout`.
//! 2. `v1::locks`, the adapter, names the call: `AcquireLocks`, with the message as it was decoded and the `api::Caller`.
//!    `v1::pipeline` does the same with each request of a stream.
//! 3. `service::Service::call` routes. If this node leads, the request goes on to 4. If another node leads, `service::forward` sends the
//!    message to that node's peers' port, where 4 begins: one hop. Without a leader, the caller gets an error at once.
//! 4. `service::Local::call` converts the message to typed values, which checks its fields, and executes it (`service::locks`).
//!    Every request of every protocol passes here once: the place for policy checks and audit.
//! 5. [`raft::Replica::propose`] puts the command into the log, and returns the table's reply once it is applied: granted, refused or
//!    queued. If it is queued, `service::waiting` waits for the end of the wait, which a later log entry brings.
//! 6. The typed reply goes back to the adapter, which encodes it (`wire`) and names the leader in the metadata.
//!
//! # What each module may know
//!
//! | module | holds | knows |
//! |---|---|---|
//! | `api` | typed requests, replies, errors; caller, deadline | `machine` |
//! | `wire` | each of them as a message of `lockkeeper.v1`, and back | `api`, protobuf, gRPC statuses |
//! | `service` | routing, execution, waits, watch, keep-alive, forwarding | `api`, `wire`, [`raft`](lockkeeper_raft) |
//! | `v1` | the adapter for `lockkeeper.v1`, its pipeline, deadlines of calls | `service`, `wire`, tonic |
//! | `joining` | how a node becomes a member | [`raft`](lockkeeper_raft), `lockkeeper.v1` |
//! | `cluster`, `health`, `progress`, `pulse` | this node's condition | [`raft`](lockkeeper_raft) |
//! | `unread` | limits of unread answers, for every HTTP/2 service | `api`, tonic's bodies |
//! | `web` | probes and metrics over HTTP | `cluster`, `console`, `service`, axum |
//! | `console` | a page for people, and its calls over HTTP | `cluster`, `service`, axum |
//! | `gate` | which requests can be of another site's page: for the console and etcd's JSON | HTTP requests |
//! | `node_calls` | what a node's certificate is good for, at each port | [`raft`](lockkeeper_raft), HTTP requests |
//! | [`descriptors`], [`node`] | file descriptors, putting a node together | all |
//!
//! `wire` is not part of `v1` because the peers' port speaks `lockkeeper.v1` too: a follower forwards with it, whatever protocol the
//! client speaks.
//!
//! # How to add a request
//!
//! 1. `proto/lockkeeper/v1/` declares the RPC and its messages.
//! 2. `api::requests` has a struct for the request, one for the reply, and a line in `calls!` that says whether it changes the table.
//! 3. `wire::locks`, `wire::sessions` or `wire::members`: `Encode` for both, `Forward` for the request, and a case in `wire::tests`.
//! 4. `service::locks`, `service::sessions` or `service::members`: `Serve`, which executes it.
//! 5. `v1::locks`, `v1::sessions` or `v1::cluster`: one line, `self.call::<TheRequest>(request).await`. If it changes something, its path
//!    goes into `v1::deadlines`.
//!
//! A new reason for an error: `api::FailureReason`, the two tables in `wire::status`, and `errors.proto`.
//!
//! # How to add a protocol
//!
//! A module in `adapters`, and in [`node`] a listener or a route for it. For each call it makes an `api::Caller`, builds a typed request
//! from its own message (`Form::Typed`), calls `service::Service`, takes the reply with `Form::typed`, and translates `api::Error` by its
//! `reason` and `retry`. The service routes, waits and forwards. The adapter drops the call's future when its client goes away: that breaks
//! off a wait. It needs nothing of `v1` or `wire`. What the protocol means by its operations is the adapter's business; that they are
//! replicated is not.
//!
//! [`raft::Replica::propose`]: lockkeeper_raft::Replica::propose

pub mod descriptors;
#[doc(hidden)]
pub mod fuzzing;
pub mod node;
mod node_calls;

mod access;
mod adapters;
mod api;
mod cluster;
mod connections;
mod console;
mod gate;
mod health;
mod http_port;
mod joining;
mod progress;
mod pulse;
mod safety;
mod service;
mod unread;
mod v1;
mod web;
mod wire;

pub use api::requests::REQUESTS;
pub use node::{Remedy, Runtimes, ServeError, serve};
pub use service::waiting::GRACE;
pub use wire::{MESSAGE_BYTES_MAX, status::DOMAIN};
