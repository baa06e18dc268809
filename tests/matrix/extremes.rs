//! Which NaN and which zero `Min` and `Max` give, on every path and for every order of the ranks, as the documents say:
//! here in the host's memory, and in `gpu_floats` in that of GPUs.

#![expect(clippy::cast_possible_truncation, reason = "there are few elements")]

use rsccl::comm::Communicator;
use rsccl::types::Algorithm;
use rsccl::{ReduceOp, Result, local};

use super::floats::{FloatBits, Memory, of_each_float, on_every_path};

/// Number `index` of these has something special on rank `index` mod the ranks, and plain numbers elsewhere.
fn input<T: FloatBits>(rank: u32, size: u32, count: usize) -> Vec<T> {
    // A NaN with the sign, one with a payload where the type has payloads, and both zeros.
    let specials = [T::QUIET_NAN | T::SIGN, T::QUIET_NAN | 1, T::SIGN, 0];
    let value = |index: usize| {
        let (special, holder) = (specials[index / size as usize % 4], index as u32 % size);
        match special & !T::SIGN {
            // The other ranks have the other zero.
            0 => {
                if rank == holder {
                    special
                } else {
                    special ^ T::SIGN
                }
            }
            _ if rank == holder => special,
            _ => T::ONE,
        }
    };
    (0..count).map(|index| T::of_bits(value(index))).collect()
}

fn check<T: FloatBits>((comm, memory): (&Communicator, &Memory), count: usize, path: &str) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    for (op, zero) in [(ReduceOp::Min, T::SIGN), (ReduceOp::Max, 0)] {
        let expected = |index: usize| if index / size as usize % 4 < 2 { T::QUIET_NAN } else { zero };
        let mine = input::<T>(rank, size, count * size as usize);
        let all = memory.in_place(comm, &mine, (op, None))?;
        let part = memory.reduce_scatter(comm, &mine, op)?;
        let parts = part.into_iter().enumerate().map(|(index, found)| (rank as usize * count + index, found));
        for (index, found) in all.into_iter().enumerate().chain(parts) {
            let (found, expected) = (found.bits(), expected(index));
            let what = format!("{path}: {op} of {size} ranks, {} {index} of {count}", std::any::type_name::<T>());
            assert_eq!(found, expected, "{what}: {found:x}");
        }
    }
    Ok(())
}

/// The least and greatest of every type of floats in this memory, of several ranks: one rank alone keeps all bits.
pub(crate) fn extremes_in(place: (&Communicator, &Memory), counts: &[usize], path: &str) -> Result<()> {
    let counts = if place.0.size() > 1 { counts } else { &[] };
    for count in counts.iter().copied() {
        of_each_float!(check(place, count, path));
    }
    Ok(())
}

#[test]
fn least_and_greatest_give_the_quiet_nan_and_the_ordered_zero() {
    on_every_path(&[Algorithm::Ring, Algorithm::Tree], &[2, 3, 4], |comm, path| {
        extremes_in((comm, &Memory::Host), &[3, 64, 3_000], path)
    });
}

/// As the documents say, a world of one rank changes no bit.
#[test]
fn one_rank_keeps_all_bits() {
    local::run(1, |comm| {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            let mut values = [0xffc1_2345, 0x7f80_0001, 0x8000_0000, 0].map(f32::from_bits);
            comm.all_reduce_in_place(&mut values, op)?;
            assert_eq!(values.map(f32::to_bits), [0xffc1_2345, 0x7f80_0001, 0x8000_0000, 0]);
        }
        comm.finalize()
    })
    .expect("one rank");
}
