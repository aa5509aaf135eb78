#!/usr/bin/env bash
# Runs every fuzz target, or those that are named, for FUZZ_SECONDS. libFuzzer through flags that stable Rust
# has, so no nightly is needed; with one installed, AddressSanitizer comes on top (FUZZ_ASAN=1).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/bootstrap.sh g++

seconds="${FUZZ_SECONDS:-60}"
triple=x86_64-unknown-linux-gnu
flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
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

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for file in fuzz/src/targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi

echo '==> building the fuzz targets'
# A program for each (src/bin/libfuzzer.rs says why); one run of this script builds at a time.
mkdir -p "$out/programs"
(
  flock 9
  export RUSTFLAGS="$(echo $flags)" CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_PROFILE_RELEASE_STRIP=none
  for target in "${targets[@]}"; do
    VMLANE_FUZZ_TARGET="$target" cargo "${toolchain[@]}" build --quiet --release --locked -p vmlane-fuzz \
      --features libfuzzer --bin libfuzzer --target "$triple" --target-dir "$out"
    install "$out/$triple/release/libfuzzer" "$out/programs/$target"
  done
) 9>"$out/lock"

for target in "${targets[@]}"; do
  mkdir -p "out/fuzz/$target" "fuzz/corpus/$target" "fuzz/crashes/$target"
  echo "==> $target, $seconds s"
  # New inputs go to out/; the committed corpus and past crashes are only read.
  "$out/programs/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb="$memory" -print_final_stats=1 \
    -artifact_prefix="out/fuzz/$target-" "out/fuzz/$target" "fuzz/corpus/$target" "fuzz/crashes/$target" \
    2>"out/fuzz/$target.log" || {
    tail -40 "out/fuzz/$target.log" >&2
    echo "fuzz: $target failed; the input is in out/fuzz/$target-*; keep it under fuzz/crashes/$target/ with the fix" >&2
    exit 1
  }
  grep -E 'stat::number_of_executed_units|stat::new_units_added' "out/fuzz/$target.log" | sed 's/^stat::/    /'
done
