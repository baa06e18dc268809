//! Elements whose reductions are exact in every order.
//!
//! Every partial result of any subset of ranks must be a number of the type, because a ring rounds what it passes on:
//!
//! - `sum`, `avg`, `mulsum`: all ranks share a random exponent for an index; their mantissas are integers whose sum
//!   fits the type's mantissa. If the mantissa has no room for all ranks, the others contribute 0; which ranks these are
//!   differs from index to index.
//! - `prod`: powers of two whose exponents together stay in range, and at each index one rank with a full mantissa.
//! - `min`, `max`: any numbers; integers: any bits, because integers wrap.
//! - no operator: any bits, NaN included.

use rsccl::Element;
use rsccl::types::{F8E4M3, F8E5M2, bf16, f16};

use super::op::{Op, factor};

/// An element that can be drawn at random and reduced without the library under test.
pub trait Sample: Element {
    /// Its bits, in the low end.
    fn bits(self) -> u64;

    /// The element with these bits; those beyond its width are cut off.
    fn of_bits(bits: u64) -> Self;

    /// An input.
    fn draw(op: Option<Op>, dice: &Dice) -> Self;

    /// The reduction of the inputs of all ranks, in rank order; there is at least one.
    fn reduce(op: Op, inputs: impl Iterator<Item = Self>) -> Self;
}

/// The luck of one rank at one index.
#[derive(Debug)]
pub struct Dice {
    shared: u64,
    own: u64,
    rank: u32,
    world: u32,
}

impl Dice {
    /// The luck of `rank` of `world` at `index`.
    pub fn new(seed: u64, (rank, world): (u32, u32), index: u64) -> Dice {
        let shared = mix(seed ^ mix(index));
        Dice { shared, own: mix(shared ^ mix(u64::from(rank) + 1)), rank, world }
    }

    /// A number that is the same on all ranks; `throw` tells one from the next.
    fn shared(&self, throw: u64) -> u64 {
        mix(self.shared.wrapping_add(throw))
    }

    /// A number of this rank's own.
    fn own(&self, throw: u64) -> u64 {
        mix(self.own.wrapping_add(throw))
    }

    /// A whole number of this rank's own; the magnitudes of all ranks' together are at most `budget`.
    fn share(&self, budget: u64) -> i64 {
        let world = u64::from(self.world);
        let each = budget / world;
        if each > 0 {
            return (self.own(1) % (2 * each + 1)).cast_signed() - each.cast_signed();
        }
        let turn = (u64::from(self.rank) + self.shared(2) % world) % world;
        let unit = if self.own(3).is_multiple_of(2) { 1 } else { -1 };
        if turn < budget { unit } else { 0 }
    }

    /// Whether this rank is the one that all ranks agree on.
    fn chosen(&self) -> bool {
        self.shared(4) % u64::from(self.world) == u64::from(self.rank)
    }
}

/// Scatters bits (the finaliser of SplitMix64, Steele et al. 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

