#!/usr/bin/env bash
# One minute of faults on this machine: builds the program and passes all arguments to `lockkeeper chaos run`.
#
#   scripts/chaos.sh
#   scripts/chaos.sh --duration 5m --nodes 5 --faults partition,kill --seed 7
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --locked --release --bin lockkeeper
exec "${CARGO_TARGET_DIR:-target}/release/lockkeeper" chaos run "$@"
