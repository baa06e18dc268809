//! Cutting elements into parts.

use crate::types::Elements;

/// Long parts start at multiples of this many elements: so no two ranks share a cache line, and vectors start aligned.
const UNIT: u64 = 64;

/// Parts of fewer units than this are cut to the element, so that they stay even.
const UNITS_WORTH: u64 = 4;

/// Neighbouring elements of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    /// The first.
    pub(super) start: Elements,
    /// How many.
    pub(super) length: Elements,
}

impl Range {
    /// The first `length` elements.
    pub(super) fn first(length: Elements) -> Range {
        Range { start: Elements::ZERO, length }
    }

    /// Part `index` of `parts` that are as even as their alignment allows, and cover the range in order.
    pub(super) fn cut(self, parts: usize, index: usize) -> Range {
        if parts == 1 {
            return self;
        }
        let total = self.length.0;
        let many = u64::try_from(parts).expect("a usize fits 64 bits");
        let even = many.checked_mul(UNIT * UNITS_WORTH).is_some_and(|least| total >= least);
        let unit = if even { UNIT } else { 1 };
        let units = total.div_ceil(unit);
        let edge = |index: usize| share(units, index, many).saturating_mul(unit).min(total);
        let start = edge(index);
        Range { start: self.start + Elements(start), length: Elements(edge(index + 1) - start) }
    }
}

/// `units * index / many`, where `index` is at most `many`.
fn share(units: u64, index: usize, many: u64) -> u64 {
    let index = u64::try_from(index).expect("a usize fits 64 bits");
    match units.checked_mul(index) {
        Some(product) => product / many,
        None => {
            let share = u128::from(units) * u128::from(index) / u128::from(many);
            u64::try_from(share).expect("a share is no more than the whole")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_range_in_order() {
        for total in [0, 1, 5, 63, 64, 1000, 4096, 100_003, u64::MAX] {
            for parts in [1, 2, 3, 7, 32] {
                let whole = Range { start: Elements(0), length: Elements(total) };
                let mut next = 0;
                for index in 0..parts {
                    let part = whole.cut(parts, index);
                    assert_eq!(part.start.0, next, "{total} in {parts}");
                    next += part.length.0;
                }
                assert_eq!(next, total);
            }
        }
        assert_eq!(Range::first(Elements(10)).cut(3, 1), Range { start: Elements(3), length: Elements(3) });
        assert_eq!(Range::first(Elements(4096)).cut(3, 1).start, Elements(1344));
    }
}
