#!/usr/bin/env bash
# Kills, stops, cuts off and starves the roles of a run at random for a while, and checks from their
# counters that nothing is lost or used twice. CI does the same for a minute.
#
#   scripts/chaos.sh [SECONDS]      an hour if not given; STARLING_CHAOS_SEED repeats a run
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
export STARLING_CHAOS_SECONDS=${1:-3600}
exec ./starling test --test chaos -- --nocapture --test-threads=1
