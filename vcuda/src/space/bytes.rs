//! Reading and writing of memory that kernels, other processes and the host may use at the same time.
//!
//! Aligned words are moved whole, by relaxed atomics: an 8-byte copy is how programs write flags.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Copies, whole words where both sides are aligned.
///
/// # Safety
///
/// Both ranges are mapped for as long as the call lasts, `target` writable, and they do not overlap.
pub(super) unsafe fn copy(target: *mut u8, source: *const u8, bytes: usize) {
    let mut done = 0;
    let aligned = (target.addr() | source.addr()).is_multiple_of(8);
    while aligned && done + 8 <= bytes {
        // SAFETY: in range and aligned, by the caller's word and the test above.
        let from = unsafe { AtomicU64::from_ptr(source.wrapping_add(done).cast_mut().cast()) };
        // SAFETY: as for the source.
        let to = unsafe { AtomicU64::from_ptr(target.wrapping_add(done).cast()) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        done += 8;
    }
    if (target.addr() | source.addr()).is_multiple_of(4) && done + 4 <= bytes {
        // SAFETY: in range and aligned, by the caller's word and the test above.
        let from = unsafe { AtomicU32::from_ptr(source.wrapping_add(done).cast_mut().cast()) };
        // SAFETY: as for the source.
        let to = unsafe { AtomicU32::from_ptr(target.wrapping_add(done).cast()) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        done += 4;
    }
    while done < bytes {
        // SAFETY: in range, by the caller's word.
        let from = unsafe { AtomicU8::from_ptr(source.wrapping_add(done).cast_mut()) };
        // SAFETY: as for the source.
        let to = unsafe { AtomicU8::from_ptr(target.wrapping_add(done)) };
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        done += 1;
    }
}

/// Fills with copies of a pattern of 1, 2 or 4 bytes, to whose size `target` is aligned.
///
/// # Safety
///
/// The range is mapped and writable for as long as the call lasts.
pub(super) unsafe fn fill(target: *mut u8, pattern: &[u8], count: usize) {
    let one = |at: usize| {
        // SAFETY: in range, by the caller's word; a pattern is on this stack.
        unsafe { copy(target.wrapping_add(at), pattern.as_ptr(), pattern.len()) };
    };
    let (bytes, step) = (count * pattern.len(), pattern.len());
    let first_word = (target.addr().next_multiple_of(8) - target.addr()).min(bytes);
    (0..first_word).step_by(step).for_each(one);
    // A pattern's length divides 8, so every aligned word looks the same.
    let word = u64::from_ne_bytes(std::array::from_fn(|index| pattern[index % step]));
    let mut at = first_word;
    while at + 8 <= bytes {
        // SAFETY: in range and aligned, by the caller's word and the choice of the first.
        unsafe { AtomicU64::from_ptr(target.wrapping_add(at).cast()) }.store(word, Ordering::Relaxed);
        at += 8;
    }
    (at..bytes).step_by(step).for_each(one);
}

/// Sets the bits of `bytes` bytes from bit `first` on.
///
/// # Safety
///
/// The bits are mapped for as long as the call lasts.
pub(super) unsafe fn set_bits(bits: *mut u8, first: usize, bytes: usize) {
    let mut at = first;
    while at < first + bytes {
        // SAFETY: the byte holds one of the bits, which are mapped.
        let byte = unsafe { AtomicU8::from_ptr(bits.wrapping_add(at / 8)) };
        if at.is_multiple_of(8) && at + 8 <= first + bytes {
            byte.store(0xFF, Ordering::Relaxed);
            at += 8;
        } else {
            byte.fetch_or(1 << (at % 8), Ordering::Relaxed);
            at += 1;
        }
    }
}

/// Copies bits; `target` and `source` are the bits and the first of them.
///
/// # Safety
///
/// Both are mapped for as long as the call lasts.
pub(super) unsafe fn copy_bits(target: (*mut u8, usize), source: (*mut u8, usize), bytes: usize) {
    let mut done = 0;
    while done < bytes {
        let (from, to) = (source.1 + done, target.1 + done);
        if from % 8 == 0 && to % 8 == 0 && done + 8 <= bytes {
            // SAFETY: all eight bits are mapped.
            let read = unsafe { AtomicU8::from_ptr(source.0.wrapping_add(from / 8)) };
            // SAFETY: as above.
            let write = unsafe { AtomicU8::from_ptr(target.0.wrapping_add(to / 8)) };
            write.store(read.load(Ordering::Relaxed), Ordering::Relaxed);
            done += 8;
            continue;
        }
        // SAFETY: the byte holds one of the bits, which are mapped.
        let read = unsafe { AtomicU8::from_ptr(source.0.wrapping_add(from / 8)) };
        // SAFETY: as above.
        let write = unsafe { AtomicU8::from_ptr(target.0.wrapping_add(to / 8)) };
        if read.load(Ordering::Relaxed) >> (from % 8) & 1 == 1 {
            write.fetch_or(1 << (to % 8), Ordering::Relaxed);
        } else {
            write.fetch_and(!(1 << (to % 8)), Ordering::Relaxed);
        }
        done += 1;
    }
}

/// Loads a word of 4 or 8 bytes, whole, ordered before all that follows.
///
/// # Safety
///
/// The word is mapped and aligned.
pub(super) unsafe fn load(address: *mut u8, wide: bool) -> u64 {
    // Acquire: what was written before the word is visible to what runs after the wait.
    if wide {
        // SAFETY: the caller's word.
        unsafe { AtomicU64::from_ptr(address.cast()) }.load(Ordering::Acquire)
    } else {
        // SAFETY: the caller's word.
        u64::from(unsafe { AtomicU32::from_ptr(address.cast()) }.load(Ordering::Acquire))
    }
}

/// Stores a word of 4 or 8 bytes, whole, after all that came before.
///
/// # Safety
///
/// The word is mapped, aligned and writable.
pub(super) unsafe fn store(address: *mut u8, wide: bool, value: u64) {
    // Release: a memory operation is preceded by a fence over the whole system.
    if wide {
        // SAFETY: the caller's word.
        unsafe { AtomicU64::from_ptr(address.cast()) }.store(value, Ordering::Release);
    } else {
        let low = u32::try_from(value & u64::from(u32::MAX)).unwrap_or(0);
        // SAFETY: the caller's word.
        unsafe { AtomicU32::from_ptr(address.cast()) }.store(low, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_of_every_width_and_offset() {
        for step in [1, 2, 4] {
            for (first, count) in [(0, 0), (0, 1), (0, 37), (4, 1), (4, 2), (4, 29), (8 - step, 20)] {
                let mut words = [u64::MAX; 24];
                let pattern = &[1_u8, 2, 3, 4][..step];
                // SAFETY: an array of this test, longer than what is filled, and aligned to the pattern.
                unsafe { fill(words.as_mut_ptr().cast::<u8>().wrapping_add(first), pattern, count) };
                let found: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let want = (0..192).map(|at: usize| match at.checked_sub(first) {
                    Some(offset) if offset < count * step => pattern[offset % step],
                    _ => u8::MAX,
                });
                assert_eq!(found, want.collect::<Vec<_>>(), "{step} bytes, {count} times from {first}");
            }
        }
    }

    #[test]
    fn bits_of_unequal_offsets() {
        let mut source = [0_u8; 4];
        let mut target = [0xFF_u8; 4];
        // SAFETY: both are arrays of this test, longer than what is asked for.
        unsafe { set_bits(source.as_mut_ptr(), 3, 18) };
        assert_eq!(source, [0b1111_1000, 0xFF, 0b0001_1111, 0]);
        // SAFETY: as above.
        unsafe { copy_bits((target.as_mut_ptr(), 0), (source.as_mut_ptr(), 3), 24) };
        assert_eq!(target, [0xFF, 0xFF, 0b0000_0011, 0xFF]);
        // SAFETY: as above; three bits alone, then a byte of them at once.
        unsafe { copy_bits((target.as_mut_ptr(), 5), (source.as_mut_ptr(), 13), 11) };
        assert_eq!(target, [0xFF, 0b0001_1111, 0b0000_0011, 0xFF]);
    }
}
