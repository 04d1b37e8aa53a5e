#!/usr/bin/env bash
# Hours of faults: consecutive runs, each with a random seed, cluster size and mix of faults, until the time is over or
# a run fails. A run that passes is deleted, except for a line in DIR/tally. The files of a failed run are kept, and the
# soak ends.
#
#   scripts/soak.sh [HOURS [DIR]]      default: 8 hours in ./soak
#
# Half of the runs have programs of other protocols beside the clients: etcd's locks and transactions, if there is a python3, and
# lock clients of DynamoDB, if SOAK_PYTHON names a Python that has the packages of tests/dynamodb/requirements.txt, or SOAK_NODE_MODULES
# a directory with those of tests/dynamodb/package.json. Such runs have no restores.
#
# EARLIER names a program of an earlier version: in a third of the runs, nodes run it and the program to test by turns. Such runs have no
# changes of the membership.
#
# LOCKKEEPER names the program to test, RUN the length of one run (2m). Exit code: 0, or that of the failed run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hours=${1:-8}
directory=${2:-soak}
run=${RUN:-2m}
program=${LOCKKEEPER:-}
if [[ -z $program ]]; then
    cargo build --locked --release --bin lockkeeper
    program=${CARGO_TARGET_DIR:-target}/release/lockkeeper
fi
mkdir -p "$directory"
tally=$directory/tally
end=$(($(date +%s) + $(awk "BEGIN { print int($hours * 3600) }")))

programs=()
if command -v python3 >/dev/null; then
    programs+=(--program "exec python3 '$PWD/tests/etcd/clients/chaos_json.py'")
else
    echo "no python3: no run has clients of etcd" >&2
fi
if [[ -n ${SOAK_PYTHON:-} ]]; then
    programs+=(--program "exec '$SOAK_PYTHON' '$PWD/tests/dynamodb/clients/chaos_python.py'")
fi
if [[ -n ${SOAK_NODE_MODULES:-} ]]; then
    programs+=(--program "NODE_PATH='$SOAK_NODE_MODULES' exec node '$PWD/tests/dynamodb/clients/chaos_npm.cjs'")
fi

pick() {
    local choices=("$@")
    echo "${choices[RANDOM % ${#choices[@]}]}"
}

# A run with too little activity (exit code 31) proves nothing: it is counted and its report is set aside.
thin=0
while (($(date +%s) < end)); do
    seed=$((RANDOM * 32768 + RANDOM))
    nodes=$(pick 3 3 5)
    faults=$(pick all all all partition,kill partition,network pause,kill network,disk,kill pause,partition \
        answers-lost,kill-leader,pause-leader restore,restore-again,network membership,kill,pause operation,partition \
        slow-audit,hung-audit,kill)
    clients=$(pick 3 5 8)
    beside=none
    others=()
    if ((${#programs[@]} > 0 && RANDOM % 2)); then
        beside=$((${#programs[@]} / 2))
        others=("${programs[@]}")
        # Beside programs, restores are skipped: such a run would have few faults.
        [[ $faults == restore* ]] && faults=all
    fi
    versions=one
    if [[ -n ${EARLIER:-} ]] && ((RANDOM % 3 == 0)); then
        versions=two
        others+=(--earlier="$EARLIER")
    fi
    out=$directory/$seed
    code=0
    "$program" chaos run --duration "$run" --seed "$seed" --nodes "$nodes" --faults "$faults" --clients "$clients" \
        "${others[@]}" --out "$out" >"$directory/$seed.txt" 2>"$directory/$seed.log" || code=$?
    counts=$(tail -n 1 "$directory/$seed.txt")
    echo "$(date -u +%FT%TZ) exit $code seed $seed nodes $nodes faults $faults clients $clients programs $beside versions $versions: $counts" | tee -a "$tally"
    case $code in
    0) rm -rf "$out" "$directory/$seed.txt" "$directory/$seed.log" ;;
    31)
        thin=$((thin + 1))
        mv "$directory/$seed.txt" "$directory/$seed.thin.txt"
        rm -rf "$out" "$directory/$seed.log"
        ;;
    *)
        cat "$directory/$seed.txt" "$directory/$seed.log"
        echo "seed $seed failed: see $out" >&2
        exit "$code"
        ;;
    esac
done
# Totals: the numbers in the lines above, each before its unit.
sed -n 's/.* exit 0 [^:]*: //p' "$tally" | grep -oE '[0-9]+ (operations|grants|hand-overs|faults|elections|nodes|clients|s$)' |
    awk '{ sum[$2] += $1 } END { for (word in sum) printf "%d %s\n", sum[word], word }' | sort -k 2
echo "$(grep -c ' exit 0 ' "$tally") runs passed, $thin had too little activity"
