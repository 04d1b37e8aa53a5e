//! The suites that need no socket and no cluster, in one program: the table and its model, formats, parsers, the checker, configurations.

mod checker;
mod config;
mod formats;
mod fuzz;
mod in_process;
mod machine;
mod machine_model;
mod report;
mod snapshot_files;
