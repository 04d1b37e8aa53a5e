#!/usr/bin/env bash
# Whole clusters in simulation (tests/simulation).
#
#   scripts/simulate.sh SEED             one seed again, with a trace to read
#   scripts/simulate.sh --fresh COUNT    so many seeds that nobody has tried, or from --first SEED on
#
# Exit code: 0 if nothing was found.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

simulate() {
    exec cargo test --locked --quiet --profile simulation --test simulation -- --exact --nocapture "$@"
}

case ${1:-} in
--fresh)
    [[ ${2:-} =~ ^[0-9]+$ ]] || usage
    export LOCKKEEPER_SIMULATION_SEEDS=$2
    if [[ ${3:-} == --first ]]; then
        [[ ${4:-} =~ ^[0-9]+$ ]] || usage
        export LOCKKEEPER_SIMULATION_FIRST=$4
    fi
    simulate fresh_seeds_find_nothing
    ;;
*)
    [[ ${1:-} =~ ^[0-9]+$ ]] || usage
    export LOCKKEEPER_SIMULATION_REPLAY=$1
    simulate --ignored replay
    ;;
esac
