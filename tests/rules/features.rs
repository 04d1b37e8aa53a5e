//! Development builds have one set of features. If tests ask a crate for a feature that `cargo run` does not ask for, cargo builds this
//! crate twice, and everything above it: minutes, when the crate is tokio.

use std::collections::{BTreeMap, BTreeSet};

use crate::cargo;

/// The crates of a graph with their features, except crates that run while others are compiled.
fn features(selection: &[&str], edges: &str) -> BTreeMap<String, BTreeSet<String>> {
    let shape = ["--prefix", "none", "--format", "{p}|{f}", "--edges", edges];
    let tree = cargo(&[&["tree"], selection, &shape].concat());
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for line in tree.lines() {
        // An empty line stands between the graphs of two members.
        let Some((package, list)) = line.trim_end_matches(" (*)").split_once('|') else { continue };
        let package = package.split(" (").next().expect("a name and a version");
        let list = list.split(',').filter(|feature| !feature.is_empty()).map(str::to_owned);
        found.entry(package.to_owned()).or_default().extend(list);
    }
    found
}

#[test]
fn tests_ask_no_crate_for_a_feature_that_the_program_lacks() {
    let program = features(&["--package", "lockkeeper"], "normal,no-proc-macro");
    let tests = features(&["--workspace"], "normal,dev,no-proc-macro");
    assert!(program.len() > 200, "only {} crates: the search no longer understands cargo", program.len());

    let mut built_twice = Vec::new();
    for (package, wanted) in &tests {
        let Some(own) = program.get(package) else { continue };
        let missing: Vec<_> = wanted.difference(own).collect();
        if !missing.is_empty() {
            built_twice.push(format!("{package}: {missing:?}"));
        }
    }
    assert!(
        built_twice.is_empty(),
        "add these features to `development` in Cargo.toml, or these crates are built twice: {built_twice:#?}"
    );
}
