#!/usr/bin/env bash
# Makes an archive for any Linux of one processor type: the program linked statically with musl, its manual pages and completions, and the
# licences.
#
#     scripts/static.sh [DIRECTORY]     where the archive goes (default: target/static). Prints its path.
#
# LOCKKEEPER_TARGET   default: that of this machine, such as x86_64-unknown-linux-musl. Others need a linker for them
# LOCKKEEPER_BIN      the program (default: built for the target)
#
# Needs `rustup target add TARGET`, and musl-gcc (Debian's musl-tools) for the parts in C: the cryptography and the allocator.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

target=${LOCKKEEPER_TARGET:-$(uname -m)-unknown-linux-musl}
build=${CARGO_TARGET_DIR:-target}
program=${LOCKKEEPER_BIN:-$build/$target/dist/lockkeeper}
if [[ -z ${LOCKKEEPER_BIN:-} ]]; then
    cargo build --profile dist --no-default-features --locked --target "$target" --bin lockkeeper >&2
fi
if ! ldd "$program" 2>&1 | grep -Eq 'statically linked|not a dynamic executable'; then
    echo "static.sh: $program needs libraries of its system: build it for a musl target" >&2
    exit 1
fi

directory=${1:-$build/static}
mkdir -p "$directory"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
version=$("$program" --version | cut -d ' ' -f 2)
name=lockkeeper-$version-${target%%-*}-linux
root=$tree/$name

install -D -m 755 "$program" "$root/lockkeeper"
# Debug information goes; names of functions stay, for the trace of a panic.
strip --strip-debug "$root/lockkeeper"
"$root/lockkeeper" man --out "$root/man"
mkdir "$root/completions"
for shell in bash zsh fish; do
    "$root/lockkeeper" completions "$shell" >"$root/completions/lockkeeper.$shell"
done
install -m 644 -t "$root" LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md

# The files are of root, and of the time of the last commit: one commit makes one archive.
when=$(git log -1 --format=%ct 2>/dev/null || date +%s)
archive=$directory/$name.tar.gz
tar --sort=name --owner=root:0 --group=root:0 --mtime="@$when" -C "$tree" -c "$name" | gzip -9n >"$archive"
echo "$archive"
