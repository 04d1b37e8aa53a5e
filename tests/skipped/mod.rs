//! What a test says that is skipped. A module of several suites.

use std::{
    fmt::Display,
    io::{Write as _, stderr},
};

/// Says it directly to stderr: what is printed is only shown if the test fails.
pub(crate) fn skipped(why: impl Display) {
    let line = format!("\n!!! SKIPPED: {}\n", why.to_string().trim());
    stderr().write_all(line.as_bytes()).expect("standard error is open");
}
