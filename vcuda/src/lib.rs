//! A virtual machine of any number of NVIDIA GPUs: a CUDA driver in software that runs the PTX that ships.
//!
//! It stands by itself: nothing here knows of rsccl. Programs find it because the loader finds its `libcuda.so.1` and
//! `libnvidia-ml.so.1` first.

mod alu;
pub mod driver;
pub mod fault;
pub mod machine;
pub mod nvml;
pub mod ptx;
pub mod run;
pub mod schedule;
pub mod simt;
pub mod space;
