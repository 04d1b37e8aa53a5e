//! Runs under faults, and what they prove.
//!
//! * [`history`]: what clients, nodes and faults did, one event a line, in a format that anyone can check;
//! * [`checker`]: whether that is what a lock service promises;
//! * [`links`]: the network between processes of this machine, which can be broken;
//! * [`nemesis`]: who breaks it, and stops, kills and starves processes;
//! * [`workload`]: what clients do meanwhile, each a process of its own;
//! * [`mod@run`]: all of that together, and the history of it.
//!
//! Histories and their judgement are a plain library: no network, no clock, no tokio. The rest stands on [`crate::client`] and
//! [`crate::local`].

pub mod checker;
pub mod history;

mod record;

pub mod links;
pub mod nemesis;
pub mod workload;

pub mod run;
