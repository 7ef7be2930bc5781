#!/usr/bin/env bash
# restore-drill BACKUPS [NUMBER]: shows that a backup of the metadata can be restored. A manager and a meta node run on what the newest
# backup has (or backup NUMBER), below a temporary directory and in a network of their own, so that neither reaches the cluster
# nor is reached by it. What is there is counted. Ends by itself; leaves nothing behind. CAIRN names the program.
set -euo pipefail

CAIRN=$(command -v "${CAIRN:-cairn}") || { printf 'restore-drill: the program cairn is not on PATH; name it with CAIRN\n' >&2; exit 2; }
usage() { printf 'usage: restore-drill BACKUPS [NUMBER]\n' >&2; exit 2; }
[ $# -ge 1 ] && [ $# -le 2 ] || usage
PORT=7400
# A meta node of this number; the cluster's own have others.
NODE=999999

if [ "${CAIRN_DRILL_INSIDE:-}" != yes ]; then
    backups=$(realpath "$1") || exit 2
    shift
    export CAIRN CAIRN_DRILL_INSIDE=yes
    unset CAIRN_CLUSTER CAIRN_CLUSTER_ID CAIRN_ADMIN_SOCKET
    # The drill's own servers have no keys: what the cluster's commands show is none of theirs.
    unset CAIRN_KEY
    export XDG_CONFIG_HOME=/nonexistent
    # Root has a network of its own at once; others as root of a name space of users.
    options=(--net)
    [ "$(id -u)" = 0 ] || options+=(--user --map-root-user)
    unshare "${options[@]}" true 2>/dev/null || {
        printf 'restore-drill: this machine gives no network name space (unshare --net): run it as root\n' >&2
        exit 1
    }
    exec unshare "${options[@]}" "$0" "$backups" "$@"
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/cairn-drill.XXXXXX")
pids=()
clean() {
    for pid in "${pids[@]}"; do disown "$pid" 2>/dev/null || true; kill -9 "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
fail() {
    printf 'restore drill FAILED: %s\n' "$1" >&2
    tail -n 20 "$work"/*.log >&2 2>/dev/null || true
    exit 1
}
backup=()
[ $# -lt 2 ] || backup=(--backup "$2")
ip link set lo up 2>/dev/null || fail 'the loopback device cannot be started; install iproute2'

"$CAIRN" admin backup "$1" --verify ${2:+"$2"} > "$work/verify.log" 2>&1 || fail "backup $1 is not whole"
number=$(grep -o 'backup [0-9]*' "$work/verify.log" | head -n 1)
"$CAIRN" admin restore "$1" --node "$NODE" --dir "$work/meta" "${backup[@]}" > "$work/restore.log" 2>&1 || fail 'the partitions cannot be restored'
"$CAIRN" admin rebuild-map "$work/meta" --manager "1@127.0.0.1:$PORT" --dir "$work/manager" --backups "$1" "${backup[@]}" \
    --accept-missing --write > "$work/map.log" 2>&1 || fail 'the cluster map cannot be made'

config() { # role, port, lines
    printf '[node]\ndir = "%s"\nlisten = "127.0.0.1:%s"\n[manager]\nmembers = ["1@127.0.0.1:%s"]\n%s\n' "$work/$1" "$2" "$PORT" "$3"
}
config manager "$PORT" 'member = 1' > "$work/manager.toml"
config meta "$((PORT + 1))" '[meta]' > "$work/meta.toml"
for role in manager meta; do
    "$CAIRN" server --config "$work/$role.toml" > "$work/$role.out" 2> "$work/$role.log" &
    pids+=($!)
done

export CAIRN_CLUSTER=127.0.0.1:$PORT
# Managers wait for the nodes of the map; here they are given up, which is what the other network is for.
for _ in $(seq 600); do
    ! grep -q '^ready' "$work/meta.out" || break
    for pid in "${pids[@]}"; do kill -0 "$pid" 2>/dev/null || fail 'a server ended'; done
    "$CAIRN" --timeout 2 admin manager go-on --yes > "$work/go-on.log" 2>&1 || true
    sleep 0.5
done
grep -q '^ready' "$work/meta.out" || fail 'the meta node does not serve'
volumes=$("$CAIRN" --json admin volume ls | sed -n 's/.*"name":"\([^"]*\)".*/\1/p')
[ -n "$volumes" ] || fail 'no volume is there'
while read -r volume; do
    counted=$("$CAIRN" --json fs count "$volume:/" 2> "$work/count.log") || fail "volume $volume cannot be read: $(tail -n 1 "$work/count.log")"
    directories=$(sed 's/.*"directories":\([0-9]*\).*/\1/' <<< "$counted")
    files=$(sed 's/.*"files":\([0-9]*\).*/\1/' <<< "$counted")
    printf 'restore drill passed: %s, volume %s: %s directories, %s files\n' "$number" "$volume" "$directories" "$files"
done <<< "$volumes"
