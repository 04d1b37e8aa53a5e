#!/usr/bin/env bash
# What is too long for scripts/check.sh, needs root, or needs programs of others. Each section has a small part in the check too.
#
#   scripts/nightly.sh                  all sections, one after the other
#   scripts/nightly.sh SECTION…         these
#   scripts/nightly.sh --list           their names, each with what it does
#
# A section that fails does not stop the others. A table of the sections stands at the end.
#
# Exit code: 0 if all sections passed, 1 if one failed, 2 for an unknown section.
#
# Packages of others are installed by it, into the build directory or by apt-get. Times are for two processors.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sections=(
    'plain        all tests of a build that can have no planted bugs, with fresh cases of the property tests'
    'docs         examples in the docs, and docs of private items with all warnings'
    'chaos        real processes under each kind of fault, and while nodes come and go'
    'convictions  bugs that chaos must find'
    'simulation   ten minutes of fresh seeds, and a seed for each planted bug'
    'hunt         bugs that seeds must find'
    'matrix       each planted bug that suites are to find, with each layer of the tests: some hours'
    'etcd         clients of etcd from PyPI, npm and Debian; a walk beside etcd'
    'patroni      Patroni with PostgreSQL'
    'dynamodb     clients of DynamoDB from PyPI and npm; walks beside moto and dynalite'
    'redis        lock clients of Redis from PyPI, npm and Debian while leaders die; clients that wait; Sentinels'
    'zookeeper    clients of ZooKeeper from PyPI, npm and Debian while nodes die; walks beside ZooKeeper 3.8'
    'lua          random programs beside the same interpreter in redis-server'
    'clients-python the Python client: lints, types, its tests, its recipes; a run of chaos that is judged'
    'generated    clients for TypeScript, JavaScript, Python, Java and Go, generated from proto/'
    'clients-typescript  the TypeScript client: its tests under two versions of Node, the conformance suite, chaos'
    'browser      the console in Chromium'
    'crates       every crate, packaged and built as crates.io would, in the order of a release'
    'deployment   the Debian package, Kubernetes schemas, rules of alerts by promtool'
    'disks        a real ext4 that is shut down; processes that are killed while they write'
    'power        ten times as many simulated power failures, kills, faults and damages of a log as in the check'
    'cluster      nodes that are killed and paused under load; two faults at once around a command'
    'bench        each benchmark, for a few seconds; the checker over a hundred thousand transactions'
    'fuzz         each parser for two minutes, guided by coverage'
)

# ignored PROGRAM FILTER…: runs the ignored tests of a test program whose names contain a filter.
ignored() {
    local program=$1
    shift
    cargo test --locked --test "$program" -- --ignored --nocapture --test-threads "${LOCKKEEPER_TEST_THREADS:-2}" "$@"
}

apt() {
    command -v "$1" >/dev/null || { apt-get update -q && apt-get install -qy --no-install-recommends "$2"; }
}

section() {
    case $1 in
    plain) cargo test --locked --workspace --no-default-features -- --test-threads 4 ;;
    docs)
        cargo test --locked --workspace --doc &&
            RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items
        ;;
    chaos) ignored node chaos::all_holds etcd::chaos dynamodb::chaos redis::chaos ;;
    convictions) ignored node calibration::convictions ;;
    simulation)
        LOCKKEEPER_SIMULATION_SECONDS=600 cargo test --locked --profile simulation --test simulation fresh_seeds -- --nocapture &&
            ignored simulation the_same_seed_gives_the_same_trace && scripts/simulate.sh hunt
        ;;
    hunt) scripts/simulate.sh --planted ;;
    matrix) scripts/convict.py hunt --layers all --record target/convictions.tsv ;;
    etcd) ignored node etcd::etcdctl etcd::walk etcd::lock_set etcd::locks && scripts/etcd-clients.sh ;;
    patroni) scripts/patroni.sh ;;
    dynamodb) scripts/dynamodb-clients.sh ;;
    redis) scripts/redis-clients.sh ;;
    zookeeper)
        scripts/zookeeper-clients.sh --zookeeper 3 && scripts/zookeeper-clients.sh &&
            scripts/zookeeper-clients.sh --kazoo-tests && scripts/zookeeper-clients.sh --two-holders 3 &&
            ignored node zookeeper::
        ;;
    lua) apt redis-server redis-server && cargo test --locked -p lockkeeper-lua --lib -- --ignored --nocapture ;;
    clients-python) scripts/python-client.sh && scripts/client-conformance.sh python && ignored node clients::python:: ;;
    generated) ignored node generated:: ;;
    clients-typescript)
        scripts/typescript-client.sh && scripts/client-conformance.sh typescript && scripts/typescript-client.sh --chaos 60
        ;;
    browser) ignored node console:: ;;
    crates) scripts/release.sh dry-run ;;
    deployment) ignored node deployment:: ;;
    disks) apt mkfs.ext4 e2fsprogs && ignored node power::ext4::a_real log_store::crash::acknowledged ;;
    power) LOCKKEEPER_CRASH_POINTS=10000 cargo test --locked --test node power:: -- --nocapture --test-threads 2 ;;
    cluster) ignored node cluster::kills cluster::pauses cluster::load cluster::wrapper ;;
    bench)
        ignored node bench_program:: &&
            cargo test --release --locked -p lockkeeper-checker --lib hundred_thousand -- --ignored --nocapture
        ;;
    fuzz) scripts/fuzz.sh all 120 ;;
    *) return 2 ;;
    esac
}

if [[ ${1:-} == --list ]]; then
    printf '%s\n' "${sections[@]}"
    exit 0
fi
if [[ $# == 0 ]]; then
    set -- "${sections[@]%% *}"
fi
for name; do
    if ! printf '%s\n' "${sections[@]%% *}" | grep -qxF -- "$name"; then
        echo "there is no section \"$name\"; the sections are: ${sections[*]%% *}" >&2
        exit 2
    fi
done

failed=0
table=''
for name; do
    began=$SECONDS
    outcome=passed
    echo "== $name" >&2
    section "$name" || { outcome=FAILED && failed=1; }
    table+=$(printf '%-18s %6d s  %s' "$name" $((SECONDS - began)) "$outcome")$'\n'
done
printf '\n%-18s %8s  %s\n%s' SECTION TIME OUTCOME "$table"
exit "$failed"
