//! The layers: the allowed dependencies of each crate of the workspace, as cargo resolves them.
//!
//! [`LAYERS`] is the list. Any other dependency, direct or transitive, is a failure. Build scripts, procedural macros and dev-dependencies
//! are not checked: they are not in the process of a crate's users.
//!
//! The use of the standard library, which has files, clocks and threads too, is not checked.

use std::{collections::BTreeSet, process::Command};

use serde_json::Value;

/// The allowed dependencies of a crate.
struct Layer {
    name: &'static str,
    /// The feature to enable; `None`: default features only.
    feature: Option<&'static str>,
    /// The allowed members of the workspace, direct or transitive, by their names after `lockkeeper-`.
    members: &'static [&'static str],
    others: Others,
}

/// Rule for crates outside the workspace.
enum Others {
    /// Only these.
    Only(&'static [&'static str]),
    /// Any except these.
    Not(&'static [&'static str]),
}

use Others::{Not, Only};

const LAYERS: &[Layer] = &[
    layer("planted", &[], Only(&[])),
    layer("types", &[], Only(&["thiserror"])),
    // No async, no I/O, no clock. `rand_core` and `rand_xoshiro` come with imbl, with constant seeds; the rest is arithmetic.
    layer(
        "machine",
        &["planted", "types"],
        Only(&[
            "archery",
            "bytemuck",
            "equivalent",
            "imbl",
            "imbl-sized-chunks",
            "rand_core",
            "rand_xoshiro",
            "safe_arch",
            "thiserror",
            "wide",
        ]),
    ),
    layer("certs", &[], Not(&["openraft", "rustls", "sled", "tokio", "tonic"])),
    // No async, no network: the same answer in a node and in `policy explain`.
    layer("policy", &["types"], Not(&["clap", "futures", "openraft", "prost", "sled", "tokio", "tonic", "tracing"])),
    layer("checker", &[], Only(&["itoa", "memchr", "ryu", "serde", "serde_core", "serde_json", "thiserror", "zmij"])),
    // Lines, hashes and files; nothing of Raft or of the table.
    layer(
        "audit",
        &[],
        Only(&[
            "block-buffer",
            "cfg-if",
            "cpufeatures",
            "crypto-common",
            "digest",
            "generic-array",
            "itoa",
            "libc",
            "memchr",
            "once_cell",
            "pin-project-lite",
            "ryu",
            "serde",
            "serde_core",
            "serde_json",
            "sha2",
            "thiserror",
            "tracing",
            "tracing-core",
            "typenum",
            "zmij",
        ]),
    ),
    // DynamoDB's API over a keyspace that is a parameter: nothing of the cluster, and of randomness and clocks only what it is given.
    layer("http1", &[], Not(&["axum", "clap", "futures", "openraft", "prost", "rand", "sled", "tonic"])),
    layer("dynamodb", &["http1"], Not(&["axum", "clap", "futures", "openraft", "prost", "rand", "sled", "tonic"])),
    // etcd's API over the same: it speaks in the words of the table.
    layer("etcd", &["machine", "planted", "types"], Not(&["clap", "openraft", "rand", "sled"])),
    // It counts, and knows of nothing what it means.
    layer("metrics", &[], Not(&["axum", "clap", "futures", "hyper", "openraft", "prost", "sled", "tonic", "tracing"])),
    // Spans and their way to a collector; it knows of nothing what it means, either.
    layer("traces", &[], Not(&["axum", "clap", "openraft", "reqwest", "sled"])),
    layer("environment", &["metrics"], Not(&["openraft", "prost", "sled", "tonic"])),
    layer("proto", &[], Not(&["axum", "clap", "openraft", "sled"])),
    layer("transport", &[], Not(&["axum", "clap", "openraft", "prost", "sled"])),
    layer_with("serve", "transport", &[], Not(&["clap", "openraft", "prost", "sled"])),
    layer("fence", &["types"], Only(&["pin-project-lite", "thiserror", "tokio"])),
    layer_with("disk", "fence", &["planted", "storage", "types"], Not(&["openraft", "prost", "tonic"])),
    // A client program links no server, no log, no command line, and no definition of a C symbol (`storage`).
    layer(
        "client",
        &["planted", "proto", "transport", "types"],
        Not(&["axum", "clap", "openraft", "opentelemetry", "serde_json", "sled", "toml", "tracing-subscriber"]),
    ),
    layer("storage", &["planted"], Not(&["clap", "openraft", "prost", "tonic"])),
    layer(
        "raft",
        &["audit", "environment", "machine", "metrics", "planted", "storage", "transport", "types"],
        Not(&["hdrhistogram", "mimalloc", "tracing-subscriber"]),
    ),
    layer(
        "server",
        &[
            "audit",
            "dynamodb",
            "environment",
            "etcd",
            "http1",
            "machine",
            "metrics",
            "planted",
            "policy",
            "proto",
            "raft",
            "storage",
            "traces",
            "transport",
            "types",
        ],
        Not(&["hdrhistogram", "jiff", "mimalloc"]),
    ),
];

