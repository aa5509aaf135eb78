#!/usr/bin/env bash
# Installs what building needs and a fresh Debian lacks: a C linker and libc's headers.
# Prints nothing when there is nothing to do. Guests, QEMU and kernels are `vmlane lab setup`'s work.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}

command -v cargo >/dev/null || fail 'cargo is missing: install Rust 1.88 or newer (https://rustup.rs), then run this again'

need=()
command -v cc >/dev/null || need+=(gcc)
[ -e /usr/include/stdio.h ] || need+=(libc6-dev)
# vmlane is linked statically, so that the same file runs in every guest.
if command -v cc >/dev/null && [ "$(cc -print-file-name=libc.a)" = libc.a ]; then need+=(libc6-dev); fi
# A caller may want more (the fuzz targets need a C++ compiler).
for package in "$@"; do
  dpkg -s "$package" >/dev/null 2>&1 || need+=("$package")
done
[ ${#need[@]} -eq 0 ] && exit 0

printf '==> installing %s\n' "${need[*]}"
[ "$(id -u)" = 0 ] || fail "not root: run 'apt-get install ${need[*]}' as root, then run this again"
command -v apt-get >/dev/null || fail "no apt-get here: install ${need[*]} with this system's package manager, then run this again"
export DEBIAN_FRONTEND=noninteractive
apt-get -o Acquire::Retries=5 update -q >/dev/null || fail 'apt-get update failed: check the network and the mirror in /etc/apt, then run this again'
apt-get -o Acquire::Retries=5 install -y -q --no-install-recommends "${need[@]}" >/dev/null ||
  fail "apt-get could not install ${need[*]}: check free space (df -h /) and the mirror in /etc/apt, then run this again"
