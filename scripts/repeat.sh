#!/usr/bin/env bash
# Runs all tests of the check N times beside busy loops, to find those that fail when the machine has no time for them.
#
#   scripts/repeat.sh N [FILTER…]      N runs of the tests whose names contain one of the filters; without filters, of all
#
# The programs run side by side as in the check, and are what it compiled. Prints for each test its runs, its failures, and the median and
# worst time in seconds, the slowest first. The output of each run is kept in target/repeat. LOCKKEEPER_BUSY: how many busy loops (default:
# 4).
#
# Ctrl-C ends the run that goes on, and prints what was seen until then.
#
# Exit code: 0 if no test failed, 1 if one did, 2 for invalid arguments, 130 after Ctrl-C.
#
# The times of single tests are an unstable part of Rust's test harness, which a stable one gives when RUSTC_BOOTSTRAP is set. It is set for
# the test programs alone, not for cargo, which would compile everything again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ! ${1:-} =~ ^[1-9][0-9]{0,3}$ ]]; then
    sed -n '2,12s/^# \{0,1\}//p' scripts/repeat.sh
    exit 2
fi
runs=$1
shift

kept=${CARGO_TARGET_DIR:-target}/repeat
rm -rf "$kept"
mkdir -p "$kept"

# What the check compiled.
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/linting-rustc.sh

# Each line: the directory in which cargo runs a test program, and the program.
programs=$(cargo test --locked --workspace --no-run --message-format json | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
        print(os.path.dirname(message["manifest_path"]), message["executable"], sep="\t")
')

# The process groups of what runs beside this shell: busy loops; this run's programs. Each is its own, so that Ctrl-C is told to this shell
# alone.
loops=()
groups=()

# beside COMMAND…: runs it beside what follows.
beside() {
    set -m
    "$@" </dev/null &
    set +m
    groups+=($!)
}

# joined GROUP…: waits for these.
joined() {
    local group
    for group; do
        wait "$group" || failed=1
    done
}

end_groups() {
    local group
    for group in ${groups[@]+"${groups[@]}"} "$@"; do
        kill -- "-$group" 2>/dev/null || true
    done
}

busy_loop() {
    while :; do :; done
}

# run_programs NAME ENDING [OPTION…]: runs the test programs whose name is this regular expression, one after the other, each with these
# options. Their output has names with this ending.
run_programs() {
    local name=$1 ending=$2 directory program output failed=0
    shift 2
    while IFS=$'\t' read -r directory program; do
        output=$kept/$run-$(basename "$program")$ending.txt
        if ! (cd "$directory" && RUSTC_BOOTSTRAP=1 exec "$program" "$@") >"$output" 2>&1 </dev/null; then
            echo "run $run: a test of $(basename "${program%-*}") failed: $output" >&2
            failed=1
        fi
    done < <(grep -E "/$name-[0-9a-f]+\$" <<<"$programs")
    return "$failed"
}

# What the check runs: the simulation beside all others; the formats and the clients' scenarios beside the crates; then the nodes, in two
# processes. Property tests and the simulation draw fresh cases.
simulation() {
    renice -n 10 -p "$BASHPID" >/dev/null
    LOCKKEEPER_SIMULATION_SEEDS=2 run_programs simulation '' "${timed[@]}" "$@"
}

crates() {
    run_programs '(lockkeeper.*|rules)' '' "${timed[@]}" "$@"
}

formats_clients() {
    local failed=0
    run_programs pure '' "${timed[@]}" "$@" || failed=1
    # This one has a harness of its own, which tells no times.
    run_programs conformance '' "$@" || failed=1
    return "$failed"
}

run_all() {
    groups=()
    beside simulation "$@"
    beside crates "$@"
    beside formats_clients "$@"
    joined "${groups[@]:1}"
    [[ -z $interrupted ]] || return 0

    # Filters cannot be combined, so with one it is a single process.
    local others=(--test-threads "${LOCKKEEPER_TEST_THREADS:-4}" "$@")
    if [[ $# == 0 ]]; then
        beside run_programs node .heavy "${timed[@]}" --test-threads 1 "${heavy[@]}"
        others+=("${heavy[@]/#/--skip=}")
    fi
    beside run_programs node '' "${timed[@]}" "${others[@]}"
    joined "${groups[@]}"
}

timed=(-Zunstable-options --report-time)
# Those that the check runs one after the other.
mapfile -t heavy <scripts/heavy-tests.txt

failed=0
interrupted=
trap 'end_groups ${loops[@]+"${loops[@]}"}' EXIT
trap 'interrupted=yes; end_groups' INT TERM

for _ in $(seq "${LOCKKEEPER_BUSY:-4}"); do
    beside busy_loop
done
loops=(${groups[@]+"${groups[@]}"})
groups=()

for run in $(seq "$runs"); do
    run_all "$@"
    if [[ -n $interrupted ]]; then
        echo "run $run of $runs was interrupted" >&2
        break
    fi
    echo "run $run of $runs done" >&2
done

python3 - "$kept" <<'PYTHON'
import collections, pathlib, re, statistics, sys

times = collections.defaultdict(list)
failures = collections.Counter()
for output in pathlib.Path(sys.argv[1]).iterdir():
    program = output.name.split("-", 1)[1].rsplit("-", 1)[0]
    # Output of children stands in between, so the end of a line is looked for anywhere.
    for name, outcome, seconds in re.findall(r"^test (\S+) .*?\.\.\. .*?(ok|FAILED) <([0-9.]+)s>$", output.read_text(errors="replace"), re.M):
        times[program, name].append(float(seconds))
        failures[program, name] += outcome == "FAILED"

print(f"{'RUNS':>5} {'FAILED':>6} {'MEDIAN s':>9} {'WORST s':>8}  TEST")
for test in sorted(times, key=lambda test: (-failures[test], -statistics.median(times[test]))):
    spent = times[test]
    print(f"{len(spent):5} {failures[test]:6} {statistics.median(spent):9.2f} {max(spent):8.2f}  {'::'.join(test)}")
PYTHON
[[ -z $interrupted ]] || exit 130
exit "$failed"
