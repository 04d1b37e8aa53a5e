//! Runs under faults, and what they prove.
//!
//! * [`history`]: what clients, nodes and faults did, one event a line, in a format that anyone can check.
//! * [`report`]: what a run was like, for people: a summary, and a page to look at.
//!
//! A plain library: no network, no clock, no tokio.

pub mod history;
pub mod report;
