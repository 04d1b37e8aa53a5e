//! Runs under faults, and what they prove.
//!
//! * [`history`]: what clients, nodes and faults did, one event a line, in a format that anyone can check;
//! * [`checker`]: judges a history, property by property, and shows the few lines that convict;
//! * [`report`]: what a run was like, for people: a summary, and a page to look at;
//! * [`record`]: writing one down, as it comes about;
//! * [`links`]: the network between processes of this machine, which can be broken;
//! * [`nemesis`]: who breaks it, and stops, kills and starves processes;
//! * [`workload`]: what clients do meanwhile, each a process of its own;
//! * [`mod@run`]: all of that together, and the history of it.
//!
//! The first three are plain libraries: no network, no clock, no tokio. Whoever has a history, from real processes, from a simulation
//! or written by hand, has it judged in the same way: `lockkeeper check FILE`. The others stand on [`crate::client`] and
//! [`crate::local`].

pub mod checker;
pub mod history;
pub mod report;

pub mod record;

pub mod links;
pub mod nemesis;
pub mod workload;

pub mod run;
