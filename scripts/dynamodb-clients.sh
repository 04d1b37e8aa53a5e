#!/usr/bin/env bash
# The long form of the tests with unmodified clients of DynamoDB (tests/dynamodb):
#
#   1. all clients on a cluster whose leader is killed, and in addition dynamodb-lease with the AWS SDK for Rust,
#   2. the same clients on moto, for what a dead holder costs without a lease,
#   3. Python's and npm's clients for a minute under all faults, judged by the checker,
#   4. random walks on a cluster beside moto and beside dynalite: both must answer the same.
#
#     scripts/dynamodb-clients.sh [SECONDS]     for how long clients contend after the leader's death (default: 10)
#
#     OPERATIONS=5000 SEED=1    of each walk
#
# The first run compiles the AWS SDK for some minutes. Needs python3, and npm with node 20 or later; packages are installed into the
# build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

operations=${OPERATIONS:-5000}
seed=${SEED:-1}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export LOCKKEEPER_DYNAMODB_SECONDS=${1:-10} LOCKKEEPER_DYNAMODB_CHAOS=60s LOCKKEEPER_DYNAMODB_FAULTS=all

run() {
    echo "+ $*" >&2
    "$@"
}

rust=tests/dynamodb/clients/rust/Cargo.toml
run cargo build --locked --manifest-path "$rust" --target-dir "$target/dynamodb-clients"
LOCKKEEPER_DYNAMODB_RUST=$target/dynamodb-clients/debug/dynamodb-clients
export LOCKKEEPER_DYNAMODB_RUST
run cargo test --locked --test node -- --nocapture --include-ignored --test-threads 1 dynamodb::

python=$target/tmp/dynamodb-python/bin/python
[[ -x $python ]] || { echo "!!! SKIPPED: the walks need the Python packages" >&2; exit 0; }
# walk [ORACLE]: on a new cluster.
walk() {
    run "$target/debug/lockkeeper" dev --dynamodb -- sh -c \
        '"$0" tests/dynamodb/walk.py "$LOCKKEEPER_DYNAMODB_ENDPOINT" "$@"' "$python" "$operations" "$seed" "$@"
}
walk

export NODE_PATH=$target/tmp/dynamodb-npm/node_modules
[[ -d $NODE_PATH/dynalite ]] || { echo "!!! SKIPPED: dynalite is not installed" >&2; exit 0; }
# It ends with its input, which this script holds.
coproc dynalite { exec node tests/dynamodb/clients/dynalite_server.cjs; }
read -r oracle <&"${dynalite[0]}"
walk "$oracle"
