# What run_guest_tests.sh and acceptance.sh share: building the test files, listing them, running one. Sourced, by bash.
# shellcheck shell=bash

# build_tests FEATURES LOG: prints what cargo said only if that fails.
build_tests() {
  # One of the tests runs the example.
  {
    cargo test --locked --release -p vmlane-tests --features "$1" --no-run &&
      cargo build --locked --release -p vmlane-sock --example echo
  } >"$2" 2>&1 || {
    cat "$2"
    return 1
  }
}

# list_tests LOG: a line "RANK NAME EXECUTABLE" for each test file of a build, the longest files first, so that all
# slots end at about the same time. The fixture is no test file.
list_tests() {
  local name file rank known
  local longest='virtio switch vmms losses nics vsock_pairs sockets host survival soak streams'
  sed -n 's/^ *Executable \([a-z_]*\)\.rs (\(.*\))$/\1 \2/p' "$1" |
    while read -r name file; do
      rank=0
      for known in $longest; do
        [ "$name" = "$known" ] && break
        rank=$((rank + 1))
      done
      echo "$rank $name $file"
    done | sort -n
}

# run_file EXECUTABLE LOG: its exit code is that of the file's tests.
run_file() {
  local file=$PWD/$1 log=$2
  (cd tests && exec "$file" --test-threads=1 --nocapture) >"$log" 2>&1 </dev/null
}

# tests_passed LOG: how many. A file that was killed has no result, and so 0.
tests_passed() {
  local passed
  passed=$(sed -n 's/^test result: .* \([0-9]*\) passed;.*/\1/p' "$1")
  echo "${passed:-0}"
}
