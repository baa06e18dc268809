//! Which NaN and which zero `Min` and `Max` give, on every path and for every order of the ranks, as the documents say.
//! `tests/kernels.rs` holds the kernels of GPUs to the same bits.

#![expect(clippy::cast_possible_truncation, reason = "bits are cut to the width of a type, and there are few elements")]

use rsccl::comm::Communicator;
use rsccl::types::{Algorithm, Element, F8E4M3, F8E5M2, bf16, f16};
use rsccl::{Config, ReduceOp, Result, local};

/// A float type by its bits.
trait Bits: Element {
    const QUIET_NAN: u64;
    const SIGN: u64;
    const ONE: u64;
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! bits {
    ($($type:ty: $bits:ty, $nan:literal, $one:literal, $of:expr, $to:expr;)+) => {$(
        impl Bits for $type {
            const QUIET_NAN: u64 = $nan;
            const SIGN: u64 = 1 << (<$bits>::BITS - 1);
            const ONE: u64 = $one;

            fn of(bits: u64) -> $type {
                let of: fn($bits) -> $type = $of;
                of(bits as $bits)
            }

            fn bits(self) -> u64 {
                let bits: fn($type) -> $bits = $to;
                bits(self).into()
            }
        }
    )+};
}

bits! {
    f64: u64, 0x7ff8_0000_0000_0000, 0x3ff0_0000_0000_0000, f64::from_bits, f64::to_bits;
    f32: u32, 0x7fc0_0000, 0x3f80_0000, f32::from_bits, f32::to_bits;
    f16: u16, 0x7e00, 0x3c00, f16::from_bits, f16::to_bits;
    bf16: u16, 0x7fc0, 0x3f80, bf16::from_bits, bf16::to_bits;
    F8E4M3: u8, 0x7f, 0x38, F8E4M3, |x| x.0;
    F8E5M2: u8, 0x7e, 0x3c, F8E5M2, |x| x.0;
}

/// Number `index` of these has something special on rank `index` mod the ranks, and plain numbers elsewhere.
fn input<T: Bits>(rank: u32, size: u32, count: usize) -> Vec<T> {
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
    (0..count).map(|index| T::of(value(index))).collect()
}

fn check<T: Bits>(comm: &Communicator, count: usize, path: &str) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    for (op, zero) in [(ReduceOp::Min, T::SIGN), (ReduceOp::Max, 0)] {
        let expected = |index: usize| if index / size as usize % 4 < 2 { T::QUIET_NAN } else { zero };
        let mine = input::<T>(rank, size, count * size as usize);
        let (mut all, mut part) = (mine.clone(), vec![T::of(0); count]);
        comm.all_reduce_in_place(&mut all, op)?;
        comm.reduce_scatter(&mine, &mut part, op)?;
        let parts = part.into_iter().enumerate().map(|(index, found)| (rank as usize * count + index, found));
        for (index, found) in all.into_iter().enumerate().chain(parts) {
            let (found, expected) = (found.bits(), expected(index));
            let what = format!("{path}: {op} of {size} ranks, {} {index} of {count}", std::any::type_name::<T>());
            assert_eq!(found, expected, "{what}: {found:x}");
        }
    }
    Ok(())
}

fn every_type(comm: &Communicator, path: &str) -> Result<()> {
    for count in [3, 64, 3_000] {
        check::<f64>(comm, count, path)?;
        check::<f32>(comm, count, path)?;
        check::<f16>(comm, count, path)?;
        check::<bf16>(comm, count, path)?;
        check::<F8E4M3>(comm, count, path)?;
        check::<F8E5M2>(comm, count, path)?;
    }
    Ok(())
}

#[test]
fn least_and_greatest_give_the_quiet_nan_and_the_ordered_zero() {
    let shared = Config::default().with_p2p_disable(true);
    let sockets = shared.clone().with_shm_disable(true);
    for (name, config) in [("threads", Config::default()), ("shared memory", shared), ("sockets", sockets)] {
        for algorithm in [None, Some(Algorithm::Ring), Some(Algorithm::Tree)] {
            let mut config = config.clone().with_timeout(super::TIMEOUT);
            if let Some(algorithm) = algorithm {
                config = config.with_algo(algorithm.name()).with_proto("Simple");
            }
            for ranks in [2, 3, 4] {
                let path = format!("{name}, {algorithm:?}");
                local::run_with(ranks, &config, |comm| {
                    every_type(&comm, &path)?;
                    comm.finalize()
                })
                .unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
    }
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
