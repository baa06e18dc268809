//! Goal: heat in a plate, by Jacobi's method on a grid of ranks. Each rank has a block of the plate; in each step it swaps the
//! edges of its block with its neighbours (sends and recvs in one group) and averages; now and then an all-reduce tells all
//! ranks how much still changes. Rank 0 gathers the field, solves all of it alone, and finds the same bits.
//!
//!     cargo build --release --features mpi --example mpi_jacobi
//!     mpirun -n 4 target/release/examples/mpi_jacobi
//!
//! Prints (times are of the slowest rank each):
//!
//!     2 x 2 ranks, 200 x 200 points: 1220 steps, the same field as the serial run, bit by bit
//!     compute 52.1 ms, halo 31.7 ms, reduce 1.2 ms; serial 195.4 ms
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod grid;
mod job;
mod plate;

use mpi::topology::SimpleCommunicator;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Communicator, Config, ReduceOp, Result};

use grid::Grid;
use plate::{Block, Phases, SIDE};

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(jacobi(&universe.world()));
}

fn jacobi(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    let grid = Grid::of(comm.size());
    let mut block = block_of(grid, comm.rank());
    let mut halos = halos(grid, comm.rank(), &block);
    let greatest = |change| comm.all_reduce_value(change, ReduceOp::Max);
    let (steps, phases) = plate::solve(&mut block, |block| exchange(&comm, block, &mut halos), greatest)?;

    let mut slowest = [phases.compute, phases.halo, phases.reduce].map(|phase| phase.as_secs_f64() * 1e3);
    comm.all_reduce_in_place(&mut slowest, ReduceOp::Max)?;
    let parts = gather(&comm, grid, &block)?;
    if comm.rank() == 0 {
        let serial = compare_with_serial(grid, &parts, steps)?;
        let (rows, columns, [compute, halo, reduce]) = (grid.rows, grid.columns, slowest);
        print!("{rows} x {columns} ranks, {SIDE} x {SIDE} points: {steps} steps, ");
        println!("the same field as the serial run, bit by bit");
        print!("compute {compute:.1} ms, halo {halo:.1} ms, reduce {reduce:.1} ms; ");
        println!("serial {:.1} ms", serial.compute.as_secs_f64() * 1e3);
    }
    Ok(())
}

/// The block of `rank`: rows and columns of the plate are dealt out as evenly as they go.
fn block_of(grid: Grid, rank: u32) -> Block {
    let part = |cell: u32, cells: u32| {
        let (cell, cells) = (cell as usize, cells as usize);
        cell * SIDE / cells..(cell + 1) * SIDE / cells
    };
    let (row, column) = grid.cell(rank);
    Block::new(part(row, grid.rows), part(column, grid.columns))
}

/// What is swapped with one neighbour.
struct Halo {
    peer: u32,
    /// Where my points stand that the neighbour needs, and where its points go.
    edge: Vec<usize>,
    rim: Vec<usize>,
    sent: Vec<f64>,
    received: Vec<f64>,
}

/// One for each side of the block that is not a side of the plate.
fn halos(grid: Grid, rank: u32, block: &Block) -> Vec<Halo> {
    let (row, column) = grid.cell(rank);
    let mut halos = Vec::new();
    let mut add = |exists: bool, peer: u32, edge: Vec<usize>, rim: Vec<usize>| {
        if exists {
            let (sent, received) = (vec![0.0; edge.len()], vec![0.0; rim.len()]);
            halos.push(Halo { peer, edge, rim, sent, received });
        }
    };
    let (last_row, last_column) = (block.rows, block.columns);
    add(row > 0, rank.wrapping_sub(grid.columns), block.row(1), block.row(0));
    add(row + 1 < grid.rows, rank + grid.columns, block.row(last_row), block.row(last_row + 1));
    add(column > 0, rank.wrapping_sub(1), block.column(1), block.column(0));
    add(column + 1 < grid.columns, rank + 1, block.column(last_column), block.column(last_column + 1));
    halos
}

/// Swaps all edges at once: in a group the order of sends and recvs does not matter.
fn exchange(comm: &Communicator, block: &mut Block, halos: &mut [Halo]) -> Result<()> {
    for halo in halos.iter_mut() {
        halo.sent.iter_mut().zip(&halo.edge).for_each(|(value, point)| *value = block.field[*point]);
    }
    rsccl::group(|group| {
        for halo in halos.iter_mut() {
            group.on(comm).send(&halo.sent, halo.peer)?;
            group.on(comm).recv(&mut halo.received, halo.peer)?;
        }
        Ok(())
    })?;
    for halo in halos.iter() {
        halo.received.iter().zip(&halo.rim).for_each(|(value, point)| block.field[*point] = *value);
    }
    Ok(())
}

/// The fields of all ranks' blocks, on rank 0; nothing elsewhere.
fn gather(comm: &Communicator, grid: Grid, block: &Block) -> Result<Vec<Vec<f64>>> {
    let blocks = if comm.rank() == 0 { comm.size() } else { 0 };
    let mut parts: Vec<_> = (0..blocks).map(|rank| block_of(grid, rank).field).collect();
    rsccl::group(|group| {
        for (rank, part) in (0..).zip(&mut parts) {
            group.on(comm).recv(part, rank)?;
        }
        group.on(comm).send(&block.field, 0)
    })?;
    Ok(parts)
}

/// Solves the whole plate here and compares it with the ranks' parts. Returns where the time went.
fn compare_with_serial(grid: Grid, parts: &[Vec<f64>], steps: usize) -> Result<Phases> {
    let mut whole = Block::new(0..SIDE, 0..SIDE);
    let (serial_steps, phases) = plate::solve(&mut whole, |_| Ok(()), Ok)?;
    assert_eq!(steps, serial_steps, "the ranks took another number of steps than the serial run");
    for (rank, part) in (0..).zip(parts) {
        let block = block_of(grid, rank);
        for row in 1..=block.rows {
            for (mine, theirs) in block.points(row).zip(whole.points_of(&block, row)) {
                let (mine, theirs) = (part[mine], whole.field[theirs]);
                assert_eq!(mine.to_bits(), theirs.to_bits(), "rank {rank}, row {row}: {mine} against {theirs}");
            }
        }
    }
    Ok(phases)
}
