#!/usr/bin/env bash
# fio workloads and operations on names on a mount, printed beside what others reached on a similar 4-core machine.
# Makes its own cluster (three data nodes, three copies) with the release binary unless MOUNT names a directory.
#     make release && bench/posix/run.sh [SIZE_OF_FIO_FILES [FILES_A_PROCESS]]
# SOURCE_TREE is the tree that is packed for untar (the sources of the crates that were built, unless set).
# CAIRN_MOUNT_OPTIONS are options of the mounts, as lease=off.
# Needs fio (Debian: fio), rustc, root and /dev/fuse.
set -euo pipefail
cd "$(dirname "$0")/../.."

size=${1:-1g}
files=${2:-2000}
cairn=${CAIRN:-${CARGO_TARGET_DIR:-target}/release/cairn}
[ -x "$cairn" ] || { echo "run.sh: $cairn is missing; run: make release" >&2; exit 1; }
command -v fio >/dev/null || { echo "run.sh: fio is missing; run: apt-get install fio" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/tmp}/cairn-posix-XXXXXX")
export CAIRN_RUN_DIR=$work/run
cluster_pid=
cleanup() {
    for mount in "$work"/mnt*; do
        [ -n "${MOUNT:-}" ] || "$cairn" umount --lazy "$mount" 2>/dev/null || true
    done
    [ -z "$cluster_pid" ] || { kill "$cluster_pid" 2>/dev/null && wait "$cluster_pid" 2>/dev/null; } || true
    rm -rf "$work"
}
trap cleanup EXIT

dir=${MOUNT:-$work/mnt}
if [ -z "${MOUNT:-}" ]; then
    mkdir -p "$work/mnt" "$work/cluster"
    "$cairn" dev --insecure --nodes 3 --racks 3 --listen 127.0.0.1:0 --data-dir "$work/cluster" >"$work/out" 2>"$work/log" &
    cluster_pid=$!
    for _ in $(seq 300); do grep -q '^ready ' "$work/out" && break; sleep 0.1; done
    address=$(sed -n 's/^ready cluster=\([^ ]*\).*/\1/p' "$work/out")
    [ -n "$address" ] || { tail "$work/log" >&2; exit 1; }
    "$cairn" mount -o "${CAIRN_MOUNT_OPTIONS:-rw}" "cairn://$address/default" "$dir"
fi
rustc -O --edition 2021 -o "$work/mdops" bench/posix/mdops.rs

# CPU seconds of all processes of the program so far.
cpu() {
    local ticks=0 pid
    for pid in $(pgrep -x "$(basename "$cairn")" || true); do
        ticks=$((ticks + $(awk '{ sub(/.*\) /, ""); print $12 + $13 }' "/proc/$pid/stat" 2>/dev/null || echo 0)))
    done
    echo "$ticks"
}

# Waits until what was deleted and written before is done with: until the machine's disks are idle.
settle() {
    local before now
    sync
    now=$(awk '{ n += $4 + $8 + $15 } END { print n }' /proc/diskstats)
    for _ in $(seq 60); do
        sleep 0.5
        before=$now
        now=$(awk '{ n += $4 + $8 + $15 } END { print n }' /proc/diskstats)
        [ $((now - before)) -gt 20 ] || return 0
    done
}

# fio_row NAME PEERS ARGUMENTS…: files are made before anything is counted.
fio_row() {
    local name=$1 peers=$2 before after
    shift 2
    case "$*" in *=write*) ;; *) fio --name=job --directory="$dir" --create_only=1 --create_fsync=1 "$@" >"$work/fio.out" 2>&1 || true ;; esac
    settle
    [ -z "$drop" ] || sh -c "$drop"
    before=$(cpu)
    fio --name=job --directory="$dir" --minimal --group_reporting "$@" >"$work/fio.out" 2>"$work/fio.err" ||
        { printf '%-28s failed: %s\n' "$name" "$(tail -n 1 "$work/fio.err")"; return; }
    after=$(cpu)
    awk -F';' -v name="$name" -v peers="$peers" -v cpu=$((after - before)) -v hz="$(getconf CLK_TCK)" 'NF > 60 {
        kb = $6 + $47; bw = $7 + $48; iops = $8 + $49; p99 = 0
        for (i = 1; i <= NF; i++) if (index($i, "99.000000%=") == 1) { us = substr($i, 12) + 0; if (us > p99) p99 = us }
        printf "%-22s %6.0f MB/s %8.0f /s  p99 %7.0f us %6.2f CPU s/GB %7.0f CPU us/op   peers: %s\n", name, bw * 1024 / 1e6, iops, p99,
            cpu / hz / (kb * 1024 / 1e9), cpu / hz * 1e6 / (iops * ($9 + $50) / 1000 + 0.001), peers
    }' "$work/fio.out"
    rm -f "$dir"/job.*
}

