#!/usr/bin/env bash
# Cost as a function of the number of sessions, held locks, waiters and nodes. Prints one table for each; takes about
# seven minutes.
#
#     scripts/bench-growth.sh
#
# Each measurement uses a new cluster on this machine, with its files in TMPDIR. On few processors the load competes
# with the servers, and additional nodes compete with each other.
#
#     DURATION=5s REPETITIONS=3 LOCKS=1,1000,100000,1000000 SESSIONS=10,100,1000,10000 WAITERS=1,10,100,1000 NODES="3 5 7"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

windows=(--warm-up 2s --duration "${DURATION:-5s}" --repetitions "${REPETITIONS:-3}")
cargo build --profile dist --no-default-features --locked --quiet
bench() {
    echo
    echo "\$ lockkeeper bench $*"
    target/dist/lockkeeper bench "$@" "${windows[@]}"
}

bench uncontended --workers 64 --beside-sessions "${SESSIONS:-10,100,1000,10000}"
bench uncontended --workers 64 --beside-locks "${LOCKS:-1,1000,100000,1000000}"
bench contended --workers "${WAITERS:-1,10,100,1000}"
for nodes in ${NODES:-3 5 7}; do
    bench uncontended --workers 64 --nodes "$nodes"
done
