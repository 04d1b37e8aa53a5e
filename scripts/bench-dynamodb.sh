#!/usr/bin/env bash
# Measures pairs of acquire and release by boto3 and by bare HTTP, 1 and 64 workers, on the DynamoDB endpoint of a cluster, on moto and on
# dynalite, and beside them those of Lockkeeper's own API; then the resident bytes of locks that are held. All on this machine, in one run:
# compare its ratios, not its absolute figures. moto and dynalite keep everything in memory, in one process.
#
#     scripts/bench-dynamodb.sh
#
#     DURATION=5 HELD=100000 PROFILE=release
#
# Needs python3, and npm with node 20 or later; `scripts/dynamodb-clients.sh` installs the packages into the build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

duration=${DURATION:-5}
held=${HELD:-100000}
profile=${PROFILE:-dist}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
python=$target/tmp/dynamodb-python/bin/python
export NODE_PATH=$target/tmp/dynamodb-npm/node_modules
for file in "$python" "$NODE_PATH/dynalite"; do
    [[ -e $file ]] || { echo "$file is missing: run scripts/dynamodb-clients.sh first" >&2; exit 1; }
done

build=(cargo build --locked --bin lockkeeper)
[[ $profile == debug ]] || build+=(--profile "$profile" --no-default-features)
"${build[@]}"
lockkeeper=$target/$profile/lockkeeper

run=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-dynamodb.XXXXXX")
trap 'rm -rf "$run"' EXIT

# server NAME COMMAND...: starts it; it says where it listens, and ends with its input, which this script holds.
server() {
    local name=$1 input
    shift
    mkfifo "$run/$name.in"
    "$@" <"$run/$name.in" >"$run/$name.out" 2>"$run/$name.log" &
    exec {input}>"$run/$name.in"
    until [[ -s $run/$name.out ]]; do
        kill -0 $! || { cat "$run/$name.log" >&2; exit 1; }
        sleep 0.1
    done
    servers+=("$name=$(<"$run/$name.out")")
}
servers=()
server moto "$python" tests/dynamodb/clients/moto_server.py
server dynalite node tests/dynamodb/clients/dynalite_server.cjs

"$lockkeeper" dev --dynamodb -- sh -c \
    '"$@" "lockkeeper=$LOCKKEEPER_DYNAMODB_ENDPOINT"' sh "$python" tests/dynamodb/figures.py pairs "$duration" "${servers[@]}"
"$lockkeeper" bench uncontended --workers 1,64 --duration "${duration}s"
# The nodes are the other children of this shell's parent.
"$lockkeeper" dev --dynamodb -- sh -c \
    '"$@" "$LOCKKEEPER_DYNAMODB_ENDPOINT" $(pgrep -P $PPID -x lockkeeper)' sh "$python" tests/dynamodb/figures.py held "$held"
