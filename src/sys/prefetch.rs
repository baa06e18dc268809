//! Hints for the processor's caches. They change nothing but speed, so any address may be given.

use std::ptr::NonNull;

/// Gives the hint of that name for the line at `$place`.
macro_rules! hint {
    ($x86_64:literal, $aarch64:literal, $place:ident) => {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a hint, which reads and writes no memory that the program can see.
        unsafe {
            std::arch::asm!($x86_64, in(reg) $place, options(nostack, preserves_flags, readonly));
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!($aarch64, in(reg) $place, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
        let _ = $place;
    };
}

/// Asks for the cache line at `place`, which is to be read soon.
#[inline]
pub fn to_read(place: *const u8) {
    hint!("prefetcht0 [{}]", "prfm pldl1keep, [{}]", place);
}

/// Asks for the cache line at `place`, which is to be written soon: while this rank does other things, the processor
/// takes the line from other processors' caches.
#[inline]
pub fn to_write(place: *const u8) {
    hint!("prefetchw [{}]", "prfm pstl1keep, [{}]", place);
}

/// [`to_write`] for the lines of `bytes` from `start` on.
#[inline]
pub fn all_to_write(start: NonNull<u8>, bytes: usize) {
    for at in (0..bytes).step_by(LINE_BYTES) {
        to_write(start.as_ptr().wrapping_add(at));
    }
}

const LINE_BYTES: usize = 64;
