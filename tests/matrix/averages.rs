//! Averages are finite where the average is, on every path, and all ranks have the same bits.

use std::collections::HashMap;
use std::sync::Mutex;

use rsccl::comm::Communicator;
use rsccl::types::{Algorithm, F8E4M3, F8E5M2, bf16, f16};
use rsccl::{Config, ReduceOp, Result, local};

use super::floats::{FloatBits, Memory, of_each_float, on_every_path, ways};

/// A float type with the largest number that it has.
trait Large: FloatBits + std::fmt::Debug {
    const LARGEST: Self;
    /// Half of a place of numbers from 2 to 4.
    const PLACE: f64;
    fn minus(self) -> Self;
    fn of(number: f32) -> Self;
    fn as_f64(self) -> f64;
}

macro_rules! large {
    ($($type:ty: $largest:expr, $minus:expr, $of:expr, $as:expr;)+) => {$(
        impl Large for $type {
            const LARGEST: $type = $largest;
            const PLACE: f64 = 1.0 / (Self::FRACTION + 1) as f64;

            fn minus(self) -> $type {
                let minus: fn($type) -> $type = $minus;
                minus(self)
            }

            fn of(number: f32) -> $type {
                let of: fn(f32) -> $type = $of;
                of(number)
            }

            fn as_f64(self) -> f64 {
                let number: fn($type) -> f64 = $as;
                number(self)
            }
        }
    )+};
}

large! {
    f64: f64::MAX, |x| -x, f64::from, |x| x;
    f32: f32::MAX, |x| -x, |x| x, f64::from;
    f16: f16::MAX, |x| -x, f16::from_f32, f64::from;
    bf16: bf16::MAX, |x| -x, bf16::from_f32, f64::from;
    F8E4M3: F8E4M3::MAX, |x| F8E4M3(x.0 ^ 0x80), F8E4M3::from_f32, |x| x.to_f32().into();
    F8E5M2: F8E5M2::MAX, |x| F8E5M2(x.0 ^ 0x80), F8E5M2::from_f32, |x| x.to_f32().into();
}

/// What the first rank that ran a case has got, by the words for the case: every other rank has the same bits.
#[derive(Default)]
pub(crate) struct Agreed(Mutex<HashMap<String, Vec<u64>>>);

impl Agreed {
    fn hold<T: Large>(&self, case: String, found: &[T]) {
        let bits: Vec<u64> = found.iter().map(|element| element.bits()).collect();
        let mut agreed = self.0.lock().expect("no rank panics");
        let first = agreed.entry(case.clone()).or_insert_with(|| bits.clone());
        let differs = first.iter().zip(&bits).position(|(one, other)| one != other);
        assert_eq!(differs.map(|at| (at, first[at], bits[at])), None, "{case}: two ranks differ");
    }
}

/// What ranks average: by its words, and the numbers of (rank, index).
struct Inputs<'a, T> {
    words: &'a str,
    of: &'a dyn Fn(u32, usize) -> T,
}

/// The averages that a rank gets, by each collective that has them. All ranks have the same bits where they get the
/// same elements, in place or not.
fn averages<T: Large>(
    comm: &Communicator,
    (count, path): (usize, &str),
    inputs: &Inputs<'_, T>,
    agreed: &Agreed,
) -> Result<Vec<Vec<T>>> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let mine: Vec<T> = (0..count * size).map(|at| (inputs.of)(rank, at % count)).collect();
    let (mut all, mut in_place) = (vec![T::of(9.0); count], mine[..count].to_vec());
    let (mut part, mut rooted) = (vec![T::of(9.0); count], mine[..count].to_vec());
    comm.all_reduce(&mine[..count], &mut all, ReduceOp::Avg)?;
    comm.all_reduce_in_place(&mut in_place, ReduceOp::Avg)?;
    comm.reduce_scatter(&mine, &mut part, ReduceOp::Avg)?;
    comm.reduce_in_place(&mut rooted, ReduceOp::Avg, 0)?;
    let case = format!("{path}, {count} {} of {size} ranks, {}", std::any::type_name::<T>(), inputs.words);
    for found in [&all, &in_place] {
        agreed.hold(case.clone(), found);
    }
    let mut found = vec![all, in_place, part];
    found.extend((rank == 0).then_some(rooted));
    Ok(found)
}

