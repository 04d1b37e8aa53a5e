#!/usr/bin/env bash
# The checks that every change must pass: rules, format, lints, docs, tests. CI runs this script. It edits no file.
#
# The quickest first, so that a slip is told in seconds. One profile and one set of features: each crate is compiled once, for all tests and
# with all lints (scripts/linting-rustc.sh). What takes longer, needs root or programs of others is in scripts/nightly.sh.
#
# At the end stands a table of the steps with their seconds, and below it the test runner's own lines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Property tests draw the same cases in each check, so that it says something of the change alone; the nightly script draws fresh ones.
export PROPTEST_RNG_SEED=${PROPTEST_RNG_SEED:-1}
# Our crates are compiled by it, in every step: lints of code and docs are told by what compiles the tests.
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/linting-rustc.sh

notes=$(mktemp -d)
results=$notes/results
table=$notes/table
# The process groups of what this shell runs beside other things, by name.
declare -A groups=()
trap 'end_besides; rm -rf "$notes"' EXIT

# step NAME COMMAND…: runs the command and notes its seconds.
step() {
    local name=$1 began=$SECONDS failed=0
    shift
    echo "+ $*" >&2
    "$@" || failed=1
    printf '%-28s %5d s\n' "$name" $((SECONDS - began)) >>"$table"
    return "$failed"
}

# tests NAME COMMAND…: the same for a command whose output ends with a test runner's result, which is kept for the end.
tests() {
    local name=$1
    shift
    step "$name" with_results "$@"
}

with_results() {
    local failed=0
    in_subshell "$@" 2>&1 | tee "$notes/output" || failed=1
    grep '^test result:' "$notes/output" >>"$results" || failed=1
    return "$failed"
}

# What runs beside this shell is another one's.
in_subshell() {
    groups=()
    trap end_besides EXIT
    "$@"
}

# beside NAME COMMAND…: runs the command beside what follows, in a process group of its own, with its output in $notes/NAME.
beside() {
    local name=$1
    shift
    set -m
    "$@" >"$notes/$name" 2>&1 </dev/null &
    set +m
    groups[$name]=$!
}

# What runs beside others does not outlive them, as after Ctrl-C.
end_besides() {
    local group
    for group in "${groups[@]}"; do
        kill -- "-$group" 2>/dev/null || true
    done
}

# joined NAME: waits for it, and shows its output.
joined() {
    local failed=0
    wait "${groups[$1]}" || failed=1
    unset "groups[$1]"
    cat "$notes/$1"
    return "$failed"
}

# The unit tests of all crates, one program after the other. Beside them, one after the other, what leaves a processor free or waits most of
# the time: the program `pure`, of which the longest test takes one processor; scenarios of clients; and the quick planted bugs.
crates_formats_clients() {
    local failed=0
    beside further beside_crates
    cargo test --locked --workspace --lib || failed=1
    joined further || failed=1
    return "$failed"
}

beside_crates() {
    local failed=0
    cargo test --locked --test pure || failed=1
    cargo test --locked --test conformance || failed=1
    if command -v python3 >/dev/null; then
        scripts/convict.py check || failed=1
    else
        echo '!!! SKIPPED: the quick planted bugs need python3'
    fi
    return "$failed"
}

# The tests of the program `node`, in two processes side by side: those that load the machine most (scripts/heavy-tests.txt) one after the
# other, and the others, which wait most of the time, some at a time.
node() {
    local heavy failed=0
    mapfile -t heavy <scripts/heavy-tests.txt
    local skipped=("${heavy[@]/#/--skip=}")
    beside heavy cargo test --locked --test node -- --test-threads 1 "${heavy[@]}"
    cargo test --locked --test node -- --test-threads "${LOCKKEEPER_TEST_THREADS:-4}" "${skipped[@]}" || failed=1
    joined heavy || failed=1
    return "$failed"
}

# The same two seeds in each check, so that it says something of the change alone: one is run with a trace and without, which must make no
# difference. Each takes a third of the time that it would draw: so the other tests have processor time left. Whole ones are run by
# scripts/simulate.sh, which the nightly script calls.
simulation() {
    LOCKKEEPER_SIMULATION_TWICE=1 LOCKKEEPER_SIMULATION_FIRST=2 LOCKKEEPER_SIMULATION_SEEDS=1 LOCKKEEPER_SIMULATED_SECONDS=20 \
        cargo test --locked --test simulation -- --nocapture
}

# The unit tests and formats, and beside them the simulation, which only computes. So the nodes of the next step have the processors to
# themselves: much of what their tests do is to wait for each other, on a busy machine in vain.
before_node() {
    local failed=0
    beside simulation simulation
    crates_formats_clients || failed=1
    joined simulation || failed=1
    return "$failed"
}

# Whether `cargo NAME` works: installs it with rustup if possible, otherwise reports that it is skipped.
has() {
    local name=$1 component=$2
    if cargo "$name" --version >/dev/null 2>&1; then
        return 0
    fi
    if command -v rustup >/dev/null && rustup component add "$component" && cargo "$name" --version >/dev/null 2>&1; then
        return 0
    fi
    echo "!!! SKIPPED: cargo $name is not installed; get it with: rustup component add $component" >&2
    return 1
}

if has fmt rustfmt; then
    step format cargo fmt --all --check
fi
# Without clippy the compiler's own lints are told.
has clippy clippy || true
tests rules cargo test --locked --package lockkeeper-rules
step dependencies scripts/dependencies.sh
step 'build of all tests, lints' cargo test --locked --workspace --all-targets --no-run
# If one of the last two fails, the other is still told: each took minutes.
failed=0
tests 'crates, simulation, clients' before_node || failed=1
tests node node || failed=1

printf '\n%s\n' 'STEP                         TIME'
cat "$table"
printf '%-28s %5d s\n\n' 'all of it' "$SECONDS"
cat "$results"
exit "$failed"
