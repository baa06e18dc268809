#!/usr/bin/env bash
# What a call by the C++ classes costs more than the same call in Rust: an all-reduce of 8 bytes, by both in turns in one process.
#   bench/cpp_overhead.sh [CALLS [ROUNDS]]
# Ends with an error where the median difference on one rank is 50 ns or more.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
calls=${1:-20000} rounds=${2:-201}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A library of its own, which has the Rust half and all of rsccl, C++ classes included: there is one rsccl in the process.
mkdir "$work/src"
cp "$root/bench/cpp_overhead/rust.rs" "$work/src/lib.rs"
cp "$root/Cargo.lock" "$work/"
cat >"$work/Cargo.toml" <<X
[package]
name = "cpp_overhead"
version = "0.0.0"
edition = "2024"
[lib]
crate-type = ["staticlib"]
[dependencies]
rsccl = { path = "$root", default-features = false, features = ["cpp"] }
[workspace]
X
target=${CARGO_TARGET_DIR:-$root/target}
(cd "$work" && CARGO_TARGET_DIR=$target cargo build --release --quiet)
"${CXX:-c++}" -std=c++17 -O2 "$root/bench/cpp_overhead/main.cpp" -I "$root/cpp/include" "$target/release/libcpp_overhead.a" \
    -lgcc_s -lutil -lrt -lpthread -lm -ldl -o "$work/cpp_overhead"
# One rank waits for nobody and stays on one processor; a round is shorter than a time slice, so that the median is of rounds that
# nobody interrupted. Between two threads, a call takes what a cache line's way takes, and the difference hides in it.
alone=()
if command -v taskset >/dev/null; then alone=(taskset -c "$(taskset -cp $$ | sed 's/.*[ ,-]//')"); fi
"${alone[@]}" "$work/cpp_overhead" 1 "$calls" "$rounds"
"$work/cpp_overhead" 2 "$((calls / 10))" "$rounds"
