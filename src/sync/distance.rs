//! How far apart the two ends of a ring run: near, where their processors share a cache, or far.
//!
//! The system does not tell: schedulers move ranks, and hypervisors move the processors of their machines. So a sender
//! now and then measures how long it takes to read a line that the other end has written since the last read. Measured
//! on a virtual AMD EPYC, with the two looks at the clock: 20 to 80 ns between near processors, 100 to 170 between far
//! ones.

use std::time::{Duration, Instant};

use crate::sys::clock;

/// What one end of a ring knows of the way to the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Distance {
    is_far: bool,
    /// How many reads in a row have said the opposite.
    against: u8,
    /// Reads that were timed: tests count them.
    reads: u32,
}

impl Distance {
    /// Whether the other end is known to be far. Until something is known, it is near.
    #[inline]
    pub fn is_far(self) -> bool {
        self.is_far
    }

    /// Reads what the other end has written, and learns from the time that this takes where that `is_new`: otherwise
    /// the line has not left this end since the last read.
    #[inline(never)]
    pub fn timed<T>(&mut self, read: impl FnOnce() -> T, is_new: impl FnOnce(&T) -> bool) -> T {
        let begun: Instant = clock::now();
        let value = read();
        let took = clock::now().duration_since(begun);
        if is_new(&value) {
            self.learn(took);
        }
        value
    }

    /// Far from the beginning.
    #[cfg(all(test, not(loom)))]
    pub fn far() -> Distance {
        Distance { is_far: true, ..Distance::default() }
    }

    /// How many reads were timed.
    #[cfg(all(test, not(loom)))]
    pub fn reads(self) -> u32 {
        self.reads
    }

    fn learn(&mut self, took: Duration) {
        self.reads = self.reads.wrapping_add(1);
        if (took >= FAR) == self.is_far {
            self.against = 0;
            return;
        }
        self.against += 1;
        if self.against == VOTES {
            (self.is_far, self.against) = (!self.is_far, 0);
        }
    }
}

/// The time of a read from which the other end is far.
const FAR: Duration = Duration::from_nanos(100);
/// Reads in a row that change what is known: a single one may have been interrupted.
const VOTES: u8 = 3;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn one_slow_read_says_nothing_and_three_in_a_row_do() {
        let mut distance = Distance::default();
        let mut learn = |nanoseconds: u64| {
            distance.learn(Duration::from_nanos(nanoseconds));
            distance.is_far()
        };
        assert_eq!([60, 50_000, 70, 400, 400].map(&mut learn), [false; 5]);
        assert_eq!([60, 400, 400, 400, 60, 400].map(&mut learn), [false, false, false, true, true, true]);
        assert_eq!([60, 60, 400, 60, 60, 60].map(&mut learn), [true, true, true, true, true, false]);
    }
}
