#!/usr/bin/env bash
# What it costs to compile the program after one file of a crate was changed, for each crate of the workspace.
#
#   scripts/touch-times.sh [check|build]      default: check
#
# Compiles all crates of the workspace once, by `cargo check` or `cargo build`, and measures the processor time of each. After a change
# cargo compiles the crate and all that depend on it, so the cost is the sum of these. Prints a row of a Markdown table for each crate, the
# dearest first: its own seconds, and the sum. Not time on the clock: that depends on how many processors there are, and on who else uses
# them. Writes into no file of the source. Each run compiles all crates anew, and leaves the artefacts in `target`.
#
# Exit code: 0; 1 if something does not compile; 2 for invalid arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=${1:-check}
if [[ $# -gt 1 || ( $what != check && $what != build ) ]]; then
    sed -n '2,12s/^# \{0,1\}//p' scripts/touch-times.sh
    exit 2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A compiler that notes what each crate took. Its path is a part of what cargo compares: nothing that was compiled by another one counts.
cat >"$scratch/measured" <<'WRAPPER'
#!/usr/bin/env bash
crate= before=
for argument; do
    [[ $before != --crate-name ]] || crate=$argument
    before=$argument
done
TIMEFORMAT="$crate %U %S"
{ time "$@" 2>&3; } 3>&2 2>>"$MEASURED"
WRAPPER
chmod +x "$scratch/measured"

export MEASURED=$scratch/times RUSTC_WORKSPACE_WRAPPER=$scratch/measured
cargo "$what" --locked --quiet

cargo metadata --locked --format-version 1 | WHAT=$what python3 -c '
import collections, json, os, sys

metadata = json.load(sys.stdin)
own = collections.Counter()
for line in open(os.environ["MEASURED"]):
    words = line.split()
    if len(words) == 3:
        own[words[0]] += float(words[1]) + float(words[2])

names = {package["id"]: package["name"] for package in metadata["packages"] if package["source"] is None}
users = collections.defaultdict(set)
for node in metadata["resolve"]["nodes"]:
    for used in node["deps"]:
        # What only tests need is not compiled with the program.
        if any(kind["kind"] != "dev" for kind in used["dep_kinds"]):
            users[used["pkg"]].add(node["id"])

def concerned(crate):
    found, open_ones = set(), [crate]
    while open_ones:
        at = open_ones.pop()
        if at not in found:
            found.add(at)
            open_ones.extend(users[at] & names.keys())
    return found

seconds = lambda crate: own[names[crate].replace("-", "_")]
rows = [(sum(map(seconds, concerned(crate))), seconds(crate), name) for crate, name in names.items()]
print("| crate | s of `cargo {}` | with all that depend on it |\n|---|---|---|".format(os.environ["WHAT"]))
for total, alone, name in sorted(rows, reverse=True):
    if alone:
        print(f"| `{name}` | {alone:.1f} | {total:.0f} |")
'
