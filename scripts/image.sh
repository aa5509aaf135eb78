#!/usr/bin/env bash
# Makes out/image/vmlane.oci.tar: an OCI image of the program and nothing else. Needs buildah, and neither root nor a
# registry.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${VMLANE_BIN:-target/x86_64-unknown-linux-gnu/release/vmlane}
[ -x "$program" ] || {
  echo "image: $program is missing; run 'make build' first" >&2
  exit 1
}
version=$("$program" --version | cut -d " " -f 2)
# The same sources make the same image.
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
file=out/image/vmlane.oci.tar
mkdir -p out/image

work=$(mktemp -d)
# Directories of an image are read-only for who is not root.
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
umask 022
# In a storage of its own, without overlays: this works inside containers, too, and leaves nothing behind.
in_image() {
  local command=$1
  shift
  buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$command" "$@"
}

install -D -m 755 "$program" "$work/root/usr/bin/vmlane"
strip --strip-all "$work/root/usr/bin/vmlane"
install -D -m 644 packaging/vmlane.toml "$work/root/etc/vmlane/vmlane.toml"
image=$(in_image from scratch)
in_image copy --quiet "$image" "$work/root" / >/dev/null
# A daemon that is killed leaves its VMs to the keeper, as the units have it; after SIGTERM it would disconnect them.
# A user other than root, too, has its sockets where a host's directory is mounted.
in_image config --entrypoint '["/usr/bin/vmlane"]' --cmd daemon --stop-signal SIGKILL --env VMLANE_RUNTIME_DIR=/run/vmlane "$image"
in_image commit --quiet --disable-compression=false --timestamp "$date" "$image" "oci-archive:$file:vmlane:$version" >/dev/null
echo "==> $file ($(du -h "$file" | cut -f 1))"
