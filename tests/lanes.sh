#!/usr/bin/env bash
# The tests in real guests, LANES files at a time (2 unless told otherwise): guests spend much of their time
# waiting. A line a file as it ends; what it printed is in out/test/NAME.log, and shown if it failed.
set -euo pipefail
cd "$(dirname "$0")/.."
export LOGS=$PWD/out/test
mkdir -p "$LOGS"
start=$(date +%s)

build=$LOGS/build.log
echo '==> building the tests'
cargo test --locked --release -p vmlane-tests --features guests --no-run >"$build" 2>&1 || {
  cat "$build"
  exit 1
}

# Those that take longest begin, so that the lanes end together; the fixture's own are unit tests.
longest='virtio switch vmms losses nics vsock_pairs sockets host survival soak streams'
ranked=$(sed -n 's/^ *Executable \([a-z_]*\)\.rs (\(.*\))$/\1 \2/p' "$build" |
  while read -r name file; do
    rank=0
    for known in $longest; do
      [ "$name" = "$known" ] && break
      rank=$((rank + 1))
    done
    echo "$rank $name $file"
  done | sort -n)
[ -n "$ranked" ] || {
  cat "$build"
  echo 'lanes: cargo named no test files' >&2
  exit 1
}

one() {
  local name=$2 file=$PWD/$3 log=$LOGS/$2.log begun code=0
  begun=$(date +%s)
  (cd tests && exec "$file" --test-threads=1 --nocapture) >"$log" 2>&1 </dev/null || code=$?
  local took=$(($(date +%s) - begun))
  if [ "$code" = 0 ]; then
    printf 'ok      %-12s %4d s  %s\n' "$name" "$took" "$(grep -c '^ok$\|\.\.\. ok$' "$log") tests"
    return
  fi
  # In one piece, whatever the other lane has to say.
  cp "$log" "${log%.log}.failed"
  printf '%s\n' "$(tail -n 400 "$log")" "FAILED  $name, exit code $code, after $took s; all of it: $log"
  return 1
}
export -f one

echo "==> $(wc -l <<<"$ranked") files, ${LANES:=2} at a time"
code=0
rm -f "$LOGS"/*.failed
xargs -P "$LANES" -L 1 bash -c 'one "$@"' one <<<"$ranked" || code=1
# Once more at the end, where a reader begins: which test, and what it says.
for failed in "$LOGS"/*.failed; do
  [ -e "$failed" ] || continue
  echo "==> why $(basename "$failed" .failed) failed"
  grep -A 4 'panicked at' "$failed" | cut -c 1-600 || tail -n 3 "$failed"
done
echo "==> tests in real guests: $(($(date +%s) - start)) s, $([ "$code" = 0 ] && echo all passed || echo FAILED)"
exit "$code"
