#!/usr/bin/env bash
# Measures this tree beside earlier commits, in turn, and prints the ratios: a row for src/bench/LEDGER.md.
#
#   scripts/bench-ledger.sh [COMMIT…]     the commits beside which to measure; the first complete version is always one of them
#
# Each round measures each work with each program, one after the other, in an order that rotates; the ratio of a work is the median of the
# ratios of its rounds. All programs are built with one profile, whatever theirs was, and kept in target/ledger: a commit is built once.
#
#   ROUNDS=3 DURATION=3s WARM_UP=1s
#   WORKS="pairs reads hand-overs failover held"
#   HELD=200000 FAILOVERS=5
#   DIST=1      with the profile of the packages (thin LTO, one unit), which takes many minutes to build
#
# Exit code: 0 if everything was measured, 1 if a program failed, 2 for an unknown commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

first_complete=00823a6
rounds=${ROUNDS:-3}
works=${WORKS:-pairs reads hand-overs failover held}
windows=(--warm-up "${WARM_UP:-1s}" --duration "${DURATION:-3s}" --repetitions 1)
kept=$(realpath -m "${CARGO_TARGET_DIR:-target}")/ledger
mkdir -p "$kept"
out=$(mktemp -d "$kept/run.XXXXXX")
source=
trap 'rm -rf "$out"; [[ -z $source ]] || git worktree remove --force "$source"' EXIT
trap 'exit 130' INT TERM

export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG=0
suffix=
if [[ -n ${DIST:-} ]]; then
    export CARGO_PROFILE_RELEASE_LTO=thin CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1
    suffix=-dist
fi

# build DIRECTORY TARGET PROGRAM: builds the tree in a directory, and copies its program. Each tree needs a target directory of its own:
# cargo knows the members of a workspace by their places in it, and would take those of another tree for built.
build() {
    (cd "$1" && CARGO_TARGET_DIR=$2 cargo build --locked --release --no-default-features --bin lockkeeper)
    cp "$2/release/lockkeeper" "$3"
}

# The programs, and what each is called in the table.
names=() programs=()
for name in "$@" "$first_complete"; do
    full=$(git rev-parse --verify --quiet "$name^{commit}") || { echo "there is no commit $name" >&2; exit 2; }
    program=$kept/lockkeeper-${full:0:7}$suffix
    if [[ ! -x $program ]]; then
        # Elsewhere: below this directory cargo would take it for a member of the workspace.
        source=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-ledger.XXXXXX")
        git worktree add --force --detach "$source" "$full" >&2
        build "$source" "$source/target" "$program"
        git worktree remove --force "$source"
        source=
    fi
    names+=("${full:0:7}")
    programs+=("$program")
done
this=$(git rev-parse --short=7 HEAD)
git diff --quiet HEAD || this+=+changes
names=("$this" "${names[@]}")
build . "$kept/build$suffix" "$kept/lockkeeper-this$suffix"
programs=("$kept/lockkeeper-this$suffix" "${programs[@]}")

# measure WORK PROGRAM: the document of one work.
measure() {
    case $1 in
    pairs) "$2" bench uncontended --workers 1,64,256 "${windows[@]}" -o json ;;
    reads) "$2" bench read --workers 64 "${windows[@]}" -o json ;;
    hand-overs) "$2" bench contended --workers 2,64 "${windows[@]}" -o json ;;
    failover) "$2" bench failover --repetitions "${FAILOVERS:-5}" -o json ;;
    held) "$2" bench held --locks "${HELD:-200000}" -o json ;;
    *) echo "there is no work $1" >&2 && return 1 ;;
    esac
}

for ((round = 0; round < rounds; round++)); do
    for work in $works; do
        for ((turn = 0; turn < ${#programs[@]}; turn++)); do
            number=$(((round + turn) % ${#programs[@]}))
            echo "round $((round + 1)) of $rounds: $work, ${names[$number]}" >&2
            measure "$work" "${programs[$number]}" >"$out/$number-$round-$work.json" 2>"$out/errors" ||
                { cat "$out/errors" >&2 && exit 1; }
        done
    done
done

printf '%s, %s, %s rounds, LTO %s\n\n' \
    "$(date +%Y-%m-%d)" "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sort | uniq -c | sed 's/^ *\([0-9]*\) */\1 × /')" \
    "$rounds" "$CARGO_PROFILE_RELEASE_LTO"
python3 - "$out" "${names[@]}" <<'PYTHON'
import collections, json, pathlib, statistics, sys

directory, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
# Of each work: the figures of the table.
FIGURES = {
    "pairs": [("per_second", "pairs/s"), ("p50_us", "median of a pair, µs"), ("servers_cpu_us_per_operation", "servers' CPU a pair, µs")],
    "reads": [("per_second", "linearizable reads/s"), ("servers_cpu_us_per_operation", "servers' CPU a read, µs")],
    "hand-overs": [("per_second", "hand-overs/s")],
    "failover": [("failover_ms", "failover, process killed, ms")],
    "held": [("memory_bytes_per_lock", "bytes a held lock and node"), ("restart_ms", "restart, ms")],
}
measured = collections.defaultdict(lambda: collections.defaultdict(dict))
for file in directory.glob("*-*-*.json"):
    number, round_, work = file.stem.split("-", 2)
    for series in json.loads(file.read_text())["series"]:
        workers = f", W={series['workers']}" if "workers" in series and work != "held" else ""
        for figure, title in FIGURES[work]:
            value = series["figures"].get(figure)
            if value and value["median"] is not None:
                measured[title + workers][int(number)][int(round_)] = value["median"]

# In the order above, and of workers.
titles = [title for figures in FIGURES.values() for _, title in figures]
order = lambda row: (titles.index(row.split(", W=")[0]), int(row.split("W=")[1]) if "W=" in row else 0)
print("| work | " + " | ".join(names) + " | " + " | ".join(f"to {name}" for name in names[1:]) + " |")
print("|---" * (2 * len(names)) + "|")
for row in sorted(measured, key=order):
    values = measured[row]
    cells = [f"{statistics.median(values[number].values()):,.0f}" if values[number] else "" for number in range(len(names))]
    for number in range(1, len(names)):
        ratios = sorted(values[0][r] / values[number][r] for r in values[0] if values[number].get(r))
        cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})" if ratios else "")
    print(f"| {row} | " + " | ".join(cells) + " |")
PYTHON
