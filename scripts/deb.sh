#!/usr/bin/env bash
# Makes the Debian package: the program, its manual pages and completions, the systemd unit, and a configuration to be edited.
#
#     scripts/deb.sh [DIRECTORY]     where the package goes (default: target/debian). Prints its path.
#
# LOCKKEEPER_BIN         the program (default: target/dist/lockkeeper, built if it is missing)
# LOCKKEEPER_DEB_LEVEL   of compression, 1 to 9 (default: 6)
# DEBFULLNAME, DEBEMAIL  the maintainer of the package, as for Debian's tools (default: who git says that you are)
#
# Needs dpkg-deb and nothing else of Debian. tests/deployment installs and purges it. The files are of root, and of the time of the last
# commit, so that one commit makes one package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022

target=${CARGO_TARGET_DIR:-target}
program=${LOCKKEEPER_BIN:-$target/dist/lockkeeper}
if [[ ! -x $program ]]; then
    [[ -z ${LOCKKEEPER_BIN:-} ]] || { echo "deb.sh: LOCKKEEPER_BIN: $program is no executable file" >&2; exit 1; }
    cargo build --profile dist --no-default-features --locked --bin lockkeeper >&2
fi
directory=${1:-$target/debian}
mkdir -p "$directory"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"

install -D -m 755 "$program" "$tree/usr/bin/lockkeeper"
# Debug information goes; names of functions stay, for the trace of a panic.
if command -v strip >/dev/null; then
    strip --strip-debug "$tree/usr/bin/lockkeeper"
fi
installed=$tree/usr/bin/lockkeeper
"$installed" man --out "$tree/usr/share/man/man1"
gzip -9n "$tree"/usr/share/man/man1/*.1
mkdir -p "$tree/usr/share/bash-completion/completions" "$tree/usr/share/zsh/vendor-completions" \
    "$tree/usr/share/fish/vendor_completions.d"
"$installed" completions bash >"$tree/usr/share/bash-completion/completions/lockkeeper"
"$installed" completions zsh >"$tree/usr/share/zsh/vendor-completions/_lockkeeper"
"$installed" completions fish >"$tree/usr/share/fish/vendor_completions.d/lockkeeper.fish"
install -D -m 644 cluster-configs/systemd/lockkeeper.service "$tree/lib/systemd/system/lockkeeper.service"
install -D -m 644 cluster-configs/systemd/lockkeeper.toml "$tree/etc/lockkeeper/lockkeeper.toml"
install -D -m 644 cluster-configs/systemd/lockkeeper.env "$tree/etc/lockkeeper/lockkeeper.env"
# The pages lie as in the source, so that the links between them work. What a link leads to and is not here, such as a source file, is named
# without a link.
documents=$tree/usr/share/doc/lockkeeper
mkdir -p "$documents"
cp --parents -r README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE .github/[A-Z]*.md .github/pictures cluster-configs proto/README.md \
    proto/lockkeeper/v1 src/README.md src/DECISIONS.md src/*/README.md tests/README.md "$documents"
rm -r "$documents/cluster-configs/debian"
find "$documents" -type f ! -perm /111 -exec chmod 644 {} +
while read -r page; do
    while read -r link; do
        [[ -e $(dirname "$page")/$link ]] || sed -Ezi "s|\\[([^][]*)\\]\\(${link}[^)]*\\)|\\1|g" "$page"
    done < <(sed -n 's/](/\n&/gp' "$page" | sed -n 's/^](\([^):# ]*\)[)#].*/\1/p' | sort -u | grep .)
done < <(find "$documents" -name '*.md')
{
    echo "Lockkeeper is licensed under either of the Apache License, Version 2.0 (/usr/share/common-licenses/Apache-2.0) or the MIT license"
    echo "(LICENSE-MIT in this directory), at your option."
} >"$documents/copyright"

mkdir "$tree/DEBIAN"
install -m 755 -t "$tree/DEBIAN" cluster-configs/debian/{postinst,prerm,postrm}
(cd "$tree" && find etc -type f -printf '/%p\n' | sort) >"$tree/DEBIAN/conffiles"
version=$("$installed" --version | cut -d ' ' -f 2)
architecture=$(dpkg --print-architecture)
# The newest version of a symbol of the C library that the program uses.
libc=2.34
if command -v objdump >/dev/null; then
    libc=$(objdump -T "$installed" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1 | cut -d _ -f 2)
fi
size=$(du -sk --exclude DEBIAN "$tree" | cut -f 1)
maintainer="${DEBFULLNAME:-$(git config user.name || id -un)} <${DEBEMAIL:-$(git config user.email || echo "$(id -un)@$(hostname)")}>"
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@LIBC@/$libc/; s/@SIZE@/$size/; s/@MAINTAINER@/$maintainer/" \
    cluster-configs/debian/control >"$tree/DEBIAN/control"
if SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null); then
    export SOURCE_DATE_EPOCH
fi
package=$directory/lockkeeper_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz -z"${LOCKKEEPER_DEB_LEVEL:-6}" --build "$tree" "$package" >&2
echo "$package"
