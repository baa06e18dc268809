#!/usr/bin/env bash
# Runs what Miri can run of the library's unit tests: the pure floors, `wire`, and of `sync` and `sys` what needs no memory that
# processes share. Miri interprets the program and finds undefined behaviour: bad pointers, races, uninitialised reads. Some minutes:
# a part of `./test.sh --all`.
#   tests/miri.sh [FILTER]...      words of `cargo test`; without any, the list below
# It needs `rustup toolchain install nightly --profile minimal --component miri,rust-src`, and fails without.
set -euo pipefail
cd "$(dirname "$0")/.."

said=$(mktemp)
trap 'rm -f "$said"' EXIT
# One filter may run this long before it counts as hung.
LIMIT_S=900
if ! cargo +nightly miri --version >/dev/null 2>&1; then
    echo "there is no Miri here: rustup toolchain install nightly --profile minimal --component miri,rust-src"
    exit 1
fi
# Tests read the clock, and some leak on purpose what has to outlive every thread. A property has few cases: each takes a thousand
# times as long as compiled.
export MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-ignore-leaks" PROPTEST_CASES=2 CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/miri
# Left out: rings and flags that wait, because Miri knows neither memory that is mapped twice nor a futex on half of a 64-bit word
# (it calls that a race; the kernel's own access is one of 32 bits); tests that walk through all values of a type or prove plans,
# which take it hours; a test that takes processors away, of which Miri has none. What makes communicators is not on these floors: tests/tidy.rs sees to that.
skips=()
for word in sync::ring a_parked_waiter every_pair every_f8 every_16_bit every_bf16 every_half spread_over_all a_rank_has_children \
    processors_taken_away; do skips+=(--skip "$word"); done
# `topo` has no unsafe code, and its tests read and search whole machines: one file takes Miri minutes, a search hours, so that
# all of it never ended. What is run of it is arithmetic, masks and shares of processors.
(($#)) || set -- error:: types:: topo::{affinity,bandwidth,masks} wire:: plan::cut tune::tests sync::
for filter in "$@"; do
    echo "== $filter"
    timeout "$LIMIT_S" cargo +nightly miri test --locked --lib -- "$filter" "${skips[@]}" | tee "$said"
    # A filter that fits no test would pass.
    grep -q "^test result: ok. [1-9]" "$said" || { echo "no test is called $filter"; exit 1; }
done
