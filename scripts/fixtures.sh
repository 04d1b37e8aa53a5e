#!/usr/bin/env bash
# Writes a set of fixtures by the present build: a data directory, log entries, snapshot records and peer messages.
#
#   scripts/fixtures.sh v2
#
# Run it at each release whose cluster version or formats are new, and commit the set. A set is never changed: the tests read it for ever
# (tests/formats).
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:?name the set by the cluster version: v2}
LOCKKEEPER_FIXTURES=$name cargo test --quiet --test pure -- --ignored --exact formats::write::write_a_set
du -sh --apparent-size "tests/fixtures/$name"
