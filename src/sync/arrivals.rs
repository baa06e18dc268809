//! A count of those who have come, so that the last of them knows that it is the last.

use std::ptr::NonNull;

use crate::sync::primitive::{AtomicU64, Ordering};

/// A counter in shared memory, zeroed at first. As many come in each round, and nobody comes to the next round before
/// the round is full.
#[derive(Debug)]
#[repr(transparent)]
pub struct Arrivals(AtomicU64);

impl Arrivals {
    /// The counter at `place`.
    ///
    /// # Safety
    /// `place` is aligned to 8 bytes and points to 8 bytes of zeroed or counter memory that stay mapped for `'a`, and
    /// every access to them goes through `Arrivals`.
    pub unsafe fn at<'a>(place: NonNull<u8>) -> &'a Arrivals {
        // SAFETY: the caller keeps alignment, size and life; any bit pattern is a valid counter, and all access is
        // atomic.
        unsafe { place.cast::<Arrivals>().as_ref() }
    }

    /// Comes to a round of `all`. True for the last of them, which then sees what the others wrote before they came.
    #[inline]
    pub fn arrive(&self, all: usize) -> bool {
        // Release: what this one wrote is for the last. Acquire: the last sees what all wrote, since each addition
        // continues the release sequence of those before it.
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        (before + 1).is_multiple_of(all as u64)
    }
}

#[cfg(all(test, loom))]
pub(crate) mod models {
    use super::*;

    impl Arrivals {
        /// Constructs a counter at `place`: loom numbers its atomics, so zeroed memory is no valid one.
        ///
        /// # Safety
        /// As [`Arrivals::at`], before any other access to the place.
        pub(crate) unsafe fn lay(place: NonNull<u8>) {
            // SAFETY: the caller keeps size, alignment and solitude.
            unsafe { place.cast::<Arrivals>().write(Arrivals(AtomicU64::new(0))) };
        }
    }
}
