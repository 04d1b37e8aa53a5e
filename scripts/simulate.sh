#!/usr/bin/env bash
# Whole clusters in simulation (tests/simulation).
#
#   scripts/simulate.sh SEED                    one seed again, with a trace to read
#   scripts/simulate.sh --fresh COUNT           so many seeds that nobody has tried,
#   scripts/simulate.sh --fresh COUNT --first SEED      or from this one on
#   scripts/simulate.sh --planted [BUG]         whether bugs that are put in on purpose are found: each of them, or this one
#
# The first time, this compiles for some minutes. LOCKKEEPER_SIMULATION_LOG filters a trace, as RUST_LOG filters a log; with
# LOCKKEEPER_PLANTED_BUG=BUG, one seed is run with that bug put in.
#
# Exit code: 0 if nothing was found (by --planted: if each was), 2 if the arguments make no sense.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,12s/^# \{0,1\}//p' scripts/simulate.sh
}

refuse() {
    echo "$1" >&2
    usage >&2
    exit 2
}

# What a run writes is little, but synced: in memory, where that can be. Gone also when this is interrupted.
memory=/dev/shm
[[ -d $memory && -w $memory ]] || memory=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d "$memory/lockkeeper-simulation.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

simulate() {
    cargo test --locked --quiet --profile simulation --test simulation "$@" --exact --nocapture
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
        [[ $# == 4 ]] || refuse "that is too much: \"${5:-}\""
        export LOCKKEEPER_SIMULATION_FIRST=$4
        ;;
    *) refuse "there is no \"$3\"" ;;
    esac
    simulate -- fresh_seeds_find_nothing
    ;;
--planted)
    [[ $# -le 2 ]] || refuse "that is too much: \"$3\""
    [[ -z ${2:-} ]] || export LOCKKEEPER_SIMULATION_BUG=$2
    simulate --features planted-bugs -- --ignored planted::each_bug_is_convicted_of_what_it_breaks
    ;;
*)
    [[ ${1:-} =~ ^[0-9]{1,18}$ ]] || refuse "a seed is a number, not \"${1:-}\""
    [[ $# == 1 ]] || refuse "that is too much: \"$2\""
    export LOCKKEEPER_SIMULATION_REPLAY=$1
    features=()
    [[ -z ${LOCKKEEPER_PLANTED_BUG:-} ]] || features=(--features planted-bugs)
    simulate "${features[@]}" -- --ignored replay
    ;;
esac
