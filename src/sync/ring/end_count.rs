//! What others see of an end of a ring.

use crate::sync::primitive::Ordering;
use crate::sys::rank_page::{HEAD_WORDS, RankPage};

/// Where an end of a ring counts what goes through it: messages and bytes, in two words of its rank's page, which
/// others read.
#[derive(Debug, Clone)]
pub struct EndCount {
    page: RankPage,
    /// The place of the messages; behind it the bytes.
    at: usize,
}

impl EndCount {
    /// In the words at `at` of the head of this page.
    ///
    /// # Panics
    /// Where the head has none.
    pub fn new(page: RankPage, at: usize) -> EndCount {
        assert!(at + 1 < HEAD_WORDS, "a place of the head");
        EndCount { page, at }
    }

    /// A message of so many bytes has gone through. One thread at a time counts.
    #[inline]
    pub fn add(&self, bytes: u64) {
        for (place, more) in [(self.at, 1), (self.at + 1, bytes)] {
            let word = &self.page.head[place];
            // Relaxed: each word stands for itself.
            word.store(word.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        }
    }
}
