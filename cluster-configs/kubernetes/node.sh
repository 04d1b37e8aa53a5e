#!/usr/bin/env bash
# The nodes of a cluster on Kubernetes, one set and one secret each. "Kubernetes" in install.md has the whole procedure.
#
#   node.sh host N             the name of the pod of node N, which its certificate is made for
#   node.sh found N            print the set of node N, one of the founders that lockkeeper.yaml lists
#   node.sh join N             print the set of node N, which joins the cluster
#   node.sh secret N           make the secret of node N, from its files in the directory of certificates
#   node.sh replace OLD NEW    put node NEW, with an empty volume, in the place of node OLD, whose volume is lost. NEW is an id that no node
#                              ever had. It can be repeated after it was interrupted
#
# LOCKKEEPER_CERTS_DIR   the directory of the authority (default: certs)
# LOCKKEEPER_NAMESPACE   (default: lockkeeper; lockkeeper.yaml has it too)
#
# `replace` calls kubectl, and `lockkeeper` with its own endpoints and certificate, so it runs where `lockkeeper status` works.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
certs=${LOCKKEEPER_CERTS_DIR:-certs}
namespace=${LOCKKEEPER_NAMESPACE:-lockkeeper}

fail() {
    echo "node.sh: $*" >&2
    exit 2
}

is_id() { [[ ${1:-} =~ ^[1-9][0-9]*$ ]] || fail "\"${1:-}\" is no id of a node: $0 found 1"; }

host() { echo "lockkeeper-$1-0.lockkeeper-nodes.$namespace.svc.cluster.local"; }

# Where a new node asks to be added: the members, or the founders if the members cannot be asked from here.
endpoints() {
    lockkeeper member list -o json 2>/dev/null | sed -n 's/^ *"client_address": "\(.*\)".*/\1/p' | paste -sd, | grep . ||
        sed -n 's/^ *client_address = "\(.*\)"/\1/p' "$here/lockkeeper.yaml" | paste -sd,
}

is_member() { lockkeeper member list -o json | grep -q "^ *\"node_id\": $1,"; }

found() {
    echo ---
    sed -n "s/NUMBER/$1/g; s/namespace: lockkeeper\$/namespace: $namespace/; /^apiVersion/,\$p" "$here/node.yaml"
}

join() {
    local own
    own=$(host "$1")
    found "$1" | sed "s|^\( *\)- {name: LOCKKEEPER_BOOTSTRAP, value: \"true\"}|\\
\1- {name: LOCKKEEPER_BOOTSTRAP, value: \"false\"}\\
\1- {name: LOCKKEEPER_JOIN, value: \"$(endpoints)\"}\\
\1- {name: LOCKKEEPER_CLIENT_ADDRESS, value: \"$own:7101\"}\\
\1- {name: LOCKKEEPER_PEER_ADDRESS, value: \"$own:7201\"}|" | sed '/^$/d'
}

# Replaces the one that is there, for a certificate that was made anew.
secret() {
    kubectl -n "$namespace" create secret generic "lockkeeper-node-$1" --dry-run=client -o yaml \
        "--from-file=ca.pem=$certs/ca.pem" "--from-file=node-$1.pem=$certs/node-$1.pem" \
        "--from-file=node-$1-key.pem=$certs/node-$1-key.pem" | kubectl apply -f -
}

replace() {
    local old=$1 new=$2
    [[ $old != "$new" ]] || fail "node $new cannot take its own place: name an id that no node ever had"
    [[ -f $certs/node-$new.pem ]] || lockkeeper certs node "$new" --hosts "$(host "$new")" --dir "$certs"
    secret "$new"
    join "$new" | kubectl apply -f -
    if is_member "$old"; then
        # Returns when the new node has caught up and votes, and the old one is no member.
        lockkeeper member replace "$old" --with "$new"
    fi
    kubectl -n "$namespace" delete statefulset "lockkeeper-$old" --ignore-not-found
    kubectl -n "$namespace" delete persistentvolumeclaim "data-lockkeeper-$old-0" --ignore-not-found --wait=false
    kubectl -n "$namespace" delete secret "lockkeeper-node-$old" --ignore-not-found
    echo "node $new is in the place of node $old"
}

command=${1:-}
case $command in
host | found | join | secret)
    is_id "${2:-}"
    "$command" "$2"
    ;;
replace)
    is_id "${2:-}"
    is_id "${3:-}"
    replace "$2" "$3"
    ;;
*) fail "there is no command \"$command\": host, found, join, secret, replace" ;;
esac
