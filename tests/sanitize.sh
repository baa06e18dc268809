#!/usr/bin/env bash
# Runs the tests whose ranks are threads under the compiler's sanitizers. Ten minutes each: parts of `./test.sh --all`. Every run of
# ./test.sh compiles the library with the locks of `thread`.
#   tests/sanitize.sh [thread|address]...        both, where none is named
# A stable toolchain has them, but its standard library is built without. So for `thread` locks come from src/sync/seen.rs, and
# tests/sanitize.supp holds what is left of the standard library's own.
set -euo pipefail
cd "$(dirname "$0")/.."

# One test program may run this long before it counts as hung.
LIMIT_S=900
host=$(rustc -vV | sed -n 's/^host: //p')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# -Z on a stable toolchain.
export RUSTC_BOOTSTRAP=1 CARGO_INCREMENTAL=0

sanitize() {
    local kind=$1
    shift
    local flags="-Zsanitizer=$kind -Cunsafe-allow-abi-mismatch=sanitizer"
    if [[ $kind == thread ]]; then flags+=" --cfg sanitize_thread"; fi
    if ! echo 'fn main() {}' | rustc $flags --target "$host" -o "$scratch/probe" - 2>"$scratch/why" || ! "$scratch/probe"; then
        echo "this toolchain has no $kind sanitizer: $(head -n 1 "$scratch/why")"
        return 1
    fi
    local run=(cargo test --locked --target "$host" --features internals)
    export RUSTFLAGS=$flags CARGO_TARGET_DIR=${target:-target}/sanitize-$kind
    "${run[@]}" --no-run --lib --test matrix
    # A word that fits no test would pass.
    for word in two_ranks three_ranks shared_memory faults::; do
        "${run[@]}" --quiet --test matrix -- --list "$word" 2>/dev/null | grep ': test$' >/dev/null || { echo "no test is called $word"; return 1; }
    done
    # Arithmetic of one thread takes ten times as long and has nothing to find for `thread`.
    "$@" timeout "$LIMIT_S" "${run[@]}" --lib -- --skip device::host::tests
    "$@" timeout "$LIMIT_S" "${run[@]}" --test matrix -- --test-threads 1 two_ranks three_ranks shared_memory faults::
}

target=${CARGO_TARGET_DIR:-}
(($#)) || set -- thread address
for kind in "$@"; do
    case $kind in
        # A forked child may start threads: the sanitizer can follow that, but ends the child unless it is told not to.
        thread) sanitize thread env "TSAN_OPTIONS=suppressions=$PWD/tests/sanitize.supp:die_after_fork=0" ;;
        # Tests leak what has to outlive everything.
        address) sanitize address env ASAN_OPTIONS=detect_leaks=0 ;;
        *) echo "no sanitizer called $kind: thread or address" >&2; exit 2 ;;
    esac
done
