#!/usr/bin/env bash
# Line coverage of the daemon's crates by the tests that need no VM. Prints one line per crate and the total;
# out/coverage/report.txt has the coverage of each file, out/coverage/lines.txt the lines that were not reached.
set -euo pipefail
cd "$(dirname "$0")/.."

# The crates that the daemon is made of, in the order of the table in ARCHITECTURE.md.
crates=(wire mem stats port state worker stream switch vsock device transport host sock api config attach confine keeper daemon)
for crate in "${crates[@]}"; do
  [ -d "crates/$crate" ] || {
    echo "coverage: crates/$crate does not exist; correct the list in scripts/coverage.sh" >&2
    exit 1
  }
done
out=$PWD/out/coverage
mkdir -p "$out"
rm -f "$out"/*.profraw

# The tools must belong to the compiler's version of LLVM: from rustup's component llvm-tools, or from Debian.
version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
host=$(rustc -vV | sed -n 's/^host: //p')
own=$(rustc --print sysroot)/lib/rustlib/$host/bin
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vmlane/llvm-$version
tool() {
  local name=$1
  shift
  if [ -x "$own/$name" ]; then
    "$own/$name" "$@"
  elif command -v "$name-$version" >/dev/null; then
    "$name-$version" "$@"
  else
    "$cache/usr/lib64/ld-linux-x86-64.so.2" \
      --library-path "$cache/usr/lib/x86_64-linux-gnu:$cache/usr/lib/llvm-$version/lib" \
      "$cache/usr/lib/llvm-$version/bin/$name" "$@"
  fi
}
if ! tool llvm-profdata --version >/dev/null 2>&1; then
  scripts/bootstrap.sh mmdebstrap
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '$1 == "deb" && $2 ~ /^http/ { print $2; exit }
    $1 == "URIs:" { print $2; exit }' || true)
  [ -n "$mirror" ] || {
    echo "coverage: no mirror in /etc/apt to take llvm-$version from: 'rustup component add llvm-tools' instead" >&2
    exit 1
  }
  for suite in bookworm trixie sid; do
    echo "==> looking for llvm-$version in Debian $suite"
    rm -rf "$cache"
    mmdebstrap --quiet --variant=extract --include="llvm-$version" "$suite" "$cache" \
      "$mirror" 2>"$out/llvm.log" && break
  done
  tool llvm-profdata --version >/dev/null 2>&1 || {
    echo "coverage: no llvm-cov of LLVM $version: 'rustup component add llvm-tools', or see $out/llvm.log" >&2
    exit 1
  }
fi

packages=("${crates[@]/#/-pvmlane-}")
export CARGO_PROFILE_RELEASE_STRIP=none
export RUSTFLAGS='-C instrument-coverage' LLVM_PROFILE_FILE=$out/%p-%m.profraw
echo '==> tests with coverage'
cargo test --release --locked --target-dir target/coverage "${packages[@]}" --no-run 2>"$out/build.log" || {
  cat "$out/build.log"
  exit 1
}
cargo test --release --locked --target-dir target/coverage "${packages[@]}" >"$out/tests.log" 2>&1 || {
  tail -n 60 "$out/tests.log"
  exit 1
}
objects=()
while read -r file; do objects+=(-object "$file"); done < <(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$out/build.log")

tool llvm-profdata merge -sparse -o "$out/all.profdata" "$out"/*.profraw
rm -f "$out"/*.profraw
# Test code and third-party code are not counted.
common=(-instr-profile "$out/all.profdata" "${objects[@]}"
  -ignore-filename-regex='(/testing/|/testing\.rs|/tests/|/tests\.rs|/registry/|/rustc/|/target/)')
tool llvm-cov report "${common[@]}" >"$out/report.txt" 2>/dev/null
tool llvm-cov show "${common[@]}" -show-instantiations=false >"$out/lines.txt" 2>/dev/null
# Columns: regions, missed, %, functions, missed, %, lines, missed, %.
awk -v crates="${crates[*]}" '
  $1 ~ /\.rs$/ { split($1, path, "/"); name = path[1] == "crates" ? path[2] : path[1]; lines[name] += $8; missed[name] += $9 }
  END {
    n = split(crates, order, " ")
    for (i = 1; i <= n; i++) {
      name = order[i]
      if (lines[name]) printf "%-10s %6d lines  %5.1f %%\n", name, lines[name], 100 * (1 - missed[name] / lines[name])
      all += lines[name]; gone += missed[name]
    }
    printf "%-10s %6d lines  %5.1f %%\n", "all", all, 100 * (1 - gone / all)
  }' "$out/report.txt"
