#!/usr/bin/env bash
# Hours of faults: one run after the other, each with a seed, a size and a mix of faults by chance, until the time is over or a run does
# not hold. What holds is deleted, but for a line in DIR/tally; what does not is kept, and the soak ends.
#
#   scripts/soak.sh [HOURS [DIR]]      8 hours in ./soak, unless said otherwise
#
# LOCKKEEPER names the program to test, RUN how long one run is (2m). Exit code: 0, or that of the run that did not hold.
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

pick() {
    local choices=("$@")
    echo "${choices[RANDOM % ${#choices[@]}]}"
}

# A run in which too little happened (31) has shown nothing, and convicts nobody: it is counted, and kept out of the others' way.
thin=0
while (($(date +%s) < end)); do
    seed=$((RANDOM * 32768 + RANDOM))
    nodes=$(pick 3 3 5)
    faults=$(pick all all all partition,kill partition,network pause,kill network,disk,kill pause,partition)
    clients=$(pick 3 5 8)
    out=$directory/$seed
    code=0
    "$program" chaos --duration "$run" --seed "$seed" --nodes "$nodes" --faults "$faults" --clients "$clients" \
        --out "$out" >"$directory/$seed.txt" 2>"$directory/$seed.log" || code=$?
    counts=$(tail -n 1 "$directory/$seed.txt")
    echo "$(date -u +%FT%TZ) exit $code seed $seed nodes $nodes faults $faults clients $clients: $counts" | tee -a "$tally"
    case $code in
    0) rm -rf "$out" "$directory/$seed.txt" "$directory/$seed.log" ;;
    31)
        thin=$((thin + 1))
        mv "$directory/$seed.txt" "$directory/$seed.thin.txt"
        rm -rf "$out" "$directory/$seed.log"
        ;;
    *)
        cat "$directory/$seed.txt" "$directory/$seed.log"
        echo "seed $seed did not hold: see $out" >&2
        exit "$code"
        ;;
    esac
done
# What was seen in all: the numbers of the lines above, each before its word.
sed -n 's/.* exit 0 [^:]*: //p' "$tally" | grep -oE '[0-9]+ (operations|grants|hand-overs|faults|elections|nodes|clients|s$)' |
    awk '{ sum[$2] += $1 } END { for (word in sum) printf "%d %s\n", sum[word], word }' | sort -k 2
echo "$(grep -c ' exit 0 ' "$tally") runs held, $thin showed too little"
