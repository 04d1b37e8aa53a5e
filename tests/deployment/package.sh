#!/bin/sh
# Installs, upgrades, removes and purges a Debian package, in a root of its own: an overlay over this system's, in a mount namespace, so
# that nothing of this system changes. $1: an empty directory; $2: the package. Exit code 77: the system permits no such root.
set -eu
place=$1 package=$2
mount -t tmpfs tmpfs "$place" || exit 77
mkdir "$place/upper" "$place/work" "$place/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$place/upper,workdir=$place/work" "$place/root" || exit 77
cp "$package" "$place/root/lockkeeper.deb"
mount -t tmpfs tmpfs "$place/root/run"
[ -c "$place/root/dev/null" ] || mount --bind /dev "$place/root/dev" || exit 77

inside() { chroot "$place/root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
no() { if "$@"; then fail "$@"; fi; }

inside getent passwd lockkeeper && fail "this system has a user lockkeeper already"
inside dpkg --force-depends -i /lockkeeper.deb
echo "installed"
inside lockkeeper --version
[ "$(inside stat -c '%U %a' /var/lib/lockkeeper)" = "lockkeeper 700" ] || fail "the data directory"
[ "$(inside stat -c '%U:%G %a' /etc/lockkeeper)" = "root:lockkeeper 750" ] || fail "the configuration's directory"
inside getent passwd lockkeeper | grep -q ':/usr/sbin/nologin$' || fail "the user"
inside sh -c 'zcat /usr/share/man/man1/lockkeeper.1.gz | grep -q lockkeeper' || fail "the manual page"
inside test -s /lib/systemd/system/lockkeeper.service
# Started by mistake, it founds no cluster.
if said=$(inside lockkeeper serve --config /etc/lockkeeper/lockkeeper.toml 2>&1); then fail "it starts as it is installed"; fi
echo "$said" | grep -q 'cluster_id: is missing' || fail "it does not say what is missing: $said"
# The links of the pages lead to pages of the package.
documents=$place/root/usr/share/doc/lockkeeper
pages=$(find "$documents" -name '*.md')
for page in $pages; do
    grep -oE '\]\([^)# ]+' "$page" | cut -c 3- | grep -v '://' | while read -r link; do
        [ -e "$(dirname "$page")/$link" ] || fail "${page#"$documents"/} leads to $link, which is not in the package"
    done
done
[ "$(echo "$pages" | wc -l)" -ge 15 ] || fail "pages are missing: $pages"
no inside test -e /etc/systemd/system/multi-user.target.wants/lockkeeper.service
# What an operator has changed stays in an upgrade.
inside sh -c 'echo "# mine" >>/etc/lockkeeper/lockkeeper.toml; echo data >/var/lib/lockkeeper/identity.toml'
inside dpkg --force-depends -i /lockkeeper.deb
inside grep -q '# mine' /etc/lockkeeper/lockkeeper.toml || fail "the configuration was replaced"
inside dpkg --remove lockkeeper
no inside test -e /usr/bin/lockkeeper
inside grep -q '# mine' /etc/lockkeeper/lockkeeper.toml || fail "the configuration left before a purge"
echo "removed"
said=$(inside dpkg --purge lockkeeper 2>&1)
echo "$said"
no inside test -e /etc/lockkeeper
inside test -e /var/lib/lockkeeper/identity.toml || fail "a purge deleted the data"
echo "$said" | grep -q 'is kept' || fail "a purge does not say that it keeps the data"
no inside dpkg -s lockkeeper
# Without data, nothing is left.
inside rm -r /var/lib/lockkeeper
inside dpkg --force-depends -i /lockkeeper.deb
inside dpkg --purge lockkeeper
no inside test -e /var/lib/lockkeeper
left=$(cd "$place/upper" && find . -path ./var/lib/dpkg -prune -o -name '*lockkeeper*' ! -name lockkeeper.deb -print)
[ -z "$left" ] || fail "left behind: $left"
echo "purged"
