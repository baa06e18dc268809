//! Scans and exscans of more elements than go at a time: all are right, and in reproducible mode the inputs are folded in
//! an order that depends on the ranks alone, and not on the count, the place in the buffer or whether input and output
//! are one.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use rsccl::error::Kind;
use rsccl::{Communicator, Config, ReduceOp, Result, local};

/// Sums of these depend on their order, unless they are `whole`.
fn input(rank: u32, count: usize, whole: bool) -> Vec<f32> {
    let value = |place: u32| {
        let bits = place.wrapping_mul(2_654_435_761).wrapping_add(rank.wrapping_mul(40_503));
        if whole { f32::from(bits.to_le_bytes()[0]) } else { f32::from_bits(0x3000_0000 + (bits >> 4)) }
    };
    (0..).map(value).take(count).collect()
}

/// The sums of all ranks by doubling, element by element: what rank r holds of its last d inputs goes to rank r + d, and
/// is added before what that holds.
fn expected(size: u32, (count, whole): (usize, bool), exclusive: bool) -> Vec<Vec<f32>> {
    let mut known: Vec<Vec<f32>> = (0..size).map(|rank| input(rank, count, whole)).collect();
    let mut sums: Vec<Option<Vec<f32>>> = known.iter().map(|own| (!exclusive).then(|| own.clone())).collect();
    let add = |theirs: &[f32], own: &[f32]| theirs.iter().zip(own).map(|(a, b)| a + b).collect::<Vec<f32>>();
    let mut distance = 1;
    while distance < size as usize {
        let sent = known.clone();
        for rank in distance..size as usize {
            let theirs = &sent[rank - distance];
            sums[rank] = Some(sums[rank].as_ref().map_or_else(|| theirs.clone(), |own| add(theirs, own)));
            known[rank] = add(theirs, &known[rank]);
        }
        distance *= 2;
    }
    sums.into_iter().map(Option::unwrap_or_default).collect()
}

fn check(comm: &Communicator, (count, whole): (usize, bool), exclusive: bool) -> Result<()> {
    let (mine, mut out) = (input(comm.rank(), count, whole), vec![0.0; count]);
    let mut in_place = mine.clone();
    if exclusive {
        comm.exscan(&mine, &mut out, ReduceOp::Sum)?;
        comm.exscan_in_place(&mut in_place, ReduceOp::Sum)?;
    } else {
        comm.scan(&mine, &mut out, ReduceOp::Sum)?;
        comm.scan_in_place(&mut in_place, ReduceOp::Sum)?;
    }
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    let sums = &expected(comm.size(), (count, whole), exclusive)[comm.rank() as usize];
    if exclusive && comm.rank() == 0 {
        // Its output is left as it was.
        assert!(out.iter().all(|value| value.to_bits() == 0) && bits(&in_place) == bits(&mine));
    } else {
        assert!(bits(&out) == bits(sums), "rank {} of {}, {count} elements", comm.rank(), comm.size());
        assert!(bits(&in_place) == bits(sums), "rank {} of {}, {count} in place", comm.rank(), comm.size());
    }
    Ok(())
}

#[test]
fn long_scans_are_right_and_reproducible_ones_have_the_bits_of_short_ones() {
    for (size, reproducible) in [(2, false), (2, true), (3, false), (3, true), (5, false), (5, true)] {
        let config = Config::default().with_reproducible(reproducible);
        local::run_with(size, &config, |comm| {
            // Around the ends of pieces of any power of two up to 1 MiB, and some in the middle.
            for count in [1, 777, 65_535, 65_536, 65_537, 131_072, 200_003, 262_145, 600_001] {
                // Two ranks have no choice of order.
                let whole = !reproducible && size > 2;
                check(&comm, (count, whole), false)?;
                check(&comm, (count, whole), true)?;
            }
            Ok(())
        })
        .unwrap();
    }
}

/// The pieces of two scans may be alike up to the end of the shorter one.
#[test]
fn scans_of_different_lengths_are_a_mismatch() {
    // Of 3 and 5 ranks the longer ones go along a chain, in which the odd one stands first, in the middle and last.
    for (size, odd) in [(2, 0), (3, 0), (3, 1), (3, 2), (5, 2), (5, 4)] {
        for (short, long) in [(262_144, 524_288), (65_536, 1 << 20), (1 << 20, (1 << 20) + 1)] {
            for exclusive in [false, true] {
                let failed = local::run(size, |comm| {
                    let count = if comm.rank() == odd { short } else { long };
                    let mut values = vec![1.0f32; count];
                    match exclusive {
                        true => comm.exscan_in_place(&mut values, ReduceOp::Sum),
                        false => comm.scan_in_place(&mut values, ReduceOp::Sum),
                    }?;
                    // A rank from which nobody takes anything finds it by the next call.
                    comm.barrier()
                });
                let error = failed.unwrap_err();
                let (case, words) = (format!("{size} ranks, rank {odd}, {short} and {long}"), error.message());
                assert_eq!(error.kind(), Kind::Mismatch, "{case}: {error}");
                let named = words.contains(&short.to_string()) && words.contains(&long.to_string());
                assert!(named, "{case}: {error}");
            }
        }
    }
}
