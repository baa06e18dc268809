//! Averages are finite where the average is, on every path, and all ranks have the same bits.

use rsccl::comm::Communicator;
use rsccl::types::{Algorithm, Element, F8E4M3, F8E5M2, bf16, f16};
use rsccl::{Config, ReduceOp, Result, local};

use super::floats::{of_each_float, on_every_path};

/// A float type with the largest number that it has.
trait Large: Element + PartialEq + std::fmt::Debug {
    const LARGEST: Self;
    fn minus(self) -> Self;
    fn of(number: f32) -> Self;
    fn as_f64(self) -> f64;
}

macro_rules! large {
    ($($type:ty: $largest:expr, $minus:expr, $of:expr, $as:expr;)+) => {$(
        impl Large for $type {
            const LARGEST: $type = $largest;

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

/// The averages that a rank gets, by each collective that has them, of inputs that `input` makes for (rank, index).
fn averages<T: Large>(comm: &Communicator, count: usize, input: impl Fn(u32, usize) -> T) -> Result<Vec<Vec<T>>> {
    let (rank, size) = (comm.rank(), comm.size() as usize);
    let mine: Vec<T> = (0..count * size).map(|at| input(rank, at % count)).collect();
    let (mut all, mut in_place) = (vec![T::of(9.0); count], mine[..count].to_vec());
    let (mut part, mut rooted) = (vec![T::of(9.0); count], mine[..count].to_vec());
    comm.all_reduce(&mine[..count], &mut all, ReduceOp::Avg)?;
    comm.all_reduce_in_place(&mut in_place, ReduceOp::Avg)?;
    comm.reduce_scatter(&mine, &mut part, ReduceOp::Avg)?;
    comm.reduce_in_place(&mut rooted, ReduceOp::Avg, 0)?;
    let mut found = vec![all, in_place, part];
    found.extend((rank == 0).then_some(rooted));
    Ok(found)
}

fn check<T: Large>(comm: &Communicator, count: usize, path: &str) -> Result<()> {
    let what = format!("{path}, {count} {} of {} ranks", std::any::type_name::<T>(), comm.size());
    // All equal and as large as can be; with either sign.
    let largest = |_: u32, at: usize| if at.is_multiple_of(2) { T::LARGEST } else { T::LARGEST.minus() };
    for found in averages(comm, count, largest)? {
        for (at, average) in found.iter().enumerate() {
            let (average, expected) = (average.as_f64(), largest(0, at).as_f64());
            assert!(average.is_finite(), "{what}: {average} at {at}");
            let ratio = average / expected;
            // Sums of 8-bit floats saturate on their way.
            let least = if size_of::<T>() == 1 { 0.1 } else { 0.95 };
            assert!((least..=1.0).contains(&ratio), "{what}: {average} at {at}, not {expected}");
        }
    }
    // Small integers: exact.
    let size = comm.size();
    let small = |rank: u32, at: usize| T::of(if rank + 1 == size { (at % 3) as f32 * size as f32 } else { 0.0 });
    let average = |at: usize| T::of((at % 3) as f32);
    if f64::from(size) * 2.0 <= 16.0 {
        for found in averages(comm, count, small)? {
            let wrong = found.iter().enumerate().find(|(at, found)| **found != average(*at));
            assert_eq!(wrong, None, "{what}");
        }
    }
    Ok(())
}

fn every_type(comm: &Communicator, path: &str) -> Result<()> {
    for count in [1, 5, 700] {
        of_each_float!(check(comm, count, path));
    }
    // Several pieces, and more than a fold leaves to one store.
    check::<f16>(comm, 20_000, path)?;
    check::<f32>(comm, 20_000, path)
}

/// Regression: f16 of the largest number was itself directly, and infinite by ring and tree; bf16 and f32 were infinite.
#[test]
fn averages_are_finite_by_every_path() {
    on_every_path(&[Algorithm::Ring, Algorithm::Tree, Algorithm::Direct], &[2, 3, 4, 8], every_type);
}

/// Hosts of several ranks: teams work in each other's memory, and partial results go along rails.
#[test]
fn averages_are_finite_between_hosts_and_in_teams() {
    let config = Config::default().with_socket_interfaces("lo").with_timeout(super::TIMEOUT);
    for hosts in [&[0, 0, 1, 1][..], &[0, 0, 0, 1, 1], &[0, 1, 2]] {
        let path = format!("hosts {hosts:?}");
        let body = |comm: Communicator| {
            every_type(&comm, &path)?;
            comm.finalize()
        };
        super::on_hosts(hosts, &config, body).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    // Flat slots of a host with more than 16 ranks are reduced in teams.
    let config = Config::default().with_timeout(super::TIMEOUT);
    local::run_with(40, &config, |comm| {
        check::<f32>(&comm, 1, "40 ranks")?;
        check::<f16>(&comm, 5, "40 ranks")?;
        check::<bf16>(&comm, 40, "40 ranks")?;
        comm.finalize()
    })
    .unwrap_or_else(|error| panic!("{error}"));
}
