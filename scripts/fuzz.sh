#!/usr/bin/env bash
# Runs every fuzz target for FUZZ_SECONDS. libFuzzer through flags that stable Rust has, so no
# nightly is needed; with one installed, AddressSanitizer comes on top (FUZZ_ASAN=1).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh g++

seconds="${FUZZ_SECONDS:-60}"
triple=x86_64-unknown-linux-gnu
flags='--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares
  -Cllvm-args=-sanitizer-coverage-gated-trace-callbacks -Ccodegen-units=1 -Cdebug-assertions'
toolchain=()
out=fuzz/target
memory=2048
if [ "${FUZZ_ASAN:-0}" = 1 ]; then
  rustup toolchain list 2>/dev/null | grep -q nightly || {
    echo 'fuzz: FUZZ_ASAN=1 needs a nightly toolchain (rustup toolchain install nightly)' >&2
    exit 1
  }
  toolchain=(+nightly)
  flags="$flags -Zsanitizer=address"
  # Beside the others', and its shadow and what it keeps of freed memory are counted, too.
  out=fuzz/target/asan
  memory=4096
fi

echo '==> building the fuzz targets'
RUSTFLAGS="$(echo $flags)" cargo "${toolchain[@]}" build --release --manifest-path fuzz/Cargo.toml \
  --target "$triple" --target-dir "$out"

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz/targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
for target in "${targets[@]}"; do
  mkdir -p "out/fuzz/$target" "fuzz/corpus/$target" "fuzz/crashes/$target"
  echo "==> $target, $seconds s"
  # New inputs go to out/; the committed corpus and past crashes are only read.
  "$out/$triple/release/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb="$memory" -print_final_stats=1 \
    -artifact_prefix="out/fuzz/$target-" "out/fuzz/$target" "fuzz/corpus/$target" "fuzz/crashes/$target" \
    2>"out/fuzz/$target.log" || {
    tail -40 "out/fuzz/$target.log" >&2
    echo "fuzz: $target failed; the input is in out/fuzz/$target-*; keep it under fuzz/crashes/$target/ with the fix" >&2
    exit 1
  }
  grep -E 'stat::number_of_executed_units|stat::new_units_added' "out/fuzz/$target.log" | sed 's/^stat::/    /'
done
