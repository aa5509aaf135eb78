#!/usr/bin/env bash
# Prints what the program is built from as a CycloneDX SBOM: the crates that cargo links for this target, with the
# checksums of Cargo.lock, and what the linker adds. No cargo-cyclonedx: it writes paths of this machine into the SBOM
# and files beside every manifest, and knows only crates.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

triple=x86_64-unknown-linux-gnu
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
metadata=$(cargo metadata --quiet --locked --format-version 1 --filter-platform $triple)
# NAME VERSION of what is linked. `cargo metadata` would add what only other programs of the workspace need.
linked=$(cargo tree --quiet --locked --package vmlane-cli --edges normal,no-proc-macro --target $triple --prefix none |
  awk '{print $1, substr($2, 2)}' | sort -u)
checksums=$(awk -F '"' '/^name/ {name = $2} /^version/ {version = $2} /^checksum/ {print name, version, $2}' Cargo.lock)

# debian PACKAGE: its version, where this is Debian.
debian() {
  dpkg-query --show --showformat '${Version}' "$1" 2>/dev/null || true
}
libc=$(debian libc6-dev)
libgcc=$(debian "libgcc-$(cc -dumpversion)-dev")

jq --sort-keys --arg linked "$linked" --arg checksums "$checksums" --arg date "$(date -u -d "@$date" +%Y-%m-%dT%H:%M:%SZ)" \
  --arg commit "$(git rev-parse HEAD)" --arg rustc "$(rustc -V)" --arg cc "$(cc --version | head -n 1)" \
  --arg ld "$(ld --version | head -n 1)" --arg libc "$libc" --arg libgcc "$libgcc" '
  ($linked | split("\n")) as $linked |
  ($checksums | split("\n") | map(split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}) | from_entries) as $checksums |
  def named: "\(.name) \(.version)";
  def reference: if .source then "pkg:cargo/\(.name)@\(.version)" else "\(.name)@\(.version)" end;
  def expression: if . then [{expression: (gsub("/"; " OR "))}] else null end;
  def present: with_entries(select(.value != null and .value != ""));
  def component: {
    type: "library", "bom-ref": reference, name, version, licenses: (.license | expression),
    purl: (if .source then reference else null end),
    hashes: (named | $checksums[.] | if . then [{alg: "SHA-256", content: .}] else null end),
    externalReferences: (.repository | if . then [{type: "vcs", url: .}] else null end)
  } | present;
  # What is no crate.
  def other($name; $version; $license; $purl):
    {type: "library", "bom-ref": $name, $name, $version, licenses: [{expression: $license}], purl: $purl} | present;
  [
    other("rust-std"; $rustc | split(" ")[1]; "MIT OR Apache-2.0"; "pkg:generic/rust-std@\($rustc | split(" ")[1])"),
    other("glibc"; $libc; "LGPL-2.1-or-later"; if $libc == "" then "" else "pkg:deb/debian/libc6-dev@\($libc | @uri)" end),
    other("libgcc"; $libgcc; "GPL-3.0-or-later WITH GCC-exception-3.1";
      if $libgcc == "" then "" else "pkg:deb/debian/libgcc-dev@\($libgcc | @uri)" end)
  ] as $others |
  (.packages | map(select(named | IN($linked[])))) as $packages |
  ($packages | map({key: .id, value: reference}) | from_entries) as $references |
  ($packages[] | select(.name == "vmlane-cli")) as $root |
  {
    bomFormat: "CycloneDX", specVersion: "1.5", version: 1,
    metadata: {
      timestamp: $date,
      component: ($root | component + {type: "application", name: "vmlane"}),
      properties: ({commit: $commit, rustc: $rustc, cc: $cc, ld: $ld} | to_entries | map({name: "vmlane:\(.key)", value}))
    },
    components: (($packages | map(select(.id != $root.id) | component)) + $others | sort_by(."bom-ref")),
    dependencies: (
      [.resolve.nodes[] | select($references[.id]) | {
        ref: $references[.id],
        dependsOn: ([.deps[] | select(any(.dep_kinds[]; .kind == null)) | $references[.pkg] // empty]
          + (if .id == $root.id then $others | map(."bom-ref") else [] end) | unique)
      }] + ($others | map({ref: ."bom-ref"})) | sort_by(.ref))
  }' <<<"$metadata"
