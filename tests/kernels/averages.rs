//! Averages whose sums overflow, of whole sums and of partial results.

use rsccl::ReduceOp;
use rsccl::internals::device::Average;
use rsccl::types::DataType;

use crate::{Case, Random};

/// The bits of the largest number of a type of floats.
fn largest(data_type: DataType) -> u64 {
    match data_type {
        DataType::F16 => 0x7bff,
        DataType::BF16 => 0x7f7f,
        DataType::F32 => 0x7f7f_ffff,
        DataType::F64 => 0x7fef_ffff_ffff_ffff,
        DataType::F8E4M3 => 0x7e,
        DataType::F8E5M2 => 0x7b,
        other => panic!("{other} is no float"),
    }
}

/// Elements whose sums overflow, or are small, with some that are no numbers.
fn far_numbers(data_type: DataType, random: &mut Random, count: usize) -> Vec<u8> {
    let size = data_type.size() as usize;
    let (largest, sign) = (largest(data_type), 1 << (8 * size - 1));
    let mut number = || match random.below(8) {
        0 | 1 => largest,
        2 => largest | sign,
        3 => largest - random.below(50) as u64,
        4 => random.below(50) as u64,
        5 => random.below(50) as u64 | sign,
        6 if random.below(4) == 0 => largest + 1,
        _ => random.next(),
    };
    (0..count).flat_map(|_| number().to_le_bytes().into_iter().take(size)).collect()
}

/// Averages of sums that are no numbers, of scaled shares, and of partial results: the host's bits.
#[test]
fn averages_are_scaled_bounded_and_added_up_again() {
    let mut random = Random(32);
    let parts = |inputs: std::ops::Range<usize>| Average::Parts(inputs.into());
    let ways = [
        (Average::Whole, true),
        (parts(0..9), false),
        (parts(1..2), true),
        (parts(0..1), false),
        (parts(0..0), true),
        (parts(0..0), false),
    ];
    for data_type in DataType::ALL.iter().copied().filter(|data_type| data_type.is_float()) {
        for (average, finish) in ways {
            for (world, sources, count, place) in [(3, 3, 70, 0), (2, 2, 41, 3), (8, 4, 20, 0), (5, 1, 33, 0)] {
                let numbers = |_| (far_numbers(data_type, &mut random, count), place);
                let sources: Vec<(Vec<u8>, usize)> = (0..sources).map(numbers).collect();
                let targets = if place == 0 { vec![Ok(0), Err(0)] } else { vec![Ok(1)] };
                let case = Case::new(data_type, ReduceOp::Avg, Vec::new());
                Case { sources, targets, world, finish, average, ..case }.check((1, 64), true);
            }
        }
    }
}
