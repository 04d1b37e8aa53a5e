#!/usr/bin/env bash
# The TypeScript client (src/clients/typescript): builds the package, lints it, checks its types and what the registry would get, and
# tests it on real clusters, under Node 20 and under the newest Node that the registry has.
#
#     scripts/typescript-client.sh                      all of it, and the weight of the tarball and of what it installs
#     scripts/typescript-client.sh --build              only builds it, for scripts/client-conformance.sh
#     scripts/typescript-client.sh --chaos [SECONDS]    as a program in a run of chaos, judged (default: 60 s of all faults)
#     scripts/typescript-client.sh --figures            pairs a second and latency beside the Rust client and redlock on Redis
#
#     LOCKKEEPER_PROGRAM=…    the program under test; by default it is built
#     NODE_NEWEST=…           the newest Node's version; by default, what the registry says. `none`: without it
#
# Needs node 20 or later, and npm. Works on a copy in the build directory; packages are installed there, as the lock file has them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
place=$target/clients/typescript
export LOCKKEEPER_PROTO=$PWD/proto

run() {
    echo "+ $*" >&2
    "$@"
}

command -v npm >/dev/null || { echo "!!! SKIPPED: npm is not installed" >&2; exit 0; }

# A copy, so that nothing is written into the tree. What npm installed stays, as long as the lock file is the same.
mkdir -p "$place"
find "$place" -mindepth 1 -maxdepth 1 ! -name node_modules ! -name newest -exec rm -rf {} +
tar -C src/clients/typescript --exclude ./node_modules --exclude ./dist --exclude ./src/generated -cf - . | tar -C "$place" -xf -
if ! cmp -s "$place/package-lock.json" "$place/node_modules/.package-lock.committed.json"; then
    run npm ci --prefix "$place" --no-audit --no-fund
    cp "$place/package-lock.json" "$place/node_modules/.package-lock.committed.json"
fi
cd "$place"
run npm run --silent build
if [[ ${1:-} == --build ]]; then
    exit 0
fi

if [[ -z ${LOCKKEEPER_PROGRAM:-} ]]; then
    run cargo build --locked --manifest-path "$OLDPWD/Cargo.toml" --bin lockkeeper
    LOCKKEEPER_PROGRAM=$target/debug/lockkeeper
fi
export LOCKKEEPER_PROGRAM

if [[ ${1:-} == --chaos ]]; then
    out=$(mktemp -d)/run
    status=0
    run "$LOCKKEEPER_PROGRAM" chaos run --duration "${2:-60}s" --faults all --clients 2 --out "$out" \
        --program "exec node '$place/tests/programs/chaos.mjs'" | tee "$target/clients/typescript-chaos.txt" || status=${PIPESTATUS[0]}
    # 31: a property was not tested or is undecided, which a short run may be.
    if [[ $status != 0 && $status != 31 ]] || grep -q TROUBLE "$target/clients/typescript-chaos.txt"; then
        echo "the run is in $out" >&2
        exit 1
    fi
    # What was judged must have been something.
    grants=$(grep '"process":"typescript-' "$out/history.jsonl" | grep '"type":"ok"' | grep -c '"f":"acquire"' || true)
    echo "the TypeScript client was granted $grants locks"
    rm -rf "$(dirname "$out")"
    [[ $grants -ge 10 ]] || { echo "that is too few: the verdict says nothing of it" >&2; exit 1; }
    exit 0
fi
if [[ ${1:-} == --figures ]]; then
    run npm install --prefix "$place/figures" --no-audit --no-fund --no-package-lock
    exec node figures/run.mjs
fi

run npm run --silent lint
run npm run --silent types
run npm run --silent check-package
run npm test

newest=${NODE_NEWEST:-$(npm view "node-$(node -p 'process.platform + "-" + process.arch')" version)}
if [[ $newest != none ]]; then
    packaged=node-$(node -p 'process.platform + "-" + process.arch')
    run npm install --prefix "$place/newest" --no-audit --no-fund --no-save --no-package-lock "$packaged@$newest"
    PATH=$place/newest/node_modules/$packaged/bin:$PATH
    echo "the same tests under Node $(node --version)"
    run node node_modules/vitest/vitest.mjs run
fi

tarball=$(npm pack --silent --pack-destination "$place")
sandbox=$(mktemp -d)
trap 'rm -rf "$sandbox"' EXIT
run npm install --prefix "$sandbox" --silent --no-audit --no-fund --no-package-lock "$place/$tarball"
(cd "$sandbox" && node -e 'import("@lockkeeper/client").then(({ connect }) => connect())' && node -e 'require("@lockkeeper/client").connect()')
printf '%-44s %8d bytes\n' "$tarball" "$(stat -c %s "$place/$tarball")" \
    'installed, without what it needs' "$(du -sb "$sandbox/node_modules/@lockkeeper" | cut -f1)" \
    'installed, with grpc-js and all that it needs' "$(du -sb "$sandbox/node_modules" | cut -f1)"
