//! Which bytes of a pool are in blocks, and which are free.
//!
//! A block's length is rounded up to a class: four of them to each doubling, so that a block that is freed fits the
//! next one of about its length. The shortest free range that is long enough is cut; free neighbours become one range.

use std::collections::{BTreeMap, BTreeSet};

/// The blocks of a pool. Its own memory is no part of the pool, where peers might write it.
#[derive(Debug)]
pub(super) struct PoolBlocks {
    /// Where free ranges begin, and how long they are.
    free: BTreeMap<usize, usize>,
    /// The same by length.
    by_length: BTreeSet<(usize, usize)>,
    /// Where blocks begin, and how long they are.
    taken: BTreeMap<usize, usize>,
    taken_bytes: usize,
    /// Behind all blocks that may have memory.
    high: usize,
}

impl PoolBlocks {
    /// `bytes` without a block.
    pub(super) fn new(bytes: usize) -> PoolBlocks {
        let mut blocks = PoolBlocks {
            free: BTreeMap::new(),
            by_length: BTreeSet::new(),
            taken: BTreeMap::new(),
            taken_bytes: 0,
            high: 0,
        };
        blocks.insert_free(0, bytes - bytes % LEAST_BLOCK);
        blocks
    }

    /// A block of at least `bytes`, which begins at a multiple of `align`, a power of two; where it begins. `None`
    /// where no free range is long enough.
    pub(super) fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let length = class_of(bytes)?;
        let align = align.max(if length >= LONG_BLOCK { PAGE_BYTES } else { LEAST_BLOCK });
        let fits = |(free, start): (usize, usize)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(length)? <= start + free).then_some((start, free, at))
        };
        // Ranges that are long enough for any beginning come after at most a few that are not.
        let (start, free, at) = self.by_length.range((length, 0)..).find_map(|range| fits(*range))?;
        self.remove_free(start, free);
        self.insert_free(start, at - start);
        self.insert_free(at + length, start + free - (at + length));
        self.taken.insert(at, length);
        self.taken_bytes += length;
        self.high = self.high.max(at + length);
        Some(at)
    }

    /// Frees the block that begins at `at`; its length, or `None` where none begins there.
    pub(super) fn give(&mut self, at: usize) -> Option<usize> {
        let length = self.taken.remove(&at)?;
        self.taken_bytes -= length;
        let (mut start, mut end) = (at, at + length);
        let before = self.free.range(..at).next_back().map(|(start, length)| (*start, *length));
        if let Some((first, length)) = before.filter(|(first, length)| first + length == at) {
            self.remove_free(first, length);
            start = first;
        }
        if let Some(length) = self.free.get(&end).copied() {
            self.remove_free(end, length);
            end += length;
        }
        self.insert_free(start, end - start);
        Some(length)
    }

    /// How long the block that begins at `at` is.
    pub(super) fn length(&self, at: usize) -> Option<usize> {
        self.taken.get(&at).copied()
    }

    /// The bytes of all blocks.
    pub(super) fn taken_bytes(&self) -> usize {
        self.taken_bytes
    }

    /// Behind all blocks that may have memory.
    pub(super) fn high(&self) -> usize {
        self.high
    }

    /// Nothing from `high` on has memory, but what is in blocks.
    pub(super) fn set_high(&mut self, high: usize) {
        self.high = high.max(self.end());
    }

    /// Behind the last block.
    pub(super) fn end(&self) -> usize {
        self.taken.last_key_value().map_or(0, |(at, length)| at + length)
    }

    /// The free ranges: where they begin, and how long they are.
    pub(super) fn free(&self) -> impl Iterator<Item = (usize, usize)> {
        self.free.iter().map(|(start, length)| (*start, *length))
    }

    fn insert_free(&mut self, start: usize, length: usize) {
        if length > 0 {
            self.free.insert(start, length);
            self.by_length.insert((length, start));
        }
    }

    fn remove_free(&mut self, start: usize, length: usize) {
        self.free.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

/// The length of a block for `bytes`; `None` beyond the address space.
fn class_of(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(LEAST_BLOCK);
    if bytes > isize::MAX.cast_unsigned() / 2 {
        return None;
    }
    // Of a long block the rest of a page is the most that is worth keeping free.
    let step = (1usize << bytes.ilog2()) / CLASSES_A_DOUBLING;
    Some(bytes.next_multiple_of(step.clamp(LEAST_BLOCK, PAGE_BYTES)))
}

/// A line of the caches: two threads' blocks share none.
const LEAST_BLOCK: usize = 64;
const CLASSES_A_DOUBLING: usize = 4;
const PAGE_BYTES: usize = 4096;
/// From here on blocks begin with a page.
const LONG_BLOCK: usize = 64 << 10;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn classes_are_close_and_blocks_begin_where_they_must() {
        for bytes in [0, 1, 63, 64, 65, 700, 5000, 100_001, 3 << 20, (1 << 30) + 1] {
            let class = class_of(bytes).unwrap();
            let is_close = class >= bytes.max(64) && class <= bytes + bytes / 4 + 64;
            assert!(is_close && class.is_multiple_of(64), "{bytes} {class}");
        }
        assert_eq!(class_of(usize::MAX), None);
        let mut blocks = PoolBlocks::new(1 << 20);
        assert_eq!(blocks.take(1, 1), Some(0));
        assert_eq!(blocks.take(64 << 10, 1), Some(4096), "a long one begins with a page");
        assert_eq!(blocks.take(100, 1 << 16), Some(2 << 16));
        assert_eq!(blocks.take(10, 1), Some(64), "what lies before them is not lost");
        assert_eq!((blocks.take(1 << 20, 1), blocks.take(usize::MAX, 1)), (None, None));
        // Regression: a block that had been refused counted as memory that was there.
        let (high, refused) = (blocks.high(), blocks.take(300 << 10, 1).unwrap());
        assert!(blocks.high() > high && blocks.give(refused).is_some());
        blocks.set_high(high);
        assert_eq!((blocks.high(), blocks.end()), (high, high));
        blocks.set_high(0);
        assert_eq!(blocks.high(), high, "blocks have memory");
    }

    /// A random life against a plain list.
    #[test]
    fn blocks_never_overlap_and_all_come_back_as_one_range() {
        const BYTES: usize = 1 << 20;
        let mut state = 0x5eed_u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        let (mut blocks, mut known) = (PoolBlocks::new(BYTES), Vec::<(usize, usize)>::new());
        for step in 0..20_000 {
            if random(5) < 3 {
                let most = if random(9) == 0 { 100_000 } else { 3000 };
                let (bytes, align) = (1 + random(most), 1 << random(13));
                let Some(at) = blocks.take(bytes, align) else { continue };
                let length = blocks.length(at).unwrap();
                assert!(at.is_multiple_of(align) && length >= bytes && at + length <= BYTES, "step {step}");
                assert!(known.iter().all(|(other, long)| at + length <= *other || other + long <= at), "step {step}");
                known.push((at, length));
            } else if !known.is_empty() {
                let (at, length) = known.swap_remove(random(known.len()));
                assert_eq!(blocks.give(at), Some(length), "step {step}");
                assert_eq!(blocks.give(at), None, "step {step}: freed once");
            }
            let (taken, free): (usize, usize) =
                (known.iter().map(|(_, long)| long).sum(), blocks.free().map(|(_, long)| long).sum());
            assert_eq!((taken, taken + free), (blocks.taken_bytes(), BYTES), "step {step}");
        }
        for (at, _) in known {
            blocks.give(at);
        }
        assert_eq!(blocks.free().collect::<Vec<_>>(), [(0, BYTES)]);
        assert!(blocks.high() <= BYTES && blocks.taken_bytes() == 0);
    }
}
