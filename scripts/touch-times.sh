#!/usr/bin/env bash
# What it costs to compile the program after one file of a crate was changed, for each crate of the workspace.
#
#   scripts/touch-times.sh [check|build] [CRATE…]      default: check, all crates
#
# Touches the first file of each crate in turn and runs `cargo check` (or `cargo build`) on the program and all its crates. Prints a row of
# a Markdown table for each: seconds of processor time. Not time on the clock: that depends on how many processors
# there are, and on who else uses them. Nothing is written into the files; the first run compiles what is out of date.
#
# Exit code: 0; 1 if something does not compile; 2 for invalid arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

what=${1:-check}
if [[ $what != check && $what != build ]]; then
    sed -n '2,10s/^# \{0,1\}//p' scripts/touch-times.sh
    exit 2
fi
shift || true

# Each line: a crate with a library, and the library's first file.
crates=$(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
for package in json.load(sys.stdin)["packages"]:
    for target in package["targets"]:
        if "lib" in target["kind"]:
            print(package["name"], target["src_path"], sep="\t")
')

compile() { cargo "$what" --locked --quiet; }
compile

TIMEFORMAT='%U %S'
printf '| crate | s of `cargo %s` |\n|---|---|\n' "$what"
while IFS=$'\t' read -r crate file; do
    [[ $# == 0 || " $* " == *" $crate "* ]] || continue
    touch "$file"
    spent=$( { time compile; } 2>&1 )
    awk -v crate="$crate" '{ printf "| `%s` | %.0f |\n", crate, $1 + $2 }' <<<"$spent"
done <<<"$crates"
