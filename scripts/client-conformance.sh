#!/usr/bin/env bash
# Judges a client by the scenarios of src/clients/conformance: one contract for all languages (src/clients/CONTRACT.md).
#
#   scripts/client-conformance.sh rust [FILTER…]          the Rust client, and drivers that are broken on purpose
#   scripts/client-conformance.sh python [FILTER…]        the Python client: with threads, and with asyncio
#   scripts/client-conformance.sh typescript [FILTER…]    the TypeScript client
#   scripts/client-conformance.sh driver COMMAND [FILTER…]    any program that speaks the protocol of src/clients/conformance/README.md
#
# A filter is a part of a scenario's name; options of the judge (--list, --verbose, --jobs N) can stand in its place. The packages of the
# other languages are built as their own scripts build them, in the build directory.
#
# Exit code: 0 if all scenarios hold, 2 for an unknown client, another one if a scenario fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

judge() {
    cargo test --locked --package lockkeeper-conformance --test conformance -- "$@"
}

client=${1:-}
shift || true
case $client in
rust) judge "$@" ;;
python)
    python=$(scripts/python-client.sh --venv | tail -n 1)
    # Isolated (-I): otherwise the package beside the driver, which is not built, is imported instead of the installed one.
    judge --driver "$python -I $PWD/src/clients/python/driver.py" "$@"
    judge --driver "$python -I $PWD/src/clients/python/driver.py --asyncio" "$@"
    ;;
typescript)
    scripts/typescript-client.sh --build
    target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    judge --driver "node $target/clients/typescript/tests/programs/driver.mjs" "$@"
    ;;
driver)
    command=${1:?the command of a driver}
    shift
    judge --driver "$command" "$@"
    ;;
*)
    echo "which client? rust, python, typescript, or: driver COMMAND" >&2
    exit 2
    ;;
esac
