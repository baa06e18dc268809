//! Goal: messages between pairs of an MPI job's ranks. First one token goes round the ring by plain send and recv, each rank
//! adding itself; then all ranks pass large blocks to the right at once, in groups, until every block has come home.
//!
//!     cargo build --features mpi --example mpi_ring
//!     mpirun -n 4 target/debug/examples/mpi_ring
//!
//! Prints:
//!
//!     the token has been at [0, 1, 2, 3]; after 4 hops every block of 100000 words is home
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod job;

use mpi::topology::SimpleCommunicator;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Communicator, Config, Result};

const WORDS: usize = 100_000;

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(ring(&universe.world()));
}

fn ring(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    let trail = pass_token(&comm)?;
    pass_blocks(&comm)?;
    if comm.rank() == 0 {
        assert!(trail.iter().copied().eq(0..comm.size()), "the token took a wrong way: {trail:?}");
        let hops = comm.size();
        println!("the token has been at {trail:?}; after {hops} hops every block of {WORDS} words is home");
    }
    Ok(())
}

fn neighbours(comm: &Communicator) -> (u32, u32) {
    let (rank, ranks) = (comm.rank(), comm.size());
    ((rank + ranks - 1) % ranks, (rank + 1) % ranks)
}

/// One rank at a time has the token: rank 0 sends first and receives last, all others receive first.
fn pass_token(comm: &Communicator) -> Result<Vec<u32>> {
    let (left, right) = neighbours(comm);
    // What a rank has not yet written says so.
    let mut token = vec![u32::MAX; comm.size() as usize];
    if comm.rank() > 0 {
        comm.recv(&mut token, left)?;
    }
    token[comm.rank() as usize] = comm.rank();
    if comm.size() > 1 {
        comm.send(&token, right)?;
        if comm.rank() == 0 {
            comm.recv(&mut token, left)?;
        }
    }
    Ok(token)
}

/// All ranks send at once. A group runs send and recv side by side; plain sends would do for blocks of up to 1 MiB, and wait for each other
/// for ever beyond that.
fn pass_blocks(comm: &Communicator) -> Result<()> {
    let (left, right) = neighbours(comm);
    let mut block = vec![comm.rank(); WORDS];
    let mut next = vec![0; WORDS];
    for hop in 1..=comm.size() {
        rsccl::group(|group| {
            group.on(comm).send(&block, right)?;
            group.on(comm).recv(&mut next, left)
        })?;
        std::mem::swap(&mut block, &mut next);
        let owner = (comm.rank() + comm.size() - hop) % comm.size();
        assert!(block.iter().all(|word| *word == owner), "hop {hop} brought a block that is not rank {owner}'s");
    }
    Ok(())
}
