//! A test of this program as a process of its own: one that is killed, preloaded, put into a namespace, or runs with a planted bug.
//!
//! A test that is only the entry point of such a process is ignored, so that it is not counted among the tests that passed.

use std::{env, process::Command};

/// The arguments by which this program runs one test alone, ignored or not.
pub(crate) fn arguments(test: &str) -> [&str; 4] {
    [test, "--exact", "--nocapture", "--include-ignored"]
}

/// A process that runs this test alone, given its full name.
pub(crate) fn command(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a program knows its name"));
    command.args(arguments(test));
    command
}

/// The name by which this program knows a test: that of its module by `module_path!`, without the program's, and its own.
pub(crate) fn full_name(module: &str, test: &str) -> String {
    let inside = module.split_once("::").map_or(module, |(_program, inside)| inside);
    format!("{inside}::{test}")
}
