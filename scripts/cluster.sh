#!/usr/bin/env bash
# Runs the cluster of cluster-configs/ on this machine: three processes that outlive this script.
#
#   cluster.sh up          start the nodes that do not run, and wait until the cluster serves
#   cluster.sh down        stop the running nodes, and wait until they have exited
#   cluster.sh kill WHICH  kill a node at once (SIGKILL), as a crash would: node N, or the one that leads, by "leader"
#   cluster.sh status      show the processes and the status of the cluster
#   cluster.sh logs [N]    follow the logs of node N or of all nodes
#
# LOCKKEEPER_DATA   directory of data, logs and pid files (default: data in the repository). It stands for a cluster: each of the commands
#                   above needs the same one. Two clusters have the same ports, so one runs at a time
# LOCKKEEPER_CERTS  directory of certificates: the nodes use TLS. The commands that ask them need LOCKKEEPER_CA, LOCKKEEPER_CERT and
#                   LOCKKEEPER_KEY then
# LOCKKEEPER_BIN    the program (default: target/release/lockkeeper in the repository, built if it is missing)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
data=${LOCKKEEPER_DATA:-$root/data}
# Made absolute, since it is used from other directories below.
mkdir -p "$data"
data=$(cd "$data" && pwd)
program=${LOCKKEEPER_BIN:-$root/target/release/lockkeeper}
nodes=(1 2 3)
scheme=http
if [[ -n ${LOCKKEEPER_CERTS:-} ]]; then
    scheme=https
    [[ -d $LOCKKEEPER_CERTS ]] || {
        echo "cluster.sh: LOCKKEEPER_CERTS: there is no directory $LOCKKEEPER_CERTS" >&2
        exit 1
    }
    LOCKKEEPER_CERTS=$(cd "$LOCKKEEPER_CERTS" && pwd)
    export LOCKKEEPER_CERTS
fi

ready_seconds_max=30
stop_seconds_max=40

fail() {
    echo "cluster.sh: $*" >&2
    exit 1
}

pid_file() { echo "$data/node$1.pid"; }
log_file() { echo "$data/node$1.log"; }
config_file() { echo "$root/cluster-configs/node$1.toml"; }
# The address of node $1, by the key $2 of its configuration.
address() { sed -n "s/^$2 = \"\(.*\)\"/\1/p" "$(config_file "$1")"; }

LOCKKEEPER_ENDPOINTS=$scheme://$(address 1 client_listen),$scheme://$(address 2 client_listen),$scheme://$(address 3 client_listen)
export LOCKKEEPER_ENDPOINTS

# The pid of node $1, if its process runs. A pid file may outlive its process and the pid be reused, so the command line
# is compared too.
running_pid() {
    local file pid command
    file=$(pid_file "$1")
    [[ -f $file ]] || return 1
    pid=$(<"$file")
    [[ $pid =~ ^[0-9]+$ ]] || return 1
    command=$(ps -ww -o command= -p "$pid" 2>/dev/null) || return 1
    [[ $command == *" serve --config $(config_file "$1") --data-dir $data/node$1" ]] || return 1
    echo "$pid"
}

# Whether something listens at an address of node $1.
is_reached() {
    local key
    for key in client_listen peer_listen; do
        if (exec 3<>"/dev/tcp/$(address "$1" "$key" | tr : /)") 2>/dev/null; then return 0; fi
    done
    return 1
}

# What listens at the addresses of node $1, which is not this cluster's: the command line of a node says whose data directory it has.
stranger() {
    local listening
    listening="something listens at the addresses of node $1, $(address "$1" client_listen) and $(address "$1" peer_listen)"
    # shellcheck disable=SC2009
    ps -ww -eo pid=,command= | grep -F -- " serve --config $(config_file "$1") --data-dir " | grep -v grep |
        sed -n "1s|^ *\([0-9]*\) .* --data-dir \(.*\)/node$1\$|it is a node of another cluster, pid \1; to stop it: LOCKKEEPER_DATA=\2 $0 down|p" |
        { read -r who && echo "$listening: $who" || echo "$listening, and it is no node of $0"; }
}

build() {
    [[ -x $program ]] && return
    [[ -z ${LOCKKEEPER_BIN:-} ]] || fail "LOCKKEEPER_BIN: $program is not an executable file; unset it to build the program"
    (cd "$root" && cargo build --release --locked)
}

