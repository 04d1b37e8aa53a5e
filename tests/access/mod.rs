//! Who may do what: identities by bearer tokens, sessions that belong to them, the policy and its limits.
//!
//! A cluster of processes on this machine. What an attacker would try is refused, whatever ids it knows, at the leader and through a
//! follower; what is allowed goes on meanwhile.

mod dynamodb;
mod owners;
mod policies;
mod program;
mod redis;
mod stage;
mod tokens;
mod writing;
mod zookeeper;
