#!/usr/bin/env bash
# Formatting, clippy with warnings denied, documentation, licences and advisories of dependencies. What takes its
# time is repeated only when what it reads has changed since it passed.
set -euo pipefail
cd "$(dirname "$0")/.."

# passed NAME PATH...: whether these files are those with which NAME passed last.
passed() {
  local name=$1
  shift
  hash=$( (rustc -V && git ls-files -z --cached --others --exclude-standard -- "$@" | xargs -0 sha256sum 2>/dev/null) | sha256sum)
  [ "$hash" = "$(cat "target/lint/$name" 2>/dev/null)" ]
}

# note NAME: it has passed with the files of the last call of `passed`.
note() {
  mkdir -p target/lint
  echo "$hash" >"target/lint/$1"
}

echo '==> cargo fmt'
cargo fmt --all --check
echo '==> cargo clippy'
cargo clippy --release --locked --workspace --all-targets -- -D warnings

echo '==> words of identifiers and of the log'
cargo run --release --locked --quiet -p vmlane-runtests -- words

echo '==> no mirror of packages by name: apt has one that works here'
if git grep -nE 'https?://[[:alnum:]-]+(\.[[:alnum:]-]+)+(:[0-9]+)?/debian'; then
  echo 'lint: these name a mirror; take that of apt (tools/lab/src/setup/apt.rs)' >&2
  exit 1
fi

if ! passed doc crates tools tests fuzz Cargo.toml Cargo.lock; then
  echo '==> cargo doc'
  RUSTDOCFLAGS='-D warnings' cargo doc --release --locked --workspace --no-deps --quiet
  note doc
fi

passed deny deny.toml '*Cargo.toml' Cargo.lock && exit
tools="${XDG_CACHE_HOME:-$HOME/.cache}/vmlane/tools"
deny="$(command -v cargo-deny || true)"
if [ -z "$deny" ]; then
  deny="$tools/bin/cargo-deny"
  if [ ! -x "$deny" ]; then
    echo '==> building cargo-deny (once, a minute or two)'
    # Its own flags: nothing of it needs to be static. Without optimisation it is built in a fraction of the time,
    # and still judges this workspace in a second.
    (cd / && RUSTFLAGS='' cargo install --quiet --locked --debug --root "$tools" cargo-deny) || {
      echo 'lint: cargo-deny could not be built: check the network, or install it yourself (cargo install cargo-deny)' >&2
      exit 1
    }
  fi
fi
echo '==> cargo deny (licences, bans, sources)'
"$deny" --log-level error check licenses bans sources
note deny
