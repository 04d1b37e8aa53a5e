#!/usr/bin/env bash
# Runs all tests of the check N times beside busy loops, to find those that fail when the machine has no time for them.
#
#   scripts/repeat.sh N [FILTER…]      N runs of the tests whose names contain one of the filters; without filters, of all
#
# Prints for each test its runs, its failures, and the median and worst time in seconds, the slowest first. The output of a run that failed
# is kept in target/repeat. LOCKKEEPER_BUSY: how many busy loops (default: 4).
#
# Exit code: 0 if no test failed, 1 if one did, 2 for invalid arguments.
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

# Each line: the directory in which cargo runs a test program, and the program.
programs=$(cargo test --locked --workspace --no-run --message-format json | python3 -c '
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
        print(os.path.dirname(message["manifest_path"]), message["executable"], sep="\t")
')

busy=()
stop_busy_loops() {
    [[ ${#busy[@]} == 0 ]] || kill "${busy[@]}" 2>/dev/null || true
}
trap stop_busy_loops EXIT
for _ in $(seq "${LOCKKEEPER_BUSY:-4}"); do
    (while :; do :; done) &
    busy+=($!)
done

# run_program DIRECTORY PROGRAM OUTPUT OPTION…: runs a test program in this directory.
run_program() {
    local directory=$1 program=$2 output=$3
    shift 3
    if ! (cd "$directory" && RUSTC_BOOTSTRAP=1 "$program" "$@") >"$output" 2>&1 </dev/null; then
        echo "run $run: a test of $(basename "${program%-*}") failed: $output" >&2
        return 1
    fi
}

# Those that the check runs one after the other.
mapfile -t heavy_tests <scripts/heavy-tests.txt

failed=0
for run in $(seq "$runs"); do
    while IFS=$'\t' read -r directory program; do
        output=$kept/$run-$(basename "$program")
        options=(-Zunstable-options --report-time)
        heavy=
        case $(basename "$program") in
            node-*)
                # As in the check, two processes side by side. Filters cannot be combined, so with one it is a single process.
                if [[ $# == 0 ]]; then
                    run_program "$directory" "$program" "$output.heavy.txt" "${options[@]}" --test-threads 1 "${heavy_tests[@]}" &
                    heavy=$!
                    options+=("${heavy_tests[@]/#/--skip=}")
                fi
                options+=(--test-threads "${LOCKKEEPER_TEST_THREADS:-4}")
                ;;
            # This one has a harness of its own, which tells no times.
            conformance-*) options=() ;;
        esac
        run_program "$directory" "$program" "$output.txt" "${options[@]}" "$@" || failed=1
        [[ -z $heavy ]] || wait "$heavy" || failed=1
    done <<<"$programs"
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
exit "$failed"
