#!/usr/bin/env bash
# The long form of the test with Patroni and PostgreSQL (tests/etcd/patroni): in each round the cluster loses its leader and restarts its
# nodes one after the other, which must leave the primary alone; then the leader key is taken by an operator, the primary is switched,
# and killed.
#
#   scripts/patroni.sh [ROUNDS]     default: 5 rounds, of about 45 s each
#
# Needs python3, and PostgreSQL or Debian's apt-get; packages are installed into the build directory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export LOCKKEEPER_PATRONI_ROUNDS=${1:-5}
[[ $LOCKKEEPER_PATRONI_ROUNDS =~ ^[1-9][0-9]*$ ]] || { sed -n '2,10s/^# \{0,1\}//p' scripts/patroni.sh >&2; exit 2; }
exec cargo test --locked --test node -- --nocapture --ignored etcd::patroni