macro_rules! integer {
    ($($type:ident)+) => {$(
        impl Sample for $type {
            #[allow(clippy::cast_sign_loss, clippy::cast_lossless, reason = "the bits, whatever the width")]
            fn bits(self) -> u64 {
                self as u64
            }

            #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the bits, cut to the width")]
            fn of_bits(bits: u64) -> $type {
                bits as $type
            }

            fn draw(op: Option<Op>, dice: &Dice) -> $type {
                let bits = dice.own(0);
                $type::of_bits(match op {
                    // Even factors would soon leave nothing but zeros.
                    Some(Op::Prod) => bits | 1,
                    // The same holds for single bits: mostly ones, so that many survive the `and` of many ranks.
                    Some(Op::BitAnd) => bits | dice.own(1) | dice.own(2),
                    Some(Op::BitOr) => bits & dice.own(1) & dice.own(2),
                    Some(Op::Sum | Op::Min | Op::Max | Op::Avg | Op::MulSum | Op::BitXor) | None => bits,
                })
            }

            fn reduce(op: Op, inputs: impl Iterator<Item = $type>) -> $type {
                let mut ranks = 0u32;
                let inputs = inputs.map(|input| {
                    let factor = if op == Op::MulSum { factor(ranks) } else { 1 };
                    ranks += 1;
                    input.wrapping_mul($type::of_bits(factor.into()))
                });
                let folded = inputs.reduce(|one, other| match op {
                    Op::Sum | Op::Avg | Op::MulSum => one.wrapping_add(other),
                    Op::Prod => one.wrapping_mul(other),
                    Op::Min => one.min(other),
                    Op::Max => one.max(other),
                    Op::BitAnd => one & other,
                    Op::BitOr => one | other,
                    Op::BitXor => one ^ other,
                });
                let folded = folded.expect("there is at least one rank");
                match op {
                    Op::Avg => (i128::from(folded) / i128::from(ranks)).try_into().expect("no greater than what is divided"),
                    _ => folded,
                }
            }
        }
    )+};
}

integer!(i8 u8 i32 u32 i64 u64);

/// What a float can hold.
struct Reach {
    /// Bits of the mantissa, the hidden one included.
    precision: u32,
    /// All powers of two from minus this to plus this are normal numbers, with any mantissa.
    exponent: u32,
}

impl Reach {
    fn draw(&self, op: Op, dice: &Dice) -> f64 {
        let whole = 1u64 << self.precision;
        match op {
            Op::Sum | Op::Avg => dice.share(whole) as f64 * power_of_two(self.shared_exponent(dice)),
            Op::MulSum => dice.share(whole / 2) as f64 * power_of_two(self.shared_exponent(dice)),
            Op::Prod => {
                let mantissa = if dice.chosen() { self.mantissa(dice) } else { 1.0 };
                let exponent = dice.share(self.exponent.into());
                mantissa * power_of_two(exponent) * sign(dice)
            }
            Op::Min | Op::Max => {
                let span = 2 * u64::from(self.exponent) + 1;
                let exponent = (dice.own(5) % span).cast_signed() - i64::from(self.exponent);
                self.mantissa(dice) * power_of_two(exponent) * sign(dice)
            }
            Op::BitAnd | Op::BitOr | Op::BitXor => unreachable!("floats have no bitwise operators: Op::fits says so"),
        }
    }

    /// From 1 up to 2.
    fn mantissa(&self, dice: &Dice) -> f64 {
        let half = 1u64 << (self.precision - 1);
        (half + dice.own(6) % half) as f64 / half as f64
    }

    /// An exponent for integers of `precision` bits.
    fn shared_exponent(&self, dice: &Dice) -> i64 {
        let reach = i64::from(self.exponent);
        let most = (reach - i64::from(self.precision)).min(MOST_EXPONENT);
        let least = (-reach).max(-MOST_EXPONENT);
        let span = (most - least + 1).cast_unsigned();
        least + (dice.shared(7) % span).cast_signed()
    }
}

/// The reduction of exact inputs, in f64; for `avg` the sum.
fn reduce_exactly(op: Op, inputs: impl Iterator<Item = f64>) -> (f64, u32) {
    let mut ranks = 0u32;
    let inputs = inputs.map(|input| {
        let factor = if op == Op::MulSum { factor(ranks) } else { 1 };
        ranks += 1;
        input * f64::from(factor)
    });
    let folded = inputs.reduce(|one, other| match op {
        Op::Sum | Op::Avg | Op::MulSum => one + other,
        Op::Prod => one * other,
        Op::Min => one.min(other),
        Op::Max => one.max(other),
        Op::BitAnd | Op::BitOr | Op::BitXor => unreachable!("floats have no bitwise operators: Op::fits says so"),
    });
    (folded.expect("there is at least one rank"), ranks)
}