/// Numbers that look random, from 1 to 2 with either sign, of (rank, index).
fn mixed(rank: u32, at: usize) -> f32 {
    let seed = u64::from(rank).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at as u64).wrapping_mul(0xd1b5_4a32_d192_ed03);
    let random = (seed ^ (seed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let size = 1.0 + (random >> 40) as f32 / (1 << 24) as f32;
    if random & 1 == 0 { size } else { -size }
}

fn check<T: Large>(comm: &Communicator, count: usize, path: &str, agreed: &Agreed) -> Result<()> {
    let size = comm.size();
    let what = format!("{path}, {count} {} of {size} ranks", std::any::type_name::<T>());
    let averages = |inputs: &Inputs<'_, T>| averages(comm, (count, path), inputs, agreed);
    let largest = |_: u32, at: usize| largest(at);
    for found in averages(&Inputs { words: "the largest", of: &largest })? {
        must_be_large(&found, &what);
    }
    // Small integers of which every partial sum is a number of the type: exact.
    let average = |at: usize| (1 + (at + count) % 2) as f32;
    let one_gives = |rank: u32, at: usize| T::of(if rank + 1 == size { average(at) * size as f32 } else { 0.0 });
    let all_give = |rank: u32, at: usize| {
        let odd = size % 2 == 1 && rank + 1 == size;
        T::of(average(at) + if odd { 0.0 } else { [-1.0, 1.0][rank as usize % 2] })
    };
    let is_wide = size_of::<T>() > 1;
    let one_gives = Inputs { words: "one gives", of: &one_gives };
    let all_give = Inputs { words: "all give", of: &all_give };
    for (is_exact, inputs) in [(is_wide || size <= 8, one_gives), (is_wide, all_give)] {
        for found in if is_exact { averages(&inputs)? } else { Vec::new() } {
            let wrong = found.iter().enumerate().find(|(at, found)| **found != T::of(average(*at)));
            assert_eq!(wrong, None, "{what}: {}", inputs.words);
        }
    }
    // Numbers that every way rounds, so that one rank that adds up otherwise than another has other bits.
    let rounded = |rank: u32, at: usize| T::of(mixed(rank, at));
    for found in averages(&Inputs { words: "mixed", of: &rounded })? {
        must_be_near(&found, size, &what);
    }
    Ok(())
}

/// All equal and as large as can be; with either sign.
fn largest<T: Large>(at: usize) -> T {
    if at.is_multiple_of(2) { T::LARGEST } else { T::LARGEST.minus() }
}

/// Holds the averages of [`largest`].
fn must_be_large<T: Large>(found: &[T], what: &str) {
    for (at, average) in found.iter().enumerate() {
        let (average, expected) = (average.as_f64(), largest::<T>(at).as_f64());
        assert!(average.is_finite(), "{what}: {average} at {at}");
        let ratio = average / expected;
        // Sums of 8-bit floats saturate on their way.
        let least = if size_of::<T>() == 1 { 0.1 } else { 0.95 };
        assert!((least..=1.0).contains(&ratio), "{what}: {average} at {at}, not {expected}");
    }
}

/// Holds the averages of [`mixed`] numbers.
fn must_be_near<T: Large>(found: &[T], size: u32, what: &str) {
    let sum = |at: usize| (0..size).map(|rank| T::of(mixed(rank, at)).as_f64()).sum::<f64>();
    // Half a place of the largest sum that there can be, at each of the ranks.
    let slack = f64::from(size) * T::PLACE;
    for (at, found) in found.iter().enumerate() {
        let expected = sum(at) / f64::from(size);
        assert!((found.as_f64() - expected).abs() <= slack, "{what}: {found:?} at {at}, not {expected}");
    }
}

/// The same in other memory, by fewer calls.
fn check_in<T: Large>(
    (comm, memory): (&Communicator, &Memory),
    count: usize,
    path: &str,
    agreed: &Agreed,
) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let what = format!("{path}, {count} {} of {size} ranks", std::any::type_name::<T>());
    let mine: Vec<T> = (0..count * size as usize).map(|at| largest(at % count)).collect();
    must_be_large(&memory.reduce_scatter(comm, &mine, ReduceOp::Avg)?, &what);
    must_be_large(&memory.in_place(comm, &mine[..count], (ReduceOp::Avg, None))?, &what);
    let mine: Vec<T> = (0..count).map(|at| T::of(mixed(rank, at))).collect();
    let found = memory.all_reduce(comm, &mine, ReduceOp::Avg)?;
    agreed.hold(format!("{what}, mixed"), &found);
    must_be_near(&found, size, &what);
    Ok(())
}

