#!/usr/bin/env bash
# Sets up what the tests need and runs them all: format, lints, tests, documentation, examples.
#   ./test.sh
# On Debian it installs what is missing by apt, as root or by sudo. Where it may not, tests that need it skip and say so.
set -euo pipefail
cd "$(dirname "$0")"
[[ -f $HOME/.cargo/env ]] && . "$HOME/.cargo/env"

# One example may run this long before it counts as hung.
EXAMPLE_LIMIT_S=120
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0} CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

step() {
    local started=$SECONDS
    echo "== $*"
    "$@"
    echo "== $((SECONDS - started)) s"
}

# iproute2: network namespaces stand in for hosts. gcc: the linker that Rust calls.
install_missing() {
    local packages=()
    command -v ip >/dev/null || packages+=(iproute2)
    command -v cc >/dev/null || packages+=(gcc libc6-dev)
    if ((${#packages[@]})); then
        local root=()
        ((EUID == 0)) || root=(sudo -n)
        if ! { command -v apt-get && "${root[@]}" apt-get update -q && DEBIAN_FRONTEND=noninteractive \
            "${root[@]}" apt-get install -y -q --no-install-recommends "${packages[@]}"; } >"$log" 2>&1; then
            tail -n 3 "$log"
            echo "skipped: could not install ${packages[*]}; tests that need them skip"
        fi
    fi
    if ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
        rustup component add rustfmt clippy
    fi
}

run_tests() {
    # A test that skips prints "skipped: ..." past the capture of its output.
    local outcome=0
    cargo test --locked --no-fail-fast 2>&1 | tee "$log" || outcome=$?
    grep -h '^skipped: ' "$log" | sort | uniq -c || true
    return $outcome
}

build_documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --quiet
}

run_examples() {
    local path name
    cargo build --locked --quiet --examples
    for path in examples/*.rs examples/*/main.rs; do
        [[ -f $path ]] || continue
        name=${path#examples/}
        name=${name%/main.rs}
        name=${name%.rs}
        echo "-- $name"
        timeout "$EXAMPLE_LIMIT_S" cargo run --locked --quiet --example "$name" </dev/null
        examples=$((examples + 1))
    done
}

# "test result: ok. 12 passed; 0 failed; 1 ignored; ..." of every test program, added up.
count() {
    awk -v word="$1" '/^test result:/ { for (i = 2; i <= NF; i++) if (index($i, word) == 1) total += $(i - 1) }
                      END { print total + 0 }' "$log"
}

examples=0
step install_missing
step cargo fmt --check
step cargo clippy --locked --quiet --all-targets -- -D warnings
step cargo clippy --locked --quiet --lib --no-default-features -- -D warnings
step run_tests
passed=$(count passed) failed=$(count failed) ignored=$(count ignored)
step build_documentation
step run_examples
echo "all of it in $SECONDS s, $examples examples"
echo "test result: ok. $passed passed; $failed failed; $ignored ignored"