fn sign(dice: &Dice) -> f64 {
    if dice.own(8).is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// 2 to the power `exponent`, which is that of a normal number.
fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits((exponent + 1023).cast_unsigned() << 52)
}

/// Exponents of sums lie between minus and plus this.
const MOST_EXPONENT: i64 = 20;

/// The quotient as the library defines it for types that accumulate in f32.
#[expect(clippy::cast_possible_truncation, reason = "the sum is exact in the narrower type already")]
fn quotient_in_f32(sum: f64, ranks: u32) -> f32 {
    sum as f32 / ranks as f32
}

macro_rules! bits_of {
    ($value:expr, F8E4M3) => {
        u64::from($value.0)
    };
    ($value:expr, F8E5M2) => {
        u64::from($value.0)
    };
    ($value:expr, f64) => {
        f64::to_bits($value)
    };
    ($value:expr, $type:ident) => {
        u64::from($type::to_bits($value))
    };
}
macro_rules! from_bits {
    ($bits:expr, F8E4M3) => {
        F8E4M3($bits as u8)
    };
    ($bits:expr, F8E5M2) => {
        F8E5M2($bits as u8)
    };
    ($bits:expr, f64) => {
        f64::from_bits($bits)
    };
    ($bits:expr, f32) => {
        f32::from_bits($bits as u32)
    };
    ($bits:expr, $type:ident) => {
        $type::from_bits($bits as u16)
    };
}

/// For each type: precision and exponent as in [`Reach`], the exact conversions from and to f64, and the average of a
/// sum.
macro_rules! float {
    ($($type:ident: $precision:literal, $exponent:literal, $to_f64:expr, $of_f64:expr, $average:expr;)+) => {$(
        impl Sample for $type {
            fn bits(self) -> u64 {
                bits_of!(self, $type)
            }

            #[allow(clippy::cast_possible_truncation, reason = "the bits, cut to the width")]
            fn of_bits(bits: u64) -> $type {
                from_bits!(bits, $type)
            }

            fn draw(op: Option<Op>, dice: &Dice) -> $type {
                const REACH: Reach = Reach { precision: $precision, exponent: $exponent };
                let of_f64: fn(f64) -> $type = $of_f64;
                op.map_or_else(|| $type::of_bits(dice.own(0)), |op| of_f64(REACH.draw(op, dice)))
            }

            fn reduce(op: Op, inputs: impl Iterator<Item = $type>) -> $type {
                let to_f64: fn($type) -> f64 = $to_f64;
                let of_f64: fn(f64) -> $type = $of_f64;
                let average: fn(f64, u32) -> $type = $average;
                let (folded, ranks) = reduce_exactly(op, inputs.map(to_f64));
                if op == Op::Avg { average(folded, ranks) } else { of_f64(folded) }
            }
        }
    )+};
}

float! {
    F8E4M3: 4, 6, |value| value.to_f32().into(), |value| F8E4M3::from_f32(narrow(value)),
        |sum, ranks| F8E4M3::from_f32(quotient_in_f32(sum, ranks));
    F8E5M2: 3, 14, |value| value.to_f32().into(), |value| F8E5M2::from_f32(narrow(value)),
        |sum, ranks| F8E5M2::from_f32(quotient_in_f32(sum, ranks));
    f16: 11, 14, f16::to_f64, f16::from_f64, |sum, ranks| f16::from_f32(quotient_in_f32(sum, ranks));
    bf16: 8, 120, bf16::to_f64, bf16::from_f64, |sum, ranks| bf16::from_f32(quotient_in_f32(sum, ranks));
    f32: 24, 120, f64::from, narrow, quotient_in_f32;
    f64: 53, 1000, |value| value, |value| value, |sum, ranks| sum / f64::from(ranks);
}

/// The f32 of the same value.
#[expect(clippy::cast_possible_truncation, reason = "the value is exact in the narrower type")]
fn narrow(value: f64) -> f32 {
    value as f32
}
