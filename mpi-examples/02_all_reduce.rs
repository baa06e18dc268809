//! Goal: the all-reduce of rsccl compared with that of the MPI it runs under. Integers agree bit by bit, sums of floats
//! within rounding, because the two libraries may add in different orders.
//!
//!     cargo build --features mpi --example mpi_all_reduce
//!     mpirun -n 4 target/debug/examples/mpi_all_reduce
//!
//! Prints:
//!
//!     4 ranks: 140 reductions of integers equal MPI_Allreduce bit by bit, 20 of floats within rounding
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

mod job;

use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Communicator, Config, Element, ReduceOp, Result};

const LENGTHS: [usize; 5] = [1, 3, 1000, 4096, 100_003];

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(compare(&universe.world()));
}

fn compare(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    let (mut integers, mut floats) = (0, 0);
    for length in LENGTHS {
        let words: Vec<u64> = (0..length as u64).map(|index| word(u64::from(comm.rank()), index)).collect();
        // Small ones, so that no sum or product overflows: MPI leaves open what would happen.
        integers += bit_by_bit(&comm, world, &cut(&words, |word| i32::from(word.to_le_bytes()[0] % 7) - 3))?;
        integers += bit_by_bit(&comm, world, &cut(&words, |word| i64::from(word.to_le_bytes()[0]) - 128))?;
        integers += bit_by_bit(&comm, world, &cut(&words, |word| word >> 40))?;
        integers += bit_by_bit(&comm, world, &cut(&words, |word| word.to_le_bytes()[0] % 4))?;
        floats +=
            within_rounding(&comm, world, &cut(&words, |word| (word >> 40) as f32 / 4096.0 - 2000.0), f32::EPSILON)?;
        floats += within_rounding(&comm, world, &cut(&words, |word| (word >> 11) as f64 / 4096.0), f64::EPSILON)?;
    }
    if comm.rank() == 0 {
        let ranks = comm.size();
        print!("{ranks} ranks: {integers} reductions of integers equal MPI_Allreduce bit by bit, ");
        println!("{floats} of floats within rounding");
    }
    Ok(())
}

/// Reduces by every operator that integers have, with both libraries. Returns how many operators that were.
fn bit_by_bit<T: Element + Equivalence + Default>(
    comm: &Communicator,
    world: &SimpleCommunicator,
    mine: &[T],
) -> Result<usize> {
    let operators = [
        (ReduceOp::Sum, SystemOperation::sum()),
        (ReduceOp::Prod, SystemOperation::product()),
        (ReduceOp::Min, SystemOperation::min()),
        (ReduceOp::Max, SystemOperation::max()),
        (ReduceOp::BitAnd, SystemOperation::bitwise_and()),
        (ReduceOp::BitOr, SystemOperation::bitwise_or()),
        (ReduceOp::BitXor, SystemOperation::bitwise_xor()),
    ];
    for (op, mpi_op) in operators {
        let (ours, theirs) = both(comm, world, mine, op, mpi_op)?;
        assert!(ours == theirs, "{op} of {} {}: the two libraries differ", mine.len(), T::DATA_TYPE);
    }
    Ok(operators.len())
}

/// The same for floats: the sum within rounding, the greatest bit by bit.
fn within_rounding<T>(comm: &Communicator, world: &SimpleCommunicator, mine: &[T], epsilon: T) -> Result<usize>
where
    T: Element + Equivalence + Default + Into<f64>,
{
    let (ours, theirs) = both(comm, world, mine, ReduceOp::Max, SystemOperation::max())?;
    assert!(ours == theirs, "max of {} {}: the two libraries differ", mine.len(), T::DATA_TYPE);
    let (ours, theirs) = both(comm, world, mine, ReduceOp::Sum, SystemOperation::sum())?;
    // Every addition rounds by half an epsilon of what is summed up so far, which the sum of magnitudes bounds.
    let mut magnitudes = cut(mine, |value| value.into().abs());
    comm.all_reduce_in_place(&mut magnitudes, ReduceOp::Sum)?;
    for ((ours, theirs), magnitude) in ours.into_iter().zip(theirs).zip(magnitudes) {
        let (ours, theirs) = (ours.into(), theirs.into());
        let allowed = f64::from(comm.size()) * epsilon.into() * magnitude;
        assert!((ours - theirs).abs() <= allowed, "sum {ours} against {theirs}: more than {allowed} apart");
    }
    Ok(2)
}

/// The result of rsccl, and that of MPI.
fn both<T: Element + Equivalence + Default>(
    comm: &Communicator,
    world: &SimpleCommunicator,
    mine: &[T],
    op: ReduceOp,
    mpi_op: SystemOperation,
) -> Result<(Vec<T>, Vec<T>)> {
    let (mut ours, mut theirs) = (vec![T::default(); mine.len()], vec![T::default(); mine.len()]);
    comm.all_reduce(mine, &mut ours, op)?;
    world.all_reduce_into(mine, &mut theirs[..], mpi_op);
    Ok((ours, theirs))
}

fn cut<T: Copy, U>(words: &[T], value: impl Fn(T) -> U) -> Vec<U> {
    words.iter().map(|word| value(*word)).collect()
}

/// Looks random, and is the same in every run (splitmix64).
fn word(rank: u64, index: u64) -> u64 {
    let mut word = (rank << 32 | index).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}
