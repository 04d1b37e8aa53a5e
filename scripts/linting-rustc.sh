#!/usr/bin/env bash
# The compiler of scripts/check.sh for our crates: compiles, and tells the lints of clippy and, of a library, those of rustdoc.
#
#   RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/linting-rustc.sh cargo test …      compiles and lints; uses what the check compiled
#
# Cargo calls it with rustc and its arguments. A lint fails the compilation of its crate, as `-D warnings` does.
#
# `cargo clippy` and `cargo doc` read all crates, those of others too, and make no program: the tests, which need programs, compile all of
# it again. Here each crate is read once. Clippy's driver is rustc with further lints; it leaves out the optimisations before LLVM's (MIR).
# Section `plain` of scripts/nightly.sh runs all tests of a build by rustc.
set -euo pipefail

compiler=()
if command -v clippy-driver >/dev/null; then
    compiler=(clippy-driver)
fi
${compiler[@]+"${compiler[@]}"} "$@" --deny warnings

# Docs are those of a library as others use it, not as its own tests do.
case " $* " in
*' --test '*) exit 0 ;;
*' --crate-type lib '*) ;;
*) exit 0 ;;
esac

# The compiler's options but for what it writes. Rustdoc writes nothing: `--check` looks at all and makes no page.
options=()
shift
while [[ $# != 0 ]]; do
    case $1 in
    --emit=*) ;;
    --out-dir) shift ;;
    *) options+=("$1") ;;
    esac
    shift
done
# Rustdoc's `--check` is an unstable option, which a stable one has when RUSTC_BOOTSTRAP is set.
RUSTC_BOOTSTRAP=1 rustdoc "${options[@]}" -Zunstable-options --check --deny warnings
