//! Goal: communicators of a part of an MPI job's ranks: those of one host, those with the same place on every host, rows and
//! columns of a grid, and a copy, rank by rank, of a communicator that MPI has split.
//!
//!     cargo build --features mpi --example mpi_splits
//!     mpirun -n 4 target/debug/examples/mpi_splits
//!
//! Prints:
//!
//!     4 ranks on 1 host: local [0, 1, 2, 3], cross [0]
//!     grid of 2 x 2: row of rank 0 [0, 1], column [0, 2]
//!     like MPI's split of the even ranks, turned round: [2, 0]
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod grid;
mod job;

use mpi::topology::{Color, Communicator as _, SimpleCommunicator};
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Communicator, Config, Result};

use grid::Grid;

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(split(&universe.world()));
}

fn split(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    let (rank, ranks) = (comm.rank(), comm.size());
    job::expect_ranks(ranks);

    // By host. Where every host has as many ranks, `on_my_host` and `cross` are rows and columns, too.
    let placement = comm.placement()?;
    let (local, cross) = (comm.on_my_host()?, comm.cross()?);
    assert_eq!((local.rank(), local.size()), (placement.local_rank, placement.local_size));
    assert!(cross.size() <= placement.hosts);
    let (locals, crosses) = (members(&local, rank)?, members(&cross, rank)?);

    // By place in a grid.
    let grid = Grid::of(ranks);
    let (my_row, my_column) = grid.cell(rank);
    let row = members(&comm.by_color(my_row, rank.into())?, rank)?;
    let column = members(&comm.by_color(my_column, rank.into())?, rank)?;
    assert!(row.iter().copied().eq((0..ranks).filter(|rank| grid.cell(*rank).0 == my_row)));
    assert!(column.iter().copied().eq((0..ranks).filter(|rank| grid.cell(*rank).1 == my_column)));

    // As MPI has done it. All ranks of `comm` call `like`, also those that MPI has left out.
    let color = if rank.is_multiple_of(2) { Color::with_value(0) } else { Color::undefined() };
    let sub = world.split_by_color_with_key(color, -world.rank());
    let like = comm.like(sub.as_ref())?;
    assert_eq!(like.is_some(), sub.is_some());
    let evens: Vec<u32> = (0..ranks).rev().filter(|rank| rank.is_multiple_of(2)).collect();
    if let (Some(like), Some(sub)) = (&like, &sub) {
        // An error, if a rank had another number in one than in the other.
        like.check(sub)?;
        assert_eq!(members(like, rank)?, evens);
    }

    if rank == 0 {
        let hosts = if placement.hosts == 1 { "1 host".to_owned() } else { format!("{} hosts", placement.hosts) };
        println!("{ranks} ranks on {hosts}: local {locals:?}, cross {crosses:?}");
        println!("grid of {} x {}: row of rank 0 {row:?}, column {column:?}", grid.rows, grid.columns);
        println!("like MPI's split of the even ranks, turned round: {evens:?}");
    }
    Ok(())
}

/// The old ranks of the members, in the order of their new ones.
fn members(comm: &Communicator, old_rank: u32) -> Result<Vec<u32>> {
    let mut members = vec![0; comm.size() as usize];
    comm.all_gather(&[old_rank], &mut members)?;
    assert_eq!(members[comm.rank() as usize], old_rank);
    Ok(members)
}
