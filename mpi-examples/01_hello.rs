//! Goal: the ranks of an MPI job are the ranks of an rsccl communicator, in one line; each learns where it runs.
//!
//!     cargo build --features mpi --example mpi_hello
//!     mpirun -n 2 target/debug/examples/mpi_hello
//!
//! Prints, in any order:
//!
//!     MPI library: Open MPI v4.1.4, ...
//!     rank 0 of 2: host node7 (0 of 1), local rank 0 of 2, leader, no GPU
//!     rank 1 of 2: host node7 (0 of 1), local rank 1 of 2, no GPU
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod job;

use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Config, ReduceOp, Result};

fn main() {
    // A rank that panics would hang the others in MPI_Finalize: end the job instead, on an error of rsccl's, too.
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(hello(&universe.world()));
}

fn hello(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    if comm.rank() == 0 {
        let library = mpi::environment::library_version().unwrap_or_default();
        println!("MPI library: {}", library.lines().next().unwrap_or_default().trim_end_matches('\0'));
    }
    let placement = comm.placement()?;
    println!("rank {} of {}: {placement}", comm.rank(), comm.size());

    assert_eq!((i64::from(comm.rank()), i64::from(comm.size())), (world.rank().into(), world.size().into()));
    assert!(placement.local_rank < placement.local_size && placement.host < placement.hosts);
    // Every host has one leader, its local rank 0; leaders are numbered as hosts are met in rank order.
    assert_eq!(placement.leader_rank, (placement.local_rank == 0).then_some(placement.host));
    let mut leaders = [u32::from(placement.leader_rank.is_some())];
    comm.all_reduce_in_place(&mut leaders, ReduceOp::Sum)?;
    assert_eq!(leaders, [placement.hosts]);
    Ok(())
}
