#!/usr/bin/env bash
# Makes out/release from what `make dist` and `make docs` made: the package, a tarball for other systems, an SBOM
# (CycloneDX) and checksums. The same commit, compiler and tools make the same bytes, in any directory and at any time.
set -euo pipefail
export LC_ALL=C
umask 022
cd "$(dirname "$0")/.."

triple=x86_64-unknown-linux-gnu
export VMLANE_BIN=${VMLANE_BIN:-target/$triple/dist/vmlane}
version=$("$VMLANE_BIN" --version | cut -d ' ' -f 2)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
out=out/release

[ -z "$(git status --porcelain)" ] || {
  echo 'release: the working tree has changes that are not committed; commit or remove them, then run this again' >&2
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# The crates that are linked into the program: NAME VERSION, and their licences.
crates() {
  cargo tree --quiet --locked --package vmlane-cli --edges normal,no-proc-macro --target $triple --prefix none --format '{p}|{l}' |
    sed 's/ (\*)//' | grep -v ' (/' | sort -u
}

# Licences of others, each text once, below the crates that have it.
licences() {
  local package licence folder file
  printf 'The program has code of these crates in it:\n\n'
  crates | sed 's/^\([^ ]*\) v\([^|]*\)|/  \1 \2: /'
  printf '\nIt is linked with Rust'\''s standard library (MIT or Apache-2.0) and with the GNU C library (LGPL-2.1-or-later).\n'
  crates | while IFS='|' read -r package licence; do
    folder=$(echo "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"${package/ v/-}")
    for file in "${folder%% /*}"/{LICEN[CS]E,COPYING,COPYRIGHT,NOTICE,UNLICENSE}*; do
      [ ! -f "$file" ] || printf '%s\t%s\t%s\n' "$(sha256sum <"$file")" "$package" "$file"
    done
  done | sort | awk -F '\t' '
    function print_text() {while ((getline line <file) > 0) print line; close(file)}
    $1 != sum {if (sum) print_text(); sum = $1; file = $3; printf "\n%s\n", "----------------------------------------"}
    {print $2} $1 == sum {file = $3}
    END {print_text()}'
}

# For both: the guide, and the licences of others.
docs=$work/docs
mkdir "$docs"
cp -r out/docs "$docs/html"
licences >"$docs/THIRD-PARTY"
chmod -R u=rwX,go=rX "$docs"

PACKAGE_VERSION=$version DOCS=$docs scripts/package.sh
mv "out/package/vmlane_${version}_amd64.deb" "$out/"

name=vmlane-$version-x86_64-linux
tree=$work/$name
PREFIX=/usr/local DESTDIR=$tree scripts/install.sh
cp -r "$docs/." "$tree/"
cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$tree/"
sed "s/@VERSION@/$version/" packaging/INSTALL >"$tree/INSTALL"
chmod -R u=rwX,go=rX "$tree"
tar --create --directory "$work" --format=gnu --sort=name --owner=root:0 --group=root:0 --mtime="@$SOURCE_DATE_EPOCH" "$name" |
  gzip -9 -n >"$out/$name.tar.gz"

scripts/sbom.sh >"$out/vmlane-$version.cdx.json"
(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
echo "==> $out: $(cd "$out" && echo *)"
