#!/usr/bin/env bash
# What a release is made of. .github/workflows/release.yml calls it; CONTRIBUTING, "A release", says in which order.
#
#   release.sh check TAG          whether TAG is the version of Cargo.toml, and the changelog has a section for it
#   release.sh crates             the crates that are published, in the order in which they depend on each other
#   release.sh tree DIRECTORY     an export of the last commit from which they can be published
#   release.sh dry-run            package and build each of them as crates.io would, upload nothing. Takes minutes
#   release.sh publish            upload them, in their order
#
# Why an export: a package has only files below its own manifest. Those that compile the messages between nodes get a copy of them, and all
# get the licences.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    echo "release.sh: $*" >&2
    exit 1
}

version() { sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml; }

check() {
    [[ $1 == "v$(version)" ]] || fail "the tag is $1, and Cargo.toml has the version $(version): tag v$(version), or raise the version first"
    grep -q "^## \[$(version)\]" CHANGELOG.md || fail "CHANGELOG.md has no section [$(version)]: rename [Unreleased], with the date"
    [[ -z $(git status --porcelain) ]] || fail "there are changes that are not committed"
}

# Of each crate that may be published a line: its name, and the crates of this workspace that it depends on.
dependencies() {
    cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys

packages = {p["name"]: p for p in json.load(sys.stdin)["packages"] if p["publish"] != []}
for name, package in packages.items():
    # Those of tests alone do not count: none of them leads back, or cargo would refuse to package.
    needed = {d["name"] for d in package["dependencies"] if d["name"] in packages and d["kind"] != "dev"}
    print(name, *sorted(needed))
'
}

crates() {
    # tsort wants pairs, and writes the first of each before the second. A crate beside itself stands alone.
    dependencies | awk '{ print $1, $1; for (i = 2; i <= NF; i++) print $i, $1 }' | tsort
}

tree() {
    local directory=$1 build crate
    mkdir -p "$directory"
    [[ -z $(ls -A "$directory") ]] || fail "$directory is not empty"
    git archive HEAD | tar -x -C "$directory"

    local with_messages=0
    for build in "$directory"/src/*/build.rs; do
        grep -q '"../../proto"' "$build" || continue
        crate=$(dirname "$build")
        mkdir "$crate/proto"
        cp -r "$directory/proto/lockkeeper" "$crate/proto/"
        sed -i 's|"../../proto"|"proto"|' "$build"
        with_messages=$((with_messages + 1))
    done
    [[ $with_messages -gt 0 ]] || fail "no build.rs names ../../proto: this script no longer knows where the messages are compiled"
    for crate in "$directory"/proto "$directory"/src/*/; do
        [[ ! -f $crate/Cargo.toml ]] || cp "$directory"/LICENSE-* "$crate/"
    done
}

# In an export, with the build directory of this one.
in_export() {
    exported=$(mktemp -d)
    trap 'rm -rf "$exported"' EXIT
    tree "$exported"
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} "$@" --manifest-path "$exported/Cargo.toml"
}

case ${1:-} in
check) check "${2:?name the tag}" ;;
crates) crates ;;
tree) tree "${2:?name an empty directory}" ;;
dry-run) in_export cargo publish --workspace --dry-run --locked ;;
publish) in_export cargo publish --workspace --locked ;;
*) fail "there is no command \"${1:-}\": check, crates, tree, dry-run, publish" ;;
esac