const fn layer(name: &'static str, members: &'static [&'static str], others: Others) -> Layer {
    Layer { name, feature: None, members, others }
}

const fn layer_with(
    feature: &'static str,
    name: &'static str,
    members: &'static [&'static str],
    others: Others,
) -> Layer {
    Layer { name, feature: Some(feature), members, others }
}

fn cargo(arguments: &[&str]) -> String {
    let cargo =
        Command::new(env!("CARGO")).args(arguments).args(["--locked", "--offline"]).output().expect("cargo runs");
    assert!(cargo.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&cargo.stderr));
    String::from_utf8(cargo.stdout).expect("cargo writes UTF-8")
}

/// The dependencies of a layer, direct and transitive: members of the workspace, and other crates.
fn reached(layer: &Layer) -> (BTreeSet<String>, BTreeSet<String>) {
    let package = format!("lockkeeper-{}", layer.name);
    let edges = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"];
    let tree = cargo(
        &[&["tree", "--package", &package, "--features", layer.feature.unwrap_or_default()], &edges[..]].concat(),
    );
    let names: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&*package), "{tree}");
    let (ours, others): (Vec<_>, Vec<_>) = names
        .into_iter()
        .filter(|name| *name != package)
        .map(|name| name.strip_prefix("lockkeeper-").ok_or(name))
        .partition(Result::is_ok);
    let ours = ours.into_iter().filter_map(Result::ok).map(str::to_owned).collect();
    (ours, others.into_iter().filter_map(Result::err).map(str::to_owned).collect())
}

#[test]
fn a_crate_is_built_on_what_its_layer_allows_and_nothing_else() {
    for layer in LAYERS {
        let who = format!("lockkeeper-{} (feature: {:?})", layer.name, layer.feature);
        let (members, others) = reached(layer);
        let allowed = layer.members.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let foreign: Vec<_> = members.difference(&allowed).collect();
        assert!(foreign.is_empty(), "{who} must not depend on members {foreign:?}");
        let foreign: Vec<_> = match &layer.others {
            Only(only) => others.iter().filter(|name| !only.contains(&name.as_str())).collect(),
            Not(not) => others.iter().filter(|name| not.contains(&name.as_str())).collect(),
        };
        assert!(foreign.is_empty(), "{who} must not depend on {foreign:?}");
    }
}

/// `cargo test` in the root directory runs the tests of all members, and each member has its layer.
#[test]
fn every_member_is_tested_by_default_and_has_a_layer() {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"])).expect("JSON");
    let ids = |key: &str| -> BTreeSet<String> {
        let ids = metadata[key].as_array().expect("a list of packages");
        ids.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    assert_eq!(ids("workspace_members"), ids("workspace_default_members"));
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let names: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let with_layer = LAYERS.iter().map(|layer| format!("lockkeeper-{}", layer.name)).collect::<BTreeSet<_>>();
    let without: Vec<_> = names.into_iter().filter(|name| !with_layer.contains(*name)).collect();
    assert_eq!(without, ["lockkeeper"]);
}
