//! Chaos runs: clusters under faults, and the check of their histories.
//!
//! * [`history`] has the events of clients, nodes and faults, one per line, in a documented format.
//! * [`checker`] checks a history for each property and shows the lines of each violation.
//! * [`report`] shows a run to people: a summary, and a page with its timeline.
//! * [`record`] writes a history during a run.
//! * [`links`] is the network between processes of this machine, with fault injection.
//! * [`dial`] connects the runner and its clients to the nodes.
//! * `parties` has the processes and observers of a run.
//! * `trail` verifies the audit files of the nodes at the end.
//! * [`nemesis`] injects faults: partitions, stops, kills, resource limits.
//! * [`workload`] has the operations of clients, each in its own process.
//! * [`mod@run`] makes a whole run of all these.
//!
//! The first three are plain libraries without network, clock or tokio. So `lockkeeper chaos check FILE` checks histories in the same way,
//! whether they come from real processes, from a simulation, or were written by hand. The others use
//! [`lockkeeper_client`] and [`lockkeeper_local`].

pub use lockkeeper_checker::{self as checker, history, report};

pub mod record;

pub mod links;
pub mod workload;

pub mod dial;
mod parties;
mod trail;

pub mod nemesis;

pub mod run;
