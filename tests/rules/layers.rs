//! The layers: the allowed dependencies of each crate of the workspace, as cargo resolves them.
//!
//! [`LAYERS`] is the list. Any other dependency, direct or transitive, is a failure. Build scripts, procedural macros and dev-dependencies
//! are not checked: they are not in the process of a crate's users.
//!
//! The use of the standard library, which has files, clocks and threads too, is not checked.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use serde_json::Value;

use crate::{cargo, modules::Modules, root};

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
    layer(
        "policy",
        &["planted", "types"],
        Not(&["clap", "futures", "openraft", "prost", "sled", "tokio", "tonic", "tracing"]),
    ),
    layer("checker", &[], Only(&["itoa", "memchr", "ryu", "serde", "serde_core", "serde_json", "thiserror", "zmij"])),
    // Lines, hashes and files; nothing of Raft or of the table.
    layer(
        "audit",
        &["planted"],
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
    // Which connections stay; not what they speak.
    layer("accept", &["planted"], Not(&["axum", "clap", "hyper", "openraft", "prost", "rand", "sled", "tonic"])),
    // How keys are called as locks, by whichever protocol.
    layer(
        "names",
        &["types"],
        Not(&["axum", "clap", "futures", "hyper", "openraft", "prost", "sled", "tokio", "tonic"]),
    ),
    // DynamoDB's API over a keyspace that is a parameter: nothing of the cluster, and of randomness and clocks only what it is given.
    layer(
        "http1",
        &["accept", "planted"],
        Not(&["axum", "clap", "futures", "openraft", "prost", "rand", "sled", "tonic"]),
    ),
    layer(
        "dynamodb",
        &["accept", "http1", "names", "planted", "types"],
        Not(&["axum", "clap", "futures", "openraft", "prost", "rand", "sled", "tonic"]),
    ),
    // Redis' protocol over the same.
    layer(
        "redis",
        &["accept", "names", "planted", "types"],
        Not(&["axum", "clap", "futures", "hyper", "openraft", "prost", "rand", "sled", "tonic"]),
    ),
    // ZooKeeper's protocol over the same.
    layer(
        "zookeeper",
        &["accept", "planted"],
        Not(&["axum", "clap", "futures", "hyper", "openraft", "prost", "rand", "sled", "tonic"]),
    ),
    // The interpreter of its scripts, which compiles C.
    layer(
        "lua",
        &["accept", "names", "planted", "redis", "types"],
        Not(&["axum", "clap", "futures", "hyper", "openraft", "prost", "rand", "sled", "tonic"]),
    ),
    // etcd's API over the same: it speaks in the words of the table.
    layer("etcd", &["codec", "machine", "names", "planted", "types"], Not(&["clap", "openraft", "rand", "sled"])),
    // It counts, and knows of nothing what it means.
    layer("metrics", &[], Not(&["axum", "clap", "futures", "hyper", "openraft", "prost", "sled", "tonic", "tracing"])),
    // Spans and their way to a collector; it knows of nothing what it means, either.
    layer("traces", &[], Not(&["axum", "clap", "openraft", "reqwest", "sled"])),
    layer("environment", &["metrics"], Not(&["openraft", "prost", "sled", "tonic"])),
    // The codec that both APIs over gRPC share; which messages it checks, and for what, is said by each.
    layer("codec", &[], Not(&["axum", "clap", "openraft", "sled"])),
    layer("proto", &["codec"], Not(&["axum", "clap", "openraft", "sled"])),
    layer("transport", &[], Not(&["axum", "clap", "openraft", "prost", "sled"])),
    layer_with("serve", "transport", &["accept", "planted"], Not(&["clap", "openraft", "prost", "sled"])),
    layer("fence", &["planted", "types"], Only(&["pin-project-lite", "thiserror", "tokio"])),
    layer_with("disk", "fence", &["planted", "storage", "types"], Not(&["openraft", "prost", "tonic"])),
    // A client program links no server, no log, no command line, and no definition of a C symbol (`storage`).
    layer(
        "client",
        &["codec", "planted", "proto", "transport", "types"],
        Not(&["axum", "clap", "openraft", "opentelemetry", "serde_json", "sled", "toml", "tracing-subscriber"]),
    ),
    layer("storage", &["planted"], Not(&["clap", "openraft", "prost", "tonic"])),
    // Entries in, replies and events out; nothing of how entries are agreed on, kept or sent.
    layer(
        "table",
        &["audit", "machine", "metrics", "planted", "types"],
        Not(&["axum", "clap", "futures", "hyper", "openraft", "sled", "tonic"]),
    ),
    layer(
        "raft",
        &["accept", "audit", "environment", "machine", "metrics", "planted", "storage", "table", "transport", "types"],
        Not(&["hdrhistogram", "mimalloc", "tracing-subscriber"]),
    ),
    // Names, numbers and rules of a file; no sockets.
    layer("config", &["machine", "planted", "traces", "types"], Not(&["axum", "clap", "openraft", "sled"])),
    layer(
        "server",
        &[
            "accept",
            "audit",
            "codec",
            "config",
            "dynamodb",
            "environment",
            "etcd",
            "http1",
            "lua",
            "machine",
            "metrics",
            "names",
            "planted",
            "policy",
            "proto",
            "raft",
            "redis",
            "storage",
            "table",
            "traces",
            "transport",
            "types",
            "zookeeper",
        ],
        Not(&["hdrhistogram", "jiff", "mimalloc"]),
    ),
    // Tools around a cluster of processes: none links a node.
    layer(
        "local",
        &["certs", "codec", "config", "machine", "planted", "proto", "traces", "transport", "types"],
        Not(&["axum", "clap", "openraft", "sled"]),
    ),
    layer(
        "bench",
        &["certs", "client", "codec", "config", "local", "machine", "planted", "proto", "traces", "transport", "types"],
        Not(&["axum", "clap", "openraft", "sled"]),
    ),
    layer(
        "chaos",
        &[
            "certs",
            "checker",
            "client",
            "codec",
            "config",
            "fence",
            "local",
            "machine",
            "planted",
            "proto",
            "storage",
            "traces",
            "transport",
            "types",
        ],
        Not(&["axum", "clap", "openraft"]),
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
    assert_eq!(without, ["lockkeeper", "lockkeeper-conformance", "lockkeeper-rules"]);
}

/// The direct dependencies of each crate of the workspace on others of it, by the crate's folder.
fn direct() -> BTreeMap<String, BTreeSet<String>> {
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"])).expect("JSON");
    let mut found = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("a list of packages") {
        let manifest = package["manifest_path"].as_str().expect("a path");
        let folder = manifest.strip_suffix("/Cargo.toml").and_then(|folder| folder.strip_prefix(root().to_str()?));
        let dependencies = package["dependencies"].as_array().expect("a list of dependencies");
        let usual = dependencies.iter().filter(|dependency| dependency["kind"].is_null());
        let ours = usual.filter_map(|dependency| dependency["name"].as_str()?.strip_prefix("lockkeeper-"));
        let folder = folder.expect("below the root").trim_start_matches('/').to_owned();
        found.insert(folder, ours.map(str::to_owned).collect());
    }
    found
}

/// What the folders of the root package import: each other, and crates.
fn imported_by_folders() -> BTreeMap<String, BTreeSet<String>> {
    let modules = Modules::read(&root().join("src/lib.rs"));
    let mut found = BTreeMap::<String, BTreeSet<String>>::new();
    for path in modules.paths() {
        let Some(folder) = path.first() else { continue };
        let names = modules.top_level_names(path).into_iter().filter(|name| name != folder);
        found.entry(format!("src/{folder}")).or_default().extend(names);
    }
    found
}

/// The last column of the table of parts says what a crate, or a folder of the root package, is built on. It cannot differ from the code.
#[test]
fn the_table_of_the_parts_says_what_each_is_built_on() {
    let readme = fs::read_to_string(root().join("src/README.md")).expect("the page of the source");
    let table = readme.lines().skip_while(|line| !line.starts_with("| folder | crate |")).skip(2);
    let mut built_on = direct();
    built_on.extend(imported_by_folders());

    let mut rows = 0;
    let mut wrong = Vec::new();
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let folder = cells[1].trim_matches('`');
        let mut expected =
            built_on.remove(folder).unwrap_or_else(|| panic!("{folder} is neither a crate nor a folder"));
        // All of them use it: the page says so below the table.
        expected.remove("planted");
        let expected = expected.into_iter().collect::<Vec<_>>().join(", ");
        if cells[5] != expected && cells[5] != "all" {
            wrong.push(format!("{folder}: | {expected} |"));
        }
        rows += 1;
    }
    assert!(rows > 20, "only {rows} rows: the search no longer finds the table");
    let must_have_row = |folder: &&String| folder.starts_with("src/") && *folder != "src/planted";
    let left: Vec<_> = built_on.keys().filter(must_have_row).collect();
    assert!(left.is_empty(), "the table in src/README.md has no row for {left:?}");
    assert!(wrong.is_empty(), "the last column of the table in src/README.md must be: {wrong:#?}");
}
