//! Memory that is registered where it lies, beside a `Buffer` and ordinary memory, and what it takes to register it: two
//! ranks, threads that reach each other as processes do.
//!
//! A cell is a size. Blocks of calls of the three kinds alternate; the least block counts. Registering, the first touches
//! of rank 0 and giving back are of one vector a rank, in which each page was written before; the least of some rounds
//! counts. Beside them is a copy to memory that was touched before. The last column says after how many calls both moves
//! have paid.
//! `cargo bench --features internals --bench in_place`; with `-- 1048576` that size alone. It needs two processors.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use rsccl::comm::Registered;
use rsccl::internals::sys::clock;
use rsccl::{Buffer, Communicator, Config, ReduceOp, Result};

/// Bytes: 64 KiB to 64 MiB.
const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const ROUNDS: usize = 9;
/// A block of calls takes about as long as this many bytes take to move.
const BLOCK_BYTES: usize = 64 << 20;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let asked: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let config = Config::default().with_p2p_disable(true).with_socket_interfaces("lo");
    println!("all_reduce in place of f32, sum, us a call; moves in ms per GiB, least of {ROUNDS}");
    println!(
        "| bytes | ordinary | Buffer | where it lies | over Buffer | register | first touches | give back | copy | pays after calls |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for bytes in SIZES.into_iter().filter(|bytes| asked.is_empty() || asked.contains(bytes)) {
        let rows = rsccl::local::run_with(2, &config, |comm| row(&comm, bytes))?;
        println!("{}", rows[0]);
    }
    Ok(())
}

/// The row of one size.
fn row(comm: &Communicator, bytes: usize) -> Result<String> {
    let count = bytes / size_of::<f32>();
    let moves = moves(comm, count)?;
    let (mut ordinary, mut buffer) = (vec![0f32; count], Buffer::<f32>::new(count)?);
    let mut placed = Registered::new(vec![0f32; count]);
    if let Some(why) = placed.refusal() {
        println!("not registered: {why}");
    }
    comm.register(&buffer)?;
    comm.register(&placed)?;
    let mut least = [f64::INFINITY; 3];
    for _ in 0..ROUNDS {
        let blocks = [block(comm, &mut ordinary)?, block(comm, &mut buffer)?, block(comm, &mut placed)?];
        least.iter_mut().zip(blocks).for_each(|(least, time)| *least = least.min(time));
    }
    comm.deregister(&placed)?;
    drop(placed.into_inner());
    let [ordinary, buffer, placed] = least.map(|seconds| seconds * 1e6);
    let per_gib = moves.map(|seconds| seconds * 1e3 * f64::from(1 << 30) / bytes as f64);
    let [register, touches, back, copy] = per_gib;
    let pays = 1e6 * moves[..3].iter().sum::<f64>() / (ordinary - placed);
    let pays = if pays > 0.0 { format!("{pays:.0}") } else { "never".to_owned() };
    Ok(format!(
        "| {bytes} | {ordinary:.1} | {buffer:.1} | {placed:.1} | {:.2} | {register:.0} | {touches:.0} | {back:.0} | {copy:.0} | {pays} |",
        placed / buffer
    ))
}

/// Seconds of a call, of a block of them.
fn block(comm: &Communicator, memory: &mut [f32]) -> Result<f64> {
    let calls = (BLOCK_BYTES / size_of_val(memory)).clamp(4, 200);
    comm.all_reduce_in_place(memory, ReduceOp::Sum)?;
    comm.barrier()?;
    let begun = clock::now();
    for _ in 0..calls {
        comm.all_reduce_in_place(memory, ReduceOp::Sum)?;
    }
    Ok(clock::now().duration_since(begun).as_secs_f64() / calls as f64)
}

/// Seconds to register, for the first touches, to give back, and to copy; by rank 0 while the other waits.
fn moves(comm: &Communicator, count: usize) -> Result<[f64; 4]> {
    let mut least = [f64::INFINITY; 4];
    if comm.rank() == 0 {
        let mut target = vec![1f32; count];
        for _ in 0..ROUNDS.min(5) {
            let source = vec![1f32; count];
            let (mut times, begun) = ([0.0; 4], clock::now());
            let mut placed = Registered::new(source);
            times[0] = clock::now().duration_since(begun).as_secs_f64();
            let begun = clock::now();
            placed.iter_mut().step_by(1024).for_each(|word| *word += 1.0);
            times[1] = clock::now().duration_since(begun).as_secs_f64();
            let begun = clock::now();
            let source = placed.into_inner();
            times[2] = clock::now().duration_since(begun).as_secs_f64();
            let begun = clock::now();
            target.copy_from_slice(&source);
            times[3] = clock::now().duration_since(begun).as_secs_f64();
            std::hint::black_box(&mut target);
            least.iter_mut().zip(times).for_each(|(least, time)| *least = least.min(time));
        }
    }
    comm.barrier()?;
    Ok(least)
}