drop=""
[ ! -w /proc/sys/vm/drop_caches ] || drop="echo 3 > /proc/sys/vm/drop_caches"

echo "== fio, files of $size; peers: MooseFS, CubeFS, SeaweedFS, GlusterFS with three copies, as stated in docs/performance.md"
fio_row "seq write 1M + fsync" "190-360 (10.8-16)" --rw=write --bs=1M --size="$size" --end_fsync=1
fio_row "seq write 1M direct" "92-498 (5.0-21)" --rw=write --bs=1M --size="$size" --direct=1
fio_row "seq write 1M, 4 jobs" "212-423 (7.9-13)" --rw=write --bs=1M --size="$size" --numjobs=4 --end_fsync=1
fio_row "seq read 1M" "457-1142 (1.5-4.0)" --rw=read --bs=1M --size="$size" --invalidate=1
fio_row "seq read 1M, 4 jobs" "758-1396 (1.5-2.7)" --rw=read --bs=1M --size="$size" --numjobs=4 --invalidate=1
fio_row "4K random read qd1" "3.3-6.3 k/s" --rw=randread --bs=4k --size="$size" --direct=1 --runtime=10 --time_based
fio_row "4K random read qd16" "3.0-20.3 k/s" --rw=randread --bs=4k --size="$size" --direct=1 --ioengine=libaio --iodepth=16 --runtime=10 --time_based
fio_row "4K random write qd1" "2.2-10.4 k/s" --rw=randwrite --bs=4k --size="$size" --direct=1 --runtime=10 --time_based
fio_row "4K random write qd16" "2.2-11.1 k/s" --rw=randwrite --bs=4k --size="$size" --direct=1 --ioengine=libaio --iodepth=16 --runtime=10 --time_based

echo "== names and small files: operation, processes, a second"
echo "   peers at 8 processes: create 1.0-9.4 k, stat 6-21 k, remove 2.3-10.5 k, mkdir 1.7-10.5 k, rmdir 1.9-20 k,"
echo "   small files write 1/4/64/128 KiB 0.65-2.1 / 0.65-1.9 / 0.6-1.2 / 0.55-0.9 k, cold read 4.2-7.9 / 3.6-6.4 / 2.0-5.5 / 1.5-3.6 k"
for processes in ${PROCESSES:-1 4 8 16 32 64}; do
    settle
    DROP_CACHES=$drop "$work/mdops" "$dir/md-$processes" "$processes" "$((files / (processes > 8 ? 4 : 1)))" 1024 4096 65536 131072
done

# One command, its seconds and the CPU seconds of the daemons.
timed() {
    local name=$1 before after begun ended
    shift
    before=$(cpu)
    begun=$(date +%s.%N)
    "$@"
    ended=$(date +%s.%N)
    after=$(cpu)
    awk -v n="$name" -v s="$(echo "$begun $ended" | awk '{ print $2 - $1 }')" -v c=$((after - before)) -v hz="$(getconf CLK_TCK)" \
        'BEGIN { printf "%-28s %7.2f s  %6.2f CPU s\n", n, s, c / hz }'
}

echo "== a source tree: untar, rm -rf; peers, 5,067 files of 69 MB: 8.5-30 s and 1.0-7.8 s, passthrough 1.5 s and 0.64 s"
source_tree=${SOURCE_TREE:-${CARGO_HOME:-$HOME/.cargo}/registry/src}
[ -d "$source_tree" ] || source_tree=/usr/share
(cd "$source_tree" && find . -type f | sort | awk "NR <= 5067" | tar -cf "$work/tree.tar" -T -)
echo "   $(tar -tf "$work/tree.tar" | wc -l) files, $(($(stat -c %s "$work/tree.tar") / 1000000)) MB"
untar() { mkdir "$1/untar" && tar -xf "$work/tree.tar" -C "$1/untar"; }
settle
timed "untar" untar "$dir"
timed "rm -rf" rm -rf "$dir/untar"

if [ -z "${MOUNT:-}" ]; then
    echo "== four mounts with 16 processes each"
    dirs=
    for mount in 1 2 3 4; do
        mkdir "$work/mnt$mount"
        "$cairn" mount -o "${CAIRN_MOUNT_OPTIONS:-rw}" "cairn://$address/default" "$work/mnt$mount"
        dirs=$dirs${dirs:+,}$work/mnt$mount/four-$mount
    done
    settle
    DROP_CACHES=$drop "$work/mdops" "$dirs" 16 "$((files / 8 > 0 ? files / 8 : 1))"
    for mount in 1 2 3 4; do "$cairn" umount "$work/mnt$mount"; done
fi
[ -n "${MOUNT:-}" ] || "$cairn" umount "$dir"
