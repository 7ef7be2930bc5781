#!/usr/bin/env bash
# Cairn's erasure kernels against Intel ISA-L (Debian: apt install libisal-dev gcc python3) on one core of this machine. The two
# take turns, each round in a fresh process; told are medians of the rates by CPU time, and of the ratio of each pair.
#
#   CAIRN=target/release/cairn bench/isal/compare.sh [ROUNDS [SECONDS]]
#
# SCHEMES="6-3 10-4", KERNEL=avx2 and the like narrow it.
set -euo pipefail
cd "$(dirname "$0")/../.."
CAIRN=${CAIRN:-target/release/cairn}
ROUNDS=${1:-7} SECONDS_EACH=${2:-0.2}
SCHEMES=${SCHEMES:-3-2 6-3 8-3 10-4 12-4}
KERNEL=${KERNEL:-best}
[ -x "$CAIRN" ] || { echo "compare.sh: no $CAIRN; build it with make release, or set CAIRN" >&2; exit 66; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -Wall -Wextra -o "$work/ec" bench/isal/ec.c -lisal

grep -m1 'model name' /proc/cpuinfo || true
uptime
for scheme in $SCHEMES; do
    k=${scheme%-*} m=${scheme#*-}
    for shard in 65536 1048576; do
        for from in cache memory; do
            for _ in $(seq "$ROUNDS"); do
                "$work/ec" "$k" "$m" "$shard" "$from" "$SECONDS_EACH"
                "$CAIRN" bench erasure --scheme "rs-$scheme" --shard "$shard" --from "$from" --kernel "$KERNEL" \
                    --seconds "$SECONDS_EACH" --rounds 1 --json
            done | python3 bench/isal/ratio.py "rs-$scheme" "$((shard >> 10)) KiB" "$from"
        done
    done
done
