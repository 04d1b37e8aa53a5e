#!/usr/bin/env bash
# Simulates whole clusters (tests/simulation).
#
#   scripts/simulate.sh SEED                    replay one seed, with a readable trace
#   scripts/simulate.sh --fresh COUNT           run COUNT new random seeds,
#   scripts/simulate.sh --fresh COUNT --first SEED      or COUNT seeds from SEED on
#   scripts/simulate.sh --planted [BUG…]        check that planted bugs are found: all, or only these
#   scripts/simulate.sh hunt [BUG…]             the same, and write each seed that found one into tests/simulation/seeds.txt
#
# The first run compiles for some minutes: for many seeds, or all bugs, with optimisation (Cargo's profile `simulation`), which changes no
# run. LOCKKEEPER_SIMULATION_LOG filters a trace, as RUST_LOG filters a log. With LOCKKEEPER_PLANTED_BUG=BUG, a replayed seed runs with that
# bug.
#
# Exit code: 0 if no violation was found (with --planted: if each bug was found), 2 for invalid arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,14s/^# \{0,1\}//p' scripts/simulate.sh
}

refuse() {
    echo "$1" >&2
    usage >&2
    exit 2
}

# A run writes little but syncs often, so its files are in memory if possible. They are removed on any exit.
memory=/dev/shm
[[ -d $memory && -w $memory ]] || memory=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d "$memory/lockkeeper-simulation.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# Number of seeds from which on the optimised build is worth its time.
many=20

# simulate PROFILE TEST…
simulate() {
    cargo test --locked --quiet --profile "$1" --test simulation -- "${@:2}" --exact --nocapture
}

case ${1:-} in
-h | --help)
    usage
    ;;
--fresh)
    [[ ${2:-} =~ ^[1-9][0-9]{0,8}$ ]] || refuse "--fresh needs a number of seeds, not \"${2:-}\""
    export LOCKKEEPER_SIMULATION_SEEDS=$2
    case ${3:-} in
    "") ;;
    --first)
        [[ ${4:-} =~ ^[0-9]{1,18}$ ]] || refuse "--first needs a seed, which is a number, not \"${4:-}\""
        [[ $# == 4 ]] || refuse "unexpected argument \"${5:-}\""
        export LOCKKEEPER_SIMULATION_FIRST=$4
        ;;
    *) refuse "unknown option \"$3\"; the only one here is --first SEED" ;;
    esac
    profile=dev
    ((LOCKKEEPER_SIMULATION_SEEDS < many)) || profile=simulation
    simulate "$profile" fresh_seeds_find_nothing
    ;;
--planted | hunt)
    [[ $1 != hunt ]] || export LOCKKEEPER_SIMULATION_KEEP=1
    shift
    profile=simulation
    if [[ $# -gt 0 ]]; then
        profile=dev
        LOCKKEEPER_SIMULATION_BUG=$(IFS=,; echo "$*")
        export LOCKKEEPER_SIMULATION_BUG
    fi
    simulate "$profile" --ignored planted::each_bug_is_convicted_of_what_it_breaks
    ;;
*)
    [[ ${1:-} =~ ^[0-9]{1,18}$ ]] || refuse "a seed is a number, not \"${1:-}\""
    [[ $# == 1 ]] || refuse "unexpected argument \"$2\""
    export LOCKKEEPER_SIMULATION_REPLAY=$1
    simulate dev --ignored replay
    ;;
esac
