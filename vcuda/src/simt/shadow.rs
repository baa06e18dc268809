//! The shadow of global memory: what each 16 bytes held before they were last overwritten, and when and by whom.
//!
//! ```text
//! offset  width  of each 32 bytes, which belong to 16 bytes of memory
//!      0      8  time of the last overwrite; bit 63 of the first granule of a 128-byte line is the line's lock
//!      8      4  the process and GPU that overwrote
//!     12      4  the block that overwrote, among the blocks of that process
//!     16     16  the bytes before
//! ```
//! Processes share it with the memory itself. All of a line's granules are read and written under the line's lock, so a
//! line that is stored as one (LL128) is also seen as one.

use super::memory::{Extent, SHADOW_BYTES_PER_16};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes that one shadow entry describes.
pub(super) const GRANULE: u64 = 16;
/// Bytes under one lock.
pub(super) const LINE: u64 = 128;
const LOCKED: u64 = 1 << 63;
/// Looks at a lock before it is taken from its owner, who must have been killed.
const PATIENCE: u32 = 50_000_000;

/// Who overwrites: a process and GPU, and a block of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Writer {
    pub(super) actor: u32,
    pub(super) block: u32,
}

/// The shadow of a granule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shadow {
    at: *mut u8,
}

/// A locked line; it is unlocked when this is dropped.
#[derive(Debug)]
pub(super) struct Line {
    lock: *mut u8,
}

fn word(at: *mut u8) -> &'static AtomicU64 {
    // SAFETY: the driver promises shadow for every line of an extent, mapped while kernels run, aligned to 32 bytes, and
    // everybody uses it through atomics.
    unsafe { AtomicU64::from_ptr(at.cast()) }
}

fn half_word(at: *mut u8) -> &'static AtomicU32 {
    // SAFETY: as for `word`.
    unsafe { AtomicU32::from_ptr(at.cast()) }
}

impl Shadow {
    /// The shadow of the granule of `address`; None where the memory has none.
    pub(super) fn of(extent: &Extent, address: u64) -> Option<Self> {
        if extent.shadow.is_null() {
            return None;
        }
        let granule = usize::try_from((address - extent.start) / GRANULE).expect("a host has as many addresses");
        Some(Self { at: extent.shadow.wrapping_add(granule * SHADOW_BYTES_PER_16) })
    }

    /// When it was overwritten last, and by whom.
    pub(super) fn overwritten(self) -> (u64, Writer) {
        let time = word(self.at).load(Ordering::Acquire) & !LOCKED;
        let actor = half_word(self.at.wrapping_add(8)).load(Ordering::Relaxed);
        let block = half_word(self.at.wrapping_add(12)).load(Ordering::Relaxed);
        (time, Writer { actor, block })
    }

    /// The `bytes` at `address` before the last overwrite.
    pub(super) fn before(self, address: u64, bytes: u32) -> u64 {
        let offset = address % GRANULE;
        let half = word(self.at.wrapping_add(if offset < 8 { 16 } else { 24 })).load(Ordering::Relaxed);
        half >> (8 * (offset % 8)) & (u64::MAX >> (64 - 8 * bytes))
    }

    /// Notes an overwrite; `present` are the granule's two halves as they are now.
    pub(super) fn note(self, time: u64, writer: Writer, present: [u64; 2]) {
        half_word(self.at.wrapping_add(8)).store(writer.actor, Ordering::Relaxed);
        half_word(self.at.wrapping_add(12)).store(writer.block, Ordering::Relaxed);
        word(self.at.wrapping_add(16)).store(present[0], Ordering::Relaxed);
        word(self.at.wrapping_add(24)).store(present[1], Ordering::Relaxed);
        let lock = word(self.at).load(Ordering::Relaxed) & LOCKED;
        word(self.at).store(lock | time, Ordering::Release);
    }
}

impl Line {
    /// Locks the line of `address`; None where the memory has no shadow.
    pub(super) fn lock(extent: &Extent, address: u64) -> Option<Self> {
        let lock = Shadow::of(extent, address & !(LINE - 1))?.at;
        let mut looks = 0;
        while word(lock).fetch_or(LOCKED, Ordering::Acquire) & LOCKED != 0 {
            looks += 1;
            if looks > PATIENCE {
                break;
            }
            std::hint::spin_loop();
        }
        Some(Self { lock })
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        word(self.lock).fetch_and(!LOCKED, Ordering::Release);
    }
}
