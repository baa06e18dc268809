//! What the host does for one call of the ranks of a GPU, until their streams have it:
//! `cargo bench --features cuda --bench cuda`, or under `tests/vcuda/run 1 --` the program that this builds. On a virtual
//! GPU the figures hold the virtual driver's own work, which is many times a real driver's.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use rsccl::internals::device::cuda::{SharedGpu, StreamHandle, gpus};
use rsccl::internals::device::{Device as _, Kernel, Pass, Region, Sharing, Store};
use rsccl::internals::sys::clock;
use rsccl::{DataType, ReduceOp};

/// Calls that are timed; between batches the GPU catches up, so that no queue is ever full.
const BATCHES: u32 = 40;
const BATCH: u32 = 25;
const RANKS: [usize; 4] = [1, 2, 4, 8];
const ELEMENTS: usize = 2;

fn main() {
    let gpu = match gpus() {
        Ok(gpus) => &gpus[0],
        Err(error) => return println!("skipped: no GPU: {error}"),
    };
    let context = CudaContext::new(0).expect("a context beside ours");
    let cohort = gpu.cohort().expect("a cohort");
    println!("{}: µs of the host for one all-reduce of 8 bytes, median of {BATCHES} batches", gpu.name());
    println!("{:>6} {:>14} {:>14}", "ranks", "own streams", "one stream");
    for ranks in RANKS {
        let streams: Vec<_> = (0..ranks).map(|_| context.new_stream().expect("a stream")).collect();
        let memory = gpu.allocate(ranks * 2 * 256, Sharing::Threads).expect("memory");
        let one = vec![streams[0].clone(); ranks];
        let time = |streams: &[Arc<CudaStream>]| {
            let settle = || streams.iter().for_each(|stream| stream.synchronize().expect("the GPU goes on"));
            microseconds(|| call(&cohort, streams, &memory), settle)
        };
        println!("{ranks:>6} {:>14.2} {:>14.2}", time(&streams), time(&one));
    }
}

/// One call of all ranks.
fn call(cohort: &SharedGpu, streams: &[Arc<CudaStream>], memory: &Region) {
    let kernel = Kernel::reduce(DataType::F32, ReduceOp::Sum, 8).expect("sums of f32");
    let place = |index: usize| memory.at(index * 256, ELEMENTS * 4).as_ptr();
    let sources: Vec<*const u8> = (0..streams.len()).map(|rank| place(rank).cast_const()).collect();
    let targets: Vec<*mut u8> = (0..streams.len()).map(|rank| place(streams.len() + rank)).collect();
    let (sources, targets) = (&sources[..], &targets[..]);
    let pass = Pass { sources, raw: None, targets, count: ELEMENTS, finish: true, store: Store::Cached };
    // SAFETY: the streams live until the bench has waited for them.
    let handles = streams.iter().map(|stream| unsafe { StreamHandle::new(stream.cu_stream()) });
    let ranks: Vec<_> = handles.map(|stream| cohort.arrive(stream).expect("an arrival")).collect();
    // SAFETY: the memory lives until the bench has waited for the streams.
    let departure = unsafe { cohort.run(&ranks, &kernel, &[pass]) }.expect("a launch");
    ranks.iter().for_each(|rank| cohort.depart(rank, &departure).expect("a departure"));
}

/// The median time of a call, with `settle` after each batch, which is not timed.
fn microseconds(mut call: impl FnMut(), mut settle: impl FnMut()) -> f64 {
    let mut batches: Vec<Duration> = (0..BATCHES)
        .map(|_| {
            let start = clock::now();
            (0..BATCH).for_each(|_| call());
            let taken = clock::now() - start;
            settle();
            taken
        })
        .collect();
    batches.sort_unstable();
    batches[batches.len() / 2].as_secs_f64() * 1e6 / f64::from(BATCH)
}
