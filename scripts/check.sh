#!/usr/bin/env bash
# All that must hold before a change is taken: format, lints, docs, tests. CI runs this very script. It edits no file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run() {
    echo "+ $*" >&2
    "$@"
}

# Whether `cargo NAME` works: has it installed where rustup is at hand, or else says loudly that the step is left out.
has() {
    local name=$1 component=$2
    if cargo "$name" --version >/dev/null 2>&1; then
        return 0
    fi
    if command -v rustup >/dev/null && run rustup component add "$component" && cargo "$name" --version >/dev/null 2>&1; then
        return 0
    fi
    echo "!!! SKIPPED: cargo $name is not installed; get it with: rustup component add $component" >&2
    return 1
}

if has fmt rustfmt; then
    run cargo fmt --check
fi
if has clippy clippy; then
    run cargo clippy --locked --all-targets --test simulation -- -D warnings
fi
RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings" run cargo doc --locked --no-deps
# All targets are built before the first test runs: tests/examples.rs finds the examples.
run cargo test --locked
# Bugs that are put in on purpose: each must be found.
run cargo test --locked --features planted-bugs --test calibration
# With optimizations: what counts is how many seeds there are in a minute.
run cargo test --locked --profile simulation --test simulation -- --nocapture
