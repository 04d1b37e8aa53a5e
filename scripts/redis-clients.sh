#!/usr/bin/env bash
# Unmodified clients of Redis from PyPI, npm, the Rust registry and Debian on real clusters of three nodes (tests/redis):
#
#   1. each lock client: two processes contend while the leader is killed; refusal, release by others, waiting, extension, a dead holder,
#   2. blocking pops and channels over all nodes, with a leader that dies while clients wait,
#   3. clients that are given Sentinels, while leaders die.
#
#     scripts/redis-clients.sh [SECONDS [CLIENT…]]     for how long clients contend after the leader's death (default: 10); only these
#
# Needs python3, and npm with node 20 or later; packages are installed into the build directory, those in PHP, Ruby and Go by apt-get if
# this is root, and left out otherwise.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
lockkeeper=${LOCKKEEPER:-$target/debug/lockkeeper}

run() {
    echo "+ $*" >&2
    "$@"
}

[[ -n ${LOCKKEEPER:-} ]] || run cargo build --locked --bin lockkeeper

python=$target/tmp/redis-python
if ! cmp -s tests/redis/requirements.txt "$python/installed"; then
    run python3 -m venv --clear "$python"
    run "$python/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r tests/redis/requirements.txt
    cp tests/redis/requirements.txt "$python/installed"
fi

modules=$target/tmp/redis-npm
if ! cmp -s tests/redis/package-lock.json "$modules/installed"; then
    mkdir -p "$modules"
    cp tests/redis/package.json tests/redis/package-lock.json "$modules"
    (cd "$modules" && run npm ci --no-audit --no-fund --ignore-scripts)
    cp tests/redis/package-lock.json "$modules/installed"
fi
debian=(php-cli php-symfony-lock php-predis ruby-redis golang-go golang-github-gomodule-redigo-dev)
if [[ $EUID == 0 ]] && command -v apt-get >/dev/null && ! dpkg -s "${debian[@]}" >/dev/null 2>&1; then
    run apt-get update -q
    run apt-get install -qy --no-install-recommends "${debian[@]}"
fi

if command -v go >/dev/null && [[ -d /usr/share/gocode/src/github.com/gomodule/redigo ]]; then
    export REDIS_LOCKS_GO=$target/tmp/redis-locks-go
    GOPATH=/usr/share/gocode GO111MODULE=off run go build -o "$REDIS_LOCKS_GO" tests/redis/clients/locks.go
fi
rust=tests/redis/clients/rust/Cargo.toml
run cargo build --locked --manifest-path "$rust" --target-dir "$target/redis-clients"
export REDIS_LOCKS_RUST=$target/redis-clients/debug/redis-clients
export NODE_PATH=$modules/node_modules

run "$lockkeeper" dev --redis -- "$python/bin/python" -B tests/redis/clients/run.py "${1:-10}" "${@:2}"
