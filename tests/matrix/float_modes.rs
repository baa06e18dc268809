//! In reproducible mode the bits do not depend on the floating-point mode of any rank's thread.

use rsccl::comm::Communicator;
use rsccl::internals::sys::float_mode;
use rsccl::{Config, ReduceOp, Result, local};

use super::floats::{FloatBits, of_each_float, ways};

/// Numbers of which some are subnormal, and of which most sums, products and averages have to be rounded.
fn input<T: FloatBits>(rank: u32, count: usize) -> Vec<T> {
    let bits = |at: usize| (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7 * rank + 3);
    // The others are numbers near 1 with random digits.
    let value = |at: usize| if at.is_multiple_of(3) { bits(at) & 3 } else { T::ONE | bits(at) & T::FRACTION };
    (0..count).map(|at| T::of_bits(value(at))).collect()
}

/// What a rank has after all collectives that reduce, of one type and operator.
fn results<T: FloatBits>(comm: &Communicator, count: usize, op: ReduceOp) -> Result<Vec<Vec<u64>>> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let mine: Vec<T> = input(rank, count * size);
    let zero = T::of_bits(0);
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
    let bits = |values: Vec<T>| values.into_iter().map(FloatBits::bits).collect();
    Ok([all, part, prefix, rooted, asked].into_iter().map(bits).collect())
}

fn every_operator<T: FloatBits>(comm: &Communicator, count: usize) -> Result<Vec<Vec<u64>>> {
    let third = ReduceOp::premul_sum(1.0 / 3.0);
    let least = ReduceOp::premul_sum(f32::from_bits(3));
    let ops = [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg, third, least];
    let each: Result<Vec<_>> = ops.into_iter().map(|op| results::<T>(comm, count, op)).collect();
    Ok(each?.concat())
}

fn every_type(comm: &Communicator, counts: &[usize]) -> Result<Vec<Vec<u64>>> {
    let mut all = Vec::new();
    for count in counts {
        all.extend(of_each_float!(every_operator(comm, *count)).concat());
    }
    Ok(all)
}

/// The results of all ranks, where those of `unusual` compute in another mode than the others.
fn bits_with(config: &Config, ranks: u32, unusual: &[u32], counts: &[usize]) -> Vec<Vec<Vec<u64>>> {
    let config = config.clone().with_reproducible(true);
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
    for (name, config) in ways() {
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
        let config = Config::default().with_p2p_disable(true).with_shm_disable(true).with_timeout(crate::TIMEOUT);
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
