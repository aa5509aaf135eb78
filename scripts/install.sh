#!/usr/bin/env bash
# Installs what `make build` made: the program, man pages, completions, units, the C library and its header, and an
# example configuration. PREFIX (default /usr/local) is where; DESTDIR, if set, is put in front of every path.
# scripts/package.sh makes a package of the same files.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
root=${DESTDIR:-}
program=${VMLANE_BIN:-target/x86_64-unknown-linux-gnu/release/vmlane}
[ -x "$program" ] || {
  echo "install: $program is missing; run 'make build' first" >&2
  exit 1
}
[[ $prefix == /* ]] || {
  echo "install: PREFIX=$prefix is no absolute path" >&2
  exit 2
}

# put MODE SOURCE TARGET
put() {
  install -D -m "$1" "$2" "$root$3"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

put 755 "$program" "$prefix/bin/vmlane"
# The program travels into guests without symbols that only debuggers read.
strip --strip-all "$root$prefix/bin/vmlane"

mkdir "$work/man"
# Their defaults are those of the service, not of the user who builds.
env -u XDG_RUNTIME_DIR -u VMLANE_RUNTIME_DIR "$program" man-pages "$work/man"
for page in "$work"/man/*; do
  gzip -9 -n "$page"
  put 644 "$page.gz" "$prefix/share/man/man${page##*.}/$(basename "$page").gz"
done

for shell in bash zsh fish; do
  "$program" completions "$shell" >"$work/$shell"
done
put 644 "$work/bash" "$prefix/share/bash-completion/completions/vmlane"
put 644 "$work/zsh" "$prefix/share/zsh/vendor-completions/_vmlane"
put 644 "$work/fish" "$prefix/share/fish/vendor_completions.d/vmlane.fish"

# In a directory of their own: the library takes the place of C functions in programs that link it.
"$program" run --write-library "$work"
put 644 "$work/libvmlane_vsock.so.0" "$prefix/lib/vmlane/libvmlane_vsock.so.0"
strip --strip-unneeded "$root$prefix/lib/vmlane/libvmlane_vsock.so.0"
ln -sf libvmlane_vsock.so.0 "$root$prefix/lib/vmlane/libvmlane_vsock.so"
put 644 "$work/libvmlane_vsock.a" "$prefix/lib/vmlane/libvmlane_vsock.a"
put 644 "$work/vmlane_vsock.h" "$prefix/include/vmlane/vmlane_vsock.h"
version=$("$program" --version | cut -d " " -f 2)
sed "s#@PREFIX@#$prefix#; s#@VERSION@#$version#" packaging/vmlane-vsock.pc >"$work/vmlane-vsock.pc"
# Where pkg-config looks: Debian's has a directory for each architecture, and both read this one.
put 644 "$work/vmlane-vsock.pc" "$prefix/share/pkgconfig/vmlane-vsock.pc"

# systemd reads units, users and temporary files of /usr/lib and of /etc; units of /usr/local/lib, too.
for unit in vmlane.service vmlane-keeper.service vmlane-metrics.service vmlane-metrics.socket vmlane-route.service vmlane-ovn.service; do
  sed "s#/usr/bin/vmlane#$prefix/bin/vmlane#" "packaging/systemd/$unit" >"$work/$unit"
  put 644 "$work/$unit" "$prefix/lib/systemd/system/$unit"
done
put 644 packaging/systemd/vmlane.sysusers "$prefix/lib/sysusers.d/vmlane.conf"
put 644 packaging/systemd/vmlane-metrics.sysusers "$prefix/lib/sysusers.d/vmlane-metrics.conf"
put 644 packaging/systemd/vmlane-route.sysusers "$prefix/lib/sysusers.d/vmlane-route.conf"
put 644 packaging/systemd/vmlane.tmpfiles "$prefix/lib/tmpfiles.d/vmlane.conf"

sed "s#/usr/bin/vmlane#$prefix/bin/vmlane#; s#/usr/share/vmlane#$prefix/share/vmlane#" packaging/libvirt/qemu >"$work/hook"
put 755 "$work/hook" "$prefix/share/vmlane/libvirt/qemu"
sed "s#/usr/bin/vmlane#$prefix/bin/vmlane#; s#/usr/share/vmlane#$prefix/share/vmlane#" packaging/proxmox/vmlane.pl >"$work/hookscript"
put 755 "$work/hookscript" "$prefix/share/vmlane/proxmox/vmlane.pl"

put 644 packaging/prometheus/vmlane.rules.yml "$prefix/share/vmlane/prometheus/vmlane.rules.yml"
put 644 packaging/grafana/vmlane.json "$prefix/share/vmlane/grafana/vmlane.json"

sed "s#/usr/bin/vmlane#$prefix/bin/vmlane#" packaging/apparmor/vmlane-daemon >"$work/profile"
put 644 "$work/profile" /etc/apparmor.d/vmlane-daemon
# An administrator's configuration stays.
[ -e "$root/etc/vmlane/vmlane.toml" ] || put 644 packaging/vmlane.toml /etc/vmlane/vmlane.toml