/// Averages of every type of floats, and of the smallest numbers of f16, in this memory.
pub(crate) fn averages_in(
    place: (&Communicator, &Memory),
    counts: &[usize],
    (path, agreed): (&str, &Agreed),
) -> Result<()> {
    for count in counts.iter().copied() {
        of_each_float!(check_in(place, count, path, agreed));
    }
    // Subnormal numbers of which every rank has a whole share, so that nothing is lost to the scale.
    let (comm, memory) = place;
    let tiny = |at: usize| f16::of_bits(u64::from(comm.size().next_power_of_two()) * (1 + at as u64 % 7));
    let mine: Vec<f16> = (0..counts[0] + 60).map(tiny).collect();
    let found = memory.in_place(comm, &mine, (ReduceOp::Avg, Some(0)))?;
    assert!(comm.rank() != 0 || found == mine, "{path}: subnormal numbers of f16 are {found:?}, not {mine:?}");
    Ok(())
}

/// The comparison of ranks sees one bit.
#[test]
fn two_ranks_that_differ_are_told() {
    let agreed = Agreed::default();
    agreed.hold("case".to_owned(), &[1.0_f32, 2.0]);
    agreed.hold("case".to_owned(), &[1.0_f32, 2.0]);
    agreed.hold("another case".to_owned(), &[3.0_f32]);
    let differs = [1.0, f32::from_bits(2_f32.to_bits() + 1)];
    let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| agreed.hold("case".to_owned(), &differs)));
    assert!(told.is_err());
}

fn every_type(comm: &Communicator, path: &str, agreed: &Agreed) -> Result<()> {
    for count in [1, 5, 700] {
        of_each_float!(check(comm, count, path, agreed));
    }
    // Several pieces, and more than a fold leaves to one store.
    check::<f16>(comm, 20_000, path, agreed)?;
    check::<f32>(comm, 20_000, path, agreed)
}

/// Regression: f16 of the largest number was itself directly, and infinite by ring and tree; bf16 and f32 were infinite.
#[test]
fn averages_are_finite_by_every_path() {
    let agreed = Agreed::default();
    on_every_path(&[Algorithm::Ring, Algorithm::Tree, Algorithm::Direct], &[2, 3, 4, 8], |comm, path| {
        every_type(comm, path, &agreed)
    });
}

