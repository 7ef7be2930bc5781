#!/usr/bin/env bash
# What is too long for `make test`: chaos with real processes for SOAK_MINUTES, as long again in a volume of five meta partitions, SOAK_WRITERS writers of records for as
# long under kills, proxies that change frames for as long, the package on a fresh Debian, a SQLite database in SOAK_SNAPSHOTS
# snapshots, then SOAK_SEEDS
# seeds of the proof. All parts run even if one fails; the last line is their sum, and the exit status is not 0 if any failed. Where no networks can be made chaos says that it is
# skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
minutes=${SOAK_MINUTES:-10}
seeds=${SOAK_SEEDS:-300}
passed=0
failed=0

part() {
    local name=$1
    shift
    local begun=$SECONDS
    printf '\n== %s\n' "$name"
    if "$@"; then
        passed=$((passed + 1)) outcome=ok
    else
        failed=$((failed + 1)) outcome=FAILED
    fi
    printf '== %s: %s (%s s)\n' "$name" "$outcome" "$((SECONDS - begun))"
}

# With the whole workspace, as `make test` builds it: else much would be compiled once more.
part chaos env CAIRN_CHAOS_MINUTES="$minutes" CAIRN_SEED="${CAIRN_SEED:-7}" \
    "$cargo" test --workspace --locked --test process -- --exact chaos::chaos --nocapture
part "chaos in five partitions" env CAIRN_CHAOS_MINUTES="$minutes" CAIRN_SEED="${CAIRN_SEED:-7}" CAIRN_CHAOS_PARTITIONS=5 \
    "$cargo" test --workspace --locked --test process -- --exact chaos::chaos --nocapture
part "chaos with keys" env CAIRN_CHAOS_MINUTES="$minutes" CAIRN_SEED="${CAIRN_SEED:-7}" CAIRN_CHAOS_KEYS=1 \
    "$cargo" test --workspace --locked --test process -- --exact chaos::chaos --nocapture
part records env CAIRN_RECORD_MINUTES="$minutes" CAIRN_RECORD_WRITERS="${SOAK_WRITERS:-200}" \
    "$cargo" test --workspace --locked --test process -- --exact records::soak --nocapture
part mutations env CAIRN_MUTATION_MINUTES="$minutes" CAIRN_SEED="${CAIRN_SEED:-7}" \
    "$cargo" test --workspace --locked --test process -- --exact mutated::mutations --nocapture
part "mutations with keys" env CAIRN_MUTATION_MINUTES="$minutes" CAIRN_SEED="${CAIRN_SEED:-7}" CAIRN_MUTATION_KEYS=1 \
    "$cargo" test --workspace --locked --test process -- --exact mutated::mutations --nocapture
# A Debian of its own, where debootstrap is installed; said where it is not.
part "a fresh Debian" env CAIRN_TEST_DEBIAN=1 \
    "$cargo" test --workspace --locked --test process -- --exact packages::a_fresh_debian_takes_the_package --nocapture
part "sqlite in snapshots" env CAIRN_SQLITE_SNAPSHOTS="${SOAK_SNAPSHOTS:-100}" \
    "$cargo" test --workspace --locked --test process -- --exact \
    snapshots::sqlite::a_database_that_is_rewritten_in_place_is_whole_in_each_snapshot --nocapture
part seeds "$cargo" xtask sim --seeds "$seeds"
part "seeds with keys" "$cargo" xtask sim --seeds "$seeds" --keys

printf '\nsoak: %s passed, %s failed (%s s)\n' "$passed" "$failed" "$SECONDS"
[ "$failed" -eq 0 ]
