//! The operators as functions of two values.
#![forbid(unsafe_code)]

use crate::device::host::lane::Wide;

/// An operator on accumulators of type `W`.
pub(super) trait Fold<W>: 'static {
    /// Whether the kernel may have a scalar or a divisor.
    const SCALES: bool = false;

    /// Folds the next value into the accumulator.
    fn fold(accumulator: W, next: W) -> W;
}

/// x + y
pub(super) struct Sum;
/// sx + ty, or (x + y) / n. A separate type, so that the plain sum has no code for it.
pub(super) struct ScaledSum;
/// x · y
pub(super) struct Prod;
/// The minimum.
pub(super) struct Min;
/// The maximum.
pub(super) struct Max;
/// x & y
pub(super) struct And;
/// x | y
pub(super) struct Or;
/// x ^ y
pub(super) struct Xor;

impl<W: Wide> Fold<W> for Sum {
    #[inline(always)]
    fn fold(accumulator: W, next: W) -> W {
        accumulator.plus(next)
    }
}

impl<W: Wide> Fold<W> for ScaledSum {
    const SCALES: bool = true;

    #[inline(always)]
    fn fold(accumulator: W, next: W) -> W {
        accumulator.plus(next)
    }
}

impl<W: Wide> Fold<W> for Prod {
    #[inline(always)]
    fn fold(accumulator: W, next: W) -> W {
        accumulator.times(next)
    }
}

impl<W: Wide> Fold<W> for Min {
    #[inline(always)]
    fn fold(accumulator: W, next: W) -> W {
        accumulator.lesser(next)
    }
}

impl<W: Wide> Fold<W> for Max {
    #[inline(always)]
    fn fold(accumulator: W, next: W) -> W {
        accumulator.greater(next)
    }
}

impl Fold<u8> for And {
    #[inline(always)]
    fn fold(accumulator: u8, next: u8) -> u8 {
        accumulator & next
    }
}

impl Fold<u8> for Or {
    #[inline(always)]
    fn fold(accumulator: u8, next: u8) -> u8 {
        accumulator | next
    }
}

impl Fold<u8> for Xor {
    #[inline(always)]
    fn fold(accumulator: u8, next: u8) -> u8 {
        accumulator ^ next
    }
}
