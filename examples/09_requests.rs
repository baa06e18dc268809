//! Goal: collectives that run while the program computes. A request borrows its buffers until the scope ends, so the
//! compiler rejects any use of them before. Each rank computes its next block while the one before is on its way.
//!
//!     cargo run --example 09_requests
//!
//! Prints:
//!
//!     8 blocks of 50000 added up over 3 ranks while the next one was computed
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use rsccl::{Communicator, ReduceOp, Result, local};

const BLOCKS: usize = 8;
const ELEMENTS: usize = 50_000;
const RANKS: u32 = 3;

fn main() -> Result<()> {
    let sums = local::run(RANKS, |comm| pipeline(&comm))?;
    for sums in &sums {
        for (block, sum) in sums.iter().enumerate() {
            let expected = |index| (0..RANKS as usize).map(|rank| value(rank, block, index)).sum::<u64>();
            assert!((0..ELEMENTS).all(|index| sum[index] == expected(index)), "block {block} is wrong");
        }
    }
    println!("{BLOCKS} blocks of {ELEMENTS} added up over {RANKS} ranks while the next one was computed");
    Ok(())
}

fn pipeline(comm: &Communicator) -> Result<Vec<Vec<u64>>> {
    let rank = comm.rank() as usize;
    // Buffers outlive the scope: they are made before it.
    let (mut blocks, mut sums) = (vec![vec![0; ELEMENTS]; BLOCKS], vec![vec![0; ELEMENTS]; BLOCKS]);
    comm.scope(|scope| {
        let mut requests = Vec::new();
        for (number, (block, sum)) in blocks.iter_mut().zip(&mut sums).enumerate() {
            for (index, element) in block.iter_mut().enumerate() {
                *element = value(rank, number, index);
            }
            // Begins, and comes back at once. All ranks begin their collectives in the same order.
            requests.push(scope.all_reduce(block, sum, ReduceOp::Sum)?);
        }
        // Waiting is optional, for the scope waits for all. It tells which failed.
        requests.into_iter().try_for_each(|request| request.wait())
    })?;
    Ok(sums)
}

/// What `rank` contributes: some work for every element.
fn value(rank: usize, block: usize, index: usize) -> u64 {
    (0..4).fold((rank + block * ELEMENTS + index) as u64, |value, turn| value.rotate_left(7) ^ turn) & 0xFFFF_FFFF
}
