#!/usr/bin/env bash
# The main job on real input: store a tree of real files with three copies and erasure-coded, kill parts of the cluster
# while it is written and read, kill all of it, and get every byte back. Ends by itself; leaves nothing behind. CAIRN names
# the binary, DATA a tree.
set -euo pipefail

CAIRN=${CAIRN:?set CAIRN to the cairn binary (make demo does)}
CAIRN=$(realpath "$CAIRN")
WANTED_MIB=${WANTED_MIB:-1024}
LAYOUT=${LAYOUT:-r3}
ERASURE=rs-6-3
WORK=$(mktemp -d "${TMPDIR:-/tmp}/cairn-demo.XXXXXX")
declare -A PIDS=()
FAULTS=0

say() { printf '%s\n' "$*"; }
fail() { say "demo failed: $*" >&2; tail -n 5 "$WORK"/logs/*.log >&2 2>/dev/null || true; exit 1; }

cleanup() {
  for pid in "${PIDS[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$WORK"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# --- real input -------------------------------------------------------------------------------------------------------
collect_input() {
  if [ -n "${DATA:-}" ]; then
    [ -d "$DATA" ] || fail "DATA=$DATA is no directory"
    INPUT=$(realpath "$DATA")
    return
  fi
  INPUT=$WORK/input
  mkdir "$INPUT"
  local roots=()
  for root in /usr /opt /var/lib /srv "$HOME/.rustup" "$HOME/.cargo/registry"; do
    [ -d "$root" ] && roots+=("$root")
  done
  # Files of all sizes, in the order of the tree, until there is enough.
  find "${roots[@]}" -xdev \( -type f -readable -size -200M -printf '%s %p\n' \) -o \( -type l -printf '0 %p\n' \) 2>/dev/null |
    awk -v wanted=$((WANTED_MIB * 1048576)) '{ sum += $1; sub(/^[0-9]+ /, ""); print; if (sum >= wanted) exit }' > "$WORK/list" || true
  tar --create --file=- --files-from="$WORK/list" --no-recursion --ignore-failed-read 2>/dev/null |
    tar --extract --file=- --directory="$INPUT" 2>/dev/null || true
}

count_files() { find "$1" -type f -printf '.' | wc -c; }
count_bytes() { find "$1" -type f -printf '%s\n' | awk '{ sum += $1 } END { printf "%d", sum }'; }
now_ms() { date +%s%3N; }
rate() { awk -v bytes="$1" -v ms="$2" 'BEGIN { printf "%.0f", bytes / 1e6 / (ms / 1000) }'; }

# Paths, types, contents and link targets of a tree, one sorted list.
fingerprint() {
  (cd "$1" && find . -type f -print0 | sort -z | xargs -0 -r sha256sum && find . -type l -printf '%p -> %l\n' | sort)
}

# --- the cluster: 3 managers, 3 metas, 9 datas, each its own process ---------------------------------------------------
free_base() {
  local base port
  for _ in $(seq 100); do
    base=$((20000 + RANDOM % 12000))
    for port in 1 2 3; do
      if (exec 3<> "/dev/tcp/127.0.0.1/$((base + port))") 2>/dev/null; then continue 2; fi
    done
    echo "$base"
    return
  done
  fail "no free ports were found"
}

write_configs() {
  local base members i
  base=$(free_base)
  members="\"1@127.0.0.1:$((base + 1))\", \"2@127.0.0.1:$((base + 2))\", \"3@127.0.0.1:$((base + 3))\""
  export CAIRN_CLUSTER=127.0.0.1:$((base + 1)),127.0.0.1:$((base + 2)),127.0.0.1:$((base + 3))
  mkdir -p "$WORK"/{conf,logs,out,nodes,disks}
  for i in 1 2 3; do
    node_config "manager$i" "127.0.0.1:$((base + i))" "rack$i" "member = $i" > "$WORK/conf/manager$i.toml"
    { node_config "meta$i" 127.0.0.1:0 "rack$i" ""; echo '[meta]'; } > "$WORK/conf/meta$i.toml"
  done
  for i in 1 2 3 4 5 6 7 8 9; do
    mkdir -p "$WORK/disks"
    { node_config "data$i" 127.0.0.1:0 "rack$(((i - 1) % 3 + 1))" ""; printf '[data]\ndisks = ["%s"]\n' "$WORK/disks/data$i"; } \
      > "$WORK/conf/data$i.toml"
  done
}

node_config() { # name, address, rack, member line
  printf '[node]\ndir = "%s"\nlisten = "%s"\nrack = "%s"\nhost = "%s"\n[manager]\nmembers = [%s]\n%s\n[log]\nfilter = "warn"\n' \
    "$WORK/nodes/$1" "$2" "$3" "$1" "$members" "$4"
}

launch() {
  "$CAIRN" server --config "$WORK/conf/$1.toml" > "$WORK/out/$1" 2>> "$WORK/logs/$1.log" &
  PIDS[$1]=$!
}

launch_all() {
  local config name
  for config in "$WORK"/conf/*.toml; do launch "$(basename "$config" .toml)"; done
  for name in "${!PIDS[@]}"; do wait_ready "$name"; done
}

wait_ready() {
  for _ in $(seq 600); do
    if grep -q '^ready ' "$WORK/out/$1"; then return; fi
    kill -0 "${PIDS[$1]}" 2>/dev/null || fail "$1 ended at its start"
    sleep 0.1
  done
  fail "$1 was not ready within 60 s"
}

murder() {
  kill -9 "${PIDS[$1]}"
  wait "${PIDS[$1]}" 2>/dev/null || true
  unset "PIDS[$1]"
  FAULTS=$((FAULTS + 1))
}

disk_mib() { du -sm "$1" 2>/dev/null | cut -f1; }

# Kills a process as soon as a directory has grown to so many MiB, while the job with that pid runs.
murder_midway() { # process, directory, MiB, pid of the job
  while kill -0 "$4" 2>/dev/null; do
    if [ "$(disk_mib "$2")" -ge "$3" ]; then
      murder "$1"
      say "  killed $1 (SIGKILL) in the middle"
      return
    fi
    sleep 0.05
  done
  fail "the job ended before $1 could be killed in its middle"
}

# Starts what was killed, and waits until every copy and shard is there again.
heal() {
  local name
  for name in "$@"; do launch "$name"; done
  for name in "$@"; do wait_ready "$name"; done
  for _ in $(seq 1200); do
    # A group that is not complete is a line.
    if [ -z "$("$CAIRN" --json admin pg ls --unhealthy 2>/dev/null || echo asking-failed)" ]; then return; fi
    sleep 0.1
  done
  fail "members had not caught up after 120 s"
}

# "bytes raw" of a directory, from the extents of its files.
sizes() { "$CAIRN" --json fs du -s "$1" | sed -E 's/.*"bytes":([0-9]+).*"raw_bytes":([0-9]+).*/\1 \2/'; }
ratio() { awk -v raw="$2" -v bytes="$1" 'BEGIN { printf "%.2f", raw / bytes }'; }

compare() { # directory, what
  fingerprint "$1" > "$WORK/found"
  local differing
  differing=$(diff "$WORK/expected" "$WORK/found" | grep -c '^[<>]' || true)
  MISMATCHES=$((MISMATCHES + differing))
  [ "$differing" -eq 0 ] || { diff "$WORK/expected" "$WORK/found" | head -n 5; say "  $2: $differing lines differ"; }
}

# --- the demonstration ------------------------------------------------------------------------------------------------
collect_input
FILES=$(count_files "$INPUT")
BYTES=$(count_bytes "$INPUT")
[ "$FILES" -gt 0 ] || fail "no real files were found"
say "input: $FILES files, $((BYTES / 1048576)) MiB of real data"
fingerprint "$INPUT" > "$WORK/expected"
MISMATCHES=0
MIB=$((BYTES / 1048576))

write_configs
launch_all
say "cluster: 3 managers, 3 metas, 9 datas in 3 racks, each its own process"

say "storing the tree with $LAYOUT …"
started=$(now_ms)
"$CAIRN" fs put --layout "$LAYOUT" "$INPUT" /tree > "$WORK/put.log" 2>&1 &
job=$!
murder_midway data1 "$WORK/disks" $((MIB / 2)) "$job"
wait "$job" || { tail -n 20 "$WORK/put.log" >&2; fail "storing the tree failed"; }
write_ms=$(($(now_ms) - started))
RAW=$(($(disk_mib "$WORK/disks")))

say "reading it back …"
mkdir "$WORK/back1" "$WORK/back2"
started=$(now_ms)
"$CAIRN" fs get /tree "$WORK/back1/tree" > "$WORK/get1.log" 2>&1 &
job=$!
murder_midway data2 "$WORK/back1" $((MIB / 4)) "$job"
wait "$job" || { tail -n 20 "$WORK/get1.log" >&2; fail "reading the tree back failed"; }
read_ms=$(($(now_ms) - started))
# What was read stays until the end: a file system that has just removed tens of thousands of files makes new ones slowly.
compare "$WORK/back1/tree" "after two killed data nodes"

say "starting the killed nodes again; they catch up …"
heal data1 data2

say "storing the tree with $ERASURE …"
"$CAIRN" fs mkdir --layout "$ERASURE" /coded
started=$(now_ms)
"$CAIRN" fs put "$INPUT" /coded/tree > "$WORK/put2.log" 2>&1 || { tail -n 20 "$WORK/put2.log" >&2; fail "storing the tree with $ERASURE failed"; }
coded_write_ms=$(($(now_ms) - started))
# One file as large as all of them: what rows of shards take, without the small files that are kept as copies.
tar --create --file=- --directory="$INPUT" . | tee >(sha256sum > "$WORK/tar.expected") |
  "$CAIRN" fs put - /coded/tree.tar > "$WORK/put3.log" 2>&1 || { tail -n 20 "$WORK/put3.log" >&2; fail "storing the archive failed"; }

say "reading it back while three data nodes are killed …"
mkdir "$WORK/back3"
started=$(now_ms)
"$CAIRN" fs get /coded/tree "$WORK/back3/tree" > "$WORK/get3.log" 2>&1 &
job=$!
murder_midway data4 "$WORK/back3" $((MIB / 8)) "$job"
murder_midway data5 "$WORK/back3" $((MIB / 4)) "$job"
murder_midway data9 "$WORK/back3" $((MIB / 2)) "$job"
wait "$job" || { tail -n 20 "$WORK/get3.log" >&2; fail "reading the $ERASURE tree back failed"; }
coded_read_ms=$(($(now_ms) - started))
compare "$WORK/back3/tree" "$ERASURE after three killed data nodes"
started=$(now_ms)
"$CAIRN" fs cat /coded/tree.tar | sha256sum > "$WORK/tar.found" || fail "reading the archive failed"
archive_read_ms=$(($(now_ms) - started))
cmp -s "$WORK/tar.expected" "$WORK/tar.found" || { say "  the archive differs"; MISMATCHES=$((MISMATCHES + 1)); }
# The manager learns of dead nodes by their silence; then the file's status says what is left.
for _ in $(seq 300); do
  if "$CAIRN" fs stat /coded/tree.tar | grep '^stored' > "$WORK/status" && grep -q missing "$WORK/status"; then break; fi
  sleep 0.2
done
grep -q missing "$WORK/status" || fail "the archive's status does not say that shards are missing"
say "  $(sed -E 's/^stored +//' "$WORK/status")"
read -r plain_bytes plain_raw <<< "$(sizes /tree)"
read -r coded_bytes coded_raw <<< "$(sizes /coded/tree)"
read -r archive_bytes archive_raw <<< "$(sizes /coded/tree.tar)"

say "killing every process (SIGKILL), starting all again …"
for name in "${!PIDS[@]}"; do murder "$name"; done
launch_all
started=$(now_ms)
"$CAIRN" fs get /tree "$WORK/back2/tree" > "$WORK/get2.log" 2>&1 || { tail -n 20 "$WORK/get2.log" >&2; fail "reading after the restart failed"; }
again_ms=$(($(now_ms) - started))
compare "$WORK/back2/tree" "after the restart of the whole cluster"
"$CAIRN" fs cat /coded/tree.tar | sha256sum > "$WORK/tar.found" || fail "reading the archive after the restart failed"
cmp -s "$WORK/tar.expected" "$WORK/tar.found" || { say "  the archive differs after the restart"; MISMATCHES=$((MISMATCHES + 1)); }

say ""
say "files            $FILES"
say "bytes            $BYTES"
say "write            $(rate "$BYTES" "$write_ms") MB/s ($LAYOUT, synced, one data node killed meanwhile)"
say "read             $(rate "$BYTES" "$read_ms") MB/s (another data node killed meanwhile)"
say "read             $(rate "$BYTES" "$again_ms") MB/s (after a restart of everything)"
say "write            $(rate "$BYTES" "$coded_write_ms") MB/s ($ERASURE, synced)"
say "read             $(rate "$BYTES" "$coded_read_ms") MB/s ($ERASURE, three of nine data nodes killed meanwhile)"
say "read             $(rate "$archive_bytes" "$archive_read_ms") MB/s ($ERASURE, the tree as one archive, three of nine data nodes gone)"
say "raw space        $(ratio "$plain_bytes" "$plain_raw") x  the tree with $LAYOUT ($((plain_raw / 1048576)) MiB for $((plain_bytes / 1048576)) MiB)"
say "raw space        $(ratio "$coded_bytes" "$coded_raw") x  the tree with $ERASURE ($((coded_raw / 1048576)) MiB; its files below 384 KiB and tails are kept as 4 copies)"
say "raw space        $(ratio "$archive_bytes" "$archive_raw") x  the same as one archive with $ERASURE ($((archive_raw / 1048576)) MiB for $((archive_bytes / 1048576)) MiB)"
say "on disk          $RAW MiB after the first store ($LAYOUT; one of nine data nodes was down for a part of it)"
say "faults           $FAULTS processes killed with SIGKILL"
say "mismatches       $MISMATCHES"
[ "$MISMATCHES" -eq 0 ] || exit 1
