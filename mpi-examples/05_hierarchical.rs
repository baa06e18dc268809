//! Goal: an all-reduce over hosts, built from splits: each host adds up and cuts the sum among its ranks, ranks with the same
//! cut add it up over hosts, each host puts the cuts together. Only a part of the bytes leaves the host. The flat all-reduce
//! gives the same, and chooses such a scheme by itself where it pays.
//!
//!     cargo build --features mpi --example mpi_hierarchical
//!     mpirun -n 4 target/debug/examples/mpi_hierarchical
//!
//! Prints:
//!
//!     hosts as they are: 1 of 4 ranks each, same as flat
//!     a host for every 2 ranks, so to speak: 2 of 2 ranks each, same as flat
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod job;

use mpi::topology::SimpleCommunicator;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Communicator, Config, ReduceOp, Result};

/// Elements that each rank of a host reduces over hosts.
const CUT: usize = 50_000;

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(reduce(&universe.world()));
}

fn reduce(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    compare(&comm, "hosts as they are", &comm.on_my_host()?, &comm.cross()?)?;

    // On one host there is nothing to cross; so let pairs of neighbours play hosts.
    let per_host = if comm.size().is_multiple_of(2) { 2 } else { 1 };
    let local = comm.by_color(comm.rank() / per_host, comm.rank().into())?;
    let cross = comm.by_color(comm.rank() % per_host, comm.rank().into())?;
    compare(&comm, &format!("a host for every {per_host} ranks, so to speak"), &local, &cross)
}

fn compare(comm: &Communicator, what: &str, local: &Communicator, cross: &Communicator) -> Result<()> {
    // Cuts meet across hosts only where hosts have as many ranks; all ranks see alike whether that is so.
    let mut sizes = [i64::from(local.size()), -i64::from(local.size())];
    comm.all_reduce_in_place(&mut sizes, ReduceOp::Max)?;
    if sizes[0] != -sizes[1] {
        if comm.rank() == 0 {
            println!("{what}: left out, for they have from {} to {} ranks", -sizes[1], sizes[0]);
        }
        return Ok(());
    }
    let rank = u64::from(comm.rank()) + 1;
    let mine: Vec<u64> = (0..CUT as u64 * u64::from(local.size())).map(|index| index * rank + (index ^ rank)).collect();
    let mut flat = vec![0; mine.len()];
    comm.all_reduce(&mine, &mut flat, ReduceOp::Sum)?;
    assert!(hierarchical(local, cross, &mine)? == flat, "{what}: not the sum that the flat all-reduce has");
    if comm.rank() == 0 {
        println!("{what}: {} of {} ranks each, same as flat", cross.size(), local.size());
    }
    Ok(())
}

fn hierarchical(local: &Communicator, cross: &Communicator, mine: &[u64]) -> Result<Vec<u64>> {
    let mut cut = vec![0; mine.len() / local.size() as usize];
    local.reduce_scatter(mine, &mut cut, ReduceOp::Sum)?;
    cross.all_reduce_in_place(&mut cut, ReduceOp::Sum)?;
    let mut all = vec![0; mine.len()];
    local.all_gather(&cut, &mut all)?;
    Ok(all)
}
