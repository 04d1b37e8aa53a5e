//! A tiny lock service and its clients, in one process and on a clock of its own: it makes histories that are right by construction.

mod table;
mod workload;

pub(crate) use workload::history;
