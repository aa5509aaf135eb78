#!/usr/bin/env bash
# The guide as a site: out/docs/index.html, from docs/SUMMARY.md and the pages that it names.
# mdBook is built once, into the cache. The pages are staged in out/book: the tables of commands and metrics are made by
# the program itself, and pages at the top of the repository get a place beside the others.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.5.4
cache=${XDG_CACHE_HOME:-$HOME/.cache}/vmlane/mdbook-$version
mdbook=$cache/bin/mdbook
program=$(realpath "${VMLANE_BIN:-target/x86_64-unknown-linux-gnu/release/vmlane}")
[ -x "$program" ] || {
  echo "docs: $program is missing; run 'make build' first" >&2
  exit 1
}
if [ ! -x "$mdbook" ]; then
  echo "==> building mdBook $version (once, into $cache)"
  # Nothing of it needs to be static, or fast.
  (cd / && RUSTFLAGS='' nice cargo install --quiet --locked --debug --root "$cache" --no-default-features --features search "mdbook@$version") || {
    echo "docs: cargo could not install mdBook $version: check the network, then run this again" >&2
    exit 1
  }
fi

work=$(mktemp -d)
daemon=
finish() {
  [ -z "$daemon" ] || kill "$daemon" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# command_page WORDS...: --help of a command and of all below it.
command_page() {
  local text sub
  text=$("$program" "$@" --help </dev/null 2>&1)
  # shellcheck disable=SC2016 # Backticks of Markdown.
  printf '## vmlane%s\n\n```text\n%s\n```\n\n' "${*:+ $*}" "$text"
  # Those before the options, under whatever heading; and older names, which are not in a list.
  for sub in $(sed -n -e '/^Options:/q' -e 's/^  \([a-z][a-z0-9-]*\)  .*/\1/p' \
    -e '/^  Older names:/,/^$/{s/^  Older names://;s/,//g;p}' <<<"$text"); do
    [ "$sub" = help ] || command_page "$@" "$sub"
  done
}

# metrics_table: a row for each family, from what an exporter says of a daemon that runs for that long.
metrics_table() {
  printf '[[vm]]\nname = "web"\ncid = 3\nnic = [ { model = "vmxnet3" } ]\n' >"$work/vmlane.toml"
  "$program" daemon --config "$work/vmlane.toml" --runtime-dir "$work/run" 2>"$work/log" &
  daemon=$!
  local tries=0
  until "$program" metrics --runtime-dir "$work/run" >"$work/metrics" 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" = 300 ] || ! kill -0 "$daemon" 2>/dev/null; then
      cat "$work/log" >&2
      return 1
    fi
    sleep 0.1
  done
  kill "$daemon"
  wait "$daemon" || true
  daemon=
  printf '| name | kind | meaning |\n| --- | --- | --- |\n'
  awk '/^# HELP /{help[$3]=substr($0, length("# HELP " $3 " ") + 1)} /^# TYPE /{type[$3]=$4; order[++n]=$3} /^# UNIT /{unit[$3]=$4}
    END {for (i = 1; i <= n; i++) {name = order[i]; end = type[name] == "counter" ? "_total" : type[name] == "info" ? "_info" : "";
      printf "| `%s%s` | %s%s | %s |\n", name, end, type[name], unit[name] ? ", " unit[name] : "", help[name]}}' "$work/metrics"
}

echo '==> the guide as a site'
book=out/book
rm -rf "$book"
mkdir -p "$book"
cp -r docs "$book/src"
mv "$book/src/book.toml" "$book/src/site.css" "$book/"
rm "$book/src/"{architecture,chart,numbers}.toml "$book/src/recording.jsonl"
at_the_top='ARCHITECTURE|CHANGELOG|CONTRIBUTING|PROMISES|RELEASING|SECURITY|SPECIFICATION'
for page in ${at_the_top//|/ }; do cp "$page.md" "$book/src/"; done
# Links of these pages, and links to them from one and from two directories below.
sed -i 's#](docs/#](#g' "$book"/src/[A-Z]*.md
sed -i -E "s#]\(\.\./($at_the_top)\.md#](\1.md#g" "$book"/src/*.md
sed -i -E "s#]\(\.\./\.\./($at_the_top)\.md#](../\1.md#g" "$book"/src/*/*.md
# Experiments are not in the site.
sed -i -E 's#\[([^]]*)\]\((\.\./)*experiments/[^)]*\)#\1#g' "$book"/src/*.md "$book"/src/*/*.md

# Every decision has a line, in the order of their numbers.
for page in "$book"/src/decisions/*.md; do
  printf -- '  - [%s](decisions/%s)\n' "$(sed -n '1s/^# *//p' "$page")" "$(basename "$page")"
done >"$work/decisions"
sed -i "/^- \[Decisions\]()/r $work/decisions" "$book/src/SUMMARY.md"

# Defaults are those of the service, and lines as long as in no terminal, whoever builds.
unset XDG_RUNTIME_DIR VMLANE_RUNTIME_DIR COLUMNS
{
  printf '# Commands\n\nWhat `vmlane COMMAND --help` says. `man vmlane-COMMAND` has the same.\n\n'
  command_page
} >"$book/src/guide/commands.md"
{
  printf '# Metrics\n\nWhat `vmlane metrics` shows; [Watch](watching.md) says how it gets to Prometheus, and which labels there are.\n\n'
  metrics_table
} >"$book/src/guide/metrics.md"

RUST_LOG=warn "$mdbook" build "$book" --dest-dir "$PWD/out/docs"
echo "==> out/docs/index.html"