/// Hosts of several ranks: teams work in each other's memory, and partial results go along rails.
#[test]
fn averages_are_finite_between_hosts_and_in_teams() {
    let config = Config::default().with_socket_interfaces("lo").with_timeout(crate::TIMEOUT);
    let agreed = Agreed::default();
    for hosts in [&[0, 0, 1, 1][..], &[0, 0, 0, 1, 1], &[0, 1, 2]] {
        let path = format!("hosts {hosts:?}");
        let body = |comm: Communicator| {
            every_type(&comm, &path, &agreed)?;
            comm.finalize()
        };
        crate::on_hosts(hosts, &config, body).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    // Flat slots of a host with more than 16 ranks are reduced in teams.
    let config = Config::default().with_timeout(crate::TIMEOUT);
    local::run_with(40, &config, |comm| {
        check::<f32>(&comm, 1, "40 ranks", &agreed)?;
        check::<f16>(&comm, 5, "40 ranks", &agreed)?;
        check::<bf16>(&comm, 40, "40 ranks", &agreed)?;
        comm.finalize()
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// The average of `1 + rank + at % 5` by `all_reduce`, which every partial sum in f32 has exactly.
fn ascending(comm: &Communicator, count: usize, path: &str) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let mine: Vec<f32> = (0..count).map(|at| (1 + rank) as f32 + (at % 5) as f32).collect();
    let mut found = vec![0.0; count];
    comm.all_reduce(&mine, &mut found, ReduceOp::Avg)?;
    let average = |at: usize| (size + 1) as f32 / 2.0 + (at % 5) as f32;
    let wrong = found.iter().enumerate().find(|(at, found)| **found != average(*at));
    assert_eq!(wrong, None, "{path}, {count} elements: rank {rank} of {size}, not {}", average(0));
    Ok(())
}

/// Regression: from the 129th rank on, direct and reproducible averages did not scale a rank's own input.
#[test]
fn averages_of_a_host_of_130_ranks() {
    let config = Config::default().with_timeout(crate::TIMEOUT);
    let forced = |algorithm: Algorithm| config.clone().with_algo(algorithm.name()).with_proto("Simple");
    let configs = [
        ("reproducible", config.clone().with_reproducible(true)),
        ("direct", forced(Algorithm::Direct)),
        ("ring", forced(Algorithm::Ring)),
    ];
    for (path, config) in configs {
        local::run_with(130, &config, |comm| {
            [3, 5000].into_iter().try_for_each(|count| ascending(&comm, count, path))?;
            comm.finalize()
        })
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Regression: a mask had 128 bits for the inputs that meet in a step, and a team may be larger.
#[test]
fn averages_of_a_team_of_130_ranks() {
    let hosts: Vec<u32> = (0..131).map(|rank| u32::from(rank == 130)).collect();
    for (algorithm, disables) in [(Algorithm::Ring, true), (Algorithm::Tree, false)] {
        let config = Config::default().with_socket_interfaces("lo").with_timeout(crate::TIMEOUT);
        let config = config.with_team_ranks(130).with_algo(algorithm.name()).with_p2p_disable(disables);
        let body = |comm: Communicator| {
            [3, 500].into_iter().try_for_each(|count| ascending(&comm, count, algorithm.name()))?;
            comm.finalize()
        };
        crate::on_hosts(&hosts, &config, body).unwrap_or_else(|error| panic!("{algorithm:?}: {error}"));
    }
}

/// The other collectives of large groups, each of which has averages that are exact.
#[test]
fn averages_of_large_groups_by_other_calls() {
    let config = Config::default().with_timeout(crate::TIMEOUT);
    let direct = config.clone().with_p2p_disable(true).with_algo(Algorithm::Direct.name()).with_proto("Simple");
    local::run_with(150, &direct, |comm| {
        let (rank, size) = (comm.rank() as usize, comm.size() as usize);
        let mine: Vec<f32> = (0..40 * size).map(|at| (rank + at / 40 + at % 5) as f32).collect();
        let mut part = [0.0; 40];
        comm.reduce_scatter(&mine, &mut part, ReduceOp::Avg)?;
        let average = |at: usize| (size - 1) as f32 / 2.0 + (rank + at % 5) as f32;
        let wrong = part.iter().enumerate().find(|(at, found)| **found != average(*at));
        assert_eq!(wrong, None, "rank {rank}");
        comm.finalize()
    })
    .unwrap_or_else(|error| panic!("reduce_scatter: {error}"));
    local::run_with(150, &config.clone().with_reproducible(true), |comm| {
        for count in [3, 9000] {
            let mine: Vec<bf16> = (0..100).cycle().take(count).map(|at| bf16::from_bits(0x3f81 + at)).collect();
            let mut found = mine.clone();
            comm.reduce_in_place(&mut found, ReduceOp::Avg, 149)?;
            assert!(comm.rank() != 149 || found == mine, "{count} elements");
        }
        comm.finalize()
    })
    .unwrap_or_else(|error| panic!("reduce: {error}"));
    // Of f16 the smallest number of which 64 ranks have a share.
    let ring = config.with_algo(Algorithm::Ring.name()).with_proto("Simple");
    local::run_with(64, &ring.with_p2p_disable(true).with_shm_disable(true), |comm| {
        let smallest = f16::from_f32(f32::powi(2.0, 6 - 24));
        let mut found = vec![smallest; 500];
        comm.all_reduce_in_place(&mut found, ReduceOp::Avg)?;
        assert!(found.iter().all(|found| *found == smallest), "{:?}, not {smallest}", found[0]);
        comm.finalize()
    })
    .unwrap_or_else(|error| panic!("ring: {error}"));
}

/// Small numbers of a type, whose bits show whether they were scaled before they were added.
fn small_numbers<T: Large>(comm: &Communicator, count: usize) -> Result<Vec<u64>> {
    let tiny = |at: usize| T::of_bits(1 + ((u64::from(comm.rank()) * 7 + at as u64 * 13) % 200));
    let mine: Vec<T> = (0..count).map(tiny).collect();
    let mut found = mine.clone();
    comm.all_reduce(&mine, &mut found, ReduceOp::Avg)?;
    Ok(found.into_iter().map(T::bits).collect())
}

/// Regression: on a host of more than 64 ranks, long averages were scaled in reproducible mode, and short ones were
/// not.
#[test]
fn reproducible_averages_have_the_bits_of_every_size() {
    const SIZES: [usize; 3] = [50, 6000, 20_000];
    for (path, config) in ways().into_iter().filter(|(path, _)| *path != "sockets") {
        local::run_with(70, &config.with_reproducible(true), |comm| {
            let of_types = |count| Ok([small_numbers::<f16>(&comm, count)?, small_numbers::<f32>(&comm, count)?]);
            let found: Vec<[Vec<u64>; 2]> = SIZES.into_iter().map(of_types).collect::<Result<_>>()?;
            for (longer, size) in found[1..].iter().zip(&SIZES[1..]) {
                for (short, long) in found[0].iter().zip(longer) {
                    assert_eq!(short[..], long[..SIZES[0]], "{path}: {size} elements");
                }
            }
            comm.finalize()
        })
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}
