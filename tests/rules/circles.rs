//! The modules that lie beside each other do not import each other in a circle: each can be read after those that it names. What lies
//! below a module counts as its own.
//!
//! Not checked: a module and the module that declares it, which may use each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::PathBuf,
    process,
};

use crate::{
    modules::{ModulePath, Modules},
    root,
};

/// A shortest circle, as the modules on it; `None`: there is none.
fn circle(edges: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Option<Vec<ModulePath>> {
    let from_each = edges.keys().filter_map(|start| way_back(edges, start));
    from_each.min_by_key(Vec::len)
}

/// The shortest way from a module over its imports back to itself.
fn way_back(edges: &BTreeMap<ModulePath, BTreeSet<ModulePath>>, start: &ModulePath) -> Option<Vec<ModulePath>> {
    let mut ways = vec![vec![start.clone()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            let last = way.last().expect("a way has a start");
            for next in edges.get(last).into_iter().flatten() {
                if next == start {
                    return Some(way);
                }
                if seen.insert(next.clone()) {
                    longer.push(way.iter().chain([next]).cloned().collect());
                }
            }
        }
        ways = longer;
    }
    None
}

/// The file of the root of each crate: of the root package, of `proto`, and of each folder below `src` with a manifest.
fn crates() -> Vec<PathBuf> {
    let mut roots = vec![root().join("src/lib.rs")];
    for entry in fs::read_dir(root().join("src")).expect("the source can be listed") {
        let folder = entry.expect("an entry").path();
        if folder.join("Cargo.toml").exists() {
            roots.push(folder.join("lib.rs"));
        }
    }
    roots.sort();
    roots
}

/// Circles that stand, as the modules on them, each with its crate. This list only becomes shorter.
const KNOWN: &[&str] = &["client: error -> views"];

#[test]
fn modules_do_not_import_each_other_in_a_circle() {
    let mut circles = Vec::new();
    let mut files = 0;
    for lib in crates() {
        let modules = Modules::read(&lib);
        let folder =
            lib.parent().and_then(|folder| folder.file_name()).expect("a crate has a folder").to_string_lossy();
        for parent in modules.paths() {
            files += 1;
            if let Some(circle) = circle(&modules.edges_below(parent)) {
                let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
                circles.push(format!("{folder}: {}", names.join(" -> ")));
            }
        }
    }
    assert!(files > 400, "only {files} files: the search no longer finds the modules");
    circles.sort();
    assert_eq!(circles, KNOWN, "modules import each other in a circle (left), or a known circle is gone (right)");
}

#[test]
fn a_circle_is_found_through_the_names_that_a_parent_hands_on() {
    let folder = env::temp_dir().join(format!("lockkeeper-circles-{}", process::id()));
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
    let found = |parent: &[&str]| {
        let parent: ModulePath = parent.iter().map(|&name| name.to_owned()).collect();
        circle(&Modules::read(&folder.join("lib.rs")).edges_below(&parent))
    };
    let path = |names: &[&str]| -> ModulePath { names.iter().map(|&name| name.to_owned()).collect() };

    fs::create_dir_all(folder.join("hall")).expect("made");
    write("lib.rs", "mod hall;\nmod yard;\n");
    write("hall/mod.rs", "mod lamp;\nmod door;\npub use lamp::Lamp;\npub struct Wall;\n");
    write("hall/lamp.rs", "use super::door::Door;\npub struct Lamp;\n");
    write("hall/door.rs", "use super::Wall;\npub struct Door;\n");
    write("yard.rs", "pub fn walk() { crate::hall::Wall; }\n#[cfg(test)]\nmod tests { use crate::hall::Lamp; }\n");
    assert_eq!((found(&["hall"]), found(&[])), (None, None));

    // The name of another file, in a path without an import, handed on by the parent.
    write("hall/door.rs", "pub fn open(_: super::Lamp) {}\npub struct Door;\n");
    assert_eq!(found(&["hall"]), Some(vec![path(&["hall", "door"]), path(&["hall", "lamp"])]));

    // A file below one of two modules.
    write("hall/door.rs", "use crate::yard::walk;\npub struct Door;\n");
    assert_eq!((found(&["hall"]), found(&[])), (None, Some(vec![path(&["hall"]), path(&["yard"])])));
    fs::remove_dir_all(&folder).expect("removed");
}
