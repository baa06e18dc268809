//! Goal: buffers that the other ranks of the host can work in. An ordinary buffer of a process is copied into shared memory
//! before others can read it; a registered `Buffer` lies there from the start, and large collectives copy nothing.
//!
//!     cargo run --release --example 07_registered
//!
//! Prints, with times that depend on the machine:
//!
//!     8 MiB in ordinary memory: 3.1 ms, in registered buffers: 2.9 ms, the same sums
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]
#![expect(clippy::disallowed_methods, reason = "the rule on the clock is the library's")]

use std::time::{Duration, Instant};

use rsccl::{Buffer, Communicator, Config, ReduceOp, Result, local};

const ELEMENTS: usize = 2 << 20;
const TURNS: u32 = 5;

fn main() -> Result<()> {
    // As processes would be: without pointers into each other's memory.
    let config = Config::default().with_p2p_disable(true);
    let times = local::run_with(2, &config, |comm| {
        let (send, mut recv) = (vec![0.5f32; ELEMENTS], vec![0.0; ELEMENTS]);
        let ordinary = time(&comm, &send, &mut recv)?;

        // Collective: all ranks register together, in the same order.
        let (mut send, mut registered) = (Buffer::<f32>::new(ELEMENTS)?, Buffer::<f32>::new(ELEMENTS)?);
        comm.register(&send)?;
        comm.register(&registered)?;
        // A `Buffer` is used like the slice it is.
        send.fill(0.5);
        let in_place = time(&comm, &send, &mut registered)?;
        assert!(recv[..] == registered[..] && recv.iter().all(|value| *value == 1.0), "wrong sums");
        Ok((ordinary, in_place))
    })?;
    let (ordinary, registered) = times[0];
    let size = (ELEMENTS * size_of::<f32>()) >> 20;
    println!("{size} MiB in ordinary memory: {ordinary:.1?}, in registered buffers: {registered:.1?}, the same sums");
    Ok(())
}

/// The mean time of an all-reduce, after one that connects.
fn time(comm: &Communicator, send: &[f32], recv: &mut [f32]) -> Result<Duration> {
    comm.all_reduce(send, recv, ReduceOp::Sum)?;
    comm.barrier()?;
    let started = Instant::now();
    for _ in 0..TURNS {
        comm.all_reduce(send, recv, ReduceOp::Sum)?;
    }
    Ok(started.elapsed() / TURNS)
}