start() {
    local node=$1 pid
    if pid=$(running_pid "$node"); then
        echo "node $node runs already, pid $pid"
        return
    fi
    if is_reached "$node"; then fail "$(stranger "$node")"; fi
    # With nohup the node outlives the terminal. Environment variables that configure a single node are unset.
    env -u LOCKKEEPER_CLUSTER_ID -u LOCKKEEPER_NODE_ID -u LOCKKEEPER_CLIENT_LISTEN -u LOCKKEEPER_PEER_LISTEN \
        -u LOCKKEEPER_BOOTSTRAP nohup "$program" serve --config "$(config_file "$node")" --data-dir "$data/node$node" \
        </dev/null >/dev/null 2>>"$(log_file "$node")" &
    pid=$!
    echo "$pid" >"$(pid_file "$node")"
    echo "node $node started, pid $pid, log $(log_file "$node")"
}

# Fails if a node has exited, and prints the end of its log.
check_running() {
    local node
    for node in "${nodes[@]}"; do
        if ! running_pid "$node" >/dev/null; then
            tail -n 20 "$(log_file "$node")" >&2
            fail "node $node exited; the end of its log $(log_file "$node") is above"
        fi
    done
}

wait_until_ready() {
    local deadline=$((SECONDS + ready_seconds_max))
    until "$program" status >/dev/null 2>&1; do
        check_running
        ((SECONDS < deadline)) || fail "the cluster does not serve after $ready_seconds_max s; read the logs: $0 logs"
        sleep 0.2
    done
    # Two of the three nodes can serve while the third one has exited.
    check_running
    echo "the cluster serves: export LOCKKEEPER_ENDPOINTS=$LOCKKEEPER_ENDPOINTS"
}

up() {
    local node
    build
    for node in "${nodes[@]}"; do start "$node"; done
    wait_until_ready
}

down() {
    local node pid deadline ran=() others=0
    for node in "${nodes[@]}"; do
        if pid=$(running_pid "$node"); then
            ran+=("$node")
            # It may exit at this moment by itself.
            kill "$pid" 2>/dev/null || true
        fi
    done
    deadline=$((SECONDS + stop_seconds_max))
    for node in "${nodes[@]}"; do
        while pid=$(running_pid "$node"); do
            ((SECONDS < deadline)) || fail "node $node has not exited after $stop_seconds_max s; to kill it: kill -9 $pid"
            sleep 0.1
        done
        rm -f "$(pid_file "$node")"
        if is_reached "$node"; then
            echo "$(stranger "$node")" >&2
            others=1
        elif [[ " ${ran[*]-} " == *" $node "* ]]; then
            echo "node $node is down"
        else
            echo "node $node did not run in $data"
        fi
    done
    return "$others"
}

# Kills node $1, or the one that leads.
kill_node() {
    local node=$1 pid
    if [[ $node == leader ]]; then
        node=$("$program" status | awk '$3 == "leader" { print $1; exit }') || true
        [[ -n $node ]] || fail "no leader is known; look at it: $0 status"
    fi
    [[ " ${nodes[*]} " == *" $node "* ]] || fail "there is no node $node: name one of ${nodes[*]}, or leader"
    pid=$(running_pid "$node") || fail "node $node does not run in $data"
    kill -9 "$pid"
    echo "node $node is killed, pid $pid; to start it again: $0 up"
}

status() {
    local node pid
    for node in "${nodes[@]}"; do
        if pid=$(running_pid "$node"); then
            echo "node $node runs, pid $pid"
        elif is_reached "$node"; then
            echo "node $node does not run in $data; $(stranger "$node")"
        else
            echo "node $node is down"
        fi
    done
    [[ -x $program ]] || fail "$program is missing; to build it: $0 up"
    "$program" status
}

logs() {
    local node files=()
    for node in "${@:-${nodes[@]}}"; do
        [[ -f $(log_file "$node") ]] || fail "node $node has no log file: $(log_file "$node")"
        files+=("$(log_file "$node")")
    done
    tail -n 20 -f "${files[@]}"
}

case ${1:-} in
up | down | status)
    (($# == 1)) || fail "$1 takes no arguments"
    "$1"
    ;;
kill)
    (($# == 2)) || fail "kill takes a node, or leader"
    kill_node "$2"
    ;;
logs)
    shift
    (($# <= 1)) || fail "logs takes at most one node"
    logs "$@"
    ;;
*)
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
