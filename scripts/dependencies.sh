#!/usr/bin/env bash
# Checks that the workspaces beside the main one, whose scripts build them as they are locked, know its present members.
#
# Then checks the dependencies with cargo-deny: known vulnerabilities, yanked versions, sources. The rules are in .deny.toml. Licences and
# sources are checked by tests/dependencies.rs too, which needs no tool and no network.
#
# Without cargo-deny that is not checked, and a line says so: compiling it takes minutes. Get it with: cargo install --locked cargo-deny
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for manifest in tests/peers/Cargo.toml tests/fuzz/guided/Cargo.toml; do
    cargo update --workspace --locked --quiet --manifest-path "$manifest" || {
        echo "the Cargo.lock beside $manifest is out of date: cargo update --workspace --manifest-path $manifest" >&2
        exit 1
    }
done

if ! cargo deny --version >/dev/null 2>&1; then
    echo "!!! SKIPPED: cargo deny is not installed; get it with: cargo install --locked cargo-deny" >&2
    exit 0
fi
cargo deny --locked check --config .deny.toml advisories bans sources
