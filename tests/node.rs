//! The suites with sockets, processes or disks, in one program: built and linked once, and side by side on all processors.
//!
//! What a suite is for stands at the top of its file. Suites share this:
//! * `support`: clusters of real processes, and waiting for a condition; `in_process`: a node in this process;
//! * `encrypted`: connections by TLS, as clients of other products make them;
//! * `turns`: tests that each need the whole machine take turns, while others go on beside them;
//! * `pages`: the blocks of commands in the Markdown pages;
//! * `skipped`, `unmodified`: what a test says that is skipped; programs of others;
//! * `children`: tests of this program that it runs in processes of their own.
//!
//! Tests that are ignored as `nightly` take minutes or programs of others: `scripts/nightly.sh` runs them.

mod children;
mod encrypted;
mod in_process;
mod pages;
mod skipped;
mod support;
mod turns;
mod unmodified;

mod abuse;
mod access;
mod bench_program;
mod calibration;
mod chaos;
mod client;
mod clients;
mod cluster;
mod console;
mod deployment;
mod disk;
mod dynamodb;
mod etcd;
mod examples;
mod generated;
mod local;
mod log_store;
mod network;
mod power;
mod redis;
mod runtimes;
mod serving;
mod slow_disk;
mod traces;
mod versions;
mod zookeeper;
