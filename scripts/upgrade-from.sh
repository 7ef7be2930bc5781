#!/usr/bin/env bash
# Builds an earlier revision beside the present one and upgrades a cluster of real processes from it, one by one.
# PREVIOUS names the revision; everything is built below the target directory, and nothing of the work tree is touched.
set -euo pipefail
cd "$(dirname "$0")/.."
: "${PREVIOUS:?name the earlier revision: make upgrade-test PREVIOUS=<git revision>}"
cargo=${CARGO:-cargo}
rev=$(git rev-parse --verify --quiet "$PREVIOUS^{commit}") || { echo "there is no revision $PREVIOUS here" >&2; exit 2; }
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export CARGO_TARGET_DIR=$target
old=$target/previous/${rev:0:12}
if [ ! -x "$old/cairn" ]; then
    rm -rf "$old"
    mkdir -p "$old/src"
    git archive "$rev" | tar -x -C "$old/src"
    # In a target directory of its own: crates of the same name from another directory would be taken for those of this one.
    # shellcheck disable=SC2086
    (cd "$old/src" && CARGO_TARGET_DIR=$target/previous/build $cargo build --locked --package cairn ${CARGO_FLAGS:-})
    cp "$target/previous/build/debug/cairn" "$old/cairn"
    rm -rf "$old/src"
fi
# Builds from before feature levels understand 0.
level=$(git show "$rev:crates/types/src/feature.rs" 2>/dev/null | sed -n 's/^pub const FEATURE_LEVEL: u32 = \([0-9]*\);.*/\1/p' || true)
echo "upgrading from ${rev:0:12}, feature level ${level:-0}"
# shellcheck disable=SC2086
CAIRN_PREVIOUS=$old/cairn CAIRN_PREVIOUS_LEVEL=${level:-0} $cargo test --locked --package cairn --test process ${CARGO_FLAGS:-} -- upgrade:: --nocapture
