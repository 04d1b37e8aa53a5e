//! Real clusters: three server processes, real disks and sockets, real `kill -9`.
//!
//! By module:
//! * `kills`, `pauses`: no acknowledged operation is lost, no token is given out twice, and the service recovers by itself, whichever nodes
//!   are killed or paused at any moment; `vacancies`: a live leader is not taken for a killed one;
//! * `expiry`: the lock of a dead client goes to the first in the queue after its TTL; `holders`: a partitioned holder knows its loss
//!   before that; `forced`: a holder learns of a forced release; `wrapper`: no command outlives its lock;
//! * `elections`: leaders follow each other in order, and observers see it; `waits`: places in the queue are kept;
//! * `snapshots`: a node that was down for long catches up with a snapshot; `entries`: watches of the keyspace go on where they ended;
//! * `services`, `closing`, `watches`: the answers of the services; `bad_input`: to invalid requests; `deadlines`: at a call's deadline;
//!   `crowded`, `overload`: at limits;
//! * `members`: nodes join, leave and are replaced, and the leadership is handed over;
//! * `rolling`: all nodes are restarted one after the other, and no call fails;
//! * `audit`: all nodes write the same audit lines, and these are sound;
//! * `backups`: backups under load, and clusters made from one, or from what is left of a node;
//! * `probes`: the HTTP port: who is alive, who is ready, and what was counted;
//! * `certificates`: TLS, and what a stranger gets from either port;
//! * `refusals`, `copies`: data and configurations with which a node refuses to start; `tables`: a table that is not that of the others;
//!   `unapplied`: an entry that no node can apply;
//! * `program`, `shell`: output and exit codes of the program, also within shell scripts; `advice`: its tables, and what it says where
//!   something is wrong; `top`: its live view.
//!
//! Each test has its own cluster, on free ports, in a temporary directory. Tests wait for conditions with deadlines.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "real processes run in real time; figures and skipped tests are for people to read"
)]

mod advice;
mod audit;
mod backups;
mod bad_input;
mod cable;
mod certificates;
mod closing;
mod copies;
mod crowded;
mod deadlines;
mod door;
mod elections;
mod entries;
mod expiry;
mod forced;
mod holders;
mod kills;
mod load;
mod members;
mod overload;
mod pauses;
mod probes;
mod program;
mod refusals;
mod rolling;
mod services;
mod shell;
mod snapshots;
mod tables;
mod terminal;
mod top;
mod unapplied;
mod vacancies;
mod waits;
mod watches;
mod wrapper;
