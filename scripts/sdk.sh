#!/usr/bin/env bash
# What programs in other languages need, in target/sdk: lib/libcairn.so, lib/libcairn.a, include/cairn.h, and the Python wheel where
# there is a python3.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=$target/sdk

"${CARGO:-cargo}" rustc --release --locked --package libcairn --crate-type cdylib,staticlib
rm -rf "$out"
mkdir -p "$out/lib" "$out/include"
cp crates/libcairn/include/cairn.h "$out/include/"
for library in libcairn.so libcairn.a; do
    # Line tables are for profiles of servers; programs need no more than the symbols.
    strip --strip-debug -o "$out/lib/$library" "$target/release/$library"
done
if command -v python3 >/dev/null; then
    python3 python/build_wheel.py "$out/lib/libcairn.so" "$out" >/dev/null
else
    printf 'sdk: there is no python3, so no wheel is made\n' >&2
fi
ls -l "$out" "$out/lib"
