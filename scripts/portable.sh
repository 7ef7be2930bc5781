#!/usr/bin/env bash
# portable.sh: the optimized program for machines with an older C library than this one's (glibc 2.17 and newer; the kernel has to be Linux 3.17 at least).
# It is linked by zig, which is installed with pip into a directory of its own below target/tools. The last line is the program's path.
#   GLIBC=2.28 scripts/portable.sh   for another oldest version
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
tools=$target/tools/zig
glibc=${GLIBC:-2.17}
triple=$(rustc -vV | sed -n 's/^host: //p')

case $triple in
    *-linux-gnu) ;;
    *) printf 'portable: %s has no glibc to be older\n' "$triple" >&2; exit 2 ;;
esac
if ! [ -x "$tools/bin/cargo-zigbuild" ]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        { printf 'portable: python3 with venv is missing (Debian: python3-venv); it gets zig, which links for older systems\n' >&2; exit 3; }
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check 'ziglang==0.17.*' 'cargo-zigbuild==0.24.*' ||
        { rm -rf "$tools"; printf 'portable: zig and cargo-zigbuild were not installed; is the Python package index reachable?\n' >&2; exit 3; }
fi

PATH="$tools/bin:$PATH" "${CARGO:-cargo}" zigbuild --release --locked --package cairn --target "$triple.$glibc"
program=$target/$triple/release/cairn
scripts/strip.sh "$program"
printf '%s\n' "$program"
