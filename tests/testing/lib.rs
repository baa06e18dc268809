//! What tests of rsccl share. Ranks are threads, or processes that [`ranks`] starts and [`worker`] is; a test program that does so has an
//! `#[ignore]`d test of that name, in which it is such a rank.
#![cfg(feature = "internals")]
#![allow(missing_docs, missing_debug_implementations, reason = "nobody but our tests has these items")]
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

pub mod case; // one exact call, and lists of them
pub mod random; // random programs of calls
#[path = "../../src/bin/rsccl/perf/verify/mod.rs"]
pub mod verify; // inputs and results of exact calls: the module of `rsccl perf`

pub mod far; // a device in software, whose memory no processor reaches
#[cfg(feature = "cuda")]
pub mod own_memory; // memory of a GPU that the program allocates itself

pub mod ranks; // ranks as processes: the side of the test
pub mod worker; // their own side
pub mod network; // hosts out of network namespaces
pub mod mpirun; // jobs of an `mpirun`: the side of the test
pub mod mpi_rank; // a rank of such a job
