#!/usr/bin/env bash
# Installs what building needs and a fresh Debian lacks: a C linker and libc's headers. On other systems, says what to
# install there. Prints nothing when there is nothing to do. Guests, QEMU and kernels are `vmlane lab setup`'s work.
#   scripts/bootstrap.sh [PACKAGE...]: these packages of Debian's as well. VMLANE_OS_RELEASE=FILE says which system this is.
#   START_SERVICES=no: services of the packages are not started.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}

# of_system KEY: what os-release(5) says.
of_system() {
  local file
  for file in "${VMLANE_OS_RELEASE:-/etc/os-release}" /usr/lib/os-release; do
    [ -r "$file" ] || continue
    sed -n "s/^$1=//p" "$file" | tail -n 1 | tr -d "\"'"
    return
  done
}

# By the system's own name, then by those that it is like.
family() {
  local id
  for id in $(of_system ID) $(of_system ID_LIKE); do
    case $id in
      debian | ubuntu) echo debian ;;
      fedora | rhel | centos) echo fedora ;;
      arch) echo arch ;;
      suse | opensuse | opensuse-*) echo suse ;;
      alpine) echo alpine ;;
      *) continue ;;
    esac
    return
  done
  # As good as Debian, whatever it is called.
  if command -v apt-get >/dev/null && command -v dpkg >/dev/null; then echo debian; else echo other; fi
}

# name PACKAGE: what Debian's package is called here; nothing where no such package is known.
name() {
  case $family:$1 in
    debian:* | other:*) echo "$1" ;;
    fedora:libc6-dev) echo glibc-devel glibc-static ;;
    arch:libc6-dev) echo glibc ;;
    suse:libc6-dev) echo glibc-devel glibc-devel-static ;;
    arch:g++) echo gcc ;;
    *:g++) echo gcc-c++ ;;
    arch:python3) echo python ;;
    arch:openssh-client) echo openssh ;;
    *:openssh-client) echo openssh-clients ;;
    arch:ncat) echo nmap ;;
    fedora:ncat) echo nmap-ncat ;;
    suse:tshark) echo wireshark ;;
    *:tshark) echo wireshark-cli ;;
    arch:systemd-container) echo systemd ;;
    arch:libvirt-clients) echo libvirt ;;
    *:libvirt-clients) echo libvirt-client ;;
    suse:libxml2-utils) echo libxml2-tools ;;
    *:libxml2-utils) echo libxml2 ;;
    fedora:prometheus) echo golang-github-prometheus ;;
    suse:prometheus) echo golang-github-prometheus-prometheus ;;
    suse:apparmor) echo apparmor-parser ;;
    fedora:apparmor | arch:lintian | arch:mmdebstrap | suse:lintian | suse:mmdebstrap) ;;
    *) echo "$1" ;;
  esac
}

is_installed() {
  case $family in
    debian) dpkg -s "$1" ;;
    arch) pacman -Q "$1" ;;
    *) rpm -q --whatprovides "$1" ;;
  esac >/dev/null 2>&1
}

family=$(family)
system=$(of_system PRETTY_NAME)
system=${system:-this system}
[ "$family" != alpine ] ||
  fail "$system has musl, and vmlane is built with glibc: build it on Debian or Fedora, or in a container with one of them; the program itself is static and runs here, too"
command -v cargo >/dev/null || fail 'cargo is missing: install Rust 1.88 or newer (https://rustup.rs), then run this again'

wanted=()
command -v cc >/dev/null || wanted+=(gcc)
[ -e /usr/include/stdio.h ] || wanted+=(libc6-dev)
# vmlane is linked statically, so that the same file runs in every guest.
if command -v cc >/dev/null && [ "$(cc -print-file-name=libc.a)" = libc.a ]; then wanted+=(libc6-dev); fi
need=() unknown=()
# need NAME: once.
need() {
  [[ " ${need[*]} " == *" $1 "* ]] || need+=("$1")
}

for package in "${wanted[@]}"; do
  for one in $(name "$package"); do need "$one"; done
done
# A caller may want more (the fuzz targets need a C++ compiler).
for package in "$@"; do
  names=$(name "$package")
  [ -n "$names" ] || unknown+=("$package")
  for one in $names; do
    is_installed "$one" || need "$one"
  done
done

if [ ${#unknown[@]} -gt 0 ]; then
  printf 'bootstrap: %s has no package known to be like %s of Debian: what needs it will fail\n' "$system" "${unknown[*]}" >&2
fi
[ ${#need[@]} -eq 0 ] && exit 0
case $family in
  debian) install='apt-get install' ;;
  fedora) install='dnf install' ;;
  arch) install='pacman -S' ;;
  suse) install='zypper install' ;;
  *) fail "$system has packages that are not known here. These are missing, by their names on Debian: ${need[*]}; install what has the same, then run this again" ;;
esac
# Only where its names are those of this system's own developers.
[ "$family" = debian ] || fail "$system lacks packages: run '$install ${need[*]}' as root, then run this again"

printf '==> installing %s\n' "${need[*]}"
[ "$(id -u)" = 0 ] || fail "not root: run '$install ${need[*]}' as root, then run this again"
export DEBIAN_FRONTEND=noninteractive
# Debian's packages ask this program before they start a service.
policy=/usr/sbin/policy-rc.d
if [ "${START_SERVICES:-}" = no ] && [ ! -e $policy ]; then
  trap 'rm -f $policy' EXIT
  printf '#!/bin/sh\nexit 101\n' >$policy
  chmod 755 $policy
fi
apt-get -o Acquire::Retries=5 update -q >/dev/null || fail 'apt-get update failed: check the network and the mirror in /etc/apt, then run this again'
apt-get -o Acquire::Retries=5 install -y -q --no-install-recommends "${need[@]}" >/dev/null ||
  fail "apt-get could not install ${need[*]}: check free space (df -h /) and the mirror in /etc/apt, then run this again"
