#!/usr/bin/env bash
# Unmodified clients of ZooKeeper from PyPI, npm and Debian on real clusters of three nodes (tests/zookeeper/clients):
#
#   1. the words of four letters, and zkCli,
#   2. each client's recipes,
#   3. holders that are killed, or stand still for longer than their session,
#   4. two processes of each client that contend while each node in turn is killed, the leader first.
#
#     scripts/zookeeper-clients.sh [SECONDS [CLIENT…]]              for how long clients contend after the last death (10); only these
#     scripts/zookeeper-clients.sh --zookeeper [SECONDS [CLIENT…]]  the same on ZooKeeper itself: shows that the programs are right
#     scripts/zookeeper-clients.sh --two-holders [ROUNDS]           stories in which ZooKeeper's clients have had two holders
#     scripts/zookeeper-clients.sh --failover [ROUNDS]              how long kazoo has no answer when the node that leads is killed
#     scripts/zookeeper-clients.sh --kazoo-tests                    kazoo's own tests, without those that need servers of their own
#
# --zookeeper goes with each of them.
#
# Needs python3. Java's, C's and Go's clients and ZooKeeper itself are Debian's packages, installed by apt-get if this is root; npm's needs
# npm with node 20 or later. A client that cannot be had is left out, and named.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
lockkeeper=${LOCKKEEPER:-$target/debug/lockkeeper}

run() {
    echo "+ $*" >&2
    "$@"
}

program=run.py
at=lockkeeper
while [[ ${1:-} == --* ]]; do
    case $1 in
    --zookeeper) at=zookeeper ;;
    --two-holders) program=two_holders.py ;;
    --failover) program=failover.py ;;
    --kazoo-tests) program=kazoo_tests.py ;;
    *) echo "unknown option $1" >&2 && exit 2 ;;
    esac
    shift
done
if [[ -z ${LOCKKEEPER:-} && $at == lockkeeper ]]; then
    run cargo build --locked --bin lockkeeper
fi

debian=(default-jdk-headless libzookeeper-java libcurator-recipes-java libslf4j-java
    libzookeeper-mt-dev golang-go golang-github-samuel-go-zookeeper-dev)
if [[ $EUID == 0 ]] && command -v apt-get >/dev/null && ! dpkg -s "${debian[@]:1}" >/dev/null 2>&1; then
    run apt-get update -q
    run apt-get install -qy --no-install-recommends "${debian[@]}"
fi

programs=$target/tmp/zookeeper-clients
clients=tests/zookeeper/clients
mkdir -p "$programs/curator"

python=$programs/python
if ! cmp -s "$clients/requirements.txt" "$python/installed"; then
    run python3 -m venv --clear "$python"
    run "$python/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$clients/requirements.txt"
    cp "$clients/requirements.txt" "$python/installed"
fi
if command -v npm >/dev/null && ! cmp -s "$clients/package-lock.json" "$programs/installed"; then
    cp "$clients/package.json" "$clients/package-lock.json" "$programs"
    (cd "$programs" && run npm ci --no-audit --no-fund --ignore-scripts)
    cp "$clients/package-lock.json" "$programs/installed"
fi

# What cannot be compiled here is left out, and named by the program that runs it.
jars=$(printf '/usr/share/java/%s.jar:' zookeeper zookeeper-jute curator-client curator-framework curator-recipes guava slf4j-api)
run javac -J-Xmx256m -nowarn -d "$programs/curator" -cp "$jars" "$clients"/curator/*.java || true
run cc -O1 -o "$programs/client-c" "$clients/client.c" -lzookeeper_mt -lpthread || true
GOPATH=/usr/share/gocode GO111MODULE=off run go build -o "$programs/client-go" "$clients/client.go" || true
export PROGRAMS=$programs

command=("$python/bin/python" -B "$clients/$program")
if [[ $program != kazoo_tests.py ]]; then
    command+=("${1:-10}" "${@:2}")
fi
if [[ $at == lockkeeper ]]; then
    command=("$lockkeeper" dev --zookeeper -- "${command[@]}")
fi
run "${command[@]}"
