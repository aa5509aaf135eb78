#!/usr/bin/env bash
# The tests in real guests, LANES files at a time (default 2), because guests spend much of their time
# waiting. One line per file as it ends; its output is in out/test/NAME.log, or NAME.failed.
set -euo pipefail
cd "$(dirname "$0")/.."
export LOGS=$PWD/out/test
mkdir -p "$LOGS"
start=$(date +%s)

# shellcheck source=tests/files.sh
. tests/files.sh

build=$LOGS/build.log
echo '==> building the tests'
build_tests guests "$build"
ranked=$(list_tests "$build")
[ -n "$ranked" ] || {
  cat "$build"
  echo 'tests: cargo named no test files' >&2
  exit 1
}

# shellcheck disable=SC2317 # xargs calls it.
one() {
  local name=$2 log=$LOGS/$2.log begun code=0
  begun=$(date +%s)
  run_file "$3" "$log" || code=$?
  local took=$(($(date +%s) - begun))
  if [ "$code" = 0 ]; then
    printf 'ok      %-12s %4d s  %s\n' "$name" "$took" "$(tests_passed "$log") tests"
    return
  fi
  [ -e "${log%.log}.failed" ] || mv "$log" "${log%.log}.failed"
  printf 'FAILED  %-12s %4d s, exit code %s\n' "$name" "$took" "$code"
  return 1
}
export -f one run_file tests_passed

echo "==> $(wc -l <<<"$ranked") files, ${LANES:=2} at a time"
rm -f "$LOGS"/*.failed
xargs -P "$LANES" -L 1 bash -c 'one "$@" || true' one <<<"$ranked"

if [ "$(find "$LOGS" -name '*.failed' | wc -l)" -gt 4 ]; then
  grep -H -A 4 'panicked at' "$LOGS"/*.failed | cut -c 1-600
  echo "==> tests in real guests: $(($(date +%s) - start)) s, FAILED: too many to repeat"
  exit 1
fi

# A file that failed while others used the machine is repeated once, alone: on a busy machine, emulated guests may
# miss their kernels' time limits. Both outcomes are reported, and the log of the first is kept.
code=0 unsteady=
for failed in "$LOGS"/*.failed; do
  [ -e "$failed" ] || continue
  name=$(basename "$failed" .failed)
  echo "==> why $name failed (all of it: $failed)"
  grep -A 4 'panicked at\|has been up for' "$failed" | cut -c 1-600 || tail -n 3 "$failed"
  echo "==> $name once more, alone"
  if ! grep " $name " <<<"$ranked" | xargs -L 1 bash -c 'one "$@"' one; then
    code=1
    # Printed here, for a reader who has no access to the files of this machine.
    tail -n 400 "$LOGS/$name.log"
    continue
  fi
  unsteady+=" $name"
done
[ -z "$unsteady" ] || echo "==> unsteady (failed beside others, passed alone):$unsteady"
echo "==> tests in real guests: $(($(date +%s) - start)) s, $([ "$code" = 0 ] && echo all passed || echo FAILED)"
exit "$code"
