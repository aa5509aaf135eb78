#!/usr/bin/env bash
# Formatting, clippy with warnings denied, documentation, licences and advisories of dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."

echo '==> cargo fmt'
cargo fmt --all --check
echo '==> cargo clippy'
cargo clippy --locked --workspace --all-targets -- -D warnings
echo '==> cargo doc'
RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --quiet

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
