//! What requests cost beside blocking calls, in one run: two ranks, each a thread.
//!
//! A halo is a recv and a send that are begun, and then waited for, beside a blocking `send_recv` of the same bytes; a
//! sum is an all-reduce that is begun and waited for, beside the blocking one. Blocks of calls alternate; the median
//! over the blocks of the slower rank's mean counts. `cargo bench --bench requests`.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::time::Instant;

use rsccl::{Communicator, ReduceOp, Result, local};

/// Bytes of a halo and of a sum.
const HALO_BYTES: [usize; 3] = [8, 800, 65_536];
const SUM_BYTES: [usize; 3] = [8, 1024, 65_536];
/// Blocks of each kind of call.
const BLOCKS: usize = 41;
/// About how long a block lasts, in bytes moved and calls made.
const CALLS: usize = 5_000;

fn main() -> Result<()> {
    println!("| call | bytes | blocking, ns | as requests, ns | ratio |");
    println!("|---|---|---|---|---|");
    for bytes in HALO_BYTES {
        row("halo in a scope", bytes, [&blocking_halo, &scoped_halo])?;
        row("halo of owned buffers", bytes, [&blocking_halo, &owned_halo])?;
    }
    for bytes in SUM_BYTES {
        row("sum in a scope", bytes, [&blocking_sum, &scoped_sum])?;
        row("sum of an owned buffer", bytes, [&blocking_sum, &owned_sum])?;
    }
    Ok(())
}

type Calls<'a> = &'a (dyn Fn(&Communicator, usize, usize) -> Result<()> + Sync);

fn row(name: &str, bytes: usize, kinds: [Calls<'_>; 2]) -> Result<()> {
    let calls = if bytes > 10_000 { CALLS / 10 } else { CALLS };
    let times = local::run(2, |comm| {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..BLOCKS {
            for (times, run) in times.iter_mut().zip(kinds) {
                comm.barrier()?;
                let began = Instant::now();
                run(&comm, bytes, calls)?;
                let mut mean = [began.elapsed().as_nanos() as f64 / calls as f64];
                comm.all_reduce_in_place(&mut mean, ReduceOp::Max)?;
                times.push(mean[0]);
            }
        }
        Ok(times.map(median))
    })?;
    let [blocking, requests] = times[0];
    println!("| {name} | {bytes} | {blocking:.0} | {requests:.0} | {:.2} |", requests / blocking);
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn blocking_halo(comm: &Communicator, bytes: usize, calls: usize) -> Result<()> {
    let (mine, mut theirs, other) = (vec![1u8; bytes], vec![0u8; bytes], 1 - comm.rank());
    (0..calls).try_for_each(|_| comm.send_recv(&mine, other, &mut theirs, other))
}

fn scoped_halo(comm: &Communicator, bytes: usize, calls: usize) -> Result<()> {
    let (mine, mut theirs, other) = (vec![1u8; bytes], vec![0u8; bytes], 1 - comm.rank());
    (0..calls).try_for_each(|_| {
        comm.scope(|scope| {
            let received = scope.recv(&mut theirs, other)?;
            let sent = scope.send(&mine, other)?;
            sent.wait()?;
            received.wait()
        })
    })
}

fn owned_halo(comm: &Communicator, bytes: usize, calls: usize) -> Result<()> {
    let (mut mine, mut theirs, other) = (vec![1u8; bytes], vec![0u8; bytes], 1 - comm.rank());
    for _ in 0..calls {
        let received = comm.start(theirs, |calls, theirs| calls.recv(theirs, other))?;
        let sent = comm.start(mine, |calls, mine| calls.send(mine, other))?;
        mine = sent.wait()?;
        theirs = received.wait()?;
    }
    Ok(())
}

fn blocking_sum(comm: &Communicator, bytes: usize, calls: usize) -> Result<()> {
    let (mine, mut sum) = (vec![1f64; bytes / 8], vec![0f64; bytes / 8]);
    (0..calls).try_for_each(|_| comm.all_reduce(&mine, &mut sum, ReduceOp::Sum))
}

fn scoped_sum(comm: &Communicator, bytes: usize, calls: usize) -> Result<()> {
    let (mine, mut sum) = (vec![1f64; bytes / 8], vec![0f64; bytes / 8]);
    (0..calls).try_for_each(|_| comm.scope(|scope| scope.all_reduce(&mine, &mut sum, ReduceOp::Sum)?.wait()))
}

fn owned_sum(comm: &Communicator, bytes: usize, calls: usize) -> Result<()> {
    let mut buffers = (vec![1f64; bytes / 8], vec![0f64; bytes / 8]);
    for _ in 0..calls {
        let sum = comm.start(buffers, |calls, (mine, sum)| calls.all_reduce(mine, sum, ReduceOp::Sum))?;
        buffers = sum.wait()?;
    }
    Ok(())
}
