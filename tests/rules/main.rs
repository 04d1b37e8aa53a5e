//! The rules of the source and of the workspace. They need none of our crates, so they are built and run before all else.
//!
//! * `layers`: what each crate may be built on, and the table of it in `src/README.md`;
//! * `circles`: files of a crate do not import each other in a circle;
//! * `links`: links of the pages, and the size of those that operators and newcomers read;
//! * `style`: the width of comments, who makes functions of scripts, and the interface of the Rust client;
//! * `prose`: how well the code can be read, as numbers that may only get better;
//! * `features`: development builds have one set of features, so each crate is built once;
//! * `licences`: licences and sources of dependencies;
//! * `releases`: what crates.io asks of each crate.

mod circles;
mod features;
mod layers;
mod licences;
mod links;
mod modules;
mod prose;
mod releases;
mod style;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies in tests/rules").to_owned()
}

/// What cargo prints for these arguments, without a network.
fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).args(["--locked", "--offline"]).current_dir(root());
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo writes UTF-8")
}
