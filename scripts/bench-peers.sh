#!/usr/bin/env bash
# Measures Lockkeeper and comparable systems on this machine, one after another in one run, and prints the ratios.
#
#     scripts/bench-peers.sh [OUT]        results go to OUT (default: a directory in target/), one JSON file per measurement
#
# Peers: etcd, ZooKeeper and Redis from Debian's packages, with default settings and durability (Redis: fsync for each
# write). A peer that is not installed is skipped with a message; nothing is installed. Servers run on free ports of
# 127.0.0.1 with their files in TMPDIR, and stop with this script. Compare ratios of one run only: absolute figures vary
# between runs and with other load.
#
#     PEERS="lockkeeper lockkeeper-etcd etcd lockkeeper-zookeeper zookeeper lockkeeper-redis redis"
#                                       the systems to measure; lockkeeper-etcd, lockkeeper-zookeeper and lockkeeper-redis: the
#                                       clients of those three, at Lockkeeper
#     WORKS="uncontended contended read keepalive watch beside failover held"; watch, and beside 10,000 watches:
#                                       etcd and lockkeeper-etcd alone
#     DURATION=5s REPETITIONS=3 HELD=1000000 FAILOVERS=10
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers=${PEERS:-lockkeeper lockkeeper-etcd etcd lockkeeper-zookeeper zookeeper lockkeeper-redis redis}
works=${WORKS:-uncontended contended read keepalive watch beside failover held}
duration=${DURATION:-5s}
repetitions=${REPETITIONS:-3}
held=${HELD:-1000000}
failovers=${FAILOVERS:-10}
out=${1:-target/bench-peers/$(date +%Y%m%d-%H%M%S)}
windows=(--warm-up 2s --duration "$duration" --repetitions "$repetitions")

mkdir -p "$out"
run=$(mktemp -d "${TMPDIR:-/tmp}/lockkeeper-peers.XXXXXX")
trap 'stop_all; rm -rf "$run"' EXIT
trap 'exit 130' INT TERM

say() { echo "$*" >&2; }

# ---- servers: for node N, nN.start (re)starts it, nN.pid and nN.endpoint hold its pid and address ----

free_port() {
    local port
    while :; do
        port=$((15000 + RANDOM % 17000))
        if [[ -z ${taken[$port]:-} ]] && ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            taken[$port]=1
            port_found=$port
            return
        fi
    done
}
declare -A taken

# node DIR N ENDPOINT COMMAND...: writes the files of one node and starts it.
node() {
    local dir=$1 n=$2 endpoint=$3
    shift 3
    echo "$endpoint" >"$dir/n$n.endpoint"
    {
        echo '#!/usr/bin/env bash'
        echo 'ulimit -n "$(ulimit -Hn)"'
        printf 'setsid nohup'
        printf ' %q' "$@"
        printf ' >>%q 2>&1 </dev/null &\necho $! >%q\n' "$dir/n$n.log" "$dir/n$n.pid"
    } >"$dir/n$n.start"
    chmod +x "$dir/n$n.start"
    "$dir/n$n.start"
}

