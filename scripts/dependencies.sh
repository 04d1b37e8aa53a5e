#!/usr/bin/env bash
# Checks the dependencies with cargo-deny: known vulnerabilities, yanked versions, sources. The rules are in .deny.toml. Licences and
# sources are checked by tests/dependencies.rs too, which needs no tool and no network.
#
# Without cargo-deny nothing is checked, and a line says so: compiling it takes minutes. Get it with: cargo install --locked cargo-deny
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! cargo deny --version >/dev/null 2>&1; then
    echo "!!! SKIPPED: cargo deny is not installed; get it with: cargo install --locked cargo-deny" >&2
    exit 0
fi
cargo deny --locked check --config .deny.toml advisories bans sources
