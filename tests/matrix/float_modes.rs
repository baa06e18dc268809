//! In reproducible mode the bits do not depend on the floating-point mode of any rank's thread.

#![expect(clippy::cast_possible_truncation, reason = "bits are cut to the width of a type")]

use rsccl::comm::Communicator;
use rsccl::internals::sys::float_mode;
use rsccl::types::{Element, F8E4M3, F8E5M2, bf16, f16};
use rsccl::{Config, ReduceOp, Result, local};

/// Numbers of which some are subnormal, and of which most sums, products and averages have to be rounded.
fn input<T: Narrow>(rank: u32, count: usize) -> Vec<T> {
    let bits = |at: usize| (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7 * rank + 3);
    (0..count).map(|at| if at.is_multiple_of(3) { T::from_low_bits(bits(at) & 3) } else { T::of(bits(at)) }).collect()
}

/// A float type, and how a test makes its values without arithmetic of the thread's mode.
trait Narrow: Element + PartialEq {
    /// The subnormal number of these bits.
    fn from_low_bits(bits: u64) -> Self;
    /// A number near 1 with random digits.
    fn of(random: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! narrow {
    ($($type:ty: $bits:ty, $mantissa:literal, $one:literal, $from:expr, $to:expr;)+) => {$(
        impl Narrow for $type {
            fn from_low_bits(bits: u64) -> Self {
                let from: fn($bits) -> $type = $from;
                from(bits as $bits)
            }

            fn of(random: u64) -> Self {
                let from: fn($bits) -> $type = $from;
                from($one | (random & ((1 << $mantissa) - 1)) as $bits)
            }

            fn bits(self) -> u64 {
                let to: fn($type) -> $bits = $to;
                to(self).into()
            }
        }
    )+};
}

narrow! {
    f64: u64, 52, 0x3ff0_0000_0000_0000, f64::from_bits, f64::to_bits;
    f32: u32, 23, 0x3f80_0000, f32::from_bits, f32::to_bits;
    f16: u16, 10, 0x3c00, f16::from_bits, f16::to_bits;
    bf16: u16, 7, 0x3f80, bf16::from_bits, bf16::to_bits;
    F8E4M3: u8, 3, 0x38, F8E4M3, |value| value.0;
    F8E5M2: u8, 2, 0x3c, F8E5M2, |value| value.0;
}

/// What a rank has after all collectives that reduce, of one type and operator.
fn results<T: Narrow>(comm: &Communicator, count: usize, op: ReduceOp) -> Result<Vec<Vec<u64>>> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let mine: Vec<T> = input(rank, count * size);
    let zero = T::from_low_bits(0);
    let (mut all, mut part, mut prefix) = (mine.clone(), vec![zero; count], vec![zero; count]);
    comm.all_reduce_in_place(&mut all, op)?;
    comm.reduce_scatter(&mine, &mut part, op)?;
    if !matches!(op, ReduceOp::Avg | ReduceOp::PreMulSum(_)) {
        comm.scan(&mine[..count], &mut prefix, op)?;
    }
    let mut rooted = mine.clone();
    comm.reduce_in_place(&mut rooted, op, 0)?;
    rooted.truncate(if rank == 0 { rooted.len() } else { 0 });
    // A request runs on a thread of its own, which begins with the mode of this one.
    let mut asked = vec![zero; count];
    comm.scope(|scope| scope.all_reduce(&mine[..count], &mut asked, op)?.wait())?;
    let bits = |values: Vec<T>| values.into_iter().map(Narrow::bits).collect();
    Ok([all, part, prefix, rooted, asked].into_iter().map(bits).collect())
}

fn every_operator<T: Narrow>(comm: &Communicator, count: usize) -> Result<Vec<Vec<u64>>> {
    let third = ReduceOp::premul_sum(1.0 / 3.0);
    let least = ReduceOp::premul_sum(f32::from_bits(3));
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg, third, least];
    let each: Result<Vec<_>> = ops.into_iter().map(|op| results::<T>(comm, count, op)).collect();
    Ok(each?.concat())
}

fn every_type(comm: &Communicator, counts: &[usize]) -> Result<Vec<Vec<u64>>> {
    let mut all = Vec::new();
    for count in counts {
        all.extend(every_operator::<f64>(comm, *count)?);
        all.extend(every_operator::<f32>(comm, *count)?);
        all.extend(every_operator::<f16>(comm, *count)?);
        all.extend(every_operator::<bf16>(comm, *count)?);
        all.extend(every_operator::<F8E4M3>(comm, *count)?);
        all.extend(every_operator::<F8E5M2>(comm, *count)?);
    }
    Ok(all)
}

/// The results of all ranks, where those of `unusual` compute in another mode than the others.
fn bits_with(config: &Config, ranks: u32, unusual: &[u32], counts: &[usize]) -> Vec<Vec<Vec<u64>>> {
    let config = config.clone().with_reproducible(true).with_timeout(super::TIMEOUT);
    let body = |comm: Communicator| {
        let _mode = unusual.contains(&comm.rank()).then(float_mode::unusual);
        let all = every_type(&comm, counts)?;
        assert_eq!(float_mode::is_standard(), !unusual.contains(&comm.rank()), "calls put the mode back");
        comm.finalize()?;
        Ok(all)
    };
    local::run_with(ranks, &config, body).expect("ranks start and end")
}

#[test]
fn reproducible_bits_do_not_depend_on_the_mode_of_a_thread() {
    let separate = Config::default().with_p2p_disable(true);
    let sockets = separate.clone().with_shm_disable(true);
    for (name, config) in [("threads", Config::default()), ("shared memory", separate), ("sockets", sockets)] {
        for ranks in [1, 3, 4] {
            let counts = [1, 5, 100, 3_000];
            let usual = bits_with(&config, ranks, &[], &counts);
            for unusual in [&[ranks - 1][..], &[0, 1]] {
                let other = bits_with(&config, ranks, unusual, &counts);
                for (rank, (usual, other)) in usual.iter().zip(&other).enumerate() {
                    let wrong = usual.iter().zip(other).position(|(usual, other)| usual != other);
                    assert_eq!(wrong, None, "{name}, {ranks} ranks, {unusual:?} unusual: the result of rank {rank}");
                }
            }
        }
    }
}

/// The mode of a thread must not lead its rank to another algorithm than its peers' either.
#[test]
fn ranks_in_different_modes_choose_alike() {
    for size in [2, 3, 5, 8] {
        let config = Config::default().with_p2p_disable(true).with_shm_disable(true).with_timeout(super::TIMEOUT);
        local::run_with(size, &config, |comm| {
            let _mode = (comm.rank() == 1).then(float_mode::unusual);
            for count in (0..17).map(|power| 1usize << power).flat_map(|count| [count, count * 3 / 2]) {
                let mut values = vec![comm.rank(); count];
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
                assert!(values.iter().all(|value| *value == size * (size - 1) / 2));
            }
            comm.finalize()
        })
        .expect("ranks start and end");
    }
}
