#!/usr/bin/env bash
# The long form of the tests with unmodified clients of etcd (tests/etcd/clients.rs): the same cases for longer, and in addition
# `etcd-client`, Rust's client.
#
#     scripts/etcd-clients.sh [SECONDS]     for how long clients contend before the first fault (default: 10)
#
# The build of Rust's client asks for a compiler of protobuf, which is protox here. The first run compiles for some minutes. Needs
# python3, npm with node 20 or later, and apt-get; packages are installed into the build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export LOCKKEEPER_ETCD_SECONDS=${1:-10}

run() {
    echo "+ $*" >&2
    "$@"
}

if [[ -z ${PROTOC:-} ]] && ! command -v protoc >/dev/null; then
    PROTOC=$target/tmp/protox/bin/protox
    export PROTOC
    [[ -x $PROTOC ]] || run cargo install --locked --version 0.10.0 --features bin --root "$target/tmp/protox" \
        --target-dir "$target/etcd-clients" protox
fi
rust=tests/etcd/clients/rust/Cargo.toml
run cargo build --locked --manifest-path "$rust" --target-dir "$target/etcd-clients"
LOCKKEEPER_ETCD_RUST=$target/etcd-clients/debug/etcd-clients
export LOCKKEEPER_ETCD_RUST
run cargo test --locked --test node -- --nocapture --ignored --test-threads 1 etcd::clients::
