//! `libcuda.so.1` of the virtual GPU machine: C entry points over the crate `vcuda`.
//!
//! Each entry checks its pointers and calls a function of [`vcuda::driver`]; `entry.rs` says how. The names are the
//! driver's own, so they are not Rust's.

mod context;
mod device;
mod entry;
mod general;
mod graph;
mod memory;
mod module;
mod stream;
mod vmm;
