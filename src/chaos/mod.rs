//! Chaos runs: clusters under faults, and the check of their histories.
//!
//! * [`history`]: the events of clients, nodes and faults, one per line, in a documented format;
//! * [`checker`]: checks a history for each property and shows the lines of each violation;
//! * [`report`]: a run for people: a summary and a page with its timeline;
//! * [`record`]: writes a history during a run;
//! * [`links`]: the network between processes of this machine, with fault injection;
//! * [`dial`]: how the runner and its clients reach the nodes;
//! * `parties`: the processes and observers of a run;
//! * [`nemesis`]: injects faults: partitions, stops, kills, resource limits;
//! * [`workload`]: the operations of clients, each in its own process;
//! * [`mod@run`]: a whole run with all of these.
//!
//! The first three are plain libraries without network, clock or tokio. So histories from real processes, from a
//! simulation and written by hand are all checked in the same way: `lockkeeper chaos check FILE`. The others use
//! [`crate::client`] and [`crate::local`].

pub use lockkeeper_checker::{self as checker, history, report};

pub mod record;

pub mod links;
pub mod workload;

pub mod dial;
mod parties;

pub mod nemesis;

pub mod run;
