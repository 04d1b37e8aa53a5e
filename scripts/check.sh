#!/usr/bin/env bash
# The checks that every change must pass: format, lints, docs, tests. CI runs this script. It edits no file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run() {
    echo "+ $*" >&2
    "$@"
}

# Whether `cargo NAME` works: installs it with rustup if possible, otherwise reports that the step is skipped.
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
    run cargo fmt --all --check
fi
if has clippy clippy; then
    run cargo clippy --locked --workspace --all-targets -- -D warnings
    # What only builds with planted bugs have.
    run cargo clippy --locked --workspace --all-targets --features planted-bugs -- -D warnings
    # `--all-targets` leaves it out, since it is no test of a usual run.
    run cargo clippy --locked --test simulation --features planted-bugs -- -D warnings
fi
run scripts/dependencies.sh
RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings" run cargo doc --locked --workspace --no-deps
# The quickest ones first: what a tool would have told.
run cargo test --locked --workspace --test dependencies --test layers --test style
# All targets are built before the first test runs: tests/examples.rs finds the examples.
run cargo test --locked --workspace
# Mutation check: each planted bug must be found.
run cargo test --locked --features planted-bugs --test calibration
# With optimizations, for more simulated seeds per minute.
run cargo test --locked --profile simulation --test simulation -- --nocapture
