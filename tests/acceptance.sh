#!/bin/sh
# The long form of the tests in real guests: one line per promise, with what was measured.
# All other output goes to out/acceptance/tests.log.
set -u
cd "$(dirname "$0")/.." || exit 1
out=out/acceptance
mkdir -p "$out"
start=$(date +%s)
echo "==> the promises, tested in real guests; other output is in $out/tests.log"
VMLANE_TESTS=full cargo test --locked --release -p vmlane-tests --features guests,long --no-fail-fast -- \
	--test-threads=1 --nocapture >"$out/tests.log" 2>&1
code=$?
# libtest writes a test's name in front of what the test prints first.
sed -n 's/.*\(promise [0-9]* kept: .*\)/\1/p' "$out/tests.log" | sort -s -n -k 2,2 | tee "$out/promises.txt"
grep -E '^test result: FAILED|panicked at' -A 3 "$out/tests.log"
echo "==> $(grep -c . "$out/promises.txt") lines in $(($(date +%s) - start)) s, exit code $code"
exit "$code"
