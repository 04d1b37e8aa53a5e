//! A small lock service and its clients, in one process and with simulated time: its histories are correct by construction.

mod table;
mod workload;

pub(crate) use workload::history;
