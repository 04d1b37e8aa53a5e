#!/usr/bin/env bash
# Measures the Python client beside kazoo, redis-py and etcd3, each with a server of its own kind, and beside the Rust client, in one run.
#
#     src/clients/python/figures/compare.sh [SECONDS]     of each measurement (default: 5)
#
#     LOCKKEEPER_PROGRAM=…      the program; by default target/release/lockkeeper, which is built
#     WORKERS="1 16"            threads (or tasks) that acquire and release, each its own lock
#     HELD=1000                 locks that are held for the measurement of processor time
#
# One server of each, on free ports of this machine, that syncs each write: Lockkeeper and etcd with one node, ZooKeeper standalone, Redis with
# appendfsync always. Servers that are missing are skipped: apt-get install zookeeper redis-server etcd-server. Prints one JSON object a line. Compare
# lines of one run only, on a machine that does nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."

seconds=${1:-5}
figures=src/clients/python/figures
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
python=$(scripts/python-client.sh --venv)
if [[ -z ${LOCKKEEPER_PROGRAM:-} ]]; then
    cargo build --release --locked --bin lockkeeper
    LOCKKEEPER_PROGRAM=$target/release/lockkeeper
fi

# The others' clients. etcd3's generated code needs a protobuf of its time.
place=$target/python-client/figures
if [[ ! -f $place/complete ]]; then
    python3 -m venv --clear "$place/others" && python3 -m venv --clear "$place/etcd3"
    "$place/others/bin/pip" install --quiet --disable-pip-version-check kazoo==2.11.0 redis==8.1.0
    "$place/etcd3/bin/pip" install --quiet --disable-pip-version-check etcd3==0.12.0 grpcio==1.85.1 protobuf==3.20.3
    touch "$place/complete"
fi

run=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-figures.XXXXXX")
pids=()
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait; rm -rf "$run"' EXIT

free_port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# serve PORT COMMAND…: starts a server, and waits until it listens.
serve() {
    local port=$1 attempts=0
    shift
    "$@" >"$run/log" 2>&1 </dev/null &
    pids+=($!)
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        attempts=$((attempts + 1))
        [[ $attempts -lt 300 ]] || { cat "$run/log" >&2; return 1; }
        sleep 0.1
    done
}

# measure PYTHON CLIENT ENDPOINT
measure() {
    local workers
    for workers in ${WORKERS:-1 16}; do
        "$1" "$figures/worker.py" "$2" "$3" pairs "$seconds" "$workers"
    done
    [[ $2 == lockkeeper.aio ]] || "$1" "$figures/worker.py" "$2" "$3" held "$seconds" "${HELD:-1000}"
}

export python figures seconds
export -f measure
"$LOCKKEEPER_PROGRAM" dev --nodes 1 -- bash -c 'measure "$python" lockkeeper "$LOCKKEEPER_ENDPOINTS" && measure "$python" lockkeeper.aio "$LOCKKEEPER_ENDPOINTS"' 2>"$run/dev.log"
rust() { "$LOCKKEEPER_PROGRAM" bench uncontended --nodes 1 --workers "$(tr ' ' , <<<"${WORKERS:-1 16}")" --repetitions 1 --duration "${seconds}s" -o json; }
rust | "$python" -c 'import json, sys; print(json.dumps({"client": "Rust (lockkeeper bench uncontended)", "found": json.load(sys.stdin)}))'

if command -v redis-server >/dev/null; then
    port=$(free_port)
    serve "$port" redis-server --port "$port" --bind 127.0.0.1 --dir "$run" --appendonly yes --appendfsync always --save ''
    measure "$place/others/bin/python" redis "127.0.0.1:$port"
else
    echo "!!! SKIPPED: redis-server is not installed" >&2
fi

if [[ -f /usr/share/java/zookeeper.jar ]]; then
    port=$(free_port)
    mkdir "$run/zookeeper"
    printf 'tickTime=2000\ndataDir=%s\nclientPort=%s\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n' "$run/zookeeper" "$port" >"$run/zoo.cfg"
    serve "$port" java -cp /usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar org.apache.zookeeper.server.quorum.QuorumPeerMain "$run/zoo.cfg"
    measure "$place/others/bin/python" kazoo "127.0.0.1:$port"
else
    echo "!!! SKIPPED: zookeeper is not installed" >&2
fi

if command -v etcd >/dev/null; then
    port=$(free_port)
    peer=$(free_port)
    serve "$port" etcd --data-dir "$run/etcd" --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
        --listen-peer-urls "http://127.0.0.1:$peer" --log-level error
    measure "$place/etcd3/bin/python" etcd3 "127.0.0.1:$port"
else
    echo "!!! SKIPPED: etcd-server is not installed" >&2
fi
