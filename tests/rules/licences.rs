//! The licences and sources of all dependencies, without a network: the part of `scripts/dependencies.sh` that needs no cargo-deny.

use std::{collections::BTreeSet, fs};

use spdx::{Expression, ParseMode};
use toml::Value;

use crate::{cargo, root};

/// A file of TOML in the root.
fn table(file: &str) -> Value {
    let text = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
    toml::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The allowed licences. imbl and imbl-sized-chunks are under the MPL, which asks for their own files only; Unicode-3.0 is for tables of
/// characters.
const ALLOWED: [&str; 8] =
    ["Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "Unicode-3.0", "Zlib"];

/// Whether an SPDX expression can be met with the allowed licences. A slash is an older form of `OR`; `+` allows later versions too.
fn is_met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let parsed = Expression::parse_mode(expression, ParseMode::LAX);
    let parsed = parsed.unwrap_or_else(|error| panic!("{expression:?} is no expression of licences: {error}"));
    parsed.evaluate(|required| {
        let required = required.to_string();
        // Later versions are allowed as well as the one that is named.
        allowed.contains(required.trim_end_matches('+'))
    })
}

#[test]
fn each_dependency_has_an_allowed_licence() {
    let allowed = ALLOWED.map(str::to_owned).into();
    let edges = ["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}|{l}"];
    let lines = cargo(&[&["tree", "--workspace"], &edges[..]].concat());
    let found: BTreeSet<(&str, &str)> =
        lines.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|')).collect();
    assert!(found.len() > 100, "only {found:?}");
    let refused: Vec<_> = found.iter().filter(|(_, licence)| !is_met(licence, &allowed)).collect();
    assert!(refused.is_empty(), "not allowed: {refused:?}");
}

#[test]
fn each_dependency_comes_from_the_registry_and_has_a_checksum() {
    let lock = table("Cargo.lock");
    let packages = lock["package"].as_array().expect("a list");
    let mut foreign = 0;
    for package in packages {
        let Some(source) = package.get("source").and_then(Value::as_str) else { continue };
        let name = &package["name"];
        assert!(source.starts_with("registry+"), "{name} comes from {source}");
        assert!(package.get("checksum").is_some(), "{name} has no checksum");
        foreign += 1;
    }
    assert!(foreign > 100, "only {foreign} of {}", packages.len());
}

#[test]
fn expressions_are_met_as_spdx_says() {
    let allowed = ["MIT", "ISC", "MPL-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned).into();
    for met in [
        "MIT",
        "MIT/GPL-3.0-only",
        "GPL-3.0-only OR MIT",
        "MIT AND ISC",
        "(MIT OR 0BSD) AND ISC",
        "MPL-2.0+",
        "0BSD OR Apache-2.0 WITH LLVM-exception",
    ] {
        assert!(is_met(met, &allowed), "{met}");
    }
    for not in ["GPL-3.0-only", "MIT AND 0BSD", "(0BSD OR Zlib) AND MIT", "Apache-2.0", "0BSD OR Zlib AND MIT"] {
        assert!(!is_met(not, &allowed), "{not}");
    }
}

#[test]
#[should_panic(expected = "is no expression of licences")]
fn a_licence_that_spdx_does_not_know_is_no_expression() {
    is_met("Our-Own-Licence OR MIT", &BTreeSet::new());
}
