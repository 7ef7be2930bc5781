#!/usr/bin/env bash
# Two minutes of chaos as a part of `make test`: behind all other tests and not beside them, whose processes it would starve.
# Where no networks of its own can be made it says that it is skipped. `make chaos` runs more of it.
set -euo pipefail
cd "$(dirname "$0")/.."
export CAIRN_CHAOS_MINUTES=2 CAIRN_SEED=${CAIRN_SEED:-7}
# With the whole workspace, as the other tests were built: else much would be compiled once more.
exec "${CARGO:-cargo}" test --workspace --locked --test process -- --exact chaos::chaos --nocapture
