//! Sums of floats of 16 bits are rounded where `docs/from-nccl.md` says, and all elements of one call in one way.

use rsccl::comm::Communicator;
use rsccl::types::{Algorithm, bf16, f16};
use rsccl::{Config, ReduceOp, Result, local};

use super::floats::{FloatBits, on_every_path, ways};

/// A float of 16 bits.
trait Half: FloatBits + std::fmt::Debug {
    fn of(number: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Half for f16 {
    fn of(number: f32) -> f16 {
        f16::from_f32(number)
    }

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
}

impl Half for bf16 {
    fn of(number: f32) -> bf16 {
        bf16::from_f32(number)
    }

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

/// Numbers of which sums are rounded, from 1 to 2 and large ones between them, of (rank, index).
fn number<T: Half>(rank: u32, at: usize) -> T {
    let seed = u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let mixed = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
    let scale = if mixed.is_multiple_of(5) { 128.0 } else { 1.0 };
    T::of(scale * T::of_bits(T::ONE | mixed & T::FRACTION).to_f32())
}

/// The sums that a rank gets by each collective that reduces: all of the first, block `rank` of the second.
fn sums<T: Half>(comm: &Communicator, count: usize, input: &dyn Fn(u32, usize) -> T) -> Result<[Vec<T>; 2]> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let mine: Vec<T> = (0..count * size).map(|at| input(rank, at % count)).collect();
    let (mut all, mut part) = (vec![T::of(9.0); count], vec![T::of(9.0); count]);
    comm.all_reduce(&mine[..count], &mut all, ReduceOp::Sum)?;
    comm.reduce_scatter(&mine, &mut part, ReduceOp::Sum)?;
    Ok([all, part])
}

/// All inputs of an element come together: they are added in f32, in the order of ranks, and rounded once.
fn is_rounded_once<T: Half>(comm: &Communicator, path: &str) -> Result<()> {
    let size = comm.size();
    for count in [1, 33, 5000, 20_000] {
        let sum = |at: usize| (0..size).map(|rank| number::<T>(rank, at).to_f32()).reduce(|sum, next| sum + next);
        let expected = |at: usize| T::of(sum(at).expect("a world has ranks")).bits();
        for found in sums::<T>(comm, count, &number)? {
            let wrong = found.iter().enumerate().find(|(at, found)| found.bits() != expected(*at));
            assert_eq!(wrong, None, "{path}, {size} ranks, {count} elements");
        }
    }
    Ok(())
}

#[test]
fn direct_and_reproducible_sums_are_rounded_once() {
    for (way, config) in ways() {
        let direct = config.clone().with_algo(Algorithm::Direct.name());
        for (name, config) in [("reproducible", config.with_reproducible(true)), ("direct", direct)] {
            for ranks in [2, 3, 8, 16, 18] {
                // Without reproducible mode small calls of more ranks go by teams.
                if name == "direct" && ranks > 16 {
                    continue;
                }
                let path = format!("{way}, {name}");
                local::run_with(ranks, &config, |comm| {
                    is_rounded_once::<f16>(&comm, &path)?;
                    is_rounded_once::<bf16>(&comm, &path)?;
                    comm.finalize()
                })
                .unwrap_or_else(|error| panic!("{path}, {ranks} ranks: {error}"));
            }
        }
    }
    let config = Config::default().with_socket_interfaces("lo").with_timeout(crate::TIMEOUT).with_reproducible(true);
    for hosts in [&[0, 0, 1, 1][..], &[0, 0, 0, 1, 1], &[0, 1, 2]] {
        let body = |comm: Communicator| {
            is_rounded_once::<bf16>(&comm, "hosts")?;
            comm.finalize()
        };
        crate::on_hosts(hosts, &config, body).unwrap_or_else(|error| panic!("{hosts:?}: {error}"));
    }
}

/// What the test above compares tells rounding once from rounding at each rank, as a ring does it.
#[test]
fn a_ring_rounds_at_each_rank() {
    let config = Config::default().with_timeout(crate::TIMEOUT).with_p2p_disable(true).with_shm_disable(true);
    local::run_with(8, &config.with_algo(Algorithm::Ring.name()).with_proto("Simple"), |comm| {
        let mine: Vec<bf16> = (0..5000).map(|at| number(comm.rank(), at)).collect();
        let mut found = mine.clone();
        comm.all_reduce(&mine, &mut found, ReduceOp::Sum)?;
        let once = |at: usize| (0..8).map(|rank| number::<bf16>(rank, at).to_f32()).sum::<f32>();
        let others = found.iter().enumerate().filter(|(at, found)| **found != bf16::from_f32(once(*at))).count();
        assert!(others > 0, "a ring rounds once");
        comm.finalize()
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// Where all ranks give one number, the order of ranks changes nothing: elements that were rounded in another way than
/// others of their call have other bits.
fn is_rounded_alike<T: Half>(comm: &Communicator, path: &str) -> Result<()> {
    let size = comm.size();
    for count in [1, 7, 33, 700, 5000, 20_000] {
        for bits in [T::ONE | 1, T::ONE | (T::FRACTION >> 1), T::ONE | T::FRACTION] {
            let one = T::of_bits(bits);
            for found in sums::<T>(comm, count, &|_, _| one)? {
                let path = format!("{path}, {size} ranks, {count} elements of {bits:x}");
                let other = found.iter().position(|element| element.bits() != found[0].bits());
                assert_eq!(other, None, "{path}: {:?} and {:?}", found[0], found[other.unwrap_or(0)]);
                // Each of the ranks rounds by half a place of the sum at most.
                let (found, sum) = (found[0].to_f32(), one.to_f32() * size as f32);
                let slack = sum * size as f32 / (T::FRACTION + 1) as f32;
                assert!((found - sum).abs() <= slack, "{path}: {found}, not {sum}");
            }
        }
    }
    Ok(())
}

#[test]
fn all_elements_of_a_call_are_rounded_in_one_way() {
    let both = |comm: &Communicator, path: &str| {
        is_rounded_alike::<f16>(comm, path)?;
        is_rounded_alike::<bf16>(comm, path)
    };
    on_every_path(&[Algorithm::Ring, Algorithm::Tree, Algorithm::Direct], &[2, 3, 5, 8], both);
    let config = Config::default().with_socket_interfaces("lo").with_timeout(crate::TIMEOUT);
    for algorithm in [None, Some(Algorithm::Ring), Some(Algorithm::Tree)] {
        let config = match algorithm {
            None => config.clone(),
            Some(algorithm) => config.clone().with_algo(algorithm.name()),
        };
        for hosts in [&[0, 0, 1, 1][..], &[0, 0, 0, 1, 1, 1], &[0, 1, 2, 3]] {
            let path = format!("hosts {hosts:?}, {algorithm:?}");
            let body = |comm: Communicator| {
                both(&comm, &path)?;
                comm.finalize()
            };
            crate::on_hosts(hosts, &config, body).unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    }
}

/// Scans of one number at each rank, of less and more than goes in one piece: all elements of a rank's output have one
/// value, within half a place of the sum for each rank that may have rounded.
fn scans_are_rounded_alike<T: Half>(comm: &Communicator, path: &str) -> Result<()> {
    for count in [1, 33, 5000, 140_001] {
        for bits in [T::ONE | 1, T::ONE | T::FRACTION] {
            let mine = vec![T::of_bits(bits); count];
            let (mut up_to_mine, mut before_mine) = (mine.clone(), mine.clone());
            comm.scan(&mine, &mut up_to_mine, ReduceOp::Sum)?;
            comm.exscan(&mine, &mut before_mine, ReduceOp::Sum)?;
            for (found, inputs) in [(up_to_mine, comm.rank() + 1), (before_mine, comm.rank().max(1))] {
                let path = format!("{path}, rank {} of {}, {count} elements of {bits:x}", comm.rank(), comm.size());
                let other = found.iter().position(|element| element.bits() != found[0].bits());
                assert_eq!(other, None, "{path}: {:?} and {:?}", found[0], found[other.unwrap_or(0)]);
                let (found, sum) = (found[0].to_f32(), mine[0].to_f32() * inputs as f32);
                let slack = sum * inputs as f32 / (T::FRACTION + 1) as f32;
                assert!((found - sum).abs() <= slack, "{path}: {found}, not {sum}");
            }
        }
    }
    Ok(())
}

#[test]
fn all_elements_of_a_scan_are_rounded_in_one_way() {
    for (way, config) in ways() {
        for (reproducible, ranks) in [(false, 3), (false, 5), (true, 3), (true, 8)] {
            let path = format!("{way}, reproducible: {reproducible}");
            local::run_with(ranks, &config.clone().with_reproducible(reproducible), |comm| {
                scans_are_rounded_alike::<f16>(&comm, &path)?;
                scans_are_rounded_alike::<bf16>(&comm, &path)?;
                comm.finalize()
            })
            .unwrap_or_else(|error| panic!("{path}, {ranks} ranks: {error}"));
        }
    }
}

/// A host of several ranks adds in 32 bits: in 16, each 1 that is added to 256 is lost.
#[test]
fn ranks_of_a_host_add_up_in_32_bits_between_hosts_too() {
    let config = Config::default().with_socket_interfaces("lo").with_timeout(crate::TIMEOUT);
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let config = config.clone().with_algo(algorithm.name());
        let body = |comm: Communicator| {
            let input = |rank: u32, _: usize| bf16::from_f32(if rank.is_multiple_of(4) { 256.0 } else { 1.0 });
            for count in [4, 700, 20_000] {
                let [all, part] = sums::<bf16>(&comm, count, &input)?;
                // A tree does no `reduce_scatter`.
                let part = (algorithm == Algorithm::Ring).then_some(part);
                for found in std::iter::once(all).chain(part) {
                    // 259 of the one host is rounded to 260, and 260 + 259 to 520.
                    let wrong = found.iter().position(|found| found.to_f32().to_bits() != 520_f32.to_bits());
                    assert_eq!(wrong, None, "{algorithm:?}, {count} elements: {:?}", found[wrong.unwrap_or(0)]);
                }
            }
            comm.finalize()
        };
        crate::on_hosts(&[0, 0, 0, 0, 1, 1, 1, 1], &config, body).unwrap_or_else(|error| panic!("{error}"));
    }
}
