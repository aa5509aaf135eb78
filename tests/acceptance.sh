#!/usr/bin/env bash
# The long form of the tests in real guests, one file after another: a line per file as it ends, its output in
# out/acceptance/NAME.log, then a table and one line per promise, with what was measured (promises.txt).
# A file that passed is not run again as long as what is built stays the same, so that a run which failed or was
# interrupted can be resumed.
#   ONLY=survival,nics  only these files      AGAIN=1  also what passed      LANES=n  n files at a time (default 1)
set -euo pipefail
cd "$(dirname "$0")/.."
export LOGS=$PWD/out/acceptance
export VMLANE_TESTS=full
mkdir -p "$LOGS"
start=$(date +%s)
# shellcheck source=tests/files.sh
. tests/files.sh

# A hash of all that decides what these tests do: sources, committed or not, and settings.
source_tree() {
  local built=(crates guest packaging scripts tests experiments .cargo Cargo.toml Cargo.lock Makefile)
  {
    {
      git ls-files -z --cached --others --exclude-standard -- "${built[@]}" ':!tests/*.sh' 2>/dev/null ||
        find "${built[@]}" -type f -print0 # Unpacked from an archive.
    } | xargs -0 sha256sum 2>/dev/null || true # A file that was deleted has no line, and so changes the hash.
    env | grep '^VMLANE_' | sort
  } | sha256sum | cut -d ' ' -f 1
}

TREE=$(source_tree)
export TREE
build=$LOGS/build.log
echo '==> building the tests'
build_tests guests,long "$build"
ranked=$(list_tests "$build")
[ -n "$ranked" ] || {
  cat "$build"
  echo 'acceptance: cargo named no test files' >&2
  exit 1
}
if [ "$(source_tree)" != "$TREE" ]; then
  echo 'acceptance: the sources changed while they were built; start again' >&2
  exit 1
fi

all=$ranked
if [ -n "${ONLY:-}" ]; then
  chosen=
  for name in ${ONLY//,/ }; do
    line=$(grep " $name " <<<"$ranked") || {
      echo "acceptance: ONLY names $name, which is no test file; there are: $(cut -d ' ' -f 2 <<<"$ranked" | sort | xargs)" >&2
      exit 2
    }
    chosen+=$line$'\n'
  done
  ranked=$(sort -k1,1n -k2 -u <<<"${chosen%$'\n'}")
fi

# NAME.passed holds the hash of the sources with which NAME passed last, the seconds that took, and how many tests.
passed_before() {
  # docs and site read all pages, which are not part of the hash, and take little time.
  [ "$1" != docs ] && [ "$1" != site ] && [ "$(cut -d ' ' -f 1 "$LOGS/$1.passed" 2>/dev/null)" = "$TREE" ]
}

# shellcheck disable=SC2317 # xargs calls it.
one() {
  local name=$2 log=$LOGS/$2.log begun code=0 took tests
  begun=$(date +%s)
  rm -f "$LOGS/$name.passed"
  run_file "$3" "$log" || code=$?
  took=$(($(date +%s) - begun)) tests=$(tests_passed "$log")
  if [ "$code" = 0 ]; then
    # What passed while its sources changed proves nothing about either state of them.
    [ "$(source_tree)" = "$TREE" ] || TREE=changed
    echo "$TREE $took $tests" >"$LOGS/$name.passed"
    printf '%(%H:%M:%S)T  ok      %-12s %5d s  %3d tests\n' -1 "$name" "$took" "$tests"
    return
  fi
  echo "$took $tests $code" >"$LOGS/$name.failed"
  printf '%(%H:%M:%S)T  FAILED  %-12s %5d s  %3d tests passed, exit code %s\n' -1 "$name" "$took" "$tests" "$code"
  grep -E -A 3 '^test result: FAILED|panicked at' "$log" || tail -n 3 "$log"
}
export -f one run_file source_tree tests_passed

rm -f "$LOGS"/*.failed
torun='' skipped=0
while read -r rank name file; do
  if [ -z "${AGAIN:-}" ] && passed_before "$name"; then
    skipped=$((skipped + 1))
  else
    torun+="$rank $name $file"$'\n'
  fi
done <<<"$ranked"
echo "==> the promises, tested in real guests. Files to run: $(grep -c . <<<"$torun" || true) (LANES=${LANES:=1} at a time)," \
  "passed before: $skipped (AGAIN=1 repeats them)"
[ -z "$torun" ] || xargs -P "$LANES" -L 1 bash -c 'one "$@"' one <<<"${torun%$'\n'}" || true

code=0
printf '==> %-12s %-14s %7s %6s %9s\n' file result seconds tests promises
while read -r _ name _; do
  promises=$(grep -c 'promise [0-9]* kept: ' "$LOGS/$name.log") || true
  result=ok
  if [ -e "$LOGS/$name.failed" ]; then
    result=FAILED code=1
    read -r took tests _ <"$LOGS/$name.failed"
  elif [ -e "$LOGS/$name.passed" ]; then
    read -r _ took tests <"$LOGS/$name.passed"
    grep -q " $name " <<<"$torun" || result='passed before'
  else
    result=interrupted code=1 took=- tests=-
  fi
  printf '    %-12s %-14s %7s %6s %9s\n' "$name" "$result" "$took" "$tests" "$promises"
done <<<"$ranked"

# What files that were not asked for promised when they passed counts as well.
while read -r _ name _; do
  grep -q " $name " <<<"$ranked" || passed_before "$name" || continue
  # libtest writes a test's name in front of what the test prints first.
  sed -n 's/.*\(promise [0-9]* kept: .*\)/\1/p' "$LOGS/$name.log"
done <<<"$all" | sort -s -n -k 2,2 | tee "$LOGS/promises.txt"
echo "==> $(grep -c . "$LOGS/promises.txt" || true) lines in $(($(date +%s) - start)) s, exit code $code"
exit "$code"
