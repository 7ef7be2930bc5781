#!/usr/bin/env bash
# Runs the tests of the erasure kernels, the only unsafe code that computes on data, under miri. The features make it run the
# kernels of x86 too, GFNI included: miri interprets their instructions, so no such processor is needed.
# MIRI_TOOLCHAIN: the toolchain, "nightly" if it is not set. Exit 2: it is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

toolchain=${MIRI_TOOLCHAIN:-nightly}
if ! version=$(cargo "+$toolchain" miri --version 2>&1); then
    printf 'miri: not run, the toolchain "%s" with miri is not installed (%s).\n' "$toolchain" "$(head -n 1 <<<"$version")" >&2
    printf 'miri: run: rustup toolchain install nightly --component miri rust-src\n' >&2
    exit 2
fi
printf 'miri: %s\n' "$version"

case $(uname -m) in
x86_64) export RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+ssse3,+avx2,+avx512f,+avx512bw,+gfni" ;;
*) printf 'miri: the kernels of x86 are interpreted on x86 only; here: the portable one and those of %s\n' "$(uname -m)" ;;
esac
# Its own directory: programs for miri are no programs for this machine.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
# A build for miri cannot be incremental on the ordinary one anyway.
export CARGO_INCREMENTAL=0

cargo "+$toolchain" miri test --locked --package cairn-erasure --lib kernel
cargo "+$toolchain" miri test --locked --package cairn-erasure --test codes -- hostile golden all_lengths
printf 'miri: nothing found\n'