stop_all() {
    local pid file
    for file in "$run"/*/n?.pid; do
        [[ -f $file ]] || continue
        pid=$(<"$file")
        kill -9 "$pid" 2>/dev/null || true
        rm -f "$file"
    done
}

start_etcd() {
    local dir=$1 n cluster='' client=() peer=()
    for n in 1 2 3; do
        free_port && client[n]=$port_found
        free_port && peer[n]=$port_found
        cluster+="${cluster:+,}n$n=http://127.0.0.1:${peer[n]}"
    done
    for n in 1 2 3; do
        node "$dir" "$n" "127.0.0.1:${client[n]}" etcd --name "n$n" --data-dir "$dir/n$n" \
            --listen-client-urls "http://127.0.0.1:${client[n]}" --advertise-client-urls "http://127.0.0.1:${client[n]}" \
            --listen-peer-urls "http://127.0.0.1:${peer[n]}" --initial-advertise-peer-urls "http://127.0.0.1:${peer[n]}" \
            --initial-cluster "$cluster" --initial-cluster-state new --logger zap --log-level warn
    done
}

# start_dev DIR FLAG VARIABLE: three nodes that serve another protocol, at the addresses of this variable. They end with `dev`, which
# ends with n0.pid.
start_dev() {
    local dir=$1 flag=$2 variable=$3 n=0 endpoint pid
    # shellcheck disable=SC2016 # dev sets the variable.
    setsid "$lockkeeper" dev "$flag" -- sh -c 'printenv "$1" >"$0"; while kill -0 $PPID; do sleep 1; done' \
        "$dir/endpoints" "$variable" >"$dir/dev.log" 2>&1 </dev/null &
    echo $! >"$dir/n0.pid"
    until [[ -s $dir/endpoints ]]; do sleep 0.1; done
    for endpoint in $(tr , ' ' <"$dir/endpoints"); do
        n=$((n + 1))
        echo "$endpoint" >"$dir/n$n.endpoint"
    done
    n=0
    for pid in $(pgrep -P "$(<"$dir/n0.pid")" -x lockkeeper); do
        n=$((n + 1))
        echo "$pid" >"$dir/n$n.pid"
    done
}
start_lockkeeper-etcd() { start_dev "$1" --etcd LOCKKEEPER_ETCD_ENDPOINTS; }
start_lockkeeper-zookeeper() { start_dev "$1" --zookeeper ZOOKEEPER_CONNECT; }
start_lockkeeper-redis() { start_dev "$1" --redis LOCKKEEPER_REDIS_ENDPOINTS; }

start_zookeeper() {
    local dir=$1 n members='' client=() quorum election
    for n in 1 2 3; do
        free_port && client[n]=$port_found
        free_port && quorum=$port_found
        free_port && election=$port_found
        members+="server.$n=127.0.0.1:$quorum:$election"$'\n'
    done
    for n in 1 2 3; do
        mkdir -p "$dir/n$n"
        echo "$n" >"$dir/n$n/myid"
        # Debian's zoo.cfg, except for the limit of connections from one host: the whole load comes from this host.
        cat >"$dir/n$n.cfg" <<CONFIG
tickTime=2000
initLimit=10
syncLimit=5
dataDir=$dir/n$n
clientPort=${client[n]}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
$members
CONFIG
        node "$dir" "$n" "127.0.0.1:${client[n]}" java -cp "$zookeeper_jars" \
            org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/n$n.cfg"
    done
}
zookeeper_jars=/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar

start_redis() {
    local dir=$1
    free_port
    node "$dir" 1 "127.0.0.1:$port_found" redis-server --port "$port_found" --bind 127.0.0.1 --dir "$dir" \
        --appendonly yes --appendfsync always --save '' --maxclients 20000
}

missing() {
    case $1 in
    etcd) command -v etcd >/dev/null || echo "apt-get install etcd-server" ;;
    zookeeper) { command -v java >/dev/null && [[ -f ${zookeeper_jars%%:*} ]]; } || echo "apt-get install zookeeper" ;;
    redis) command -v redis-server >/dev/null || echo "apt-get install redis-server" ;;
    lockkeeper | lockkeeper-etcd | lockkeeper-zookeeper | lockkeeper-redis) ;;
    *) echo "unknown peer; choose from lockkeeper, lockkeeper-etcd, etcd, lockkeeper-zookeeper, zookeeper, lockkeeper-redis and redis" ;;
    esac
}

# ---- measuring ----

lockkeeper=target/dist/lockkeeper
driver=target/release/peers

# measure NAME PEER WORK ARGUMENTS...: one measurement of a running peer, written to OUT/NAME.json.
measure() {
    local name=$1 peer=$2 work=$3
    shift 3
    say "$peer $work $*"
    "$driver" measure "$peer" "$work" --servers "$dir" "$@" >"$out/$name.json" || say "!!! $name failed"
}

# fresh PEER: stops the previous cluster and starts a new one of PEER in $dir.
fresh() {
    stop_all
    rm -rf "${run:?}"/*
    dir=$run/$1
    mkdir -p "$dir"
    "start_$1" "$dir"
    "$driver" ready "${1#lockkeeper-}" --servers "$dir"
}

measure_lockkeeper() {
    local work
    for work in $works; do
        [[ $work != watch && $work != beside ]] || continue
        say "lockkeeper $work"
        local arguments=("${windows[@]}")
        case $work in
        failover) arguments=(--repetitions "$failovers") ;;
        held) arguments=(--locks "$held") ;;
        esac
        "$lockkeeper" bench "$work" "${arguments[@]}" -o json >"$out/lockkeeper-$work.json" || say "!!! $work failed"
    done
}

# With etcd's client: what Lockkeeper's own client is measured for too is left out.
measure_lockkeeper-etcd() {
    local work
    for work in $works; do
        fresh lockkeeper-etcd
        case $work in
        uncontended) measure lockkeeper-etcd-uncontended etcd uncontended --workers 1,16,64,256 "${windows[@]}" ;;
        contended) measure lockkeeper-etcd-lock-contended etcd-lock contended --workers 2,16,64 "${windows[@]}" ;;
        read) measure lockkeeper-etcd-read etcd read --workers 16,64 "${windows[@]}" ;;
        keepalive)
            measure lockkeeper-etcd-keepalive-spread etcd keepalive --rate 3000 --spread "${windows[@]}"
            measure lockkeeper-etcd-keepalive-spread-max etcd keepalive --spread "${windows[@]}"
            ;;
        watch) measure lockkeeper-etcd-watch etcd watch --count 1000 "${windows[@]}" ;;
        beside) measure lockkeeper-etcd-beside etcd uncontended --workers 64 --watches 10000 "${windows[@]}" ;;
        held) measure lockkeeper-etcd-held etcd held --count "$held" --workers 256 ;;
        esac
    done
}

# With Redis' client, at the first node, whichever leads.
measure_lockkeeper-redis() {
    local work
    for work in $works; do
        [[ $work == uncontended || $work == contended || $work == read || $work == keepalive || $work == held ]] || continue
        fresh lockkeeper-redis
        case $work in
        uncontended) measure lockkeeper-redis-uncontended redis uncontended --workers 1,16,64,256 "${windows[@]}" ;;
        contended) measure lockkeeper-redis-contended redis contended --workers 16,64 "${windows[@]}" ;;
        read) measure lockkeeper-redis-read redis read --workers 16,64 "${windows[@]}" ;;
        keepalive) measure lockkeeper-redis-keepalive redis keepalive --rate 3000 "${windows[@]}" ;;
        held) measure lockkeeper-redis-held redis held --count "$held" --workers 256 ;;
        esac
    done
}

measure_etcd() {
    local work
    for work in $works; do
        fresh etcd
        case $work in
        uncontended) measure etcd-uncontended etcd uncontended --workers 1,16,64,256 "${windows[@]}" ;;
        contended) measure etcd-lock-contended etcd-lock contended --workers 2,16,64 "${windows[@]}" ;;
        read) measure etcd-read etcd read --workers 16,64 "${windows[@]}" ;;
        keepalive)
            measure etcd-keepalive-leader etcd keepalive --rate 3000 "${windows[@]}"
            measure etcd-keepalive-leader-max etcd keepalive "${windows[@]}"
            measure etcd-keepalive-spread etcd keepalive --rate 3000 --spread "${windows[@]}"
            measure etcd-keepalive-spread-max etcd keepalive --spread "${windows[@]}"
            ;;
        watch) measure etcd-watch etcd watch --count 1000 "${windows[@]}" ;;
        beside) measure etcd-beside etcd uncontended --workers 64 --watches 10000 "${windows[@]}" ;;
        failover) measure etcd-failover etcd failover --repetitions "$failovers" ;;
        held) measure etcd-held etcd held --count "$held" --workers 256 ;;
        esac
    done
}

measure_zookeeper() {
    local work
    for work in $works; do
        fresh zookeeper
        # Warm-up: the JVM is slow until its hot code is compiled.
        "$driver" measure zookeeper uncontended --servers "$dir" --workers 64 --warm-up 20s --duration 1s --repetitions 1 >/dev/null
        case $work in
        uncontended)
            measure zookeeper-uncontended zookeeper uncontended --workers 1,16,64,256 "${windows[@]}"
            measure zookeeper-recipe-uncontended zookeeper-recipe uncontended --workers 1,16,64,256 "${windows[@]}"
            ;;
        contended) measure zookeeper-recipe-contended zookeeper-recipe contended --workers 16,64 "${windows[@]}" ;;
        read) measure zookeeper-read zookeeper read --workers 16,64 "${windows[@]}" ;;
        keepalive)
            measure zookeeper-keepalive zookeeper keepalive --rate 3000 --spread "${windows[@]}"
            measure zookeeper-keepalive-max zookeeper keepalive --spread "${windows[@]}"
            ;;
        failover) measure zookeeper-failover zookeeper failover --repetitions "$failovers" ;;
        held) measure zookeeper-held zookeeper held --count "$held" --workers 256 ;;
        esac
    done
}

# With ZooKeeper's client. A node of `dev` cannot be started again by itself, so failover is left to scripts/zookeeper-clients.sh.
measure_lockkeeper-zookeeper() {
    local work name=lockkeeper-zookeeper
    for work in $works; do
        fresh lockkeeper-zookeeper
        case $work in
        uncontended)
            measure "$name-uncontended" zookeeper uncontended --workers 1,16,64,256 "${windows[@]}"
            measure "$name-recipe-uncontended" zookeeper-recipe uncontended --workers 1,16,64,256 "${windows[@]}"
            ;;
        contended) measure "$name-recipe-contended" zookeeper-recipe contended --workers 16,64 "${windows[@]}" ;;
        read) measure "$name-read" zookeeper read --workers 16,64 "${windows[@]}" ;;
        keepalive)
            measure "$name-keepalive" zookeeper keepalive --rate 3000 --spread "${windows[@]}"
            measure "$name-keepalive-max" zookeeper keepalive --spread "${windows[@]}"
            ;;
        held) measure "$name-held" zookeeper held --count "$held" --workers 256 ;;
        esac
    done
}

measure_redis() {
    local work
    for work in $works; do
        [[ $work != failover ]] || continue
        fresh redis
        case $work in
        uncontended) measure redis-uncontended redis uncontended --workers 1,16,64,256 "${windows[@]}" ;;
        contended) measure redis-contended redis contended --workers 16,64 "${windows[@]}" ;;
        read) measure redis-read redis read --workers 16,64 "${windows[@]}" ;;
        keepalive) measure redis-keepalive redis keepalive --rate 3000 "${windows[@]}" ;;
        held) measure redis-held redis held --count "$held" --workers 256 ;;
        esac
    done
}

for peer in $peers; do
    how=$(missing "$peer")
    [[ -z $how ]] || say "!!! SKIPPED: $peer is not available: $how"
done
cargo build --profile dist --no-default-features --locked --bin lockkeeper
CARGO_TARGET_DIR=$PWD/target cargo build --release --locked --manifest-path tests/peers/Cargo.toml

{
    date -u +%F
    uname -sr
    nproc
    grep -m1 'model name' /proc/cpuinfo || true
    cut -d' ' -f1-3 /proc/loadavg
} >"$out/machine.txt"

for peer in $peers; do
    [[ -n $(missing "$peer") ]] || "measure_$peer"
done
stop_all
say "results are in $out"
"$driver" ratios "$out"
