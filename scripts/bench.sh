#!/usr/bin/env bash
# Starts a fresh `cairn dev` cluster in a scratch directory, runs `cairn bench meta` and `cairn bench io` on it, and
# removes it again. CAIRN: the binary. BENCH_DIR: where the scratch directory goes (the disk that is measured).
set -euo pipefail

cairn=${CAIRN:-target/release/cairn}
[ -x "$cairn" ] || { echo "bench: $cairn is not there; run: make release" >&2; exit 1; }

scratch=$(mktemp -d "${BENCH_DIR:-${TMPDIR:-/tmp}}/cairn-bench.XXXXXX")
server=
cleanup() {
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# Without keys: nothing is put into the home of whoever measures, and TLS is not measured along.
"$cairn" dev --insecure --data-dir "$scratch/data" --listen 127.0.0.1:0 >"$scratch/ready" 2>"$scratch/log" &
server=$!

# `cairn dev` says where it listens in one line on stdout: ready cluster=HOST:PORT http=HOST:PORT
cluster=
for _ in $(seq 300); do
    cluster=$(sed -n 's/^ready cluster=\([^ ]*\).*/\1/p' "$scratch/ready")
    if [ -n "$cluster" ] || ! kill -0 "$server" 2>/dev/null; then
        break
    fi
    sleep 0.1
done
if [ -z "$cluster" ]; then
    echo "bench: the cluster did not start; the end of its log:" >&2
    tail -n 20 "$scratch/log" >&2
    exit 1
fi

for part in meta io; do
    CAIRN_CLUSTER=$cluster "$cairn" bench "$part" "$@"
done
