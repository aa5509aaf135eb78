#!/usr/bin/env bash
# Makes out/package/vmlane_VERSION_ARCHITECTURE.deb of what scripts/install.sh installs, and has lintian judge it.
# PACKAGE_VERSION is by default the workspace's version and "-1"; DEBFULLNAME and DEBEMAIL name the package's maintainer.
# DOCS is a directory with more documentation. No cargo-deb: docs/decisions/0019-package.md.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

upstream=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
version=${PACKAGE_VERSION:-$upstream-1}
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-The vmlane developers} <${DEBEMAIL:-vmlane@localhost}>"
# The same sources make the same package.
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH=$date
out=out/package
file=$out/vmlane_${version}_$architecture.deb
mkdir -p "$out"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
umask 022
PREFIX=/usr DESTDIR=$tree scripts/install.sh
# Debian 12 has units in /lib, and does not merge directories when it looks for files.
mkdir -p "$tree/lib/systemd"
mv "$tree/usr/lib/systemd/system" "$tree/lib/systemd/system"
rmdir "$tree/usr/lib/systemd"

doc=$tree/usr/share/doc/vmlane
install -D -m 644 packaging/debian/copyright "$doc/copyright"
install -D -m 644 README.md "$doc/README.md"
[ -z "${DOCS:-}" ] || cp -r "$DOCS/." "$doc/"
# Debian calls the package's own changelog so if the version has no revision of a package.
if [[ $version == *-* ]]; then
  ours=changelog.gz debians=changelog.Debian.gz
else
  ours=NEWS.gz debians=changelog.gz
fi
gzip -9 -n <CHANGELOG.md >"$doc/$ours"
{
  printf 'vmlane (%s) unstable; urgency=medium\n\n  * Built from the sources of version %s; %s says what changed.\n\n' "$version" "$upstream" "$ours"
  printf ' -- %s  %s\n' "$maintainer" "$(date -u -R -d "@$date")"
} | gzip -9 -n >"$doc/$debians"
install -D -m 644 packaging/debian/lintian-overrides "$tree/usr/share/lintian/overrides/vmlane"

# In KiB, whatever the blocks of this file system: as dpkg-gencontrol has it.
size=$(find "$tree" -printf '%y %s\n' | awk '$1 == "f" {sum += int(($2 + 1023) / 1024); next} {sum++} END {print sum}')
# The newest symbols of libc that the library needs.
glibc=$(objdump -T "$tree/usr/lib/vmlane/libvmlane_vsock.so.0" | sed -n 's/.*GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
install -d "$tree/DEBIAN"
sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@MAINTAINER@/$maintainer/" \
  -e "s/@GLIBC@/$glibc/" -e "s/@SIZE@/$size/" \
  packaging/debian/control >"$tree/DEBIAN/control"
install -m 644 packaging/debian/conffiles "$tree/DEBIAN/conffiles"
install -m 755 packaging/debian/{postinst,prerm,postrm} "$tree/DEBIAN/"
(cd "$tree" && find . -type f ! -path './DEBIAN/*' ! -path './etc/*' -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
find "$tree" -newermt "@$date" -print0 | xargs -0r touch --no-dereference --date="@$date"

dpkg-deb --root-owner-group --build "$tree" "$file" >/dev/null
if command -v apparmor_parser >/dev/null; then
  apparmor_parser -Q -K packaging/apparmor/vmlane-daemon
fi
lintian --fail-on error,warning --tag-display-limit 0 "$file"
echo "==> $file ($(du -h "$file" | cut -f 1))"
