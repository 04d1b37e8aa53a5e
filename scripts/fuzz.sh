#!/usr/bin/env bash
# Fuzzes the parsers of bytes from outside with coverage as its guide (tests/fuzz), by libFuzzer.
#
#   scripts/fuzz.sh                         list the targets
#   scripts/fuzz.sh TARGET [SECONDS]        fuzz one target (120 seconds), or one after the other: TARGET is all
#   scripts/fuzz.sh --again TARGET FILE     run a target on the input in a file, and print the line of it
#   scripts/fuzz.sh --corpus TARGET         print a small set of inputs that reach what all inputs so far reach, as lines
#
# Needs a C++ compiler for libFuzzer, and no nightly toolchain. The first run compiles for some minutes; nothing of it is part of the
# workspace. Inputs that reach new code stay in target/fuzz/corpus, and the next run goes on from them.
#
# An input that panics, takes longer than 10 s, or makes one allocation of more than 64 MiB ends the run of its target: its file is
# target/fuzz/found/TARGET-*. Mend what it shows, and append the line that --again prints to tests/fuzz/corpus/TARGET.txt, under a
# comment: `cargo test --test pure fuzz::` replays it from then on.
#
# Exit code: 0 if nothing was found, 1 if a target found something, 2 for invalid arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    sed -n '2,17s/^# \{0,1\}//p' scripts/fuzz.sh
}

refuse() {
    echo "$1" >&2
    usage >&2
    exit 2
}

base=${CARGO_TARGET_DIR:-target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')
program=$base/$host/release/fuzz

# Coverage in all crates, as cargo-fuzz asks for it. With a target of its own, build scripts and procedural macros stay as they are.
build() {
    local flags="-C passes=sancov-module" pass
    for pass in level=4 inline-8bit-counters pc-table trace-compares; do
        flags+=" -C llvm-args=-sanitizer-coverage-$pass"
    done
    RUSTFLAGS="$flags -C codegen-units=1" CARGO_TARGET_DIR=$base CARGO_INCREMENTAL=0 \
        cargo build --release --locked --quiet --target "$host" --manifest-path tests/fuzz/guided/Cargo.toml
}

# Files that parsers open are in memory if possible.
memory=/dev/shm
[[ -d $memory && -w $memory ]] || memory=${TMPDIR:-/tmp}
TMPDIR=$(mktemp -d "$memory/lockkeeper-fuzz.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# Runs a target once on each seed and line of its corpus, then on mutations.
fuzz() {
    local target=$1 seconds=$2 log=$base/log/$1.txt
    mkdir -p "$base/corpus/$target" "$base/found" "$base/log" "$TMPDIR/seeds/$target"
    LOCKKEEPER_FUZZ_TARGET=$target LOCKKEEPER_FUZZ_SEEDS=$TMPDIR/seeds/$target "$program" 2>>"$log"
    local result=0
    LOCKKEEPER_FUZZ_TARGET=$target nice -n 10 "$program" -max_total_time="$seconds" -max_len=16384 -timeout=10 \
        -rss_limit_mb=2048 -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$base/found/$target-" \
        "$base/corpus/$target" "$TMPDIR/seeds/$target" >"$log" 2>&1 || result=1
    summary "$target" "$log"
    return $result
}

# Executions, coverage after the seeds and at the end, the corpus, and what was found.
summary() {
    awk -v target="$1" '
        { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "corp:") corpus = $(i + 1) } }
        /INITED/ { first = cov }
        /stat::number_of_executed_units/ { runs = $2 }
        /stat::peak_rss_mb/ { memory = $2 }
        /Test unit written to/ { found = found "\n    found: " $NF }
        END { printf "%-20s %10d runs, coverage %5d -> %5d, corpus %s, peak %d MiB%s\n", target, runs, first, cov, corpus, memory, found }
    ' "$2"
}

case ${1:-} in
-h | --help)
    usage
    ;;
'')
    build
    "$program" 2>/dev/null
    ;;
--again)
    [[ $# == 3 && -f ${3:-} ]] || refuse "--again needs a target and a file"
    build
    mkdir -p "$TMPDIR/one"
    cp "$3" "$TMPDIR/one/"
    LOCKKEEPER_FUZZ_TARGET=$2 LOCKKEEPER_FUZZ_LINES=$TMPDIR/one "$program" 2>/dev/null
    LOCKKEEPER_FUZZ_TARGET=$2 "$program" -timeout=10 "$3"
    ;;
--corpus)
    [[ $# == 2 ]] || refuse "--corpus needs a target"
    build
    mkdir -p "$TMPDIR/all" "$TMPDIR/few"
    LOCKKEEPER_FUZZ_TARGET=$2 LOCKKEEPER_FUZZ_SEEDS=$TMPDIR/all "$program" 2>/dev/null
    # What the seeds reach comes from them.
    LOCKKEEPER_FUZZ_TARGET=$2 "$program" -merge=1 "$TMPDIR/all" "$base/corpus/$2" >/dev/null 2>&1
    find "$TMPDIR/all" -type f ! -name 'seed-*' -exec mv -t "$TMPDIR/few" {} +
    LOCKKEEPER_FUZZ_TARGET=$2 LOCKKEEPER_FUZZ_LINES=$TMPDIR/few "$program" 2>/dev/null
    ;;
-*)
    refuse "$1 is no option"
    ;;
*)
    [[ $# -le 2 && ${2:-120} =~ ^[1-9][0-9]*$ ]] || refuse "a target and a number of seconds are needed"
    build
    targets=$("$program" 2>/dev/null)
    [[ $1 == all ]] || targets=$(grep -Fx -- "$1" <<<"$targets") || refuse "$1 is no target"
    found=0
    for target in $targets; do
        fuzz "$target" "${2:-120}" || found=1
    done
    exit $found
    ;;
esac
