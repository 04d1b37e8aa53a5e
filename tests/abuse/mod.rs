//! Isolation of clients: careless and hostile clients against real clusters.
//!
//! Three server processes serve a bystander: a session that holds a lock, and pairs of acquire and release, one after the other. Then
//! another client misbehaves. Required: the bystander's pairs are answered, its session and its lock remain, no election takes place,
//! memory returns to its earlier size plus at most [`MEMORY_SLACK_MIB`], descriptors are within their limit, and the abuser gets an error
//! with the reason. Latencies are printed (`--nocapture`) and not asserted, so that a busy machine fails no test.
//!
//! A case is a function of a few lines: [`Stage::open`], then [`Stage::survives`] with the abuse. By subject:
//! * `resets`: rapid reset: calls that are opened and cancelled at once;
//! * `calls`: calls without a message, and streams that are opened and left idle;
//! * `arrivals`: connections that send nothing, or half a preface, until connection slots or descriptors run out, at both ports;
//! * `handshakes`: garbage, half and whole handshakes at ports that speak TLS, and frames inside TLS;
//! * `messages`: many small requests on one stream;
//! * `readers`: clients that do not read their answers, for each kind of call;
//! * `watches`: very many watches of locks;
//! * `dynamodb`: DynamoDB's port: requests that ask for much work, unread answers, bodies that do not end;
//! * `gateway`: etcd's JSON: pages of other sites, and bodies that take memory;
//! * `http_port`: the HTTP port: unread answers and half requests;
//! * `etcd`: etcd's port: very many watches, contenders that give up, unread events, bodies that do not end;
//! * `redis`: Redis' port: broken and half requests, unread replies, scripts that do not end, many keys, and floods before AUTH;
//! * `outage`: clients while their node is cut off: those that come and go, and subscriptions that end at once;
//! * `zookeeper`: ZooKeeper's port: broken and half frames, sessions of others, many watches, large multis, unread replies, many sessions;
//! * `amplified`: small requests that ask for much, through the doors of Redis, ZooKeeper and etcd;
//! * `budgets`: many clients at one time, each within its limits: what they take together has a bound;
//! * `bulk`: one request that causes much work: sessions with many locks end, many sessions expire, many waiters are granted.
//!
//! `frames` encodes HTTP/2 frames itself, since no library sends such sequences. Default sizes fit a debug build and 90 seconds; with
//! `LOCKKEEPER_ABUSE_FULL=1` they are those of the attacks that once stopped nodes. One test runs at a time: each needs the whole machine.
//!
//! `LOCKKEEPER_ABUSE_PROGRAM=FILE` runs nodes of another build, such as a release build. `LOCKKEEPER_ABUSE_USUAL_TIMING=1` leaves the
//! election timeout at its default; otherwise it is three times as long, since three debug builds share few processors.
//!
//! [`MEMORY_SLACK_MIB`]: stage::MEMORY_SLACK_MIB
//! [`Stage::open`]: stage::Stage::open
//! [`Stage::survives`]: stage::Stage::survives

#![expect(clippy::print_stdout, reason = "figures are for people to read")]

mod amplified;
mod arrivals;
mod budgets;
mod bulk;
mod calls;
mod dynamodb;
mod etcd;
mod floods;
mod frames;
mod gateway;
mod handshakes;
mod http_port;
mod messages;
mod outage;
mod readers;
mod redis;
mod resets;
mod stage;
mod watches;
mod zookeeper;

/// The size of an attack: `full`, or `small` for a debug build.
fn sized(small: usize, full: usize) -> usize {
    if std::env::var_os("LOCKKEEPER_ABUSE_FULL").is_some() { full } else { small }
}
