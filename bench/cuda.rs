//! What the host does for one call of the ranks of a GPU, until their streams have it:
//! `cargo bench --features cuda --bench cuda`, or under `tests/vcuda/run 1 --` the program that this builds. On a virtual
//! GPU the figures hold the virtual driver's own work, which is many times a real driver's.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::sync::{Arc, Barrier};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream};
use rsccl::comm::DeviceStream;
use rsccl::internals::device::cuda::gpus;
use rsccl::internals::sys::clock;
use rsccl::{ReduceOp, local};

/// Calls that are timed; between batches the GPU catches up, so that no queue is ever full.
const BATCHES: u32 = 40;
const BATCH: u32 = 25;
const RANKS: [u32; 4] = [1, 2, 4, 8];
const ELEMENTS: usize = 2;

fn main() {
    let gpu = match gpus() {
        Ok(gpus) => &gpus[0],
        Err(error) => return println!("skipped: no GPU: {error}"),
    };
    let context = CudaContext::new(0).expect("a context beside ours");
    println!("{}: µs of the host for one all-reduce of 8 bytes, median of {BATCHES} batches", gpu.name());
    println!("{:>6} {:>14} {:>14}", "ranks", "own streams", "one stream");
    for ranks in RANKS {
        let streams: Vec<_> = (0..ranks).map(|_| context.new_stream().expect("a stream")).collect();
        let one = vec![streams[0].clone(); streams.len()];
        println!("{ranks:>6} {:>14.2} {:>14.2}", time(&streams), time(&one));
    }
}

/// The time of a call of as many ranks, threads of this process, as there are streams.
fn time(streams: &[Arc<CudaStream>]) -> f64 {
    let meeting = Barrier::new(streams.len());
    let ranks = u32::try_from(streams.len()).expect("few ranks");
    let times = local::run(ranks, |comm| {
        let stream = DeviceStream::from_cudarc(&streams[comm.rank() as usize])?;
        let mut values = stream.alloc::<f32>(ELEMENTS)?;
        let mut result = Ok(());
        let call = || {
            let called = comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum);
            result = std::mem::replace(&mut result, Ok(())).and(called);
        };
        let settle = || {
            stream.synchronize().expect("the GPU goes on");
            meeting.wait();
        };
        let taken = microseconds(call, settle);
        result.map(|()| taken)
    });
    times.expect("all ranks end well")[0]
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
