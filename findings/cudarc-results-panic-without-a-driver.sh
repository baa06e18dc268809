#!/usr/bin/env bash
# cudarc 0.19.10 (crates.io, feature dynamic-loading): without a CUDA driver, functions that return a Result panic.
#
# What happens: on a machine without libcuda.so, driver::result::init(), CudaContext::device_count() and CudaContext::new(0) do not return
# an Err: they panic with "Unable to dynamically load the "cuda" shared library", and so does nvrtc::compile_ptx() with "nvrtc". Only
# driver::sys::is_culib_present(), which is unsafe to call, answers: false.
#
# Why it surprises: dynamic loading is the feature for one binary that runs on machines with and without a GPU, and a Result is where a
# program looks for "there is none". `CudaContext::device_count().unwrap_or(0)` ends the program there, and with panic = "abort" no
# catch_unwind helps. A library has to ask is_culib_present() before each first call of cudarc, for each of its libraries.
#
# Needs cargo and no GPU; skips where a driver is installed. Takes under a minute with the download and build, in a temporary folder.
# Exit code: 0 the behaviour is as described (or the script was skipped), 1 it is not, 2 the crate could not be had.
set -euo pipefail

readonly RUN_LIMIT_S=60
command -v cargo >/dev/null || { echo "skipped: there is no cargo"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' INT TERM
mkdir "$work/src"
cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "show"
version = "0.0.0"
edition = "2021"

[dependencies]
cudarc = { version = "=0.19.10", default-features = false, features = ["std", "driver", "nvrtc", "dynamic-loading", "cuda-12080"] }
TOML
cat >"$work/src/main.rs" <<'RUST'
use cudarc::driver::{result, sys, CudaContext};

fn show<T: std::fmt::Debug>(what: &str, call: impl FnOnce() -> T + std::panic::UnwindSafe) {
    match std::panic::catch_unwind(call) {
        Ok(value) => println!("{what}: {value:?}"),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("", |text| text);
            println!("{what}: panic: {}", text.split(" - ").next().unwrap());
        }
    }
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    // SAFETY: nothing of the library is used yet.
    let present = unsafe { sys::is_culib_present() };
    println!("is_culib_present: {present}");
    if !present {
        show("result::init", result::init);
        show("CudaContext::device_count", CudaContext::device_count);
        show("CudaContext::new", || CudaContext::new(0).map(|_| ()));
        show("nvrtc::compile_ptx", || cudarc::nvrtc::compile_ptx("").map(|_| ()));
    }
}
RUST
(cd "$work" && env -u RUSTFLAGS cargo build --quiet --target-dir "$work/target") >&2 ||
    { echo "cannot install: cargo does not build cudarc 0.19.10" >&2; exit 2; }
found=$(timeout "$RUN_LIMIT_S" "$work/target/debug/show") || true
echo "$found"
[[ $found != "is_culib_present: true" ]] || { echo "skipped: this machine has a driver"; exit 0; }
[[ $found == 'is_culib_present: false
result::init: panic: Unable to dynamically load the "cuda" shared library
CudaContext::device_count: panic: Unable to dynamically load the "cuda" shared library
CudaContext::new: panic: Unable to dynamically load the "cuda" shared library
nvrtc::compile_ptx: panic: Unable to dynamically load the "nvrtc" shared library' ]] || { echo "changed"; exit 1; }
echo "as described"
