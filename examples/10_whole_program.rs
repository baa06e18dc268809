//! Goal: one whole program. It joins as its launcher says, sends and receives, splits, and runs several calls as a group.
//!
//!     cargo build --example 10_whole_program
//!     rsccl run -n 4 -- target/debug/examples/10_whole_program      # or mpirun, srun, torchrun
//!     cargo run --example 10_whole_program                          # with no launcher: four threads
//!
//! Rank 0 prints, with 4 ranks:
//!
//!     4 ranks: a token has gone round by 3, the even ranks add up to 2, the odd ones to 4
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use rsccl::config::{Environment, Launch};
use rsccl::{Communicator, ReduceOp, Result, local};

fn main() -> Result<()> {
    if Launch::is_rank(&Environment::capture()) {
        return rank(Communicator::from_env()?);
    }
    local::run(4, rank).map(drop)
}

/// What each rank does.
fn rank(comm: Communicator) -> Result<()> {
    let (me, ranks) = (comm.rank(), comm.size());
    let (left, right) = ((me + ranks - 1) % ranks, (me + 1) % ranks);

    // A ring of small messages: all send first, and none waits for its receiver.
    let mut token = [ranks];
    if ranks > 1 {
        comm.send(&[me], right)?;
        comm.recv(&mut token, left)?;
        assert_eq!(token, [left]);
    }

    // The even ranks and the odd ones, each with a communicator of their own.
    let half = comm.by_color(me % 2, 0)?;
    let mut sum = [me];
    half.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;

    // Calls that run as one: messages of any size, in any order, then collectives, on both communicators.
    let (mine, mut large, mut sums, mut first) = (vec![me; 1 << 20], vec![0; 1 << 20], [0; 2], [me]);
    let place = me as usize % 2;
    sums[place] = sum[0];
    rsccl::group(|group| {
        group.on(&comm).recv(&mut large, left)?;
        group.on(&comm).send(&mine, right)?;
        group.on(&comm).all_reduce_in_place(&mut sums, ReduceOp::Max)?;
        group.on(&half).broadcast(&mut first, 0)
    })?;
    assert!(large.iter().all(|word| *word == left));
    assert_eq!(first, [me % 2]);

    if me == 0 {
        let [even, odd] = sums;
        let last = token[0];
        println!(
            "{ranks} ranks: a token has gone round by {last}, the even ranks add up to {even}, the odd ones to {odd}"
        );
    }
    half.finalize()?;
    comm.finalize()
}
