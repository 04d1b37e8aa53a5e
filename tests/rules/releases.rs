//! What crates.io asks of each crate of a release, and what bears the version.

use std::{collections::BTreeMap, fs};

use serde_json::Value;

use crate::{cargo, root};

/// The packages of this workspace.
fn packages() -> Vec<Value> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--no-deps", "--format-version=1"])).expect("JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().expect("a name")
}

/// Whether it can be published: `publish = false` is an empty list of registries.
fn is_published(package: &Value) -> bool {
    !package["publish"].as_array().is_some_and(Vec::is_empty)
}

#[test]
fn every_crate_can_be_published_with_those_that_it_needs() {
    let packages = packages();
    let version =
        packages.iter().find(|package| name(package) == "lockkeeper").expect("the program")["version"].clone();
    let version = version.as_str().expect("a version");
    let published: BTreeMap<_, _> = packages.iter().map(|package| (name(package), is_published(package))).collect();

    let mut wrong = Vec::new();
    for package in packages.iter().filter(|package| is_published(package)) {
        let name = name(package);
        for key in ["description", "license", "rust_version"] {
            if package[key].as_str().is_none_or(str::is_empty) {
                wrong.push(format!("{name} has no {key}: add it, or take that of the workspace"));
            }
        }
        if package["version"] != version {
            wrong.push(format!("{name} has the version {}, the program {version}", package["version"]));
        }

        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let needed = dependency["name"].as_str().expect("a name");
            let Some(is_published) = published.get(needed) else { continue };
            if dependency["req"] != format!("^{version}") {
                wrong.push(format!(
                    "{name} needs {needed} {}: write version = \"{version}\" beside its path",
                    dependency["req"]
                ));
            }
            if !is_published {
                wrong.push(format!("{name} needs {needed}, which is not published"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(published.values().filter(|is_published| **is_published).count() > 20, "{published:?}");
}

#[test]
fn the_objects_for_kubernetes_name_the_image_of_this_version() {
    let packages = packages();
    let version = packages[0]["version"].as_str().expect("a version");
    let node = fs::read_to_string(root().join("cluster-configs/kubernetes/node.yaml")).expect("readable");
    assert!(node.contains(&format!("image: lockkeeper:{version}\n")), "node.yaml names another image than {version}");
}
