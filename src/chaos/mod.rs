//! Runs under faults, and what they prove.
//!
//! * [`history`]: what clients, nodes and faults did, one event a line, in a format that anyone can check;
//! * [`checker`]: judges a history, property by property, and shows the few lines that convict;
//! * [`report`]: what a run was like, for people: a summary, and a page to look at.
//!
//! All are plain libraries: no network, no clock, no tokio. Whoever has a history, from real processes, from a simulation or written
//! by hand, has it judged in the same way: `lockkeeper check FILE`.

pub mod checker;
pub mod history;
pub mod report;
